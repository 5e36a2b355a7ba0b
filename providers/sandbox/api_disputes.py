"""/v1/disputes: list and retrieve. Disputes are opened and closed through the control API."""

from typing import TYPE_CHECKING

from . import errors, events, forms, ids, listing
from .call import Call
from .forms import Params
from .listing import Object

if TYPE_CHECKING:
    from .store import Account, World

LIST_PARAMS = listing.LIST_PARAMS | {"charge", "payment_intent", "created"}
OPEN_STATUSES = (
    "needs_response",
    "under_review",
    "warning_needs_response",
    "warning_under_review",
)
CLOSED_STATUSES = ("won", "lost", "warning_closed", "prevented")


def check_list(params: Params) -> None:
    listing.check_cursors(params)
    forms.time_range(params, "created")


def list_all(call: Call) -> Object:
    params, table = call.params, call.account.table("dispute")
    bounds = forms.time_range(params, "created")
    chosen = [
        dispute
        for dispute in table.values()
        if listing.in_range(dispute["created"], bounds)
        and all(
            dispute[name] == params[name] for name in ("charge", "payment_intent") if name in params
        )
    ]
    return listing.page(chosen, params, url="/v1/disputes", kind="dispute", known=table)


def retrieve(call: Call) -> Object:
    dispute = call.account.get("dispute", call.ids[0])
    if dispute is None:
        raise errors.missing("dispute", call.ids[0], param="dispute")
    return listing.wire(dispute)


def open_dispute(
    world: "World",
    account: "Account",
    charge: Object,
    *,
    status: str = "needs_response",
    amount_minor: int | None = None,
    reason: str = "fraudulent",
) -> Object:
    """A chargeback, or with a `warning_` status an inquiry, which leaves the charge refundable."""
    dispute: Object = {
        "id": ids.new("du", ids.infix_of(charge["id"])),
        "object": "dispute",
        "amount": charge["amount"] if amount_minor is None else amount_minor,
        "balance_transactions": [],
        "charge": charge["id"],
        "created": int(world.clock.now()),
        "currency": charge["currency"],
        "is_charge_refundable": status.startswith("warning"),
        "livemode": False,
        "metadata": {},
        "payment_intent": charge["payment_intent"],
        "reason": reason,
        "status": status,
    }
    charge["disputed"] = True
    world.put(account, charge)
    world.put(account, dispute)
    events.emit(world, account, "charge.dispute.created", dispute)
    if not dispute["is_charge_refundable"]:
        world.add_balance(account, charge["currency"], -dispute["amount"])
        events.emit(world, account, "charge.dispute.funds_withdrawn", dispute)
    return dispute


def close_dispute(world: "World", account: "Account", dispute: Object, *, status: str) -> Object:
    """`won` makes the charge refundable again and brings the money back; `lost` does neither."""
    withdrawn = not dispute["is_charge_refundable"]
    dispute["status"] = status
    dispute["is_charge_refundable"] = status in ("won", "warning_closed")
    world.put(account, dispute)
    events.emit(world, account, "charge.dispute.closed", dispute)
    if withdrawn and status == "won":
        world.add_balance(account, dispute["currency"], dispute["amount"])
        events.emit(world, account, "charge.dispute.funds_reinstated", dispute)
    return dispute
