"""How a refund changes after it was made: settling, failing late, needing the customer, canceled.

`succeeded` is not final at Stripe: a card refund can fail up to about 30 days later.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import events, ids
from .call import Call
from .listing import Object

if TYPE_CHECKING:
    from .store import Account, World

# These take up the charge's balance. A failed or canceled refund gives it back.
LIVE = ("pending", "requires_action", "succeeded")

# What a payment method makes of its refunds. The first two are Stripe's test cards; the third is
# the sandbox's own name for a bank transfer whose refund waits for the customer.
BEHAVIOURS = {
    "pm_card_pendingRefund": "pending",
    "pm_card_refundFail": "fail-late",
    "pm_sandbox_requiresAction": "requires-action",
}

FAILURE_REASONS = (
    "charge_for_pending_refund_disputed",
    "declined",
    "expired_or_canceled_card",
    "insufficient_funds",
    "lost_or_stolen_card",
    "merchant_request",
    "unknown",
)


def is_live(refund: Object) -> bool:
    return refund["status"] in LIVE


def live_minor(refunds: list[Object]) -> int:
    return sum(refund["amount"] for refund in refunds if is_live(refund))


def change(
    world: "World",
    account: "Account",
    refund: Object,
    *,
    status: str,
    failure_reason: str | None = None,
    call: Call | None = None,
) -> None:
    """Move one refund to `status`, with its money, its charge's totals and its events.

    Any move is carried out: the control API may ask for one that Stripe would never make.
    """
    before = refund["status"]
    if before == status:
        return
    previous: dict[str, Any] = {"status": before}
    was_live = is_live(refund)
    refund["status"] = status
    refund.pop("pending_reason", None)
    refund.pop("failure_reason", None)
    refund.pop("next_action", None)
    if status == "pending":
        refund["pending_reason"] = "processing"
    if status == "requires_action":
        refund["next_action"] = next_action(world)
    if status in ("failed", "canceled"):
        refund["_due"] = []
        refund["failure_reason"] = failure_reason or (
            "unknown" if status == "failed" else "merchant_request"
        )
    if was_live and not is_live(refund) and refund["balance_transaction"] is not None:
        refund["failure_balance_transaction"] = book(
            world, account, refund, type="refund_failure", amount_minor=refund["amount"]
        )
    elif (
        is_live(refund)
        and status != "requires_action"
        and (not was_live or refund["balance_transaction"] is None)
    ):
        refund.pop("failure_balance_transaction", None)
        refund["balance_transaction"] = book(
            world, account, refund, type="refund", amount_minor=-refund["amount"]
        )
    world.put(account, refund)
    update_charge(world, account, refund["charge"])
    events.emit(world, account, "refund.updated", refund, call=call, previous=previous)
    events.emit(world, account, "charge.refund.updated", refund, call=call, previous=previous)
    if status == "failed":
        events.emit(world, account, "refund.failed", refund, call=call)


def next_action(world: "World") -> Object:
    """The e-mail that asks the customer for bank details; it lasts 45 days."""
    return {
        "display_details": {
            "email_sent": {
                "email_sent_at": int(world.clock.now()),
                "email_sent_to": "customer@example.com",
            },
            "expires_at": int(world.clock.now()) + 45 * 86_400,
        },
        "type": "display_details",
    }


def update_charge(world: "World", account: "Account", charge_id: str) -> None:
    """Recompute `amount_refunded`. Which statuses count is not documented: two settings say it."""
    charge = account.table("charge")[charge_id]
    counted = {"succeeded", "requires_action", "pending"}
    if not world.settings.amount_refunded_counts_pending:
        counted -= {"requires_action", "pending"}
    if not world.settings.amount_refunded_drops_on_failure:
        counted |= {"failed"}
    total = sum(
        refund["amount"] for refund in account.refunds_of(charge_id) if refund["status"] in counted
    )
    charge["amount_refunded"] = min(total, charge["amount_captured"])
    charge["refunded"] = charge["amount_refunded"] == charge["amount_captured"]
    world.put(account, charge)


def book(
    world: "World", account: "Account", refund: Object, *, type: str, amount_minor: int
) -> str:
    """One balance transaction for a refund. Returns its id."""
    now = int(world.clock.now())
    transaction: Object = {
        "id": ids.new("txn", ids.infix_of(refund["charge"])),
        "object": "balance_transaction",
        "amount": amount_minor,
        "available_on": now,
        "balance_type": "payments",
        "created": now,
        "currency": refund["currency"],
        "description": f"REFUND {'FAILURE ' if type == 'refund_failure' else ''}FOR CHARGE",
        "exchange_rate": None,
        "fee": 0,
        "fee_details": [],
        "net": amount_minor,
        "reporting_category": type,
        "source": refund["id"],
        "status": "available",
        "type": type,
    }
    world.put(account, transaction)
    world.add_balance(account, refund["currency"], amount_minor)
    return str(transaction["id"])


# What is due later


def plan(world: "World", refund: Object, behaviour: str) -> None:
    """Write down what will happen to a new refund by itself, in sandbox time."""
    settings, now = world.settings, world.clock.now()
    due: list[dict[str, Any]] = []
    if refund["status"] == "succeeded" and settings.reference_after_seconds is not None:
        due.append({"at": now + settings.reference_after_seconds, "do": "reference"})
    if behaviour == "pending" and settings.pending_settles_after_seconds is not None:
        due.append({"at": now + settings.pending_settles_after_seconds, "do": "settle"})
    if behaviour == "fail-late" and settings.late_failure_after_seconds is not None:
        due.append({"at": now + settings.late_failure_after_seconds, "do": "fail"})
    refund["_due"] = due


def schedule(world: "World", account: "Account", refund: Object) -> None:
    for step in refund["_due"]:
        world.scheduler.at(step["at"], _step(world, account, refund, step))


def resume(world: "World", account: "Account") -> None:
    """After a start from the journal: go on with what was due and undelivered."""
    for refund in account.table("refund").values():
        schedule(world, account, refund)
    for event in account.table("event").values():
        if event["_delivery"] == "pending":
            world.webhooks.requeue(account, event)


def _step(
    world: "World", account: "Account", refund: Object, step: dict[str, Any]
) -> Callable[[], None]:
    def act() -> None:
        with world.transaction():
            if step not in refund["_due"]:
                return  # the refund failed or was canceled meanwhile
            refund["_due"] = [other for other in refund["_due"] if other is not step]
            if step["do"] == "settle" and refund["status"] == "pending":
                change(world, account, refund, status="succeeded")
            elif step["do"] == "fail":
                change(
                    world,
                    account,
                    refund,
                    status="failed",
                    failure_reason="expired_or_canceled_card",
                )
            elif step["do"] == "reference":
                add_reference(world, account, refund)
            else:
                world.put(account, refund)

    return act


def add_reference(world: "World", account: "Account", refund: Object) -> None:
    """The bank's reference number arrives a few seconds after a card refund."""
    card = refund["destination_details"]["card"]
    previous = {"destination_details": {"card": {"reference_status": "pending"}}}
    refund["destination_details"] = {
        "card": {
            "reference": ids.digits(16),
            **card,
            "reference_status": "available",
        },
        "type": "card",
    }
    world.put(account, refund)
    events.emit(world, account, "refund.updated", refund, previous=previous)
    events.emit(world, account, "charge.refund.updated", refund, previous=previous)
