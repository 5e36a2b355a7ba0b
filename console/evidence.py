"""What is known about one action: its history, its requests on the wire, its decisions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from approvals.models import Approval
from console.words import STATE_COLOURS, in_words, since
from effects.clock import database_now
from effects.kinds import EffectKind, kind_of
from effects.models import Case
from effects.states import STATES, State
from policies.models import DecisionRecord
from reconciliation.waiting import whose_turn

# An action has tens of lines; the newest of more are what matters.
LINES_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of history, in words."""

    at: datetime
    kind: str
    actor: str
    data: list[tuple[str, str]]


def evidence_of(action: Any) -> dict[str, Any]:
    """Everything a page shows about an action, for its template. Reads only."""
    kind = kind_of(action.action_id)
    if kind is None:
        return {}
    now = database_now()
    state = State(action.state)
    return {
        "action": action,
        "now": now,
        "state_label": state.label,
        "state_colour": STATE_COLOURS[state],
        "state_means": STATES[state].means,
        "whose_turn": whose_turn(action, now=now),
        "state_for": since(action.state_since, now=now),
        "timeline": timeline(kind=kind, action=action),
        "attempts": _attempts(kind=kind, action=action),
        "decisions": DecisionRecord.objects.filter(action_id=action.action_id).order_by("number"),
        "approvals": Approval.objects.filter(action_id=action.action_id)
        .select_related("decided_by")
        .order_by("number"),
        "cases": open_cases(action_id=action.action_id, now=now),
        "look_ups": {
            "tries": action.tries,
            "unknown_for": since(action.unknown_since, now=now) if action.unknown_since else "",
            "key_age": since(action.key_first_used_at, now=now) if action.key_first_used_at else "",
        },
    }


def timeline(*, kind: EffectKind, action: Any) -> list[Line]:
    """The action's history, oldest first."""
    currency = getattr(action, "currency", "")
    events: Any = kind.event_model._default_manager
    rows = events.filter(action=action).order_by("-pk")[:LINES_MAX]
    return [line_of(row, currency=currency) for row in reversed(rows)]


def line_of(row: Any, *, currency: str) -> Line:
    """One event in words."""
    return Line(
        at=row.at, kind=row.kind, actor=row.actor, data=in_words(row.data, currency=currency)
    )


def _attempts(*, kind: EffectKind, action: Any) -> list[dict[str, Any]]:
    attempts: Any = kind.attempt_model._default_manager
    rows = attempts.filter(action=action).order_by("number")
    return [
        {
            "row": row,
            "outcome": row.outcome or "no answer yet",
            "resolution": row.resolution.replace("_", " ") or "not known",
            "evidence": in_words(row.evidence or {}),
        }
        for row in rows[:LINES_MAX]
    ]


def open_cases(*, action_id: str, now: datetime) -> list[dict[str, Any]]:
    """The open cases on an action, with how long they have waited."""
    rows = Case.objects.filter(action_id=action_id, closed_at__isnull=True).order_by("opened_at")
    return [
        {"row": row, "open_for": since(row.opened_at, now=now), "overdue": row.due_at < now}
        for row in rows
    ]
