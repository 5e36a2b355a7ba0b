"""`expand[]=charge`: ids replaced by their objects."""

from typing import Any

from . import listing
from .call import Call
from .errors import invalid
from .listing import Object

_KINDS = {
    "balance_transaction": "balance_transaction",
    "charge": "charge",
    "customer": "customer",
    "failure_balance_transaction": "balance_transaction",
    "latest_charge": "charge",
    "payment_intent": "payment_intent",
}
SUBLIST_MAX = 10


def expanded(call: Call, made: Object) -> Object:
    """Raises StripeError 400 for what cannot be expanded."""
    paths = call.params.get("expand", [])
    for path in paths if isinstance(paths, list) else [paths]:
        _expand(call, made, str(path), str(path).split("."))
    return made


def _expand(call: Call, obj: Any, path: str, names: list[str]) -> None:
    name, *rest = names
    if isinstance(obj, dict) and name == "data" and obj.get("object") == "list":
        for item in obj["data"]:
            if rest:
                _expand(call, item, path, rest)
        return
    if isinstance(obj, dict) and name == "invoice_credit_balance" and obj["object"] == "customer":
        customer = call.account.get("customer", obj["id"]) or {"_balances": {}}
        # A credit is above 0 here, as nowhere else on a customer.
        obj[name] = {currency: -minor for currency, minor in customer["_balances"].items()}
        return
    if isinstance(obj, dict) and name == "refunds" and obj.get("object") == "charge":
        refunds = call.account.refunds_of(obj["id"])
        newest_first = [listing.wire(refund) for refund in reversed(refunds)]
        obj["refunds"] = {
            "object": "list",
            "data": newest_first[:SUBLIST_MAX],
            "has_more": len(newest_first) > SUBLIST_MAX,
            "url": f"/v1/charges/{obj['id']}/refunds",
        }
        return
    if not isinstance(obj, dict) or name not in _KINDS or name not in obj:
        raise invalid(f"This property cannot be expanded ({path}).", param="expand")
    if isinstance(obj[name], str):
        target = call.account.get(_KINDS[name], obj[name])
        if target is not None:
            obj[name] = listing.wire(target)
    if rest and obj[name] is not None:
        _expand(call, obj[name], path, rest)
