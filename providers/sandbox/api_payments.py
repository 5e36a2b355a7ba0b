"""/v1/payment_intents and /v1/charges: enough of a payment to have something to refund."""

from typing import TYPE_CHECKING

from . import api_customers, currencies, errors, events, forms, ids, listing, refund_states
from .call import Call
from .errors import StripeError, invalid
from .forms import Params
from .listing import Object

if TYPE_CHECKING:
    from .store import Account, World

CREATE_PARAMS = frozenset(
    {
        "amount",
        "application_fee_amount",
        "automatic_payment_methods",
        "capture_method",
        "confirm",
        "confirmation_method",
        "currency",
        "customer",
        "description",
        "metadata",
        "off_session",
        "on_behalf_of",
        "payment_method",
        "payment_method_options",
        "payment_method_types",
        "receipt_email",
        "return_url",
        "shipping",
        "statement_descriptor",
        "statement_descriptor_suffix",
        "transfer_data",
    }
)
CONFIRM_PARAMS = frozenset({"payment_method", "return_url", "off_session", "receipt_email"})
CAPTURE_PARAMS = frozenset({"amount_to_capture", "metadata"})
LIST_PARAMS = listing.LIST_PARAMS | {"created", "customer"}
CHARGES_LIST_PARAMS = LIST_PARAMS | {"payment_intent"}


def check_create(params: Params) -> None:
    forms.required(params, "amount", "currency")
    forms.integer(params, "amount", minimum=1)
    for name in ("currency", "customer", "description", "payment_method", "receipt_email"):
        forms.text(params, name)
    forms.choice(params, "capture_method", ("automatic", "automatic_async", "manual"))
    forms.boolean(params, "confirm")
    forms.metadata(params)


def create(call: Call) -> Object:
    params = call.params
    currency = str(params["currency"]).lower()
    amount_minor = forms.integer(params, "amount", minimum=1) or 0
    currencies.check_amount(amount_minor, currency)
    customer = params.get("customer")
    if customer is not None and call.account.get("customer", customer) is None:
        raise api_customers.unknown_customer(customer)
    intent = new_intent(
        call.world,
        call.account,
        amount_minor=amount_minor,
        currency=currency,
        capture_method=params.get("capture_method", "automatic_async"),
        payment_method=params.get("payment_method"),
        metadata=forms.merged_metadata({}, forms.metadata(params)),
        customer=customer,
        description=params.get("description"),
        receipt_email=params.get("receipt_email"),
        call=call,
    )
    if forms.boolean(params, "confirm"):
        pay(call.world, call.account, intent, call=call)
    return listing.wire(intent)


def retrieve(call: Call) -> Object:
    return listing.wire(_intent(call))


def check_confirm(params: Params) -> None:
    forms.text(params, "payment_method")


def confirm(call: Call) -> Object:
    intent = _intent(call)
    if "payment_method" in call.params:
        intent["payment_method"] = call.params["payment_method"]
        intent["_payment_method"] = call.params["payment_method"]
    if intent["status"] not in ("requires_payment_method", "requires_confirmation"):
        raise _unexpected_state("confirm", intent)
    pay(call.world, call.account, intent, call=call)
    return listing.wire(intent)


def check_capture(params: Params) -> None:
    forms.integer(params, "amount_to_capture", minimum=1)
    forms.metadata(params)


def capture(call: Call) -> Object:
    intent = _intent(call)
    if intent["status"] != "requires_capture":
        raise _unexpected_state("capture", intent)
    amount_minor = forms.integer(call.params, "amount_to_capture", minimum=1) or intent["amount"]
    if amount_minor > intent["amount"]:
        raise invalid(
            "The amount to capture is greater than was authorized.", param="amount_to_capture"
        )
    charge = call.account.table("charge")[intent["latest_charge"]]
    charge["captured"] = True
    charge["amount_captured"] = amount_minor
    intent["status"] = "succeeded"
    intent["amount_received"] = amount_minor
    _received(call.world, call.account, charge)
    call.world.put(call.account, charge)
    call.world.put(call.account, intent)
    events.emit(call.world, call.account, "charge.captured", charge, call=call)
    events.emit(call.world, call.account, "payment_intent.succeeded", intent, call=call)
    return listing.wire(intent)


def check_list(params: Params) -> None:
    listing.check_cursors(params)
    forms.time_range(params, "created")


def list_all(call: Call) -> Object:
    return _list(call, "payment_intent", "/v1/payment_intents")


def retrieve_charge(call: Call) -> Object:
    charge = call.account.get("charge", call.ids[0])
    if charge is None:
        raise errors.missing("charge", call.ids[0])
    return listing.wire(charge)


def list_charges(call: Call) -> Object:
    return _list(call, "charge", "/v1/charges")


# What the endpoints and the control API share


