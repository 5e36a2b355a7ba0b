"""The way of a refund, in process: real Postgres, the real SDK, the sandbox over HTTP."""

from __future__ import annotations

import pytest

from effects.states import State
from refunds.dispatch import dispatch
from refunds.models import RefundEvent
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_allowed_refund_is_sent_once_and_recorded(sandbox):
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)
    assert action.state == State.AUTHORIZED

    assert dispatch(action_id=action.action_id) == "succeeded"

    action = builders.fresh(action)
    assert action.state == State.SUCCEEDED
    assert action.order.refunded_minor == 7_900
    assert action.order.reserved_minor == 0
    (refund,) = sandbox.refunds(order.payment_ref)
    assert refund["amount"] == 7_900
    assert refund["id"] == action.provider_ref
    kinds = list(
        RefundEvent.objects.filter(action=action).order_by("pk").values_list("kind", flat=True)
    )
    assert kinds == ["refund.proposed", "refund.decided", "refund.claimed", "refund.succeeded"]


def test_a_second_delivery_finds_that_another_worker_got_there_first(sandbox):
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)
    dispatch(action_id=action.action_id)
    assert "got there first" in dispatch(action_id=action.action_id)
    assert len(sandbox.refunds(order.payment_ref)) == 1
