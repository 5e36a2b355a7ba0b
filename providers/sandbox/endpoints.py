"""Which URL is answered by what: the one table of the API."""

from collections.abc import Callable
from dataclasses import dataclass

from . import api_balance, api_customers, api_disputes, api_payments, api_refunds, events
from .call import Call
from .forms import Params
from .listing import Object


def _nothing_to_check(params: Params) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`check` refuses bad parameters before anything executes; `execute` acts and is remembered.

    `to_lock` names the object that only one request at a time may work on.
    """

    execute: Callable[[Call], Object]
    params: frozenset[str] = frozenset()
    check: Callable[[Params], None] = _nothing_to_check
    to_lock: Callable[[Call], str | None] | None = None


METADATA = frozenset({"metadata"})

# `{}` stands for one id.
ENDPOINTS: dict[tuple[str, str], Endpoint] = {
    ("POST", "/v1/refunds"): Endpoint(
        api_refunds.create,
        api_refunds.CREATE_PARAMS,
        api_refunds.check_create,
        api_refunds.charge_to_lock,
    ),
    ("GET", "/v1/refunds"): Endpoint(
        api_refunds.list_all, api_refunds.LIST_PARAMS, api_refunds.check_list
    ),
    ("GET", "/v1/refunds/{}"): Endpoint(api_refunds.retrieve),
    ("POST", "/v1/refunds/{}"): Endpoint(api_refunds.update, METADATA, api_refunds.check_update),
    ("POST", "/v1/refunds/{}/cancel"): Endpoint(api_refunds.cancel),
    ("POST", "/v1/test_helpers/refunds/{}/expire"): Endpoint(api_refunds.expire),
    ("POST", "/v1/payment_intents"): Endpoint(
        api_payments.create, api_payments.CREATE_PARAMS, api_payments.check_create
    ),
    ("GET", "/v1/payment_intents"): Endpoint(
        api_payments.list_all, api_payments.LIST_PARAMS, api_payments.check_list
    ),
    ("GET", "/v1/payment_intents/{}"): Endpoint(
        api_payments.retrieve, frozenset({"client_secret"})
    ),
    ("POST", "/v1/payment_intents/{}/confirm"): Endpoint(
        api_payments.confirm, api_payments.CONFIRM_PARAMS, api_payments.check_confirm
    ),
    ("POST", "/v1/payment_intents/{}/capture"): Endpoint(
        api_payments.capture, api_payments.CAPTURE_PARAMS, api_payments.check_capture
    ),
    ("POST", "/v1/customers"): Endpoint(
        api_customers.create, api_customers.CREATE_PARAMS, api_customers.check_create
    ),
    ("GET", "/v1/customers/{}"): Endpoint(api_customers.retrieve),
    ("POST", "/v1/customers/{}/balance_transactions"): Endpoint(
        api_customers.create_transaction,
        api_customers.CREATE_TRANSACTION_PARAMS,
        api_customers.check_create_transaction,
        api_customers.customer_to_lock,
    ),
    ("GET", "/v1/customers/{}/balance_transactions"): Endpoint(
        api_customers.list_transactions, api_customers.LIST_PARAMS, api_customers.check_list
    ),
    ("GET", "/v1/customers/{}/balance_transactions/{}"): Endpoint(
        api_customers.retrieve_transaction
    ),
    ("GET", "/v1/charges"): Endpoint(
        api_payments.list_charges, api_payments.CHARGES_LIST_PARAMS, api_payments.check_list
    ),
    ("GET", "/v1/charges/{}"): Endpoint(api_payments.retrieve_charge),
    ("GET", "/v1/events"): Endpoint(events.list_all, events.PARAMS, events.check_list),
    ("GET", "/v1/events/{}"): Endpoint(events.retrieve),
    ("GET", "/v1/disputes"): Endpoint(
        api_disputes.list_all, api_disputes.LIST_PARAMS, api_disputes.check_list
    ),
    ("GET", "/v1/disputes/{}"): Endpoint(api_disputes.retrieve),
    ("GET", "/v1/balance"): Endpoint(api_balance.balance),
    ("GET", "/v1/balance_transactions"): Endpoint(
        api_balance.list_all, api_balance.LIST_PARAMS, api_balance.check_list
    ),
    ("GET", "/v1/balance_transactions/{}"): Endpoint(api_balance.retrieve),
}


def find(method: str, path: str) -> tuple[Endpoint, list[str]] | None:
    """The endpoint for a URL and the ids in its path."""
    exact = ENDPOINTS.get((method, path))
    if exact is not None:
        return exact, []
    parts = path.split("/")
    for places in ((3,), (4,), (3, 5)):
        if all(len(parts) > at and parts[at] for at in places):
            pattern = "/".join("{}" if at in places else part for at, part in enumerate(parts))
            endpoint = ENDPOINTS.get((method, pattern))
            if endpoint is not None:
                return endpoint, [parts[at] for at in places]
    return None
