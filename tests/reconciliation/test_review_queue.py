"""A queue of proposals that nobody drains opens one case, which closes itself."""

from __future__ import annotations

import logging

import pytest
from django.conf import settings

from approvals.settle import NotSettled, settle_case
from effects.models import Case
from effects.states import State
from reconciliation import review_queue, sweep
from refunds.models import RefundAction
from tests import builders
from tests.approvals.test_case_owners import settler

pytestmark = pytest.mark.django_db(transaction=True)

HALF = settings.APPROVAL_TTL_SECONDS / 2


def sweep_at(seconds: float) -> None:
    builders.skew_clock(seconds)
    sweep.sweep()


def queue_cases() -> list[Case]:
    return list(Case.objects.filter(resource=review_queue.RESOURCE).order_by("pk"))


def proposed() -> RefundAction:
    """A proposal that a person must decide."""
    action = builders.action(builders.order(captured_minor=100_000), amount_minor=90_000)
    assert action.state == State.AWAITING_APPROVAL
    return action


def test_a_young_queue_is_no_case():
    proposed()
    sweep_at(HALF - 10)
    assert queue_cases() == []


def test_half_way_to_the_end_the_queue_is_a_case_once_and_is_logged_once(caplog):
    proposed()
    proposed()
    for seconds in (HALF + 1, HALF + 2, HALF + 3):
        sweep_at(seconds)
    (case,) = queue_cases()
    assert (case.kind, case.owner, case.closed_at) == (Case.Kind.QUEUE, settings.CASE_OWNER, None)
    assert case.evidence["waiting"] == 2
    told = [record for record in caplog.records if record.name == review_queue.__name__]
    assert [record.levelno for record in told] == [logging.ERROR]


def test_the_case_closes_itself_when_what_waited_was_decided_and_opens_again_later():
    first = proposed()
    sweep_at(HALF + 1)
    proposed()  # young: it does not keep the case open
    builders.stand_at(first, State.REJECTED)
    sweep_at(HALF + 2)
    (case,) = queue_cases()
    assert (case.closed_by, case.resolution) == ("sweep", "The queue was drained.")
    sweep_at(2 * HALF + 2)
    assert [each.closed_at is None for each in queue_cases()] == [False, True]


def test_what_expires_has_a_case_of_its_own_and_ends_the_queues():
    action = proposed()
    sweep_at(HALF + 1)
    sweep_at(2 * HALF + 1)
    assert builders.fresh(action).state == State.EXPIRED
    assert queue_cases()[0].closed_at is not None
    assert Case.objects.filter(kind=Case.Kind.EXPIRED, closed_at__isnull=True).count() == 1


def test_nobody_closes_the_queue_by_a_word():
    proposed()
    sweep_at(HALF + 1)
    result = settle_case(
        case_id=queue_cases()[0].case_id, user=settler("grace"), note="I will look tomorrow"
    )
    assert isinstance(result, NotSettled)
    assert "drained" in result.sentence
