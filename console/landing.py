"""The first page: what needs a person now, what is stuck, what is stopped."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from console.words import duration, page_of, since
from effects.cases import awake
from effects.clock import database_now
from effects.kinds import all_kinds
from effects.models import Case
from effects.standing import standing
from effects.states import State
from reconciliation.waiting import whose_turn

# The longest-waiting few; the lists behind the links have all of them.
SHOWN_MAX = 10
STUCK_STATES = (State.SUBMITTING, State.UNKNOWN, State.HELD, State.AUTHORIZED)


def landing(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Unfold's dashboard callback. Only for those who may see cases and refunds."""
    user: Any = request.user
    if not (user.has_perm("effects.view_case") and user.has_perm("refunds.view_refundaction")):
        return context
    now = database_now()
    found = standing()
    awaiting = [row for row in found.states if row.state is State.AWAITING_APPROVAL]
    case_list = reverse("admin:effects_case_changelist")
    return context | {
        "shown": True,
        "needs": [
            {
                "words": row.kind.label,
                "count": row.count,
                "oldest": duration(row.age_seconds),
                "overdue": row.overdue,
                "page": f"{case_list}?kind__exact={row.kind.value}",
            }
            for row in found.cases
            if row.count
        ]
        + [
            {
                "words": f"{row.effect} awaiting approval",
                "count": row.count,
                "oldest": duration(row.age_seconds),
                "overdue": 0,
                "page": _list_of(row.effect, row.state),
            }
            for row in awaiting
            if row.count
        ],
        "oldest_cases": [
            {"row": case, "page": page_of(case), "open_for": since(case.opened_at, now=now)}
            | {"overdue": case.due_at < now}
            for case in Case.objects.filter(awake(now=now)).order_by("due_at")[:SHOWN_MAX]
        ],
        "stuck": _stuck(now),
        "switches_on": found.switches_on,
        "breakers_open": found.breakers_open,
        "sweeps": [(name, duration(seconds)) for name, seconds in sorted(found.sweeps.items())],
    }


def _list_of(effect: str, state: State) -> str:
    model = next(kind.action_model for kind in all_kinds() if kind.name == effect)
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
    return f"{reverse(name)}?state__exact={state.value}"


def _stuck(now: Any) -> list[dict[str, Any]]:
    """Actions past their due time, or UNKNOWN: the longest first, and whose turn it is."""
    rows = [
        row
        for kind in all_kinds()
        for row in kind.action_model._default_manager.filter(state__in=STUCK_STATES).order_by(
            "state_since"
        )[:SHOWN_MAX]
        if row.state == State.UNKNOWN or (row.due_at is not None and row.due_at < now)
    ]
    return [
        {
            "row": row,
            "page": page_of(row),
            "state_label": State(row.state).label,
            "for": since(row.state_since, now=now),
            "whose_turn": whose_turn(row, now=now),
        }
        for row in sorted(rows, key=lambda row: row.state_since)[:SHOWN_MAX]
    ]
