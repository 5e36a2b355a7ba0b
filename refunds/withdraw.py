"""Withdraw: take a proposal back before anything was claimed."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from effects.states import State
from effects.transitions import move
from refunds.kind import REFUND
from refunds.models import Order, RefundAction

WITHDRAWABLE = (State.HELD, State.AWAITING_APPROVAL, State.AUTHORIZED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """The action is CANCELLED; `already` when it was before."""

    action: RefundAction
    already: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLate:
    """The action was claimed or is over; nothing was changed."""

    action: RefundAction


def wait_for_proposals(*, order_id: str) -> None:
    """Return once every proposal that had the order's lock before is recorded, or is not. One
    query.

    For whoever did not find an action and is about to say that there is none. The lock is given
    back at once: whoever locks an action locks its order after it, never before.
    """
    with transaction.atomic():
        Order.objects.select_for_update(no_key=True).filter(order_id=order_id).only("pk").first()


def withdraw_refund(*, action_id: str, actor: str) -> Withdrawn | TooLate | None:
    """Cancel an action that nobody has claimed. None: there is no such action."""
    with transaction.atomic():
        locked = REFUND.lock(action_id=action_id)
        if locked is None:
            return None
        action: RefundAction = locked.action
        if action.state == State.CANCELLED:
            return Withdrawn(action=action, already=True)
        if action.state not in WITHDRAWABLE:
            return TooLate(action=action)
        move(
            kind=REFUND,
            locked=locked,
            target=State.CANCELLED,
            event="refund.withdrawn",
            actor=actor,
            data={},
            due_at=None,
        )
        return Withdrawn(action=action)
