"""/v1/refunds: create, retrieve, update, cancel, list; and the test helper that expires one."""

from typing import TYPE_CHECKING

from . import currencies, errors, events, forms, ids, listing, refund_states
from .call import Call
from .errors import StripeError, invalid
from .forms import Params
from .listing import Object

if TYPE_CHECKING:
    from .store import Account, World

REASONS = ("duplicate", "fraudulent", "requested_by_customer")

CREATE_PARAMS = frozenset(
    {
        "amount",
        "charge",
        "currency",
        "customer",
        "instructions_email",
        "metadata",
        "origin",
        "payment_intent",
        "reason",
        "refund_application_fee",
        "reverse_transfer",
    }
)
LIST_PARAMS = listing.LIST_PARAMS | {"charge", "payment_intent", "created"}


def check_create(params: Params) -> None:
    """What is refused before anything executes, and so is never kept under an idempotency key."""
    forms.integer(params, "amount", minimum=1)
    forms.choice(params, "reason", REASONS)
    forms.metadata(params)
    forms.boolean(params, "refund_application_fee")
    forms.boolean(params, "reverse_transfer")
    forms.text(params, "instructions_email")
    if forms.text(params, "charge") is None and forms.text(params, "payment_intent") is None:
        raise invalid(
            "One of the following params should be provided for this request: payment_intent or "
            "charge."
        )


def charge_to_lock(call: Call) -> str | None:
    """The charge a create works on, if it can be told without executing."""
    account, params = call.account, call.params
    if "charge" in params:
        return str(params["charge"])
    intent = account.get("payment_intent", params["payment_intent"])
    return intent["latest_charge"] if intent else None


def create(call: Call) -> Object:
    """Make one refund of what the parameters name, or raise the 4xx that Stripe answers."""
    params, account, world = call.params, call.account, call.world
    charge = _charge(call)
    left_minor = charge["amount_captured"] - refund_states.live_minor(
        account.refunds_of(charge["id"])
    )
    if not _refundable_in_dispute(account, charge):
        raise errors.charged_back(charge["id"])
    if left_minor <= 0:
        raise errors.already_refunded(charge["id"])
    amount_minor = forms.integer(params, "amount", minimum=1)
    if amount_minor is None:
        amount_minor = left_minor
    currency = charge["currency"]
    if params.get("currency", currency) != currency:
        # What Stripe answers here could not be established.
        raise invalid(
            f"The currency of a refund must be that of its charge ({currency}).", param="currency"
        )
    currencies.check_amount(amount_minor, currency)
    if amount_minor > left_minor:
        raise invalid(
            f"Refund amount ({currencies.shown(amount_minor, currency)}) is greater than "
            f"unrefunded amount on charge ({currencies.shown(left_minor, currency)})",
            param="amount",
        )
    behaviour = charge["_behaviour"]
    if world.settings.enforce_balance and account.available_minor.get(currency, 0) < amount_minor:
        if world.settings.insufficient_balance == "error":
            raise errors.insufficient_balance(stored=world.settings.cache_insufficient_balance)
        behaviour = "insufficient-funds"
    metadata = forms.merged_metadata({}, forms.metadata(params))
    return listing.wire(
        make(
            world,
            account,
            charge,
            amount_minor=amount_minor,
            metadata=metadata,
            reason=params.get("reason"),
            behaviour=behaviour,
            call=call,
        )
    )


def make(
    world: "World",
    account: "Account",
    charge: Object,
    *,
    amount_minor: int,
    metadata: dict[str, str],
    reason: str | None = None,
    behaviour: str = "succeed",
    call: Call | None = None,
) -> Object:
    """The refund itself, with its balance transaction, its charge's totals and its events."""
    shared = ids.infix_of(charge["id"])
    is_card = charge["payment_method_details"]["type"] == "card"
    details = {
        "card": {
            "reference_status": "pending",
            "reference_type": "acquirer_reference_number",
            "type": "refund",
        },
        "type": "card",
    }
    status = {
        "pending": "pending",
        "insufficient-funds": "pending",
        "requires-action": "requires_action",
    }.get(behaviour, "succeeded")
    refund: Object = {
        "id": ids.new("re", shared),
        "object": "refund",
        "amount": amount_minor,
        "balance_transaction": None,
        "charge": charge["id"],
        "created": int(world.clock.now()),
        "currency": charge["currency"],
        "destination_details": details
        if is_card
        else {"type": charge["payment_method_details"]["type"]},
        "metadata": metadata,
        "payment_intent": charge["payment_intent"],
        "reason": reason,
        "receipt_number": None,
        "source_transfer_reversal": None,
        "status": status,
        "transfer_reversal": None,
        "_key": call.idempotency_key if call else None,
        "_request": call.request_id if call else None,
        "_outside": call is None,
        "_at": world.clock.now(),
    }
    if status == "pending":
        refund["pending_reason"] = (
            "insufficient_funds" if behaviour == "insufficient-funds" else "processing"
        )
    if status == "requires_action":
        refund["next_action"] = refund_states.next_action(world)
    elif behaviour != "insufficient-funds":
        refund["balance_transaction"] = refund_states.book(
            world, account, refund, type="refund", amount_minor=-amount_minor
        )
    refund_states.plan(world, refund, behaviour if is_card or behaviour != "succeed" else "none")
    if not is_card:
        refund["_due"] = [step for step in refund["_due"] if step["do"] != "reference"]
    world.put(account, refund)
    refund_states.schedule(world, account, refund)
    refund_states.update_charge(world, account, charge["id"])
    events.emit(world, account, "refund.created", refund, call=call)
    events.emit(world, account, "charge.refunded", charge, call=call)
    return refund


