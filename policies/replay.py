"""Decisions of the last days again: by the version they were made with, or by a draft.

What was recorded is what is decided on, so a replay reads no order and asks no provider. A draft
is judged by facts as they stood under the policy of that day: had it been in force, what it refused
would not have counted against later refunds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from policies.decision import Decision, Verdict
from policies.facts import Facts
from policies.models import DecisionRecord, PolicyVersion
from policies.outcome import outcome, outcome_of, why
from policies.parameters import Parameters
from policies.read_only import read_only
from policies.rules import evaluate

# How many of the largest changes are kept to be shown.
LARGEST_MAX = 20
# Rows that are in memory at a time, and between two calls of `told`.
BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One decision that would be another. Money as in the record; base money as the replay saw it.

    `becomes` is empty where the record cannot be evaluated; `why` says why, or why it becomes that.
    """

    action_id: str
    number: int
    at: datetime
    amount_minor: int
    currency: str
    base_minor: int | None
    base_currency: str
    was: str
    becomes: str
    why: str


@dataclass(slots=True, kw_only=True)
class Sum:
    """Decisions that went one way, in one currency. `base_minor` leaves out those `without_base`,
    for which there was no rate of the day."""

    was: str
    becomes: str
    currency: str
    count: int = 0
    amount_minor: int = 0
    base_minor: int = 0
    base_currency: str = ""
    without_base: int = 0

    @property
    def changed(self) -> bool:
        """Whether these would be decided in another way."""
        return self.was != self.becomes


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a replay found. `sums` are sorted, changes first; `largest` the largest first.

    `complete` is False where more decisions than asked for stand in the time.
    """

    decisions: int
    changed: int
    unreadable: int
    sums: tuple[Sum, ...]
    largest: tuple[Change, ...]
    complete: bool


def replay(
    *,
    since: datetime,
    draft: Parameters | None = None,
    decisions_max: int | None = None,
    told: Callable[[int], None] | None = None,
    each_change: Callable[[Change], None] | None = None,
) -> Replay:
    """Decide again what was decided since then, newest first. Reads only, in constant memory.

    Without a draft every decision is evaluated by the version it was recorded with: none may
    change. With one, the first decision of each action is, by the draft. `told` hears how many
    are done, `each_change` of every change.
    """
    tally = _Tally()
    policies: dict[int, tuple[Parameters, str] | None] = {}
    complete = True
    with read_only():
        for record in _records(since=since, first_only=draft is not None):
            if decisions_max is not None and tally.decisions == decisions_max:
                complete = False
                break
            change = _again(record, draft=draft, policies=policies, tally=tally)
            if change is not None and each_change is not None:
                each_change(change)
            if told is not None and tally.decisions % BATCH == 0:
                told(tally.decisions)
    if told is not None:
        told(tally.decisions)
    return Replay(
        decisions=tally.decisions,
        changed=tally.changed,
        unreadable=tally.unreadable,
        sums=tuple(
            sorted(
                tally.sums.values(),
                key=lambda sum: (not sum.changed, sum.was, sum.becomes, sum.currency),
            )
        ),
        largest=tuple(change for _, _, change in sorted(tally.largest, reverse=True)),
        complete=complete,
    )


def count_decisions(*, since: datetime, first_only: bool) -> int:
    """How many there are to replay, for showing progress."""
    return _chosen(since=since, first_only=first_only).count()


def _chosen(*, since: datetime, first_only: bool) -> QuerySet[DecisionRecord]:
    chosen = DecisionRecord.objects.filter(facts_read_at__gte=since)
    return chosen.filter(number=1) if first_only else chosen


def _records(*, since: datetime, first_only: bool) -> Iterator[dict[str, Any]]:
    rows = _chosen(since=since, first_only=first_only).order_by("-facts_read_at")
    # Inside a transaction this is a cursor of the server's: it never holds more than a batch.
    return iter(
        rows.values(
            *("action_id", "number", "policy_version", "policy_hash", "facts_read_at"),
            *("verdict", "tier", "people", "base_minor", "base_currency", "facts"),
        ).iterator(chunk_size=BATCH)
    )


class _Tally:
    """What is kept of all the decisions: sums, and the few largest changes."""

    def __init__(self) -> None:
        self.decisions = 0
        self.changed = 0
        self.unreadable = 0
        self.sums: dict[tuple[str, str, str], Sum] = {}
        self.largest: list[tuple[int, int, Change]] = []

    def add(self, change: Change) -> None:
        found = self.sums.setdefault(
            (change.was, change.becomes, change.currency),
            Sum(was=change.was, becomes=change.becomes, currency=change.currency),
        )
        found.count += 1
        found.amount_minor += change.amount_minor
        if change.base_minor is None:
            found.without_base += 1
        else:
            found.base_minor += change.base_minor
            found.base_currency = change.base_currency
        if found.changed:
            size = change.amount_minor if change.base_minor is None else change.base_minor
            # The count keeps equal sizes apart; the oldest is left out first.
            heapq.heappush(self.largest, (size, -self.decisions, change))
            if len(self.largest) > LARGEST_MAX:
                heapq.heappop(self.largest)


def _again(
    record: dict[str, Any],
    *,
    draft: Parameters | None,
    policies: dict[int, tuple[Parameters, str] | None],
    tally: _Tally,
) -> Change | None:
    """Decide one record again and count it; the change, if it is one."""
    tally.decisions += 1
    was = outcome_of(**{name: record[name] for name in ("verdict", "tier", "people")})
    decision, why_not = _decide(record, draft=draft, policies=policies)
    raw = record["facts"]
    change = Change(
        action_id=record["action_id"],
        number=record["number"],
        at=record["facts_read_at"],
        amount_minor=raw.get("amount_minor", 0),
        currency=raw.get("currency", ""),
        base_minor=decision.base_minor if decision else record["base_minor"],
        base_currency=decision.base_currency if decision else record["base_currency"],
        was=was,
        becomes=outcome(decision) if decision else "",
        why=why(decision) if decision else why_not,
    )
    if decision is None:
        tally.unreadable += 1
    tally.add(change)
    if change.was == change.becomes:
        return None
    tally.changed += 1
    return change


def _decide(
    record: dict[str, Any],
    *,
    draft: Parameters | None,
    policies: dict[int, tuple[Parameters, str] | None],
) -> tuple[Decision | None, str]:
    """The decision that the record's facts give, or why they give none."""
    number = record["policy_version"]
    parameters = draft
    if draft is None and not number:
        # Before anything was published, everything needed a person.
        return Decision(verdict=Verdict.REVIEW), ""
    if parameters is None:
        if number not in policies:
            policies[number] = _version(number)
        found = policies[number]
        if found is None:
            return None, f"there is no policy version {number}"
        parameters, parameters_hash = found
        # What was recorded before 0.2 names no hash.
        if record["policy_hash"] not in ("", parameters_hash):
            return None, f"policy version {number} is not the one that the record names by its hash"
    try:
        return evaluate(Facts.from_json(record["facts"]), parameters), ""
    except (TypeError, KeyError, ValueError) as error:
        return None, f"its facts cannot be read: {error}"


def _version(number: int) -> tuple[Parameters, str] | None:
    version = PolicyVersion.objects.filter(number=number).first()
    if version is None:
        return None
    return Parameters.from_json(version.parameters), version.parameters_hash
