"""What a decision is made on."""

from __future__ import annotations

import pytest
from django.db import transaction

from effects.outcomes import Succeeded
from effects.states import State
from providers.sandbox import Sandbox
from refunds import facts
from refunds.dispatch import dispatch
from refunds.kind import REFUND
from refunds.models import ExternalRefund
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_same_amount_refunded_in_a_dashboard_asks_a_person(sandbox: Sandbox) -> None:
    order = builders.order(sandbox=sandbox)
    sandbox.refund_outside(order.payment_ref, amount=500)
    first = builders.action(order, amount_minor=300)
    dispatch(action_id=first.action_id)  # the look before the send finds the other refund
    assert ExternalRefund.objects.get(order=order).amount_minor == 500

    same = builders.action(order, amount_minor=500)

    assert same.state == State.AWAITING_APPROVAL
    with transaction.atomic():
        locked = REFUND.lock(action_id=same.action_id)
        assert locked is not None
        elsewhere = [o for o in locked.facts.others if o.action_id.startswith("re_")]
    assert [(o.amount_minor, o.state) for o in elsewhere] == [(500, State.SUCCEEDED)]
    assert 0 <= elsewhere[0].age_seconds < 60


def test_what_is_open_is_not_hidden_behind_many_that_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of more others than are looked at, the open ones come first, however old."""
    monkeypatch.setattr(facts, "OTHERS_MAX", 2)
    builders.allow_all()
    order = builders.order()
    lost = builders.action(order, amount_minor=100)
    builders.claimed(lost)
    builders.lease_over(lost)
    for amount_minor in (101, 102, 103):
        done = builders.fresh(builders.action(order, amount_minor=amount_minor))
        token = builders.claimed(done).token
        effect = builders.effect(done)
        builders.answered(token, Succeeded(effect=effect, evidence=builders.NO_EVIDENCE))

    builders.policy()
    beside = builders.action(order, amount_minor=500)

    assert beside.state == State.AWAITING_APPROVAL
    with transaction.atomic():
        locked = REFUND.lock(action_id=beside.action_id)
        assert locked is not None
    # The unknown one, then the newest of the others.
    assert [(o.amount_minor, o.state) for o in locked.facts.others] == [
        (100, State.UNKNOWN),
        (103, State.SUCCEEDED),
    ]
