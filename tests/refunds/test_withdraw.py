"""Withdrawing: before a claim it cancels, after it is too late."""

from __future__ import annotations

import pytest

from effects.clock import database_now
from effects.models import Switch
from effects.outcomes import Evidence, NotSent
from effects.states import State
from refunds.kind import REFUND
from refunds.models import RefundAction, RefundEvent
from refunds.withdraw import TooLate, Withdrawn, withdraw_refund
from tests import builders

pytestmark = pytest.mark.django_db


def withdraw(action: RefundAction) -> Withdrawn | TooLate | None:
    return withdraw_refund(action_id=action.action_id, actor="agent:agent-1")


@pytest.mark.parametrize("state", ["HELD", "AWAITING_APPROVAL", "AUTHORIZED"])
def test_what_nobody_claimed_is_cancelled(state: str) -> None:
    if state == "HELD":
        Switch.objects.create(scope="global", reason="r", set_by="t", set_at=database_now())
    amount = 15_000 if state == "AWAITING_APPROVAL" else 7_900
    action = builders.action(builders.order(), amount_minor=amount)
    assert action.state == state
    result = withdraw(action)
    assert isinstance(result, Withdrawn)
    assert not result.already
    after = builders.fresh(action)
    assert (after.state, after.due_at) == (State.CANCELLED, None)
    event = RefundEvent.objects.filter(action=action).latest("pk")
    assert (event.kind, event.actor) == ("refund.withdrawn", "agent:agent-1")


def test_withdrawing_twice_is_answered_and_changes_nothing() -> None:
    action = builders.action(builders.order())
    withdraw(action)
    events = RefundEvent.objects.count()
    result = withdraw(action)
    assert isinstance(result, Withdrawn)
    assert result.already
    assert RefundEvent.objects.count() == events


def test_what_was_claimed_is_too_late() -> None:
    action = builders.action(builders.order())
    builders.claimed(action)
    result = withdraw(action)
    assert isinstance(result, TooLate)
    assert builders.fresh(action).state == State.SUBMITTING
    builders.lease_over(action)
    assert isinstance(withdraw(action), TooLate)


def test_a_try_that_did_nothing_can_still_be_withdrawn_and_gives_back_what_it_held() -> None:
    action = builders.action(builders.order())
    builders.answered(
        builders.claimed(action).token, NotSent(reason="refused", evidence=Evidence())
    )
    assert builders.fresh(action).order.reserved_minor == 7_900
    assert isinstance(withdraw(action), Withdrawn)
    after = builders.fresh(action)
    assert (after.order.reserved_minor, after.reserved_minor) == (0, 0)


def test_an_unknown_id_is_none() -> None:
    assert withdraw_refund(action_id="refund:order-1:request-none", actor="t") is None


def test_what_was_withdrawn_is_never_claimed() -> None:
    action = builders.action(builders.order())
    withdraw(action)
    with pytest.raises(AssertionError, match="CANCELLED"):
        builders.claimed(action)
    assert REFUND.lock(action_id=action.action_id)
