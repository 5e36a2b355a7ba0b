"""Cases past their due time go to the next in line, once for each time, and never twice."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connection

from effects import cases
from effects.clock import database_now
from effects.models import Case, CaseEvent
from reconciliation import case_deadlines, sweep
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)

DUE = settings.CASE_DUE_SECONDS


@pytest.fixture(autouse=True)
def _lead(settings):
    settings.CASE_ESCALATION_OWNER = "lead"


def open_case(number: int = 1) -> Case:
    cases.open_resource_case(
        kind=Case.Kind.FAILED,
        effect="",
        resource=f"order:{number}",
        reason="customer@example.com is owed 79.00",
        evidence={"email": "customer@example.com"},
        now=database_now(),
    )
    return Case.objects.get(resource=f"order:{number}")


def sweep_at(seconds: float) -> None:
    builders.skew_clock(seconds)
    sweep.sweep()


def levels(case: Case) -> list[int]:
    return [event.data["level"] for event in case.events.order_by("pk")]


def test_before_its_due_time_a_case_stays_where_it_is():
    case = open_case()
    sweep_at(DUE - 10)
    case.refresh_from_db()
    assert (case.owner, case.escalations) == (settings.CASE_OWNER, 0)
    assert cases.next_escalation(case) == case.due_at
    assert not CaseEvent.objects.exists()


def test_at_its_due_time_a_case_goes_to_the_next_in_line_and_again_at_twice_that(caplog):
    lead = builders.person("lead")
    case = open_case()
    sweep_at(DUE + 1)
    case.refresh_from_db()
    assert (case.owner, case.assignee, case.escalations) == ("lead", lead, 1)
    assert cases.next_escalation(case) == case.due_at + timedelta(seconds=DUE)
    event = case.events.get()
    assert (event.kind, event.actor) == ("case.escalated", "sweep")
    assert (event.data["from"], event.data["to"]) == (settings.CASE_OWNER, "lead")
    for seconds in (DUE + 2, 2 * DUE - 10, 2 * DUE + 1, 2 * DUE + 2, 9 * DUE):
        sweep_at(seconds)
    case.refresh_from_db()
    assert levels(case) == [1, 2]
    assert (case.escalations, cases.next_escalation(case)) == (2, None)
    told = [record for record in caplog.records if record.name == case_deadlines.__name__]
    assert [record.levelno for record in told] == [logging.ERROR, logging.ERROR]
    said = "".join(str(vars(record)) for record in told)
    assert str(case.case_id) in said
    assert "customer@example.com" not in said
    assert "79.00" not in said


def test_an_escalated_case_is_awake_and_has_the_due_time_it_had():
    case = open_case()
    Case.objects.filter(pk=case.pk).update(snoozed_until=case.due_at)
    sweep_at(DUE + 1)
    due = case.due_at
    case.refresh_from_db()
    assert (case.snoozed_until, case.due_at, case.version) == (None, due, 2)


def test_whoever_got_it_meanwhile_loses_it_to_the_next_in_line():
    case = open_case()
    sweep_at(DUE + 1)
    Case.objects.filter(pk=case.pk).update(owner="ada", assignee=builders.person("ada"))
    sweep_at(2 * DUE + 1)
    case.refresh_from_db()
    assert (case.owner, case.assignee) == ("lead", None)
    assert levels(case) == [1, 2]


def test_a_case_that_nobody_swept_for_days_is_escalated_twice_and_no_more():
    case = open_case()
    for _ in range(4):
        sweep_at(30 * DUE)
    assert levels(case) == [1, 2]


def test_a_closed_case_is_left_alone():
    case = open_case()
    Case.objects.filter(pk=case.pk).update(closed_at=database_now())
    sweep_at(9 * DUE)
    assert levels(case) == []


def test_two_sweeps_at_once_escalate_each_case_once():
    found = [open_case(number) for number in range(20)]
    gate = threading.Barrier(2)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            builders.skew_clock(DUE + 1)
            gate.wait()
            sweep.sweep()
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [levels(case) for case in found] == [[1]] * 20


def test_more_than_a_batch_is_left_to_the_next_sweep(monkeypatch):
    monkeypatch.setattr(sweep, "BATCH_MAX", 2)
    for number in range(3):
        open_case(number)
    sweep_at(DUE + 1)
    assert Case.objects.filter(escalations=1).count() == 2
    sweep_at(DUE + 1)
    assert Case.objects.filter(escalations=1).count() == 3
