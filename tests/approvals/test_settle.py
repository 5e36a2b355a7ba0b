"""A person closes a case by their word, where a word is enough and nothing goes quiet by it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from approvals.settle import NotSettled, Settled, settle_case
from effects.clock import database_now
from effects.models import Case, Switch
from effects.states import State
from refunds.models import RefundAction, RefundEvent
from tests import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner() -> User:
    user = builders.person("owner")
    user.user_permissions.add(Permission.objects.get(codename="settle_case"))
    return User.objects.get(pk=user.pk)


def case_of(action: RefundAction | None, kind: str, **fields: Any) -> Case:
    now = database_now()
    values: dict[str, Any] = {
        "kind": kind,
        "effect": "refund" if action else "",
        "action_id": action.action_id if action else "",
        "resource": str(action.order) if action else "account:stripe:",
        "reason": "something does not add up",
        "owner": "case-owner",
        "opened_at": now,
        "due_at": now,
    }
    return Case.objects.create(**(values | fields))


def still_open(case: Case, result: object) -> str:
    assert isinstance(result, NotSettled)
    case.refresh_from_db()
    assert case.closed_at is None
    return result.sentence


def unknown_action() -> RefundAction:
    action = builders.action(builders.order())
    builders.claimed(action)
    return builders.stand_at(action, State.UNKNOWN, unknown_since=database_now())


def test_a_closed_case_says_who_and_why_and_the_history_has_it(owner):
    action = builders.action(builders.order())
    case = case_of(action, Case.Kind.FOUND_ELSEWHERE)
    assert settle_case(case_id=case.case_id, user=owner, note="agreed by phone") == Settled(
        case_id=case.case_id
    )
    case.refresh_from_db()
    assert (case.closed_by, case.resolution) == ("person:owner", "agreed by phone")
    event = RefundEvent.objects.get(kind="refund.case_closed")
    assert event.data["note"] == "agreed by phone"
    again = settle_case(case_id=case.case_id, user=owner, note="me too")
    assert isinstance(again, NotSettled)
    assert "before you did" in again.sentence


def test_without_the_permission_a_case_stays_open():
    case = case_of(builders.action(builders.order()), Case.Kind.FOUND_ELSEWHERE)
    result = settle_case(case_id=case.case_id, user=builders.person(), note="done")
    still_open(case, result)
    assert isinstance(result, NotSettled)
    assert result.permitted is False


@pytest.mark.parametrize("note", ["", "  ", "a\x00", "a\udfff", "x" * 2_001])
def test_a_case_is_not_closed_without_a_usable_note(owner, note):
    case = case_of(builders.action(builders.order()), Case.Kind.FOUND_ELSEWHERE)
    still_open(case, settle_case(case_id=case.case_id, user=owner, note=note))


@pytest.mark.parametrize(
    "kind",
    [
        Case.Kind.UNKNOWN_OUTCOME,
        Case.Kind.STALE_APPROVAL,
        Case.Kind.PENDING_TOO_LONG,
        Case.Kind.CANNOT_SEND,
    ],
)
def test_what_a_word_cannot_settle_stays_open(owner, kind):
    case = case_of(unknown_action(), kind)
    still_open(case, settle_case(case_id=case.case_id, user=owner, note="I am sure"))


def test_the_last_case_of_an_action_that_nothing_moves_stays_open(owner):
    action = unknown_action()
    assert action.due_at is None
    case = case_of(action, Case.Kind.INCIDENT)
    sentence = still_open(case, settle_case(case_id=case.case_id, user=owner, note="looked"))
    assert "nothing else moves it" in sentence
    case_of(action, Case.Kind.UNKNOWN_OUTCOME)
    assert isinstance(settle_case(case_id=case.case_id, user=owner, note="looked"), Settled)


def test_a_paused_accounts_case_stays_open_while_its_switch_is_on(owner):
    case = case_of(None, Case.Kind.ACCOUNT_PAUSED)
    now = database_now()
    switch = Switch.objects.create(
        scope="account:stripe:", reason="401", set_by="system", set_at=now
    )
    still_open(case, settle_case(case_id=case.case_id, user=owner, note="new key"))
    Switch.objects.filter(pk=switch.pk).update(ended_at=now)
    assert isinstance(settle_case(case_id=case.case_id, user=owner, note="new key"), Settled)


def test_a_case_that_does_not_exist_is_said_plainly(owner):
    result = settle_case(case_id=uuid.uuid4(), user=owner, note="done")
    assert result == NotSettled(sentence="There is no such case.")
