"""What is over and may happen after all: linked effects, and requests taken for not executed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from effects import cases
from effects.models import Case, CaseEvent, Switch
from effects.states import State
from effects.switches import turn_off, turn_on
from reconciliation.check_now import check_now
from reconciliation.sweep import sweep
from refunds.dispatch import dispatch
from refunds.models import ExternalRefund
from refunds.withdraw import Withdrawn, withdraw_refund
from tests import builders
from tests.reconciliation import ways
from tests.reconciliation.test_case_acts import (
    Unclear,
    ada,
    done,
    grace,
    ours,
    unclear,
    with_new_key,
)
from tests.refunds import debts

__all__ = ["ada", "grace"]

pytestmark = pytest.mark.django_db(transaction=True)

DAY = 86_400


def day(number: int) -> None:
    ways.sweep_at(number * DAY)


def linked(sandbox: Any, found: Unclear, *people: User) -> str:
    """A refund without our metadata, which two people say is the action's."""
    made = sandbox.refund_outside(found.action.order.payment_ref, amount=7_900)
    ref: str = made["id"]
    for person in people:
        last = found.link(person, ref)
    done(last)
    assert found.now().provider_ref == ref
    return ref


# -- a linked effect ------------------------------------------------------------------------------


def test_a_linked_refund_is_read_again_like_any_other(sandbox, grace, ada):
    found = unclear(sandbox)
    ref = linked(sandbox, found, grace, ada)
    builders.skew_clock(30 * 3_600)
    check_now(action_id=found.action.action_id, actor="person:grace")
    assert found.now().state == State.SUCCEEDED
    assert ways.open_cases(found.action) == {}

    sandbox.fail_refund(ref)
    builders.skew_clock(31 * 3_600)
    check_now(action_id=found.action.action_id, actor="person:grace")
    assert found.now().state == State.FAILED_FINAL
    assert found.now().order.refunded_minor == 0
    assert set(ways.open_cases(found.action)) == {"failed"}


def test_a_refund_linked_to_one_that_had_failed_stays_a_success(sandbox, grace, ada):
    debt = debts.debt(sandbox)
    found = Unclear(action=debt, case=debts.open_cases(debt)["failed"])
    linked(sandbox, found, grace, ada)
    builders.skew_clock(100)
    check_now(action_id=debt.action_id, actor="person:grace")
    after = builders.fresh(debt)
    assert (after.state, after.order.refunded_minor) == (State.SUCCEEDED, 7_900)
    assert "incident" not in debts.open_cases(debt)
    assert not ExternalRefund.objects.filter(is_ours=False).exists()


def test_a_linked_refund_does_not_pause_its_order(sandbox, grace, ada):
    builders.allow_all()
    order = builders.order(sandbox=sandbox, captured_minor=20_000)
    found = unclear(sandbox, order=order)
    linked(sandbox, found, grace, ada)
    builders.skew_clock(30 * 3_600)
    check_now(action_id=found.action.action_id, actor="person:grace")
    assert not Case.objects.filter(kind=Case.Kind.INCIDENT).exists()


def test_what_was_linked_is_watched_for_the_original_which_is_an_incident(sandbox, grace, ada):
    found = unclear(sandbox)
    linked(sandbox, found, grace, ada)
    day(3)
    assert ways.open_cases(found.action) == {}
    sandbox.refund_outside(
        found.action.order.payment_ref, amount=7_900, metadata=ours(found.action)
    )
    day(4)
    day(5)
    after = ways.open_cases(found.action)
    assert set(after) == {"incident"}
    assert "several_live_effects" in after["incident"].reason
    assert not CaseEvent.objects.filter(kind=cases.ADDED).exists()
    assert found.now().state == State.SUCCEEDED


# -- taken for not executed -----------------------------------------------------------------------


def end(found: Unclear, how: str) -> None:
    row = found.now()
    if how == "withdrawn":
        assert isinstance(withdraw_refund(action_id=row.action_id, actor="agent"), Withdrawn)
    else:
        day(5)


ENDS = {"withdrawn": State.CANCELLED, "expired": State.EXPIRED}


@pytest.mark.parametrize("how", sorted(ENDS))
def test_what_ends_after_a_request_was_taken_for_undone_is_watched(sandbox, grace, ada, how):
    found = with_new_key(sandbox, grace, ada)
    end(found, how)
    assert found.now().state == ENDS[how]
    if how == "expired":
        words = ways.open_cases(found.action)["expired"].reason
        assert "Nothing was done" not in words
        assert "taken for not executed" in words

    sandbox.refund_outside(
        found.action.order.payment_ref, amount=7_900, metadata=ours(found.action)
    )
    day(7)
    after = found.now()
    assert (after.state, after.order.refunded_minor) == (State.SUCCEEDED, 7_900)
    assert "unexpected-success" in ways.open_cases(after)


def test_it_is_watched_once_a_day_for_thirty_days(sandbox, grace, ada):
    found = with_new_key(sandbox, grace, ada)
    end(found, "withdrawn")
    assert ways.due_at(found.action) == found.now().state_since + timedelta(days=1)
    before = ways.reads(sandbox)
    for number in range(3, 40):
        day(number)
        sweep()
    assert 25 <= ways.reads(sandbox) - before <= 30
    assert (found.now().state, found.now().due_at) == (State.CANCELLED, None)


def test_a_new_key_that_paid_is_watched_for_the_old_one(sandbox, grace, ada):
    builders.allow_all()
    found = with_new_key(sandbox, grace, ada)
    builders.approved(found.now())
    assert dispatch(action_id=found.action.action_id) == "succeeded"
    sandbox.refund_outside(
        found.action.order.payment_ref, amount=7_900, metadata=ours(found.action)
    )
    day(4)
    assert "incident" in ways.open_cases(found.action)


