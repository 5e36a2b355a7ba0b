"""Replay: what was decided is decided again, and a draft shows what it would have changed."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from effects.clock import database_now
from policies.decision import Verdict
from policies.facts import SCOPES, Facts, OrderLine, OtherAction, RefundLine, Usage
from policies.models import DecisionRecord, PolicyVersion
from policies.parameters import Parameters
from policies.replay import LARGEST_MAX, Change, replay
from policies.rules import evaluate
from policies.versions import DEFAULT_PARAMETERS, in_force, publish
from tests import builders

pytestmark = pytest.mark.django_db

ACTIONS = 10_000


def any_facts(draw: random.Random, number: int) -> Facts:
    """Facts of any kind that a refund can have, mostly those of ordinary ones."""
    currency = draw.choice(["USD", "USD", "USD", "EUR", "JPY", "KWD", "SEK"])
    captured = draw.randrange(1, 300_000)
    amount = draw.choice([draw.randrange(1, captured + 1), draw.randrange(1, 15_000), captured + 1])

    def sometimes(value: Any, usual: Any, chance: float = 0.05) -> Any:
        return value if draw.random() < chance else usual

    return Facts(
        order_id=f"o-{number}",
        order_version=draw.randrange(1, 20),
        currency=currency,
        amount_minor=amount,
        reason=draw.choice([*DEFAULT_PARAMETERS.reasons, "fraudulent", "other"]),
        captured_minor=captured,
        refunded_minor=sometimes(draw.randrange(captured), 0),
        reserved_minor=sometimes(draw.randrange(captured), 0),
        disputed_minor=sometimes(captured, 0),
        settled_otherwise_minor=sometimes(draw.randrange(captured), 0),
        own_reservation_minor=0,
        dispute_state=sometimes(draw.choice(["inquiry", "open", "won", "lost"]), "none"),
        provider_searchable=sometimes(draw.choice([None, False]), True),
        proposer=draw.choice(["shop", "bot", "new-agent"]),
        switches=sometimes(("global",), ()),
        open_cases=sometimes(1, 0),
        others=tuple(
            OtherAction(
                action_id=f"refund:order-o-{number}:request-{other}",
                state=draw.choice(["AUTHORIZED", "UNKNOWN", "PENDING", "SUCCEEDED"]),
                amount_minor=draw.choice([amount, draw.randrange(1, 15_000)]),
                age_seconds=draw.uniform(0, 1e6),
                line_ids=("line-1",),
            )
            for other in range(draw.choice([0, 0, 0, 1, 3]))
        ),
        action_id=f"refund:order-o-{number}:request-x",
        account="stripe:",
        decided_at="2026-11-30T12:34:56.789+00:00",
        provider_reachable=sometimes(False, True),
        placed_at=sometimes(None, "2026-11-01T08:00:00+00:00"),
        delivered_at=sometimes("2026-11-05T08:00:00+00:00", None),
        payment_method=draw.choice(["card", "", "sepa_debit"]),
        customer_known=sometimes(False, True),
        customer_risk=draw.choice([None, "low", "high", "blocked"]),
        shipping_minor=draw.choice([None, 0, 500]),
        order_lines=draw.choice(
            [
                None,
                (
                    OrderLine(
                        line_id="line-1",
                        amount_minor=captured,
                        tax_minor=draw.randrange(500),
                        final_sale=draw.choice([None, True, False]),
                        returned=draw.choice([None, True, False]),
                    ),
                ),
            ]
        ),
        lines=draw.choice([(), (RefundLine(line_id="line-1", amount_minor=amount),)]),
        lines_refunded_minor=sometimes({"line-1": 100}, {}),
        agent_succeeded=draw.choice([None, 0, 60]),
        order_age_seconds=draw.uniform(0, 1e7),
        usage=tuple(
            Usage(
                scope=scope,
                window=window,
                count=draw.randrange(draw.choice([5, 400])),
                sums_minor={currency: draw.randrange(draw.choice([1_000, 3_000_000]))},
            )
            for scope, windows in SCOPES.items()
            for window in windows
        ),
        rates={"EUR": "1", "USD": "1.0823", "JPY": "164.27", "KWD": "0.3327"},
        rates_day="2026-11-30",
        rates_age_days=draw.choice([0, 1, 9]),
    )


def record_of(
    facts: Facts, *, version: PolicyVersion, parameters: Parameters, at: datetime
) -> DecisionRecord:
    """The record of a decision, as `refunds.decide.keep_decision` writes it."""
    decision = evaluate(facts, parameters)
    return DecisionRecord(
        effect="refund",
        action_id=facts.action_id,
        number=1,
        policy_version=version.number,
        policy_hash=version.parameters_hash,
        verdict=decision.verdict.name,
        tier=decision.tier,
        people=decision.people,
        base_currency=decision.base_currency,
        base_minor=decision.base_minor,
        tags=list(decision.tags),
        rules=[rule.as_json() for rule in decision.rules],
        facts=facts.as_json(),
        facts_read_at=at,
    )


# A merchant's own policy, with something of every kind in it that the code knows today.
OWN = replace(
    DEFAULT_PARAMETERS,
    same_amount_window_seconds=3600,
    ceiling_minor={"USD": 5_000, "JPY": 9_000},
)


def generated(count: int) -> None:
    """Decisions of generated refunds under two versions, half and half."""
    draw = random.Random(20261130)
    first = in_force()
    if first is None:
        raise AssertionError("no policy")
    own, now = publish(parameters=OWN, published_by="test"), database_now()
    choices = [(first, DEFAULT_PARAMETERS), (own, OWN)]
    for start in range(0, count, 1_000):
        copy_in(
            record_of(any_facts(draw, number), version=version, parameters=parameters, at=now)
            for number in range(start, min(start + 1_000, count))
            for version, parameters in [draw.choice(choices)]
        )


def copy_in(rows: Iterable[DecisionRecord]) -> None:
    """Insert many decisions quickly: an INSERT spends most of its time on quoting JSON."""
    fields = DecisionRecord._meta.concrete_fields[1:]
    names = ", ".join(str(field.column) for field in fields)
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY policies_decisionrecord ({names}) FROM STDIN") as copy,
    ):
        for row in rows:
            values: list[Any] = [getattr(row, field.attname) for field in fields]
            copy.write_row(json.dumps(v) if isinstance(v, dict | list) else v for v in values)


def a_day_ago() -> datetime:
    return database_now() - timedelta(days=1)


def test_ten_thousand_actions_replayed_by_their_own_versions_change_no_verdict() -> None:
    generated(ACTIONS)
    told: list[int] = []
    changes: list[Change] = []
    result = replay(since=a_day_ago(), told=told.append, each_change=changes.append)
    assert changes == []
    assert (result.decisions, result.changed, result.unreadable) == (ACTIONS, 0, 0)
    assert told[-1] == ACTIONS
    assert len(told) > 10
    # It was about something: all verdicts occur, and who must approve is not always one person.
    verdicts = set(DecisionRecord.objects.values_list("verdict", flat=True).distinct())
    assert verdicts == {verdict.name for verdict in Verdict}
    assert sum(each.count for each in result.sums) == ACTIONS


def test_a_verdict_that_was_recorded_wrongly_is_found() -> None:
    generated(50)
    wrong = DecisionRecord.objects.filter(verdict="DENY").first()
    assert wrong is not None
    with builders.past_the_triggers():
        DecisionRecord.objects.filter(pk=wrong.pk).update(verdict="ALLOW")
    changes: list[Change] = []
    result = replay(since=a_day_ago(), each_change=changes.append)
    assert [(c.action_id, c.was, c.becomes) for c in changes] == [
        (wrong.action_id, "ALLOW", "DENY")
    ]
    assert (result.changed, result.largest[0]) == (1, changes[0])
    assert changes[0].why


@pytest.mark.parametrize("column", ["tier", "people"])
def test_another_approver_is_a_change_of_a_review_and_of_nothing_else(column: str) -> None:
    generated(50)
    rows = DecisionRecord.objects
    reviews = rows.filter(verdict="REVIEW").count()
    with builders.past_the_triggers():
        rows.update(**{column: 9})
    assert replay(since=a_day_ago()).changed == reviews > 0


def stored(of: Facts, **columns: Any) -> DecisionRecord:
    version = in_force()
    if version is None:
        raise AssertionError("no policy")
    row = record_of(of, version=version, parameters=DEFAULT_PARAMETERS, at=database_now())
    for name, value in columns.items():
        setattr(row, name, value)
    row.save()
    return row


def ordinary(number: int = 1, **changed: Any) -> Facts:
    """Facts that the default policy allows."""
    facts = Facts(
        order_id=f"o-{number}",
        order_version=1,
        currency="USD",
        amount_minor=5_000,
        reason="damaged",
        captured_minor=1_000_000,
        refunded_minor=0,
        reserved_minor=0,
        disputed_minor=0,
        settled_otherwise_minor=0,
        own_reservation_minor=0,
        dispute_state="none",
        provider_searchable=True,
        proposer="agent-1",
        action_id=f"refund:order-o-{number}:request-1",
        agent_succeeded=1_000,
        usage=tuple(
            Usage(scope=scope, window=window, count=0)
            for scope, windows in SCOPES.items()
            for window in windows
        ),
        rates={"EUR": "1", "USD": "1.1"},
        rates_day="2026-11-30",
        rates_age_days=0,
    )
    return replace(facts, **changed)


def test_a_stricter_draft_shows_the_money_that_would_then_need_a_person() -> None:
    for number, amount_minor in enumerate((1_000, 4_000, 6_000, 9_000), start=1):
        assert stored(ordinary(number, amount_minor=amount_minor)).verdict == "ALLOW"
    stored(ordinary(5, reason="no-such"))
    stored(ordinary(6, currency="EUR", amount_minor=9_900))
    stricter = replace(DEFAULT_PARAMETERS, ceiling_minor={"USD": 5_000, "EUR": 5_000})
    result = replay(since=a_day_ago(), draft=stricter)
    assert (result.decisions, result.changed, result.complete) == (6, 3, True)
    changed = [each for each in result.sums if each.changed]
    review = changed[0].becomes
    assert review.startswith("REVIEW by 1 of tier")
    assert [(s.was, s.becomes, s.currency, s.count, s.amount_minor) for s in changed] == [
        ("ALLOW", review, "EUR", 1, 9_900),
        ("ALLOW", review, "USD", 2, 15_000),
    ]
    same = [each for each in result.sums if not each.changed]
    assert [(s.was, s.count, s.amount_minor) for s in same] == [
        ("ALLOW", 2, 5_000),
        ("DENY", 1, 5_000),
    ]
    for each in result.sums:
        assert each.without_base in (0, each.count)
        if not each.without_base:
            assert each.base_currency == "USD"
            assert each.base_minor >= each.amount_minor
    # The largest first, in one currency.
    assert [c.amount_minor for c in result.largest] == [9_900, 9_000, 6_000]
    assert "ceiling" in result.largest[0].why


def test_a_looser_draft_shows_the_money_that_would_then_go_out_alone() -> None:
    stored(ordinary(1, amount_minor=30_000))
    looser = replace(DEFAULT_PARAMETERS, ceiling_minor={"USD": 50_000})
    (change,) = replay(since=a_day_ago(), draft=looser).largest
    assert (change.was[:6], change.becomes, change.amount_minor) == ("REVIEW", "ALLOW", 30_000)


def test_a_draft_counts_each_action_once_and_a_check_every_decision() -> None:
    stored(ordinary(1))
    stored(ordinary(1), number=2)
    assert replay(since=a_day_ago(), draft=DEFAULT_PARAMETERS).decisions == 1
    assert replay(since=a_day_ago()).decisions == 2


def test_only_the_last_days_count() -> None:
    stored(ordinary(1), facts_read_at=database_now() - timedelta(days=8))
    stored(ordinary(2))
    assert replay(since=database_now() - timedelta(days=7)).decisions == 1
    assert replay(since=database_now() - timedelta(days=9)).decisions == 2


def test_no_more_are_replayed_than_asked_for_and_it_says_so() -> None:
    for number in range(3):
        stored(ordinary(number))
    result = replay(since=a_day_ago(), decisions_max=2)
    assert (result.decisions, result.complete) == (2, False)
    assert replay(since=a_day_ago(), decisions_max=3).complete


def test_only_the_largest_changes_are_kept() -> None:
    draw = list(range(1, 3 * LARGEST_MAX + 1))
    random.Random(7).shuffle(draw)
    for number in draw:
        stored(ordinary(number, amount_minor=number * 10))
    nothing = replace(DEFAULT_PARAMETERS, ceiling_minor={})
    largest = replay(since=a_day_ago(), draft=nothing).largest
    expected = [number * 10 for number in range(3 * LARGEST_MAX, 2 * LARGEST_MAX, -1)]
    assert [change.amount_minor for change in largest] == expected


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"policy_version": 99}, "no policy version 99"),
        ({"policy_hash": "0" * 64}, "is not the one"),
        ({"facts": {"order_id": "x"}}, "cannot be read"),
    ],
)
def test_what_cannot_be_decided_again_is_a_change_and_says_why(
    columns: dict[str, Any], why: str
) -> None:
    stored(ordinary(1), **columns)
    result = replay(since=a_day_ago())
    assert (result.changed, result.unreadable) == (1, 1)
    assert result.largest[0].becomes == ""
    assert why in result.largest[0].why


def test_what_was_decided_before_any_policy_needed_a_person_and_still_would() -> None:
    row = stored(ordinary(1), policy_version=0, policy_hash="", verdict="REVIEW", tier=1, people=1)
    assert replay(since=a_day_ago()).changed == 0
    (change,) = replay(since=a_day_ago(), draft=DEFAULT_PARAMETERS).largest
    assert (change.action_id, change.becomes) == (row.action_id, "ALLOW")


def test_decisions_of_the_product_itself_replay_the_same() -> None:
    order = builders.order(captured_minor=90_000)
    for amount_minor, reason in ((7_900, "late"), (7_900, "late"), (50_000, "late"), (5, "x")):
        builders.action(order, amount_minor=amount_minor, reason=reason)
    builders.policy(review_beside_open=False, ceiling_minor={})
    builders.action(order, amount_minor=300)
    result = replay(since=a_day_ago())
    assert (result.decisions, result.changed) == (5, 0)


def test_a_replay_writes_nothing() -> None:
    stored(ordinary(1))
    with connection.execute_wrapper(_refuse_writes):
        replay(since=a_day_ago())
        replay(since=a_day_ago(), draft=OWN)


def _refuse_writes(execute: Any, sql: str, parameters: Any, many: Any, context: Any) -> Any:
    if sql.startswith(("INSERT", "UPDATE", "DELETE")):
        raise AssertionError(sql)
    return execute(sql, parameters, many, context)


@contextmanager
def peak_bytes(into: list[int]) -> Iterator[None]:
    tracemalloc.start()
    yield
    into.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()


def test_memory_does_not_grow_with_the_number_of_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.replay.BATCH", 100)
    generated(300)
    replay(since=a_day_ago(), decisions_max=100)  # what is kept from now on is kept for good
    peaks: list[int] = []
    for decisions_max in (300, 900):
        with peak_bytes(peaks):
            assert replay(since=a_day_ago(), decisions_max=decisions_max).decisions == decisions_max
        if len(peaks) == 1:
            for copy in (1, 2):
                rows = list(DecisionRecord.objects.filter(number=1))
                for row in rows:
                    row.number += copy
                copy_in(rows)
    # Kept whole they would take three times as much; what grows a little is not the decisions.
    assert peaks[1] < 2 * peaks[0]


def test_facts_are_read_back_from_the_database_as_they_were() -> None:
    draw = random.Random(1)
    for number in range(300):
        facts = any_facts(draw, number)
        row = stored(facts)
        row.refresh_from_db()
        assert Facts.from_json(row.facts) == facts
        assert Facts.from_json(json.loads(json.dumps(facts.as_json()))) == facts
