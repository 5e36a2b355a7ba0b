"""A store credit that nobody finds is given up by two people; the debt is settled another way."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from effects.models import Case
from effects.states import State
from providers.sandbox import Sandbox
from reconciliation import case_acts
from reconciliation.check_now import check_now
from reconciliation.circumstances import case_version
from reconciliation.sweep import sweep
from refunds.credits import CREDIT
from refunds.dispatch import dispatch
from refunds.models import Remedy
from tests import builders
from tests.refunds import debts

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3_600


def judge() -> User:
    """A person who may settle cases and declare what did not happen."""
    user = builders.person(may_decide=False)
    rights = ("settle_case", "declare_not_executed")
    user.user_permissions.add(*Permission.objects.filter(codename__in=rights))
    return User.objects.get(pk=user.pk)


def lost(sandbox: Sandbox, debt: Any, *, fault: str) -> Remedy:
    """A credit without an answer, whose customer could not be read until its key was too old."""
    remedy = debts.proposed(debt, "store_credit")
    path = f"/v1/customers/{debt.order.customer_ref}"
    sandbox.fault(fault, match={"method": "POST", "path": f"{path}/balance_transactions"})
    dispatch(action_id=debts.credit_of(remedy).action_id)
    rule = {"method": "GET", "path": f"{path}/balance_transactions"}
    sandbox.fault("list-unreadable", match=rule, times=None)
    for seconds in (400, 4_000, 25 * HOUR):
        builders.skew_clock(seconds)
        sweep()
    sandbox.clear_faults()
    assert debts.credit_of(remedy).state == State.UNKNOWN
    return remedy


def give_up(remedy: Remedy, user: User) -> Any:
    credit = debts.credit_of(remedy)
    case = Case.objects.get(action_id=credit.action_id, kind=Case.Kind.UNKNOWN_OUTCOME)
    word = case_acts.Word(
        reason="provider_shows_nothing",
        note="looked at the customer in the dashboard",
        seen_version=case_version(kind=CREDIT, action=credit),
    )
    return case_acts.give_up(case_id=case.case_id, user=user, word=word)


def look(remedy: Remedy, *, at_seconds: int) -> str:
    builders.skew_clock(at_seconds)
    credit = debts.credit_of(remedy)
    return check_now(action_id=credit.action_id, actor="person:grace").state


def test_two_people_who_looked_in_two_ways_give_it_up(sandbox):
    debt = debts.debt(sandbox)
    remedy = lost(sandbox, debt, fault="reset-before-execution")
    one, other = judge(), judge()
    assert isinstance(give_up(remedy, one), case_acts.NotDone)
    look(remedy, at_seconds=26 * HOUR)
    look(remedy, at_seconds=27 * HOUR + 60)

    assert isinstance(give_up(remedy, one), case_acts.SecondNeeded)
    assert isinstance(give_up(remedy, other), case_acts.Done)

    assert debts.credit_of(remedy).state == State.FAILED_FINAL
    assert debts.fresh(remedy).state == "FAILED"
    assert set(debts.open_cases(debt)) == {Case.Kind.FAILED}
    second = debts.proposed(debt, "cheque")
    assert (second.state, second.proof) == ("PROPOSED", "people")
    debts.approving(second)
    debts.recording(second)
    assert not debts.open_cases(debt)
    debts.balance_agrees(debt.order)


def test_a_credit_that_is_there_is_found_by_the_look_and_not_given_up(sandbox):
    debt = debts.debt(sandbox)
    remedy = lost(sandbox, debt, fault="reset-after-execution")

    assert look(remedy, at_seconds=26 * HOUR) == State.SUCCEEDED

    assert debts.fresh(remedy).state == "ISSUED"
    assert not debts.open_cases(debt)


def test_a_balance_that_does_not_add_up_keeps_people_from_giving_it_up(sandbox):
    debt = debts.debt(sandbox)
    remedy = lost(sandbox, debt, fault="reset-after-execution")
    path = f"/v1/customers/{debt.order.customer_ref}/balance_transactions"
    lags = {"method": "GET", "path": path}
    sandbox.fault("list-lags", match=lags, times=None, seconds=9e9)
    look(remedy, at_seconds=26 * HOUR)
    look(remedy, at_seconds=27 * HOUR + 60)

    refused = give_up(remedy, judge())

    assert isinstance(refused, case_acts.NotDone)
    assert debts.credit_of(remedy).state == State.UNKNOWN
    assert debts.fresh(remedy).state == "ISSUING"


def test_what_was_given_up_is_watched_without_another_remedy(sandbox):
    debt = debts.debt(sandbox)
    remedy = lost(sandbox, debt, fault="reset-before-execution")
    look(remedy, at_seconds=26 * HOUR)
    look(remedy, at_seconds=27 * HOUR + 60)
    give_up(remedy, judge())
    assert isinstance(give_up(remedy, judge()), case_acts.Done)
    credit = debts.credit_of(remedy)
    ours = {"action_id": credit.action_id, "instance": credit.instance}
    sandbox.credit_outside(credit.customer_ref, amount=7_900, metadata=ours)

    builders.skew_clock(27 * HOUR + 25 * HOUR)
    sweep()

    assert debts.credit_of(remedy).state == State.SUCCEEDED
    assert debts.fresh(remedy).state == "ISSUED"
    assert Case.Kind.UNEXPECTED_SUCCESS in debts.open_cases(credit)
    assert not debts.open_cases(debt)
    debts.balance_agrees(debt.order)