def test_what_was_found_or_sent_again_under_its_own_key_is_not_watched(sandbox):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    for seconds in (10, 130, 1_000):
        ways.sweep_at(seconds)
    after = builders.fresh(action)
    assert (after.state, after.due_at) == (State.SUCCEEDED, None)

    again = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    for seconds in (1_010, 1_130, 2_000, 3_000):
        ways.sweep_at(seconds)
        dispatch(action_id=again.action_id)
    after = builders.fresh(again)
    assert (after.state, after.attempt_count, after.due_at) == (State.SUCCEEDED, 2, None)


def test_what_was_withdrawn_before_anything_was_sent_is_not_watched(sandbox):
    action = builders.action(builders.order(sandbox=sandbox))
    withdraw_refund(action_id=action.action_id, actor="agent")
    assert builders.fresh(action).due_at is None


def test_a_credit_that_was_stopped_after_it_was_taken_for_undone_is_watched(sandbox):
    debt = debts.debt(sandbox)
    first = debts.proposed(debt, "store_credit")
    path = f"/v1/customers/{debt.order.customer_ref}/balance_transactions"
    sandbox.fault("executed-late", match={"method": "POST", "path": path}, seconds=5_000)
    credit = debts.credit_of(first)
    dispatch(action_id=credit.action_id)
    turn_on(scope="kind:credit", actor="person:x", reason="something else is wrong")
    for seconds in (40, 130, 300):
        ways.sweep_at(seconds)
    assert debts.credit_of(first).state == State.AUTHORIZED
    debts.stopping(debts.fresh(first))
    turn_off(switch_id=Switch.objects.get().pk, actor="person:x")
    dispatch(action_id=credit.action_id)
    assert debts.credit_of(first).state == State.REJECTED
    debts.recording(debts.proposed(debt, "bank_transfer"))

    sandbox.advance(6_000)
    day(2)
    assert debts.credit_of(first).state == State.SUCCEEDED
    assert "unexpected-success" in debts.open_cases(debts.credit_of(first))
    assert "paid twice" in debts.open_cases(debt)["incident"].reason


# -- a second fact on an open case ----------------------------------------------------------------


def tell(row: Any, reason: str, kind: Case.Kind = Case.Kind.INCIDENT) -> Case:
    with debts.locked(row) as found:
        cases.open_case(
            kind=kind, effect="refund", locked=found, reason=reason, evidence={"seen": reason}
        )
    return Case.objects.get(action_id=row.action_id, kind=kind, closed_at__isnull=True)


def test_a_second_fact_is_added_to_the_open_case_and_wakes_it(sandbox):
    row = builders.action(builders.order(sandbox=sandbox))
    case = tell(row, "One refund too many.")
    Case.objects.filter(pk=case.pk).update(snoozed_until=case.due_at)
    after = tell(row, "And another amount.")
    assert after.pk == case.pk
    assert after.reason == "One refund too many.\n\nAnd another amount."
    assert after.evidence["seen"] == "One refund too many."
    assert after.evidence["added"] == [{"seen": "And another amount."}]
    assert (after.snoozed_until, after.version, after.due_at) == (None, 2, case.due_at)
    assert [event.kind for event in after.events.all()] == [cases.ADDED]


def test_the_same_fact_again_adds_nothing_and_wakes_nobody(sandbox):
    row = builders.action(builders.order(sandbox=sandbox))
    case = tell(row, "One refund too many.")
    tell(row, "And another amount.")
    Case.objects.filter(pk=case.pk).update(snoozed_until=case.due_at)
    for reason in ("One refund too many.", "And another amount."):
        after = tell(row, reason)
        assert (after.version, after.snoozed_until) == (2, case.due_at)


def test_a_full_case_keeps_further_facts_in_its_history(sandbox):
    row = builders.action(builders.order(sandbox=sandbox))
    tell(row, "x" * cases.REASON_CHARACTERS_MAX)
    for _ in range(2):
        for reason in ("second", "third"):
            after = tell(row, reason)
    assert after.reason.endswith("see the history of this case.")
    assert after.reason.count("More was found since") == 1
    told = [event.data["reason"] for event in after.events.order_by("pk")]
    assert told == ["second", "third"]


def test_other_kinds_of_case_stay_as_they_were_opened(sandbox):
    row = builders.action(builders.order(sandbox=sandbox))
    tell(row, "first", Case.Kind.FAILED)
    assert tell(row, "second", Case.Kind.FAILED).reason == "first"


def test_an_open_incident_is_told_that_a_refund_came_back_beside_its_transfer(sandbox):
    debt = debts.debt(sandbox)
    debts.recording(debts.proposed(debt, "bank_transfer"))
    with debts.locked(debt) as found:
        debts.incident(found)
    builders.skew_clock(30)
    debts.comes_back(sandbox, debt)
    assert "SEPA 4821" in debts.open_cases(debt)["incident"].reason


def test_an_open_question_about_one_remedy_is_told_of_the_next(sandbox):
    debt = debts.debt(sandbox)
    debts.proposed(debt, "bank_transfer")
    debts.comes_back(sandbox, debt)
    sandbox.fail_refund(builders.fresh(debt).provider_ref)
    builders.skew_clock(120)
    check_now(action_id=debt.action_id, actor="person:grace")
    debts.proposed(debt, "cheque")
    sandbox.refund_outside(debt.order.payment_ref, amount=debt.amount_minor, metadata=ours(debt))
    builders.skew_clock(240)
    check_now(action_id=debt.action_id, actor="person:grace")
    assert "cheque 2" in debts.open_cases(debt)["unexpected-success"].reason
