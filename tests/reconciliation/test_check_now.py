"""Check now: a person's question always reaches the provider (case T61)."""

from __future__ import annotations

import pytest
from django.conf import settings

from effects.models import Case
from effects.states import State
from reconciliation.check_now import check_now
from reconciliation.settle import Finding
from refunds.dispatch import dispatch
from tests import builders
from tests.reconciliation import ways

pytestmark = pytest.mark.django_db(transaction=True)


def check(action, *, at_seconds=0):
    builders.skew_clock(at_seconds)
    return check_now(action_id=action.action_id, actor="person:grace")


def succeeded(sandbox):
    action = builders.action(builders.order(sandbox=sandbox))
    dispatch(action_id=action.action_id)
    return builders.fresh(action)


def ours(action):
    return {"action_id": action.action_id, "instance": settings.INSTANCE}


def test_a_succeeded_refund_is_asked_about_and_confirmed(sandbox):
    action = succeeded(sandbox)
    reads = ways.reads(sandbox)

    checked = check(action)

    assert (checked.asked, checked.finding) == (True, Finding.FOUND)
    assert checked.state == State.SUCCEEDED
    assert ways.reads(sandbox) == reads + 1
    assert ways.looks(action)[-1]["asked_by"] == "person:grace"
    assert builders.fresh(action).order.refunded_minor == 7_900


def test_a_success_that_failed_late_is_taken_back_with_a_case(sandbox):
    action = succeeded(sandbox)
    sandbox.fail_refund(action.provider_ref)

    checked = check(action)

    assert (checked.finding, checked.state) == (Finding.FAILED, State.FAILED_FINAL)
    action = builders.fresh(action)
    assert action.order.refunded_minor == 0
    assert "after it had succeeded" in ways.open_cases(action)[Case.Kind.FAILED].reason


def test_a_late_success_of_a_failed_refund_is_adopted_with_a_case(sandbox):
    order = builders.order(sandbox=sandbox)
    action = ways.unknown(sandbox, fault="already-refunded-400", order=order)
    ways.sweep_at(160)
    assert builders.fresh(action).state == State.FAILED_FINAL
    sandbox.refund_outside(order.payment_ref, amount=7_900, metadata=ours(action))

    checked = check(action, at_seconds=200)

    assert checked.state == State.SUCCEEDED
    assert builders.fresh(action).order.refunded_minor == 7_900
    assert set(ways.open_cases(action)) == {Case.Kind.UNEXPECTED_SUCCESS}


def test_a_success_of_what_was_rejected_is_adopted_with_a_case(sandbox):
    order = builders.order(sandbox=sandbox)
    action = builders.action(order, reason="fraudulent")
    assert action.state == State.REJECTED
    sandbox.refund_outside(order.payment_ref, amount=7_900, metadata=ours(action))

    assert check(action).state == State.SUCCEEDED
    assert Case.Kind.UNEXPECTED_SUCCESS in ways.open_cases(action)


def test_nothing_found_leaves_a_final_action_where_it_is(sandbox):
    action = builders.action(builders.order(sandbox=sandbox), reason="fraudulent")
    checked = check(action)
    assert (checked.asked, checked.finding) == (True, Finding.INCONCLUSIVE)
    assert builders.fresh(action).state == State.REJECTED
    assert ways.open_cases(action) == {}


def test_a_known_refund_that_the_provider_does_not_list_is_an_incident(sandbox):
    action = succeeded(sandbox)
    sandbox.reset()
    sandbox.payment(amount=20_000, id=action.order.payment_ref)

    checked = check(action)

    assert (checked.finding, checked.state) == (Finding.CONTRADICTION, State.SUCCEEDED)
    assert action.provider_ref
    assert "known_effect_not_listed" in ways.open_cases(action)[Case.Kind.INCIDENT].reason


def test_it_asks_at_most_once_in_ten_seconds(sandbox):
    action = succeeded(sandbox)
    assert check(action).asked
    reads = ways.reads(sandbox)

    again = check(action, at_seconds=5)
    assert (again.asked, again.finding) == (False, None)
    assert "10 seconds" in again.sentence
    assert ways.reads(sandbox) == reads

    assert check(action, at_seconds=12).asked


def test_it_settles_what_was_escalated_and_the_case_closes_itself(sandbox):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    ways.sweep_at(24 * 3600 + 1)
    assert Case.Kind.UNKNOWN_OUTCOME in ways.open_cases(action)

    checked = check(action, at_seconds=24 * 3600 + 60)

    assert checked.state == State.SUCCEEDED
    assert ways.open_cases(action) == {}
    closed = Case.objects.get(action_id=action.action_id)
    assert closed.closed_by == "person:grace"


def test_it_burns_no_try_and_starts_no_polling(sandbox):
    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    ways.sweep_at(24 * 3600 + 1)

    checked = check(action, at_seconds=24 * 3600 + 60)  # the key is too old to prove anything

    assert checked.finding is Finding.INCONCLUSIVE
    action = builders.fresh(action)
    assert (action.state, action.tries, action.due_at) == (State.UNKNOWN, 0, None)
    assert Case.Kind.UNKNOWN_OUTCOME in ways.open_cases(action)


def test_it_proves_not_executed_by_the_same_rules_as_a_round(sandbox):
    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    early = check(action, at_seconds=5)
    assert early.finding is Finding.INCONCLUSIVE

    late = check(action, at_seconds=130)

    assert (late.finding, late.state) == (Finding.NOT_EXECUTED, State.AUTHORIZED)
    assert dispatch(action_id=action.action_id) == "succeeded"
    assert len(sandbox.refunds()) == 1


def test_a_provider_that_cannot_be_read_changes_nothing(sandbox):
    action = succeeded(sandbox)
    sandbox.fault("list-unreadable")

    checked = check(action)

    assert checked.finding is Finding.UNREADABLE
    assert "could not be read" in checked.sentence
    assert builders.fresh(action).state == State.SUCCEEDED


def test_it_finds_a_refund_that_a_worker_is_still_waiting_for(sandbox):
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)
    claimed = builders.claimed(action)
    sandbox.refund_outside(order.payment_ref, amount=7_900, metadata=ours(action))

    assert check(action).state == State.SUCCEEDED

    from effects.send import send
    from refunds.kind import REFUND

    send(kind=REFUND, claimed=claimed)  # the fence finds its attempt closed
    assert ways.posts(sandbox) == 0


@pytest.mark.parametrize(
    "action_id", ["refund:order-none:request-1", "nothing", "", "refund:", "mail:order-1"]
)
def test_an_unknown_id_asks_nobody(sandbox, action_id):
    checked = check_now(action_id=action_id, actor="person:grace")
    assert (checked.asked, checked.state) == (False, "")
    assert ways.reads(sandbox) == 0
