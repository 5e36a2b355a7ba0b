"""Watch: what is over and may happen after all is read again, day by day, for a time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction

from effects.doubt import WATCH_EVERY
from effects.kinds import EffectKind
from effects.states import FINAL_STATES
from effects.transitions import postpone
from reconciliation.breaker import account_of, wait_until
from reconciliation.check_now import ask, record_seen
from reconciliation.due import take_due
from reconciliation.resolve import ACTOR


def watch_one(*, kind: EffectKind, now: datetime, seen: list[str]) -> bool:
    """Read the final effect that is due the longest. False: none is due.

    One that failed and is settled another way, or one of which a request was taken for not
    executed, or that stands by an effect that people linked (`effects.doubt`).

    1. Take it. Its kind says until when it is watched; after that nothing is due any more.
       Otherwise write the next due time, so that a crash or a slow read costs one day. While the
       account's circuit breaker is open nothing is read.
    2. Read the provider as a person's "check now" does, with no transaction open. It burns no try.
    3. Lock again and settle by the same code: late proof of success is adopted from any state,
       and stops what could still be paid beside it; a second effect is an incident.
    """
    with transaction.atomic():
        locked = take_due(kind=kind, states=FINAL_STATES, now=now, seen=seen)
        if locked is None:
            return False
        action = locked.action
        until = kind.watched_until(locked=locked)
        if until is None or locked.now >= until or not _readable(kind=kind, action=action):
            postpone(kind=kind, locked=locked, due_at=None)
            return True
        closed_from = wait_until(account=account_of(action), now=locked.now)
        postpone(kind=kind, locked=locked, due_at=closed_from or locked.now + WATCH_EVERY)
    if closed_from is not None:
        return True
    watched = ask(kind=kind, action=action)
    with transaction.atomic():
        again = kind.lock(action_id=action.action_id)
        if again is not None:
            record_seen(kind=kind, locked=again, seen=watched, actor=ACTOR, data={"watched": True})
    return True


def _readable(*, kind: EffectKind, action: Any) -> bool:
    """Whether there is a way to look: a list, or the one effect that it is known by."""
    return bool(kind.promises(action=action).searchable or action.provider_ref)
