"""Two people, or a person and the sweep, at the same case or switch at the same moment."""

from __future__ import annotations

from functools import partial

import pytest
from django.conf import settings

from approvals.case_owners import Assigned, NotChanged, WhyAssigned, assign_case
from effects.clock import database_now
from effects.models import Case, CaseEvent, Switch
from effects.switches import turn_on
from reconciliation.review_queue import RESOURCE, watch_queue
from reconciliation.sweep import sweep
from tests import builders
from tests.approvals.test_case_owners import NOTE, open_case, settler
from tests.concurrency.test_races import at_once

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]


def test_of_two_people_who_saw_the_same_case_one_gets_it():
    case = open_case()
    people = [settler(f"person-{number}") for number in range(8)]
    results = at_once(
        *(
            partial(
                assign_case,
                case_id=case.case_id,
                to=person,
                why=WhyAssigned.TAKEN.value,
                note=NOTE,
                user=person,
                seen_version=case.version,
            )
            for person in people
        )
    )
    (won,) = (result for result in results if isinstance(result, Assigned))
    assert sum(isinstance(result, NotChanged) for result in results) == 7
    case.refresh_from_db()
    assert (case.owner, case.version) == (won.owner, 2)
    assert CaseEvent.objects.count() == 1


def test_a_person_and_the_sweep_leave_one_line_each_or_the_person_is_told():
    case, grace = open_case(), settler("grace")

    def late_sweep() -> int:
        builders.skew_clock(settings.CASE_DUE_SECONDS + 1)
        return sweep()

    assign = partial(
        assign_case,
        case_id=case.case_id,
        to=grace,
        why=WhyAssigned.TAKEN.value,
        note=NOTE,
        user=grace,
        seen_version=case.version,
    )
    result, _ = at_once(assign, late_sweep)
    late_sweep()  # what the person held at that moment is taken by the next one
    case.refresh_from_db()
    kinds = list(case.events.order_by("pk").values_list("kind", flat=True))
    if isinstance(result, Assigned):
        assert kinds == ["case.assigned", "case.escalated"]
    else:
        assert kinds == ["case.escalated"]
    assert case.escalations == 1


def test_ten_sweeps_at_once_open_one_case_of_a_queue_that_is_not_drained():
    builders.action(builders.order(captured_minor=100_000), amount_minor=90_000)
    builders.skew_clock(settings.APPROVAL_TTL_SECONDS / 2 + 1)
    now = database_now()
    at_once(*(partial(watch_queue, now=now) for _ in range(10)))
    assert Case.objects.filter(resource=RESOURCE).count() == 1


def test_ten_people_who_stop_everything_at_once_stop_it_once():
    at_once(
        *(
            partial(turn_on, scope="global", reason="fire", actor=f"person:{number}")
            for number in range(10)
        )
    )
    assert Switch.objects.filter(scope="global", ended_at__isnull=True).count() == 1
    assert Switch.objects.count() == 1