def retrieve(call: Call) -> Object:
    return listing.wire(_refund(call))


def check_update(params: Params) -> None:
    forms.metadata(params)


def update(call: Call) -> Object:
    refund = _refund(call)
    sent = forms.metadata(call.params)
    if sent is not None:
        previous = {"metadata": refund["metadata"]}
        refund["metadata"] = forms.merged_metadata(refund["metadata"] if sent else {}, sent)
        call.world.put(call.account, refund)
        events.emit(
            call.world, call.account, "refund.updated", refund, call=call, previous=previous
        )
    return listing.wire(refund)


def cancel(call: Call) -> Object:
    refund = _refund(call)
    if refund["status"] != "requires_action":
        raise invalid("Canceling this refund is unsupported.")
    refund_states.change(call.world, call.account, refund, status="canceled", call=call)
    return listing.wire(refund)


def expire(call: Call) -> Object:
    """Test helper, for refunds that wait. What Stripe makes of them was not seen: here `failed`."""
    refund = _refund(call)
    if refund["status"] != "requires_action":
        raise invalid("Only refunds with the status requires_action can be expired.")
    refund_states.change(call.world, call.account, refund, status="failed", call=call)
    return listing.wire(refund)


def check_list(params: Params) -> None:
    listing.check_cursors(params)
    forms.time_range(params, "created")
    forms.text(params, "charge")
    forms.text(params, "payment_intent")


def list_all(call: Call) -> Object:
    params, account = call.params, call.account
    table = account.table("refund")
    chosen = list(table.values())
    if "payment_intent" in params:
        intent = account.get("payment_intent", params["payment_intent"])
        if intent is None:
            raise errors.missing("payment_intent", params["payment_intent"], param="payment_intent")
        chosen = account.refunds_of(intent["latest_charge"] or "")
    if "charge" in params:
        if account.get("charge", params["charge"]) is None:
            raise errors.missing("charge", params["charge"], param="charge")
        of_charge = account.refunds_of(params["charge"])
        chosen = [refund for refund in of_charge if refund in chosen]
    bounds = forms.time_range(params, "created")
    if bounds:
        chosen = [refund for refund in chosen if listing.in_range(refund["created"], bounds)]
    if call.list_lag_seconds:
        newest = call.world.clock.now() - call.list_lag_seconds
        chosen = [refund for refund in chosen if refund["_at"] <= newest]
    return listing.page(chosen, params, url="/v1/refunds", kind="refund", known=table)


def _refund(call: Call) -> Object:
    refund = call.account.get("refund", call.ids[0])
    if refund is None:
        raise errors.missing(
            "refund",
            call.ids[0],
            param="refund",
            stored=call.world.settings.cache_resource_missing,
        )
    return refund


def _charge(call: Call) -> Object:
    """The charge to refund. Raises StripeError when there is none, or none that can be refunded."""
    params, account = call.params, call.account
    stored = call.world.settings.cache_resource_missing
    charge_id = params.get("charge")
    if "payment_intent" in params:
        intent = account.get("payment_intent", params["payment_intent"])
        if intent is None:
            raise errors.missing(
                "payment_intent", params["payment_intent"], param="payment_intent", stored=stored
            )
        of_intent = intent["latest_charge"]
        if charge_id not in (None, of_intent):
            # What Stripe answers to two names that disagree could not be established.
            raise invalid(f"Charge {charge_id} does not belong to {intent['id']}.", param="charge")
        charge_id = of_intent
        if charge_id is None:
            raise _no_successful_charge(intent["id"])
    charge = account.get("charge", str(charge_id))
    if charge is None:
        raise errors.missing("charge", str(charge_id), stored=stored)
    if charge["status"] != "succeeded":
        raise _no_successful_charge(charge["payment_intent"])
    if not charge["captured"]:
        intent_id = charge["payment_intent"]
        raise invalid(
            f"This uncaptured Charge was created by a PaymentIntent ({intent_id}). You must cancel "
            "the PaymentIntent to release the hold on the customer's funds."
        )
    return charge


def _no_successful_charge(intent_id: str) -> StripeError:
    return invalid(f"This PaymentIntent ({intent_id}) does not have a successful charge to refund.")


def _refundable_in_dispute(account: "Account", charge: Object) -> bool:
    """An open or lost dispute blocks refunds; a won one and an inquiry (`warning_*`) do not."""
    disputes = account.table("dispute").values() if charge["disputed"] else ()
    return all(
        dispute["is_charge_refundable"] for dispute in disputes if dispute["charge"] == charge["id"]
    )