def new_intent(
    world: "World",
    account: "Account",
    *,
    amount_minor: int,
    currency: str,
    capture_method: str = "automatic_async",
    payment_method: str | None = None,
    metadata: dict[str, str] | None = None,
    customer: str | None = None,
    description: str | None = None,
    receipt_email: str | None = None,
    id: str | None = None,
    call: Call | None = None,
) -> Object:
    intent: Object = {
        "id": id or ids.new("pi", ids.infix()),
        "object": "payment_intent",
        "amount": amount_minor,
        "amount_capturable": 0,
        "amount_received": 0,
        "capture_method": capture_method,
        "client_secret": None,
        "confirmation_method": "automatic",
        "created": int(world.clock.now()),
        "currency": currency,
        "customer": customer,
        "description": description,
        "last_payment_error": None,
        "latest_charge": None,
        "livemode": False,
        "metadata": metadata or {},
        "next_action": None,
        "payment_method": payment_method,
        "payment_method_types": ["card"],
        "receipt_email": receipt_email,
        "status": "requires_confirmation" if payment_method else "requires_payment_method",
        "_payment_method": payment_method,
    }
    intent["client_secret"] = f"{intent['id']}_secret_{ids.letters(25)}"
    world.put(account, intent)
    events.emit(world, account, "payment_intent.created", intent, call=call)
    return intent


def pay(
    world: "World",
    account: "Account",
    intent: Object,
    *,
    behaviour: str | None = None,
    charge_id: str | None = None,
    call: Call | None = None,
) -> Object:
    """Charge the payment method at once. Raises StripeError 402 for pm_card_chargeDeclined."""
    method = intent["_payment_method"]
    if method is None:
        raise invalid(
            "You cannot confirm this PaymentIntent because it's missing a payment method.",
            param="payment_method",
        )
    declined = method in ("pm_card_chargeDeclined", "pm_card_visa_chargeDeclined")
    manual = intent["capture_method"] == "manual"
    is_card = behaviour != "requires-action" and method != "pm_sandbox_requiresAction"
    charge: Object = {
        "id": charge_id or ids.new("ch", ids.infix_of(intent["id"])),
        "object": "charge",
        "amount": intent["amount"],
        "amount_captured": 0 if manual or declined else intent["amount"],
        "amount_refunded": 0,
        "balance_transaction": None,
        "billing_details": {
            "address": None,
            "email": None,
            "name": None,
            "phone": None,
            "tax_id": None,
        },
        "captured": not manual and not declined,
        "created": int(world.clock.now()),
        "currency": intent["currency"],
        "customer": intent["customer"],
        "description": intent["description"],
        "disputed": False,
        "failure_code": "card_declined" if declined else None,
        "failure_message": "Your card was declined." if declined else None,
        "livemode": False,
        "metadata": dict(intent["metadata"]),
        "paid": not declined,
        "payment_intent": intent["id"],
        "payment_method": ids.new("pm"),
        "payment_method_details": {"card": {"brand": "visa", "last4": "4242"}, "type": "card"}
        if is_card
        else {"customer_balance": {}, "type": "customer_balance"},
        "receipt_email": intent.get("receipt_email"),
        "refunded": False,
        "status": "failed" if declined else "succeeded",
        "_behaviour": behaviour or refund_states.BEHAVIOURS.get(method, "succeed"),
    }
    world.put(account, charge)
    if declined:
        intent["status"] = "requires_payment_method"
        intent["payment_method"] = intent["_payment_method"] = None
        world.put(account, intent)
        events.emit(world, account, "charge.failed", charge, call=call)
        raise StripeError(
            status=402,
            type="card_error",
            code="card_declined",
            message="Your card was declined.",
            decline_code="generic_decline",
            charge=charge["id"],
        )
    intent["latest_charge"] = charge["id"]
    intent["payment_method"] = charge["payment_method"]
    if manual:
        intent["status"] = "requires_capture"
        intent["amount_capturable"] = intent["amount"]
    else:
        intent["status"] = "succeeded"
        intent["amount_received"] = intent["amount"]
        _received(world, account, charge)
    world.put(account, charge)
    world.put(account, intent)
    events.emit(world, account, "charge.succeeded", charge, call=call)
    if not manual:
        events.emit(world, account, "payment_intent.succeeded", intent, call=call)
    return charge


def _received(world: "World", account: "Account", charge: Object) -> None:
    """The captured money is available at once, without fees: fees are not what this is about."""
    now = int(world.clock.now())
    transaction: Object = {
        "id": ids.new("txn", ids.infix_of(charge["id"])),
        "object": "balance_transaction",
        "amount": charge["amount_captured"],
        "available_on": now,
        "balance_type": "payments",
        "created": now,
        "currency": charge["currency"],
        "description": None,
        "exchange_rate": None,
        "fee": 0,
        "fee_details": [],
        "net": charge["amount_captured"],
        "reporting_category": "charge",
        "source": charge["id"],
        "status": "available",
        "type": "charge",
    }
    world.put(account, transaction)
    charge["balance_transaction"] = transaction["id"]
    world.add_balance(account, charge["currency"], charge["amount_captured"])


def _intent(call: Call) -> Object:
    intent = call.account.get("payment_intent", call.ids[0])
    if intent is None:
        raise errors.missing("payment_intent", call.ids[0], param="intent")
    return intent


def _list(call: Call, kind: str, url: str) -> Object:
    params, table = call.params, call.account.table(kind)
    bounds = forms.time_range(params, "created")
    chosen = [
        obj
        for obj in table.values()
        if listing.in_range(obj["created"], bounds)
        and ("customer" not in params or obj["customer"] == params["customer"])
        and ("payment_intent" not in params or obj["payment_intent"] == params["payment_intent"])
    ]
    return listing.page(chosen, params, url=url, kind=kind, known=table)


def _unexpected_state(verb: str, intent: Object) -> StripeError:
    return StripeError(
        status=400,
        code="payment_intent_unexpected_state",
        message=(
            f"You cannot {verb} this PaymentIntent because it has a status of {intent['status']}."
        ),
    )
