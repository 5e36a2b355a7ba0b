"""Whose a case is: a person gives it to another or puts it off, and its due time stays."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import DatabaseError, IntegrityError, transaction

from approvals.case_owners import (
    Assigned,
    NotChanged,
    Snoozed,
    WhyAssigned,
    WhySnoozed,
    assign_case,
    snooze_case,
)
from effects import cases
from effects.clock import database_now
from effects.models import Case, CaseEvent
from tests import builders

pytestmark = pytest.mark.django_db

NOTE = "asked the provider's support, ticket 17"


def settler(username: str, **fields: Any) -> User:
    """A person who may settle cases."""
    user = builders.person(username)
    user.user_permissions.add(Permission.objects.get(codename="settle_case"))
    User.objects.filter(pk=user.pk).update(**fields)
    return User.objects.get(pk=user.pk)


@pytest.fixture
def grace() -> User:
    return settler("grace")


def open_case(kind: Case.Kind = Case.Kind.FAILED) -> Case:
    now = database_now()
    cases.open_resource_case(
        kind=kind, effect="", resource="order:1", reason="look", evidence={}, now=now
    )
    return Case.objects.get()


def assigned(case: Case, *, to: User | None, user: User, **more: Any) -> Assigned | NotChanged:
    values: dict[str, Any] = {
        "case_id": case.case_id,
        "to": to,
        "why": WhyAssigned.HANDOVER.value,
        "note": NOTE,
        "user": user,
        "seen_version": case.version,
    }
    return assign_case(**(values | more))


def snoozed(case: Case, *, until: datetime, user: User, **more: Any) -> Snoozed | NotChanged:
    values: dict[str, Any] = {
        "case_id": case.case_id,
        "until": until,
        "why": WhySnoozed.PROVIDER.value,
        "note": NOTE,
        "user": user,
        "seen_version": case.version,
    }
    return snooze_case(**(values | more))


def unchanged(case: Case, result: object) -> str:
    """The sentence of a refusal, once the row is shown to be as it was."""
    assert isinstance(result, NotChanged)
    before = {name: getattr(case, name) for name in ("owner", "assignee_id", "version")}
    case.refresh_from_db()
    assert {name: getattr(case, name) for name in before} == before
    assert case.snoozed_until is None
    assert not CaseEvent.objects.exists()
    return result.sentence


def test_a_new_case_is_the_default_owners_until_somebody_is_chosen(grace):
    case = open_case()
    assert (case.owner, case.assignee, case.version) == (settings.CASE_OWNER, None, 1)
    ada = settler("ada")
    due = case.due_at
    assert assigned(case, to=ada, user=grace) == Assigned(
        case_id=case.case_id, owner="ada", version=2
    )
    case.refresh_from_db()
    assert (case.owner, case.assignee, case.due_at) == ("ada", ada, due)
    event = case.events.get()
    assert (event.kind, event.actor) == ("case.assigned", "person:grace")
    assert event.data == {
        "from": settings.CASE_OWNER,
        "to": "ada",
        "why": "handover",
        "note": NOTE,
    }


def test_a_case_goes_back_to_the_default_owner(grace):
    case = open_case()
    assigned(case, to=grace, user=grace)
    case.refresh_from_db()
    assert isinstance(assigned(case, to=None, user=grace), Assigned)
    case.refresh_from_db()
    assert (case.owner, case.assignee) == (settings.CASE_OWNER, None)


def test_who_owns_it_already_is_told_so(grace):
    case = open_case()
    assert "owns it already" in unchanged(case, assigned(case, to=None, user=grace))


def test_a_case_is_not_given_to_somebody_who_cannot_settle_it(grace):
    case = open_case()
    for other in (
        builders.person("no-permission"),
        settler("gone", is_active=False),
        settler("no-staff", is_staff=False),
    ):
        sentence = unchanged(case, assigned(case, to=other, user=grace))
        assert f"{other.username} cannot settle cases" in sentence


def test_without_the_permission_nobody_moves_a_case(grace):
    case = open_case()
    stranger = builders.person("stranger")
    for result in (
        assigned(case, to=grace, user=stranger),
        snoozed(case, until=case.due_at, user=stranger),
    ):
        unchanged(case, result)
        assert isinstance(result, NotChanged)
        assert result.permitted is False


@pytest.mark.parametrize(
    "note", ["", "see above", " " * 40, "x" * 2_001, "a\x00" + "b" * 20, "\ud800" * 20]
)
def test_the_note_says_something(grace, note):
    case = open_case()
    unchanged(case, assigned(case, to=grace, user=grace, note=note))
    unchanged(case, snoozed(case, until=case.due_at, user=grace, note=note))


@pytest.mark.parametrize("why", ["", "because", "OTHER"])
def test_the_reason_is_one_of_those_that_are_counted(grace, why):
    case = open_case()
    assert "Choose a reason" in unchanged(case, assigned(case, to=grace, user=grace, why=why))
    assert "Choose a reason" in unchanged(
        case, snoozed(case, until=case.due_at, user=grace, why=why)
    )


def test_what_was_seen_must_be_what_is_there(grace):
    case = open_case()
    assigned(case, to=settler("ada"), user=grace)
    late = assigned(case, to=grace, user=grace)
    assert isinstance(late, NotChanged)
    assert "case.assigned by person:grace at" in late.sentence
    late_snooze = snoozed(case, until=case.due_at, user=grace)
    assert isinstance(late_snooze, NotChanged)
    assert CaseEvent.objects.count() == 1


def test_a_closed_case_and_one_that_does_not_exist_have_no_owner_to_change(grace):
    case = open_case()
    Case.objects.filter(pk=case.pk).update(closed_at=database_now())
    assert "closed already" in unchanged(case, assigned(case, to=grace, user=grace))
    nowhere = assigned(case, to=grace, user=grace, case_id=uuid.uuid4())
    assert nowhere == NotChanged(sentence="There is no such case.")


def test_a_snooze_hides_a_case_until_then_and_changes_no_due_time(grace):
    case = open_case()
    until = case.due_at - timedelta(seconds=1)
    due = case.due_at
    assert snoozed(case, until=until, user=grace) == Snoozed(
        case_id=case.case_id, until=until, version=2
    )
    case.refresh_from_db()
    assert (case.snoozed_until, case.due_at) == (until, due)
    awake = Case.objects.filter
    assert not awake(cases.awake(now=database_now())).exists()
    assert awake(cases.awake(now=until)).exists()
    assert case.events.get().kind == "case.snoozed"


def test_another_owner_wakes_a_case(grace):
    case = open_case()
    snoozed(case, until=case.due_at, user=grace)
    case.refresh_from_db()
    assigned(case, to=grace, user=grace)
    case.refresh_from_db()
    assert case.snoozed_until is None


@pytest.mark.parametrize("seconds", [-1, 0, 4 * 3_600 + 1])
def test_a_snooze_ends_between_now_and_the_due_time(grace, seconds):
    case = open_case()
    until = case.opened_at + timedelta(seconds=seconds)
    assert "between now and its due time" in unchanged(case, snoozed(case, until=until, user=grace))


def test_a_case_past_its_due_time_cannot_be_put_off(grace):
    case = open_case()
    builders.skew_clock(settings.CASE_DUE_SECONDS + 1)
    until = case.due_at + timedelta(hours=1)
    assert "past its due time" in unchanged(case, snoozed(case, until=until, user=grace))


def test_the_database_refuses_a_snooze_past_the_due_time():
    case = open_case()
    with pytest.raises(IntegrityError, match="case_snooze_ends_in_time"), transaction.atomic():
        Case.objects.filter(pk=case.pk).update(snoozed_until=case.due_at + timedelta(seconds=1))


def test_a_cases_history_is_append_only(grace):
    case = open_case()
    assigned(case, to=grace, user=grace)
    for spoil in (
        lambda: CaseEvent.objects.update(actor="person:nobody"),
        lambda: CaseEvent.objects.all().delete(),
    ):
        with pytest.raises(DatabaseError, match="pgtrigger"), transaction.atomic():
            spoil()


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        (Case.Kind.FAILED, 1),
        (Case.Kind.UNKNOWN_OUTCOME, 2),
        (Case.Kind.INCIDENT, 4),
        (Case.Kind.ACCOUNT_PAUSED, 4),
    ],
)
def test_what_stops_money_is_due_sooner(kind, share):
    case = open_case(kind)
    assert case.due_at - case.opened_at == timedelta(seconds=settings.CASE_DUE_SECONDS / share)


def test_an_unknown_outcome_is_twice_escalated_while_its_key_can_still_be_sent():
    twice = 2 * cases.due_in(Case.Kind.UNKNOWN_OUTCOME)
    assert twice < timedelta(seconds=settings.KEY_RESEND_SECONDS)
