"""The operator's commands: reconcile, status, pause. They answer in sentences."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from effects import cases
from effects.clock import database_now
from effects.models import Case, Switch
from effects.states import State
from refunds.dispatch import dispatch
from tests import builders
from tests.reconciliation import ways
from tests.refunds import debts

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_reconcile_sweeps_now(sandbox):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    builders.skew_clock(31)
    assert "1 action" in run("reconcile")
    assert builders.fresh(action).state == State.SUCCEEDED


def test_reconcile_asks_about_one_action_in_any_state(sandbox):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    said = run("reconcile", "--action", action.action_id, "--by", "grace")
    assert said.strip() == f"{action.action_id}: The provider shows it. It is succeeded."
    assert ways.looks(action)[-1]["asked_by"] == "person:grace"


def test_reconcile_says_when_there_is_no_such_action():
    with pytest.raises(CommandError, match="no such action"):
        run("reconcile", "--action", "refund:order-1:request-none")


def test_status_says_when_nothing_waits():
    assert "Nothing is waiting" in run("status")


def test_status_says_when_the_owner_of_cases_is_nobody(settings):
    settings.CASE_OWNER = "grace"
    assert "CASE_OWNER is grace, and there is no user of that name" in run("status")
    User.objects.create_user("grace")
    assert "CASE_OWNER" not in run("status")


def test_status_says_when_the_next_in_line_is_nobody(settings):
    User.objects.create_user("grace")
    settings.CASE_OWNER = settings.CASE_ESCALATION_OWNER = "grace"
    assert "CASE_ESCALATION_OWNER" not in run("status")
    settings.CASE_ESCALATION_OWNER = "lead"
    assert "CASE_ESCALATION_OWNER is lead, and there is no user of that name" in run("status")


def test_status_says_whose_cases_belong_to_somebody_who_left(sandbox):
    row = builders.action(builders.order(sandbox=sandbox))
    owner = builders.person("grace")
    for kind in (Case.Kind.FAILED, Case.Kind.INCIDENT):
        with debts.locked(row) as found:
            cases.open_case(kind=kind, effect="refund", locked=found, reason="it", evidence={})
    Case.objects.update(**cases.owned_by("grace"))
    assert "log in any more" not in run("status")
    owner.is_active = False
    owner.save()
    assert "2 open case(s) belong to grace, who cannot log in any more" in run("status")


def test_status_tells_escalated_and_sleeping_cases():
    now = database_now()
    rows: list[tuple[int, dict[str, Any]]] = [
        (-1, {"escalations": 1}),
        (1, {"snoozed_until": now + timedelta(minutes=30)}),
    ]
    for number, (due, columns) in enumerate(rows):
        Case.objects.create(
            kind=Case.Kind.FAILED,
            resource=f"order:{number}",
            owner="grace",
            opened_at=now - timedelta(hours=4),
            due_at=now + timedelta(hours=due),
            **columns,
        )
    late, asleep = (line for line in run("status").splitlines() if "owner grace" in line)
    assert "OVERDUE, escalated 1 of 2 times" in late
    assert "put off until" in asleep


@pytest.mark.parametrize("oldest", ["-1", "many"])
def test_status_shows_no_fewer_rows_than_none(oldest):
    with pytest.raises(CommandError, match="--oldest"):
        run("status", "--oldest", oldest)


def test_status_says_what_waits_since_when_and_whose_turn_it_is(sandbox):
    unknown = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    escalated = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    submitting = builders.action(builders.order(sandbox=sandbox))
    authorized = builders.action(builders.order())
    ways.sweep_at(24 * 3600 + 1)
    builders.skew_clock(24 * 3600 + 30)
    builders.claimed(submitting)

    lines = run("status").splitlines()

    def line(action):
        return next(each for each in lines if action.action_id in each and "Turn:" in each)

    assert "2 refund(s) in UNKNOWN, the oldest first:" in lines
    assert "key 1 d 0 h old" in line(unknown)
    assert "Turn: case-owner, who owns its case." in line(escalated)
    assert "worker that holds its lease" in line(submitting)
    assert "Turn: a worker." in line(authorized)
    assert any(each.startswith("2 open case(s)") for each in lines)
    assert any("Sweep reconciliation.sweep came through" in each for each in lines)


def test_pause_stops_sends_and_says_so(sandbox):
    action = builders.action(builders.order(sandbox=sandbox))
    assert "Paused" in run("pause", "on", "kind:refund", "--reason", "drill", "--by", "grace")
    again = run("pause", "on", "kind:refund", "--reason", "again", "--by", "g")
    assert "paused already: kind:refund: drill (grace" in again
    assert "kind:refund: drill (grace" in run("pause", "list")
    said = run("status")
    assert "Paused: kind:refund" in said
    assert "Turn: whoever turns off the kill switch kind:refund." in said
    dispatch(action_id=action.action_id)
    assert ways.posts(sandbox) == 0

    assert "not paused any more" in run("pause", "off", "kind:refund", "--by", "grace")
    assert run("pause", "list").strip() == "Nothing is paused."
    assert dispatch(action_id=action.action_id) == "succeeded"


def test_a_pause_is_not_lifted_by_nobody():
    run("pause", "on", "global", "--reason", "drill", "--by", "grace")
    with pytest.raises(CommandError, match=r"global is still paused.*who you are"):
        run("pause", "off", "global", "--by", "")
    assert Switch.objects.get().ended_at is None


def test_a_pause_without_an_end_outlasts_one_that_had_one():
    until = "2099-01-01T00:00"
    run("pause", "on", "global", "--reason", "drill", "--by", "grace", "--until", until)
    assert "Paused" in run("pause", "on", "global", "--reason", "found it", "--by", "ada")
    (line,) = run("pause", "list").splitlines()
    assert line.startswith("global: found it (ada")


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ("agent:agnet-1", "No refund was ever proposed by agnet-1; it is on all the same."),
        ("account:stripe:acct_nobody", "No order uses account:stripe:acct_nobody; it is on"),
    ],
)
def test_a_pause_that_covers_nothing_yet_says_so(scope, words):
    assert words in run("pause", "on", scope, "--reason", "drill", "--by", "grace")
    assert Switch.objects.get().scope == scope


@pytest.mark.parametrize("scope", ["global", "agent:agent-1", "account:stripe:"])
def test_a_pause_that_covers_something_says_no_more(scope):
    builders.action(builders.order())
    said = run("pause", "on", scope, "--reason", "drill", "--by", "grace")
    assert "all the same" not in said


def test_a_pause_can_end_by_itself():
    until = "2099-01-01T00:00+01:00"
    run("pause", "on", "global", "--reason", "drill", "--by", "grace", "--until", until)
    assert Switch.objects.get().until == datetime(2098, 12, 31, 23, tzinfo=UTC)
    assert "until 2098-12-31 23:00 UTC" in run("pause", "list")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("on", "everything", "--reason", "x", "--by", "g"), "scope"),
        (("on", "kind:refunds", "--reason", "x", "--by", "g"), "no kind 'refunds'"),
        (("on", "global", "--reason", " ", "--by", "g"), "reason"),
        (
            ("on", "global", "--reason", "x", "--by", "g", "--until", "2001-01-01T00:00"),
            "in the future",
        ),
        (("on", "global", "--reason", "x", "--by", "g", "--until", "soon"), "soon"),
        (("on", "global", "--reason", "x", "--by", ""), "must say who you are"),
        (("off", "global", "--by", "g"), "was not paused"),
        (("on", "global", "--by", "g"), "--reason"),
        ((), "verb"),
    ],
)
def test_what_cannot_be_paused_is_refused_in_words(arguments, words):
    with pytest.raises(CommandError, match=words):
        run("pause", *arguments)
    assert not Switch.objects.exists()
