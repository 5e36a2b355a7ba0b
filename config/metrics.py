"""/metrics: how the house stands, read from the database at every scrape (docs/operations.md).

Nothing is counted in a process: processes are many, die, and forget. What an alert needs is an
age, and ages are in rows. Route this address to the monitoring only; it names kill switches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from agents.rates import redis_answers
from agents.security import counted_lately
from effects.standing import Standing, standing


class HouseCollector(Collector):
    """Turns one reading of the house into metric families."""

    def collect(self) -> Iterable[Metric]:
        """Read once, then yield. Raises DatabaseError when the database cannot be read."""
        now = standing()
        yield from _actions(now)
        yield from _cases(now)
        yield from _reviews(now)
        yield from _machinery(now)
        yield from _agents()


def metrics(request: HttpRequest) -> HttpResponse:
    """The text that Prometheus scrapes; 503 when the database cannot be read, so that `up` is 0."""
    try:
        text = generate_latest(_registry)
    except DatabaseError:
        return HttpResponse("The database cannot be read.\n", status=503, content_type="text/plain")
    return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)


def _actions(now: Standing) -> Iterable[Metric]:
    labels = ["effect", "state"]
    count = GaugeMetricFamily(
        "refund_once_open_actions",
        "Actions that are not over, by state. Those that are over are not counted: that would "
        "scan the whole table.",
        labels=labels,
    )
    age = GaugeMetricFamily(
        "refund_once_oldest_action_age_seconds",
        "How long the oldest action has stood in this state; 0 when there is none.",
        labels=labels,
    )
    overdue = GaugeMetricFamily(
        "refund_once_action_overdue_seconds",
        "By how long the most overdue action of this state is past its due time. AUTHORIZED: "
        "allowed and not dispatched.",
        labels=labels,
    )
    key_age = GaugeMetricFamily(
        "refund_once_oldest_unresolved_key_age_seconds",
        "Age of the oldest idempotency key that was used and whose effect is not known.",
        labels=["effect"],
    )
    oldest_key: dict[str, float] = {}
    for found in now.states:
        where = [found.effect, found.state.value]
        count.add_metric(where, found.count)
        age.add_metric(where, found.age_seconds)
        overdue.add_metric(where, found.overdue_seconds)
        oldest_key[found.effect] = max(oldest_key.get(found.effect, 0.0), found.key_age_seconds)
    for effect, seconds in oldest_key.items():
        key_age.add_metric([effect], seconds)
    return count, age, overdue, key_age


def _cases(now: Standing) -> Iterable[Metric]:
    count = GaugeMetricFamily(
        "refund_once_open_cases", "Cases that wait for a person.", labels=["kind"]
    )
    overdue = GaugeMetricFamily(
        "refund_once_overdue_cases", "Open cases past their due time.", labels=["kind"]
    )
    escalated = GaugeMetricFamily(
        "refund_once_escalated_cases",
        "Open cases that went to the next in line, by how often: at their due time (level 1), and "
        "when it was over twice (level 2).",
        labels=["kind", "level"],
    )
    snoozed = GaugeMetricFamily(
        "refund_once_snoozed_cases", "Open cases that were put off for now.", labels=["kind"]
    )
    age = GaugeMetricFamily(
        "refund_once_oldest_case_age_seconds",
        "How long the oldest case of this kind has been open; 0 when there is none.",
        labels=["kind"],
    )
    for found in now.cases:
        count.add_metric([found.kind.value], found.count)
        overdue.add_metric([found.kind.value], found.overdue)
        for level, escalated_cases in enumerate(found.escalated, start=1):
            escalated.add_metric([found.kind.value, str(level)], escalated_cases)
        snoozed.add_metric([found.kind.value], found.snoozed)
        age.add_metric([found.kind.value], found.age_seconds)
    return count, overdue, escalated, snoozed, age


def _reviews(now: Standing) -> Iterable[Metric]:
    labels = ["queue", "tier"]
    count = GaugeMetricFamily(
        "refund_once_review_open",
        "What waits for people: proposals (queue approvals, by tier) and cases.",
        labels=labels,
    )
    age = GaugeMetricFamily(
        "refund_once_review_oldest_age_seconds",
        "How long the oldest of a queue has waited for a person; 0 when it is empty.",
        labels=labels,
    )
    limit = GaugeMetricFamily(
        "refund_once_approval_ttl_seconds",
        "How long a proposal waits for a person before it expires (APPROVAL_TTL_SECONDS).",
    )
    limit.add_metric([], settings.APPROVAL_TTL_SECONDS)
    for found in now.reviews:
        count.add_metric([found.queue, found.tier], found.count)
        age.add_metric([found.queue, found.tier], found.age_seconds)
    return count, age, limit


def _machinery(now: Standing) -> Iterable[Metric]:
    sweep = GaugeMetricFamily(
        "refund_once_last_sweep_age_seconds",
        "Seconds since this sweep last came through; infinite when it never did.",
        labels=["sweep"],
    )
    for name in sorted({*settings.CELERY_BEAT_SCHEDULE, *now.sweeps}):
        sweep.add_metric([name], now.sweeps.get(name, math.inf))
    switches = GaugeMetricFamily("refund_once_kill_switches_on", "Kill switches that are on.")
    switches.add_metric([], len(now.switches_on))
    switch = GaugeMetricFamily(
        "refund_once_kill_switch_on", "1 for each scope that is stopped.", labels=["scope"]
    )
    for scope in now.switches_on:
        switch.add_metric([scope], 1)
    breaker = GaugeMetricFamily(
        "refund_once_breaker_open",
        "1 for each provider account that is not read for now.",
        labels=["account"],
    )
    for account in now.breakers_open:
        breaker.add_metric([account], 1)
    alone = GaugeMetricFamily(
        "refund_once_rate_limits_without_redis",
        "1 while Redis does not answer: each web process then counts requests by itself.",
    )
    alone.add_metric([], 0 if redis_answers() else 1)
    return sweep, switches, switch, breaker, alone


def _agents() -> Iterable[Metric]:
    events = GaugeMetricFamily(
        "refund_once_security_events",
        "What credentials of agents were used for and are not for, in the last hour: at most one "
        "a minute of each credential, kind and address.",
        labels=["kind"],
    )
    for kind, count in counted_lately():
        events.add_metric([kind], count)
    return (events,)


_registry = CollectorRegistry()
# Registered without a first collection: no database is asked when this is imported.
_registry.register(HouseCollector())
