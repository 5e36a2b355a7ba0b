"""/v1/balance and /v1/balance_transactions."""

from . import errors, forms, listing
from .call import Call
from .forms import Params
from .listing import Object

LIST_PARAMS = listing.LIST_PARAMS | {"created", "currency", "source", "type"}


def balance(call: Call) -> Object:
    funds = call.account.available_minor or {"usd": 0}
    return {
        "object": "balance",
        "available": [
            {"amount": amount_minor, "currency": currency}
            for currency, amount_minor in sorted(funds.items())
        ],
        "livemode": False,
        "pending": [{"amount": 0, "currency": currency} for currency in sorted(funds)],
    }


def check_list(params: Params) -> None:
    listing.check_cursors(params)
    forms.time_range(params, "created")


def list_all(call: Call) -> Object:
    params, table = call.params, call.account.table("balance_transaction")
    bounds = forms.time_range(params, "created")
    chosen = [
        transaction
        for transaction in table.values()
        if listing.in_range(transaction["created"], bounds)
        and all(
            transaction[name] == params[name]
            for name in ("currency", "source", "type")
            if name in params
        )
    ]
    return listing.page(
        chosen,
        params,
        url="/v1/balance_transactions",
        kind="balance_transaction",
        known=table,
    )


def retrieve(call: Call) -> Object:
    transaction = call.account.get("balance_transaction", call.ids[0])
    if transaction is None:
        raise errors.missing("balance transaction", call.ids[0])
    return listing.wire(transaction)
