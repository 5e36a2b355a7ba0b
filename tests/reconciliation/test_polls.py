"""PENDING: the provider accepted it; it is polled slowly, and burns no tries."""

from __future__ import annotations

import pytest
from django.conf import settings

from effects.models import Case
from effects.states import State
from refunds.dispatch import dispatch
from tests import builders
from tests.reconciliation import ways

pytestmark = pytest.mark.django_db(transaction=True)

POLL = settings.PENDING_POLL_SECONDS
DAY = 24 * 3600


def pending(sandbox, *, behaviour="pending"):
    """An accepted refund that the sandbox settles only when it is told to."""
    sandbox.settings(pending_settles_after_seconds=None)
    order = builders.order()
    sandbox.payment(amount=20_000, id=order.payment_ref, behaviour=behaviour)
    action = builders.action(order)
    dispatch(action_id=action.action_id)
    action = builders.fresh(action)
    assert action.state == State.PENDING
    return action


def test_a_pending_refund_that_settles_is_found_by_polling(sandbox):
    action = pending(sandbox)
    ways.sweep_at(POLL + 1)
    still = builders.fresh(action)
    assert (still.state, still.tries) == (State.PENDING, 0)
    assert still.due_at > action.due_at

    sandbox.settle_refund(action.provider_ref)
    ways.sweep_at(2 * POLL + 5)

    action = builders.fresh(action)
    assert (action.state, action.tries, action.due_at) == (State.SUCCEEDED, 0, None)
    assert action.order.refunded_minor == 7_900
    assert ways.posts(sandbox) == 1


def test_a_pending_refund_that_fails_is_owed(sandbox):
    action = pending(sandbox)
    sandbox.fail_refund(action.provider_ref, reason="expired_or_canceled_card")

    ways.sweep_at(POLL + 1)

    action = builders.fresh(action)
    assert action.state == State.FAILED_FINAL
    assert action.order.reserved_minor == 0
    assert "expired_or_canceled_card" in ways.open_cases(action)[Case.Kind.FAILED].reason


def test_an_unreadable_poll_polls_later(sandbox):
    action = pending(sandbox)
    sandbox.fault("html-502", match={"method": "GET", "path": f"/v1/refunds/{action.provider_ref}"})
    ways.sweep_at(POLL + 1)
    still = builders.fresh(action)
    assert (still.state, still.tries) == (State.PENDING, 0)
    assert still.due_at > action.due_at


@pytest.mark.parametrize(
    ("behaviour", "days", "word"), [("pending", 7, "Ask"), ("requires-action", 45, "remind")]
)
def test_pending_for_too_long_is_a_case_and_polling_goes_on(sandbox, behaviour, days, word):
    action = pending(sandbox, behaviour=behaviour)
    ways.sweep_at((days - 1) * DAY)
    assert ways.open_cases(action) == {}

    ways.sweep_at(days * DAY + 60)

    case = ways.open_cases(action)[Case.Kind.PENDING_TOO_LONG]
    assert word in case.reason
    assert builders.fresh(action).due_at is not None
    if behaviour == "pending":
        sandbox.settle_refund(action.provider_ref)
        ways.sweep_at((days + 1) * DAY)
        assert builders.fresh(action).state == State.SUCCEEDED
        assert ways.open_cases(action) == {}


def test_pending_for_too_long_is_told_even_when_it_cannot_be_read(sandbox):
    action = pending(sandbox)
    sandbox.fault(
        "html-502",
        match={"method": "GET", "path": f"/v1/refunds/{action.provider_ref}"},
        times=None,
    )
    ways.sweep_at(7 * DAY + 60)
    assert Case.Kind.PENDING_TOO_LONG in ways.open_cases(action)


def test_a_lost_answer_that_is_found_pending_is_polled(sandbox):
    sandbox.settings(pending_settles_after_seconds=None)
    order = builders.order()
    sandbox.payment(amount=20_000, id=order.payment_ref, behaviour="pending")
    action = ways.unknown(sandbox, fault=ways.EXECUTED, order=order)

    ways.sweep_at(31)

    action = builders.fresh(action)
    assert action.state == State.PENDING
    assert action.order.reserved_minor == 7_900
    sandbox.settle_refund(action.provider_ref)
    ways.sweep_at(31 + POLL + 5)
    assert builders.fresh(action).state == State.SUCCEEDED
