"""The only module that writes a state.

Every move of every effect, on the straight way and in every repair, comes through `move`, so
that the same events, money consequences and closed cases follow from it (case T23).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from effects import cases
from effects.doubt import WATCH_EVERY, in_doubt
from effects.kinds import EffectKind, Locked
from effects.models import Case
from effects.states import FINAL_STATES, State
from kernel.errors import Bug

# Moves that a case may be waiting for; when one happens its case is closed by evidence.
_SETTLED_BY: dict[State, tuple[Case.Kind, ...]] = {
    State.SUCCEEDED: (
        Case.Kind.UNKNOWN_OUTCOME,
        Case.Kind.STALE_APPROVAL,
        Case.Kind.EXPIRED,
        Case.Kind.HELD_TOO_LONG,
        Case.Kind.CANNOT_SEND,
        Case.Kind.PENDING_TOO_LONG,
        Case.Kind.FAILED,
    ),
    State.PENDING: (
        Case.Kind.UNKNOWN_OUTCOME,
        Case.Kind.STALE_APPROVAL,
        Case.Kind.HELD_TOO_LONG,
        Case.Kind.CANNOT_SEND,
    ),
    State.FAILED_FINAL: (
        Case.Kind.UNKNOWN_OUTCOME,
        Case.Kind.STALE_APPROVAL,
        Case.Kind.HELD_TOO_LONG,
        Case.Kind.CANNOT_SEND,
        Case.Kind.PENDING_TOO_LONG,
    ),
    # Not CANNOT_SEND: another try is no sign that it can be sent, and may be turned away too.
    State.SUBMITTING: (Case.Kind.STALE_APPROVAL,),
    State.UNKNOWN: (Case.Kind.CANNOT_SEND,),
    State.AUTHORIZED: (
        Case.Kind.UNKNOWN_OUTCOME,
        Case.Kind.STALE_APPROVAL,
        Case.Kind.HELD_TOO_LONG,
    ),
    State.AWAITING_APPROVAL: (Case.Kind.UNKNOWN_OUTCOME, Case.Kind.HELD_TOO_LONG),
    State.REJECTED: (
        Case.Kind.STALE_APPROVAL,
        Case.Kind.HELD_TOO_LONG,
        Case.Kind.CANNOT_SEND,
    ),
    State.CANCELLED: (
        Case.Kind.STALE_APPROVAL,
        Case.Kind.HELD_TOO_LONG,
        Case.Kind.CANNOT_SEND,
    ),
    State.EXPIRED: (
        Case.Kind.STALE_APPROVAL,
        Case.Kind.HELD_TOO_LONG,
        Case.Kind.CANNOT_SEND,
    ),
}

# From here AUTHORIZED is a new decision; from elsewhere it is the old one, not yet carried out.
_DECIDED_FROM = (State.HELD, State.AWAITING_APPROVAL)

_OVER = (State.REJECTED, State.EXPIRED, State.CANCELLED)


def move(
    *,
    kind: EffectKind,
    locked: Locked,
    target: State,
    event: str,
    actor: str,
    data: dict[str, Any],
    due_at: datetime | None,
    **columns: Any,
) -> None:
    """Move a locked action to another state, with everything that follows from it.

    1. Ask the FSM, which knows the one table of legal moves.
    2. Let the kind carry the money (reservation, refunded amount, order version).
    3. A person who must decide begins a new round of approvals; a decision to send has its time.
    4. Write the row, guarded by the state it was read in. A final one is read again day by day
       while a request of it may come to pass after all (`effects.doubt`).
    5. Append the event.
    6. Close the cases that this settles; open one where nothing should have been in flight.

    `columns` are further columns of the action. Raises Bug when the guard finds another state:
    the row is locked, so that cannot happen.
    """
    action = locked.action
    source = State(action.state)
    getattr(action, f"to_{target.value.lower()}")()
    columns |= kind.moved(locked=locked, source=source, target=target)
    if target is State.AWAITING_APPROVAL:
        columns["approval_round"] = action.approval_round + 1
    if target is State.AUTHORIZED and source in _DECIDED_FROM:
        columns["authorized_at"] = locked.now
    if (
        due_at is None
        and target in FINAL_STATES
        and kind.may_be_in_doubt(locked=locked)
        and in_doubt(attempts=kind.attempt_model, action=action)
    ):
        due_at = locked.now + WATCH_EVERY
    columns |= {"due_at": due_at, "updated_at": locked.now, "state_since": locked.now}
    for name, value in columns.items():
        setattr(action, name, value)
    changed = kind.action_model._default_manager.filter(pk=action.pk, state=source).update(
        state=target, **columns
    )
    if changed != 1:
        raise Bug(f"{action.action_id} was {source} under lock and is not any more")
    kind.new_event(
        locked=locked,
        kind=event,
        actor=actor,
        data={"from": source.value, "to": target.value, **data},
    ).save(force_insert=True)
    if locked.open_cases and target in _SETTLED_BY:
        cases.close_for_action(
            locked=locked, kinds=_SETTLED_BY[target], actor=actor, resolution=f"{event}: {target}"
        )
    if target is State.FAILED_FINAL:
        words = kind.failed_words(locked=locked, source=source, data=data)
        if words:
            cases.open_case(
                kind=Case.Kind.FAILED,
                effect=kind.name,
                locked=locked,
                reason=words,
                evidence=data,
            )
    if target in (State.SUCCEEDED, State.PENDING) and source in (
        *_OVER,
        State.FAILED_FINAL,
        State.HELD,
        State.AWAITING_APPROVAL,
        State.AUTHORIZED,
    ):
        cases.open_case(
            kind=Case.Kind.UNEXPECTED_SUCCESS,
            effect=kind.name,
            locked=locked,
            reason=(
                f"The provider shows it {target.label} while it stood at {source.label}. It was "
                "recorded as the provider shows it. Find out what sent it, and tell whoever was "
                "told otherwise."
            ),
            evidence=data,
        )


def postpone(
    *,
    kind: EffectKind,
    locked: Locked,
    due_at: datetime | None,
    **columns: Any,
) -> None:
    """Change when a locked action is next due, and columns beside it, without a move."""
    columns |= {"due_at": due_at, "updated_at": locked.now}
    for name, value in columns.items():
        setattr(locked.action, name, value)
    kind.action_model._default_manager.filter(pk=locked.action.pk).update(**columns)


def note(*, kind: EffectKind, locked: Locked, event: str, actor: str, data: dict[str, Any]) -> None:
    """Append one line of history without a move."""
    kind.new_event(locked=locked, kind=event, actor=actor, data=data).save(force_insert=True)


__all__ = ["FINAL_STATES", "move", "note", "postpone"]
