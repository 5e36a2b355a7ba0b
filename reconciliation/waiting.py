"""What waits: every action that is not over, since when, and whose turn it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from effects.kinds import all_kinds
from effects.models import Case
from effects.states import STATES, State
from effects.switches import scopes_covering, switches_on

# What somebody or something is moving, the most pressing first. AWAITING_APPROVAL is the review
# desk's list, and FAILED_FINAL has its case.
WATCHED_STATES = (
    State.UNKNOWN,
    State.SUBMITTING,
    State.AUTHORIZED,
    State.HELD,
    State.PENDING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One action that waits. `key_age` is None while its key was never used."""

    action_id: str
    state: State
    since: datetime
    due_at: datetime | None
    tries: int
    key_age: timedelta | None
    whose_turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """All actions of one kind in one state: how many, and the oldest of them."""

    kind: str
    state: State
    count: int
    oldest: tuple[Waiting, ...]


def what_waits(*, now: datetime, oldest_max: int) -> list[Crowd]:
    """Every watched state that is not empty, with its oldest actions. Reads only."""
    crowds = []
    on = _scopes_on(now=now)
    for kind in all_kinds():
        for state in WATCHED_STATES:
            rows = kind.action_model._default_manager.filter(state=state)
            count = rows.count()
            if not count:
                continue
            oldest = list(rows.order_by("state_since")[:oldest_max])
            owners = _owners([row.action_id for row in oldest])
            crowds.append(
                Crowd(
                    kind=kind.name,
                    state=state,
                    count=count,
                    oldest=tuple(
                        _waiting(row, now=now, owner=owners.get(row.action_id, ""), on=on)
                        for row in oldest
                    ),
                )
            )
    return crowds


def whose_turn(row: Any, *, now: datetime) -> str:
    """Who or what moves this action on, in words: in any state, with its open case in mind."""
    state = State(row.state)
    if state not in WATCHED_STATES:
        return STATES[state].mover.removesuffix(".")
    owner = _owners([row.action_id]).get(row.action_id, "")
    return _whose_turn(row, state=state, now=now, owner=owner, on=_scopes_on(now=now))


def _scopes_on(*, now: datetime) -> frozenset[str]:
    return frozenset(switches_on(now=now).values_list("scope", flat=True))


def _owners(action_ids: list[str]) -> dict[str, str]:
    """Who owns the oldest open case of each of these actions."""
    open_cases = Case.objects.filter(action_id__in=action_ids, closed_at__isnull=True)
    return dict(open_cases.order_by("-opened_at").values_list("action_id", "owner"))


def _waiting(row: Any, *, now: datetime, owner: str, on: frozenset[str]) -> Waiting:
    state = State(row.state)
    return Waiting(
        action_id=row.action_id,
        state=state,
        since=row.state_since,
        due_at=row.due_at,
        tries=row.tries,
        key_age=now - row.key_first_used_at if row.key_first_used_at else None,
        whose_turn=_whose_turn(row, state=state, now=now, owner=owner, on=on),
    )


def _whose_turn(row: Any, *, state: State, now: datetime, owner: str, on: frozenset[str]) -> str:
    if state is State.UNKNOWN and row.due_at is None:
        return f"{owner or 'nobody'}, who owns its case"
    if state in (State.AUTHORIZED, State.HELD):
        scopes = scopes_covering(
            effect=row.action_id.partition(":")[0],
            provider=row.provider,
            account=row.account,
            agent=row.proposed_by,
        )
        stopped = [scope for scope in scopes if scope in on]
        if stopped:
            return f"whoever turns off the kill switch {', '.join(stopped)}"
    overdue = row.due_at is not None and row.due_at < now
    mover = {
        State.UNKNOWN: "reconciliation, by reading the provider",
        State.SUBMITTING: "the sweep" if overdue else "the worker that holds its lease",
        State.AUTHORIZED: "a worker",
        State.HELD: "the sweep, by running the policy again",
        State.PENDING: "the provider; it is polled",
    }[state]
    return f"{mover}; a case is open for {owner}" if owner else mover
