"""Withdraw: take a proposal back before anything was claimed."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from effects.states import State
from effects.transitions import move
from refunds.kind import REFUND
from refunds.models import RefundAction

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
