"""Resolve: one try at finding out what became of an UNKNOWN action. It reads and never posts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Max

from effects import crashpoints
from effects.crashpoints import crash_point
from effects.kinds import EffectKind, Locked, Reading
from effects.outcomes import LookUp, Unreadable
from effects.record import evidence_json, pause_account
from effects.states import State
from effects.transitions import note, postpone
from kernel.errors import Bug
from reconciliation.breaker import account_of, remember_read, wait_until
from reconciliation.due import take_due
from reconciliation.escalate import escalate, why_over, window_end
from reconciliation.second_look import BY_LIST
from reconciliation.settle import Finding, settle, settled_at

ACTOR = "reconciliation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One opened try. `number` counts from 1; `opened_at` is database time before the read."""

    action: Any
    number: int
    opened_at: datetime


def resolve_one(*, kind: EffectKind, now: datetime, seen: list[str]) -> bool:
    """One round for the UNKNOWN action that is due the longest. False: none is due.

    1. Open the round, in a transaction: see `_open`. The try is counted now, so that a crash
       cannot make it loop for ever.
    2. Read the provider, with no transaction open.
    3. Lock again and record what was seen and what follows: see `_record`.

    If this dies between 1 and 3 the try is gone, and the next one, or the case, comes by the due
    time that was written with it.
    """
    with transaction.atomic():
        locked = take_due(kind=kind, states=(State.UNKNOWN,), now=now, seen=seen)
        if locked is None:
            return False
        opened = _open(kind=kind, locked=locked)
    if opened is None:
        return True
    crash_point(crashpoints.AFTER_ROUND_OPENED)
    look = kind.look(action=opened.action)
    reading = kind.judge(action=opened.action, look=look, read_at=opened.opened_at)
    crash_point(crashpoints.AFTER_ROUND_READ)
    with transaction.atomic():
        _record(kind=kind, opened=opened, look=look, reading=reading)
        crash_point(crashpoints.DURING_ROUND_RECORD)
    return True


def _open(*, kind: EffectKind, locked: Locked) -> Round | None:
    """Count the try and say when the next is due; None: no read is to be made.

    1. Three tries were made (the last may have died), or the window is over: a person.
    2. A provider that cannot be searched cannot be found out from: a person, at once. (One with
       keys but no search would be asked by sending the same key again; no refund provider of that
       sort exists here, so that way is not built.)
    3. The account's circuit breaker is open: later, and no try is burned. The window runs on.
    4. Count the try. It is due again after a lease, should this process die while it reads.
    """
    action = locked.action
    over = why_over(action=action, now=locked.now)
    if not over and not kind.promises(action=action).searchable:
        over = "this provider cannot be searched"
    if over:
        escalate(kind=kind, locked=locked, why=over, looked={})
        return None
    closed_from = wait_until(account=account_of(action), now=locked.now)
    if closed_from is not None:
        postpone(kind=kind, locked=locked, due_at=min(closed_from, window_end(action)))
        return None
    lease = timedelta(seconds=settings.SUBMIT_LEASE_SECONDS)
    postpone(kind=kind, locked=locked, due_at=locked.now + lease, tries=action.tries + 1)
    return Round(action=action, number=action.tries, opened_at=locked.now)


def _record(*, kind: EffectKind, opened: Round, look: LookUp, reading: Reading | None) -> None:
    """Write one round down, with everything that follows from it.

    1. Lock again: anything may have happened meanwhile, and evidence counts in any state.
    2. Tell the breaker whether the account could be read.
    3. Settle by what was read; an unreadable round is history and an inconclusive try.
    4. Still UNKNOWN: the next try by its delay, or, after the last, the case in this transaction.
       A round that was overtaken by a newer one leaves that to it.
    """
    locked = kind.lock(action_id=opened.action.action_id)
    if locked is None:
        raise Bug(f"{opened.action.action_id} was UNKNOWN and does not exist")
    action = locked.action
    remember_read(account=account_of(action), readable=reading is not None, now=locked.now)
    tried = {"try": opened.number}
    if reading is None:
        looked = note_unreadable(kind=kind, locked=locked, look=look, actor=ACTOR, data=tried)
    else:
        finding = settle(kind=kind, locked=locked, reading=reading, actor=ACTOR, data=tried)
        looked = {"result": finding.value, **tried, **reading.evidence}
    if action.state != State.UNKNOWN or action.tries != opened.number or action.due_at is None:
        return
    over = why_over(action=action, now=locked.now)
    if over:
        escalate(kind=kind, locked=locked, why=over, looked=looked)
    else:
        postpone(kind=kind, locked=locked, due_at=_next_due(kind=kind, locked=locked))


def _next_due(*, kind: EffectKind, locked: Locked) -> datetime:
    """When the next try is due, after an inconclusive one.

    The first try comes by its delay alone: it finds what was executed, which is the commonest
    end of a lost answer, though "not found" proves nothing so early. The later tries also wait
    until the settle time is over, since there are only three and each should be able to
    conclude. Nothing waits longer than the window.
    """
    action = locked.action
    due: datetime = locked.now + timedelta(seconds=settings.RECONCILE_DELAYS_SECONDS[action.tries])
    last_claim = kind.attempt_model._default_manager.filter(action=action).aggregate(
        last=Max("claimed_at")
    )["last"]
    if last_claim is not None:
        due = max(due, settled_at(last_claim))
    return min(due, window_end(action))


def note_unreadable(
    *, kind: EffectKind, locked: Locked, look: LookUp, actor: str, data: dict[str, Any]
) -> dict[str, Any]:
    """Write down a look that could not be read. A refused key or account pauses the account."""
    if not isinstance(look, Unreadable):
        raise Bug("a readable listing was not judged")
    seen = {
        "method": BY_LIST,
        "result": Finding.UNREADABLE.value,
        "reason": look.reason,
        **evidence_json(look.evidence),
        **data,
    }
    note(kind=kind, locked=locked, event=f"{kind.name}.looked", actor=actor, data=seen)
    if look.misconfigured:
        pause_account(locked=locked, reason=look.reason, evidence=seen)
    return seen
