"""What was taken for undone, or for somebody else's, and turns out to be otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.test import override_settings

from approvals.decide import Approved, approve
from effects import send as sending
from effects.models import Case, Switch
from effects.outcomes import Evidence, NotSent
from effects.record import record
from effects.send import send
from effects.states import State
from effects.switches import turn_on
from providers.sandbox import Sandbox
from reconciliation.check_now import check_now
from reconciliation.sweep import sweep
from refunds.dispatch import dispatch
from refunds.kind import REFUND
from refunds.models import ExternalRefund, RefundAction
from refunds.withdraw import withdraw_refund
from tests import builders
from tests.reconciliation import ways

pytestmark = pytest.mark.django_db(transaction=True)


def open_kinds(action: RefundAction) -> set[str]:
    cases = Case.objects.filter(action_id=action.action_id, closed_at__isnull=True)
    return set(cases.values_list("kind", flat=True))


def taken_for_undone(action: RefundAction) -> Any:
    """Claimed by a worker that freezes past its last check; everybody else goes on without it."""
    claimed = builders.claimed(action)
    for seconds in (61, 100, 200, 300):
        ways.sweep_at(seconds)
    assert builders.fresh(action).state == State.AUTHORIZED
    builders.skew_clock(305)
    return claimed


def wakes_and_sends(claimed: Any, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Any:
    """It wakes and writes its bytes; the answer is lost. What it has to record, it has in hand."""
    with monkeypatch.context() as patch:
        patch.setattr(sending, "_may_still_send", lambda **_: True)
        sandbox.fault("reset-after-execution")
        return send(kind=REFUND, claimed=replace(claimed, look_first=False))


def test_a_late_doubt_about_what_was_taken_for_undone_pauses_the_order(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)
    claimed = taken_for_undone(action)
    sent = wakes_and_sends(claimed, sandbox, monkeypatch)
    record(kind=REFUND, token=claimed.token, sent=sent, actor="worker")

    assert Case.Kind.INCIDENT in open_kinds(action)
    withdraw_refund(action_id=action.action_id, actor="agent")
    second = builders.action(order)
    dispatch(action_id=second.action_id)
    assert len(sandbox.refunds(order.payment_ref)) == 1


def test_the_payment_is_read_again_where_something_was_taken_for_undone(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frozen worker dies with its answer: nobody has heard that it sent."""
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)
    wakes_and_sends(taken_for_undone(action), sandbox, monkeypatch)
    withdraw_refund(action_id=action.action_id, actor="agent")

    second = builders.action(order)
    dispatch(action_id=second.action_id)

    assert len(sandbox.refunds(order.payment_ref)) == 1
    assert Case.Kind.FOUND_ELSEWHERE in open_kinds(second)


def test_two_orders_on_one_payment_both_hear_of_a_refund_made_elsewhere(sandbox: Sandbox) -> None:
    one = builders.order(payment_ref="pi_shared", sandbox=sandbox)
    other = builders.order(payment_ref="pi_shared")
    sandbox.refund_outside("pi_shared", amount=7_900)
    first = builders.action(one, amount_minor=1_000)
    dispatch(action_id=first.action_id)
    second = builders.action(other)
    dispatch(action_id=second.action_id)
    builders.skew_clock(3)
    dispatch(action_id=second.action_id)

    assert Case.Kind.FOUND_ELSEWHERE in open_kinds(second)
    assert builders.fresh(second).state == State.AWAITING_APPROVAL
    assert builders.fresh(second).order.refunded_minor == 7_900
    assert len(sandbox.refunds("pi_shared")) == 1


def test_no_policy_goes_past_a_refund_made_elsewhere(sandbox: Sandbox) -> None:
    builders.allow_all()
    order = builders.order(sandbox=sandbox)
    sandbox.refund_outside(order.payment_ref, amount=7_800)
    action = builders.action(order)
    dispatch(action_id=action.action_id)
    builders.skew_clock(3)
    dispatch(action_id=action.action_id)

    assert builders.fresh(action).state == State.AWAITING_APPROVAL
    assert len(sandbox.refunds(order.payment_ref)) == 1


def test_a_refund_of_a_forgotten_action_is_counted_once_when_it_is_recognised(
    sandbox: Sandbox,
) -> None:
    order = builders.order(sandbox=sandbox)
    forgotten = f"refund:order-{order.order_id}:request-3"
    with override_settings(INSTANCE="here"):
        sandbox.refund_outside(
            order.payment_ref, amount=7_900, metadata={"action_id": forgotten, "instance": "here"}
        )
        sibling = builders.action(order, request_id="4", amount_minor=500)
        dispatch(action_id=sibling.action_id)
        assert builders.fresh(sibling).order.refunded_minor == 7_900
        again = builders.action(order, request_id="3")
        check_now(action_id=again.action_id, actor="person:tester")

    again = builders.fresh(again)
    assert again.state == State.SUCCEEDED
    assert again.order.refunded_minor == 7_900
    assert ExternalRefund.objects.get(order=order).is_ours


def test_a_refund_is_recognised_by_the_instance_it_was_frozen_with(sandbox: Sandbox) -> None:
    action = builders.action(builders.order(sandbox=sandbox))
    sandbox.fault("reset-after-execution")
    with override_settings(INSTANCE="another-name"):
        dispatch(action_id=action.action_id)
        ways.sweep_at(45)

    action = builders.fresh(action)
    assert action.state == State.SUCCEEDED
    assert action.order.refunded_minor == 7_900


def test_a_key_that_never_left_has_no_age(sandbox: Sandbox) -> None:
    action = builders.action(builders.order(sandbox=sandbox))
    builders.answered(
        builders.claimed(action).token, NotSent(reason="connection_refused", evidence=Evidence())
    )
    assert builders.fresh(action).key_first_used_at is None
    turn_on(scope="global", reason="a long stop", actor="person:tester")
    builders.skew_clock(21 * 3600)
    sweep()
    Switch.objects.update(ended_at="2026-01-01T00:00:00Z")
    dispatch(action_id=action.action_id)

    assert builders.fresh(action).state == State.SUCCEEDED
    assert len(sandbox.refunds(action.order.payment_ref)) == 1


def test_a_case_of_what_could_not_be_sent_ends_with_its_action(sandbox: Sandbox) -> None:
    builders.policy(ceiling_minor={})
    action = builders.action(builders.order(sandbox=sandbox))
    person = builders.person()
    decided = approve(
        action_id=action.action_id,
        user=person,
        note="fine",
        seen=builders.seen(action),
    )
    assert isinstance(decided, Approved)
    for seconds in (0, 4_000):
        builders.skew_clock(seconds)
        builders.answered(
            builders.claimed(action).token,
            NotSent(reason="connection_refused", evidence=Evidence()),
        )
    assert Case.Kind.CANNOT_SEND in open_kinds(action)
    for seconds in (100_000, 200_000):
        ways.sweep_at(seconds)

    assert builders.fresh(action).state == State.EXPIRED
    assert open_kinds(action) == {Case.Kind.EXPIRED}
