"""/v1/customers, and the transactions on a customer's balance: how a shop gives store credit."""

from typing import TYPE_CHECKING

from . import errors, events, forms, ids, listing
from .call import Call
from .errors import StripeError, invalid
from .forms import Params
from .listing import Object

if TYPE_CHECKING:
    from .store import Account, World

TRANSACTION = "customer_balance_transaction"
CREATE_PARAMS = frozenset(
    {
        "address",
        "description",
        "email",
        "metadata",
        "name",
        "payment_method",
        "phone",
        "preferred_locales",
        "shipping",
        "tax_exempt",
    }
)
CREATE_TRANSACTION_PARAMS = frozenset({"amount", "currency", "description", "metadata"})
LIST_PARAMS = listing.LIST_PARAMS | {"created", "invoice"}
# No limit of Stripe's is known; this keeps sums exact in every client's integers.
AMOUNT_MINOR_MAX = 999_999_999_999


def check_create(params: Params) -> None:
    for name in ("description", "email", "name"):
        forms.text(params, name)
    forms.metadata(params)


def create(call: Call) -> Object:
    params = call.params
    return listing.wire(
        new_customer(
            call.world,
            call.account,
            metadata=forms.merged_metadata({}, forms.metadata(params)),
            email=params.get("email"),
            name=params.get("name"),
            description=params.get("description"),
            call=call,
        )
    )


def retrieve(call: Call) -> Object:
    return listing.wire(_customer(call))


def check_create_transaction(params: Params) -> None:
    forms.required(params, "amount", "currency")
    _amount(params)
    forms.text(params, "currency")
    forms.text(params, "description")
    forms.metadata(params)


def create_transaction(call: Call) -> Object:
    """Change a customer's balance, at once and for good: a negative amount is a credit to them."""
    params, customer = call.params, _customer(call)
    currency = str(params["currency"]).lower()
    if call.world.settings.customer_currencies == "one" and customer["currency"] not in (
        None,
        currency,
    ):
        raise invalid(
            "Can't combine currencies on a single customer. This customer has had a subscription, "
            f"coupon, or invoice item with currency {customer['currency']}"
        )
    return listing.wire(
        make_transaction(
            call.world,
            call.account,
            customer,
            amount_minor=_amount(params),
            currency=currency,
            description=params.get("description"),
            metadata=forms.merged_metadata({}, forms.metadata(params)),
            call=call,
        )
    )


def retrieve_transaction(call: Call) -> Object:
    customer, transaction = _customer(call), call.account.get(TRANSACTION, call.ids[1])
    if transaction is None or transaction["customer"] != customer["id"]:
        raise errors.missing(TRANSACTION, call.ids[1])
    return listing.wire(transaction)


def check_list(params: Params) -> None:
    listing.check_cursors(params)
    forms.time_range(params, "created")
    forms.text(params, "invoice")


def list_transactions(call: Call) -> Object:
    params, customer = call.params, _customer(call)
    bounds = forms.time_range(params, "created")
    of_customer = transactions_of(call.account, customer["id"])
    newest = call.world.clock.now() - call.list_lag_seconds
    chosen = [
        transaction
        for transaction in of_customer
        if listing.in_range(transaction["created"], bounds)
        and params.get("invoice", transaction["invoice"]) == transaction["invoice"]
        and (not call.list_lag_seconds or transaction["_at"] <= newest)
    ]
    return listing.page(
        chosen,
        params,
        url=f"/v1/customers/{customer['id']}/balance_transactions",
        kind=TRANSACTION,
        known={transaction["id"]: transaction for transaction in of_customer},
    )


# What the endpoints and the control API share


def customer_to_lock(call: Call) -> str | None:
    return call.ids[0]


def new_customer(
    world: "World",
    account: "Account",
    *,
    id: str | None = None,
    metadata: dict[str, str] | None = None,
    email: str | None = None,
    name: str | None = None,
    description: str | None = None,
    call: Call | None = None,
) -> Object:
    customer: Object = {
        "id": id or ids.new("cus"),
        "object": "customer",
        "address": None,
        "balance": 0,
        "created": int(world.clock.now()),
        # That of the first thing that had one; `balance` is in it.
        "currency": None,
        "default_source": None,
        "delinquent": False,
        "description": description,
        "discount": None,
        "email": email,
        "livemode": False,
        "metadata": metadata or {},
        "name": name,
        "phone": None,
        "preferred_locales": [],
        "shipping": None,
        "tax_exempt": "none",
        "test_clock": None,
        "_balances": {},
    }
    world.put(account, customer)
    events.emit(world, account, "customer.created", customer, call=call)
    return customer


def make_transaction(
    world: "World",
    account: "Account",
    customer: Object,
    *,
    amount_minor: int,
    currency: str,
    description: str | None,
    metadata: dict[str, str],
    type: str = "adjustment",
    call: Call | None = None,
) -> Object:
    """The transaction itself, with the customer's balance in its currency and the event."""
    balances = customer["_balances"]
    previous = {"balance": customer["balance"], "currency": customer["currency"]}
    balances[currency] = balances.get(currency, 0) + amount_minor
    customer["currency"] = customer["currency"] or currency
    customer["balance"] = balances.get(customer["currency"], 0)
    transaction: Object = {
        "id": ids.new("cbtxn"),
        "object": TRANSACTION,
        "amount": amount_minor,
        "checkout_session": None,
        "created": int(world.clock.now()),
        "credit_note": None,
        "currency": currency,
        "customer": customer["id"],
        "description": description,
        "ending_balance": balances[currency],
        "invoice": None,
        "livemode": False,
        "metadata": metadata,
        "type": type,
        "_key": call.idempotency_key if call else None,
        "_request": call.request_id if call else None,
        "_outside": call is None,
        "_at": world.clock.now(),
    }
    world.put(account, transaction)
    world.put(account, customer)
    changed = {name: value for name, value in previous.items() if customer[name] != value}
    if changed:
        events.emit(world, account, "customer.updated", customer, call=call, previous=changed)
    return transaction


def transactions_of(account: "Account", customer_id: str) -> list[Object]:
    """A customer's balance transactions, oldest first."""
    return [
        transaction
        for transaction in account.table(TRANSACTION).values()
        if transaction["customer"] == customer_id
    ]


def _amount(params: Params) -> int:
    amount_minor = forms.integer(
        params, "amount", minimum=-AMOUNT_MINOR_MAX, maximum=AMOUNT_MINOR_MAX
    )
    if amount_minor is None:
        raise forms.missing("amount")
    return amount_minor


def _customer(call: Call) -> Object:
    customer = call.account.get("customer", call.ids[0])
    if customer is None:
        raise errors.missing(
            "customer", call.ids[0], stored=call.world.settings.cache_resource_missing
        )
    return customer


def unknown_customer(id: str) -> StripeError:
    """For a customer named in the parameters, not in the path."""
    return errors.missing("customer", id, param="customer", status=400)
