"""How the house stands: what is open, since when, and who has to move. For metrics and people.

A few queries over partial indexes, so that it costs the same with ten rows and with ten million.
Actions that are over are not counted: a count of them is a scan of the whole table, and none of
them needs anybody. A failed refund whose customer is still owed is counted by its open case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Count, F, Max, Q
from django.db.models.functions import Extract

from effects.clock import DatabaseNow
from effects.kinds import EffectKind, all_kinds
from effects.models import Breaker, Case, SweepRun, Switch
from effects.states import State

OPEN_STATES = (
    State.HELD,
    State.AWAITING_APPROVAL,
    State.AUTHORIZED,
    State.SUBMITTING,
    State.UNKNOWN,
    State.PENDING,
)
# Their key is in use and its effect is not known, so the key must not grow past its limit.
_KEY_MATTERS = (State.AUTHORIZED, State.SUBMITTING, State.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStanding:
    """The open actions of one kind in one state. Ages in seconds, of the oldest; 0 for none.

    `overdue_seconds`: by how long the most overdue one is past its due time. `key_age_seconds`:
    the oldest idempotency key that was used and whose effect is not known.
    """

    effect: str
    state: State
    count: int = 0
    age_seconds: float = 0.0
    overdue_seconds: float = 0.0
    key_age_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseStanding:
    """The open cases of one kind; `age_seconds` of the oldest.

    `escalated`: how many went to the next in line once, and how many twice. `snoozed`: how many
    ask nobody for now.
    """

    kind: Case.Kind
    count: int = 0
    overdue: int = 0
    escalated: tuple[int, int] = (0, 0)
    snoozed: int = 0
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewStanding:
    """One queue that people drain: `approvals` by tier, or `cases` (tier "")."""

    queue: str
    tier: str = ""
    count: int = 0
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Everything at one glance. Sweeps: seconds since each one last came through."""

    states: tuple[StateStanding, ...]
    cases: tuple[CaseStanding, ...]
    reviews: tuple[ReviewStanding, ...]
    sweeps: dict[str, float]
    switches_on: tuple[str, ...]
    breakers_open: tuple[str, ...]


def standing() -> Standing:
    """Read how the house stands. Four queries, and one for each kind of effect."""
    rows = {kind.name: _rows(kind) for kind in all_kinds()}
    cases = _cases()
    return Standing(
        states=tuple(found for effect in rows for found in _states(effect, rows[effect])),
        cases=cases,
        reviews=_reviews([row for found in rows.values() for row in found], cases=cases),
        sweeps=dict(SweepRun.objects.values_list("name", _age("finished_at"))),
        switches_on=tuple(
            Switch.objects.filter(ended_at__isnull=True)
            .filter(Q(until__isnull=True) | Q(until__gt=DatabaseNow()))
            .order_by("scope")
            .values_list("scope", flat=True)
        ),
        breakers_open=tuple(
            Breaker.objects.filter(open_until__gt=DatabaseNow())
            .order_by("account")
            .values_list("account", flat=True)
        ),
    )


def _age(column: str) -> Any:
    return Extract(DatabaseNow() - F(column), "epoch")


def _rows(kind: EffectKind) -> list[dict[str, Any]]:
    """The open actions of a kind, by state and by the tier that would decide them."""
    found: Any = (
        kind.action_model._default_manager.filter(state__in=OPEN_STATES)
        .values("state", "review_tier")
        .annotate(
            count=Count("pk"),
            age=Max(_age("state_since")),
            overdue=Max(_age("due_at")),
            key_age=Max(_age("key_first_used_at"), filter=Q(state__in=_KEY_MATTERS)),
        )
        .order_by()
    )
    return list(found)


def _states(effect: str, rows: list[dict[str, Any]]) -> list[StateStanding]:
    found = []
    for state in OPEN_STATES:
        here = [row for row in rows if row["state"] == state]
        found.append(
            StateStanding(
                effect=effect,
                state=state,
                count=sum(row["count"] for row in here),
                age_seconds=_oldest(here, "age"),
                overdue_seconds=max(_oldest(here, "overdue"), 0.0),
                key_age_seconds=_oldest(here, "key_age"),
            )
        )
    return found


def _reviews(
    rows: list[dict[str, Any]], *, cases: tuple[CaseStanding, ...]
) -> tuple[ReviewStanding, ...]:
    """The queues that people drain. Tier 1 is told when it is empty too, so that it can alert."""
    waiting = [row for row in rows if row["state"] == State.AWAITING_APPROVAL]
    found = []
    for tier in sorted({1, *(row["review_tier"] for row in waiting)}):
        here = [row for row in waiting if row["review_tier"] == tier]
        found.append(
            ReviewStanding(
                queue="approvals",
                tier=str(tier),
                count=sum(row["count"] for row in here),
                age_seconds=_oldest(here, "age"),
            )
        )
    return (
        *found,
        ReviewStanding(
            queue="cases",
            count=sum(kind.count for kind in cases),
            age_seconds=max(kind.age_seconds for kind in cases),
        ),
    )


def _oldest(rows: list[dict[str, Any]], column: str) -> float:
    """The largest of some ages, in seconds; 0 when there is none or none is reached."""
    return max((float(row[column] or 0) for row in rows), default=0.0)


def _cases() -> tuple[CaseStanding, ...]:
    rows = (
        Case.objects.filter(closed_at__isnull=True)
        .values("kind")
        .annotate(
            count=Count("pk"),
            overdue=Count("pk", filter=Q(due_at__lt=DatabaseNow())),
            once=Count("pk", filter=Q(escalations=1)),
            twice=Count("pk", filter=Q(escalations__gte=2)),
            snoozed=Count("pk", filter=Q(snoozed_until__gt=DatabaseNow())),
            age=Max(_age("opened_at")),
        )
        .order_by()
    )
    found = {row["kind"]: row for row in rows}
    return tuple(
        CaseStanding(
            kind=kind,
            count=row["count"],
            overdue=row["overdue"],
            escalated=(row["once"], row["twice"]),
            snoozed=row["snoozed"],
            age_seconds=float(row["age"]),
        )
        if (row := found.get(kind))
        else CaseStanding(kind=kind)
        for kind in Case.Kind
    )
