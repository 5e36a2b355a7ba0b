"""What the monitoring reads: ages and counts from rows, at a fixed price."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError, connection
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from effects.clock import database_now
from effects.kinds import all_kinds
from effects.models import Breaker, Case, SweepRun, Switch
from effects.states import State
from effects.switches import turn_on
from refunds.models import RefundAction
from tests import builders

pytestmark = pytest.mark.django_db


def scrape() -> dict[tuple[str, str], float]:
    """Every sample as {(name, label values): value}."""
    answer = Client().get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, "/".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.content.decode())
        for sample in family.samples
    }


def test_open_actions_are_counted_by_state_with_the_age_of_the_oldest():
    order = builders.order(captured_minor=100_000)
    builders.action(order, amount_minor=15_000)
    builders.skew_clock(3_600)
    builders.action(order, amount_minor=16_000)
    found = scrape()
    assert found["refund_once_open_actions", "refund/AWAITING_APPROVAL"] == 2
    age = found["refund_once_oldest_action_age_seconds", "refund/AWAITING_APPROVAL"]
    assert 3_600 <= age < 3_660
    assert found["refund_once_open_actions", "refund/UNKNOWN"] == 0
    assert found["refund_once_oldest_action_age_seconds", "refund/UNKNOWN"] == 0
    assert ("refund_once_open_actions", "refund/SUCCEEDED") not in found


def test_an_authorized_action_that_nobody_dispatches_is_overdue():
    builders.action(builders.order())
    assert scrape()["refund_once_action_overdue_seconds", "refund/AUTHORIZED"] == 0
    builders.skew_clock(600)
    assert scrape()["refund_once_action_overdue_seconds", "refund/AUTHORIZED"] > 590


def test_the_oldest_unresolved_key_is_aged_and_a_resolved_one_is_not():
    action = builders.action(builders.order())
    builders.claimed(action)
    builders.skew_clock(2 * 3_600)
    builders.lease_over(action)
    assert scrape()["refund_once_oldest_unresolved_key_age_seconds", "refund"] >= 7_200
    builders.stand_at(action, State.SUCCEEDED, provider_ref="re_1")
    assert scrape()["refund_once_oldest_unresolved_key_age_seconds", "refund"] == 0


def test_cases_switches_breakers_and_sweeps_are_told():
    now = database_now()
    for resource, due in (("order:1", now - timedelta(hours=1)), ("order:2", now)):
        Case.objects.create(
            kind=Case.Kind.INCIDENT,
            resource=resource,
            reason="two refunds",
            owner="case-owner",
            opened_at=now - timedelta(hours=5),
            due_at=due + timedelta(minutes=1),
        )
    turn_on(scope="agent:a1", reason="drill", actor="person:x")
    Switch.objects.create(
        scope="global", reason="over", set_by="x", set_at=now, until=now - timedelta(hours=1)
    )
    Breaker.objects.create(account="stripe:", open_until=now + timedelta(minutes=1))
    Breaker.objects.create(account="stripe:eu", open_until=now - timedelta(minutes=1))
    SweepRun.objects.create(name="refunds.dispatch_due", finished_at=now - timedelta(seconds=40))
    found = scrape()
    assert found["refund_once_open_cases", "incident"] == 2
    assert found["refund_once_overdue_cases", "incident"] == 1
    assert found["refund_once_oldest_case_age_seconds", "incident"] >= 5 * 3_600
    assert found["refund_once_open_cases", "failed"] == 0
    assert found["refund_once_kill_switches_on", ""] == 1
    assert found["refund_once_kill_switch_on", "agent:a1"] == 1
    assert found["refund_once_breaker_open", "stripe:"] == 1
    assert ("refund_once_breaker_open", "stripe:eu") not in found
    assert 40 <= found["refund_once_last_sweep_age_seconds", "refunds.dispatch_due"] < 50
    # A sweep that never came through must fire the same alert as one that stopped.
    assert found["refund_once_last_sweep_age_seconds", "reconciliation.sweep"] == float("inf")


def test_what_waits_for_people_is_told_by_queue_and_tier():
    found = scrape()
    assert found["refund_once_review_open", "approvals/1"] == 0
    assert found["refund_once_review_oldest_age_seconds", "approvals/1"] == 0
    assert found["refund_once_review_open", "cases/"] == 0
    builders.action(builders.order(captured_minor=100_000), amount_minor=90_000)
    RefundAction.objects.update(review_tier=2)
    now = database_now()
    Case.objects.create(
        kind=Case.Kind.FAILED,
        resource="order:1",
        owner="case-owner",
        opened_at=now - timedelta(hours=5),
        due_at=now + timedelta(hours=1),
        snoozed_until=now + timedelta(minutes=30),
        escalations=1,
    )
    builders.skew_clock(60)
    found = scrape()
    assert found["refund_once_review_open", "approvals/1"] == 0
    assert found["refund_once_review_open", "approvals/2"] == 1
    assert 60 <= found["refund_once_review_oldest_age_seconds", "approvals/2"] < 120
    assert found["refund_once_open_actions", "refund/AWAITING_APPROVAL"] == 1
    assert found["refund_once_review_open", "cases/"] == 1
    assert found["refund_once_review_oldest_age_seconds", "cases/"] >= 5 * 3_600
    assert found["refund_once_escalated_cases", "failed/1"] == 1
    assert found["refund_once_escalated_cases", "failed/2"] == 0
    assert found["refund_once_snoozed_cases", "failed"] == 1
    assert found["refund_once_approval_ttl_seconds", ""] == settings.APPROVAL_TTL_SECONDS


def test_a_scrape_is_five_queries_and_one_for_each_kind_and_none_counts_what_is_over(
    django_assert_num_queries,
):
    builders.action(builders.order())
    with django_assert_num_queries(5 + len(all_kinds())) as queries:
        scrape()
    states = next(q["sql"] for q in queries if "refunds_refundaction" in q["sql"])
    with connection.cursor() as cursor:
        # With few rows a scan is cheaper, and right; forbidden, the plan shows what is possible.
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {states}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "refund_open_by_state" in plan


def test_without_a_database_the_scrape_fails_instead_of_telling_zeros(monkeypatch):
    def unreachable() -> Any:
        raise OperationalError("host db-1.internal refused user refund")

    monkeypatch.setattr("config.metrics.standing", unreachable)
    answer = Client().get("/metrics")
    assert answer.status_code == 503
    assert b"db-1" not in answer.content


def test_readiness_shows_how_long_ago_the_sweeps_ran_and_does_not_depend_on_it():
    assert Client().get("/readyz").json() == {"status": "ok", "last_sweep_seconds_ago": {}}
    SweepRun.objects.create(
        name="refunds.dispatch_due", finished_at=database_now() - timedelta(hours=3)
    )
    answer = Client().get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["last_sweep_seconds_ago"]["refunds.dispatch_due"] >= 3 * 3_600
