"""The sweep: whatever is due is found by its due time and moved on. The rows are the queue."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime

from billiard.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db import InterfaceError, OperationalError

from effects.clock import database_now
from effects.kinds import EffectKind, all_kinds
from effects.models import SweepRun
from reconciliation.case_deadlines import escalate_case
from reconciliation.decisions import decide_held, end_stale_approval, expire_unanswered
from reconciliation.leases import end_lease
from reconciliation.poll import poll_one
from reconciliation.resolve import resolve_one
from reconciliation.review_queue import watch_queue
from reconciliation.watch import watch_one

log = logging.getLogger(__name__)

NAME = "reconciliation.sweep"
# Of one state in one sweep, so that one crowd (a kill switch that held ten thousand) cannot keep
# the other states waiting. The next sweep follows within seconds.
BATCH_MAX = 200

# Does one due row and appends its id to the last argument; False when there is none.
Step = Callable[..., bool]

# These end the whole sweep: the next one will do better. Anything else is a bug in one action, and
# must not keep the others waiting.
_ENDS_THE_SWEEP = (SoftTimeLimitExceeded, OperationalError, InterfaceError)


def sweep() -> int:
    """Move on everything that is due, of every kind of effect; returns how many rows it took.

    1. Leases that are over: SUBMITTING -> UNKNOWN.
    2. What needs only our own database: HELD, AWAITING_APPROVAL, approvals that have ended.
    3. What needs a person: cases past their due time, and the queue of proposals.
    4. What needs the provider: UNKNOWN, PENDING, and what failed and is watched, oldest due first,
       until this sweep's time is over. Before each, leases are looked at again.
    5. Write down that a sweep came through.

    Harmless when two run at once: each takes rows that the other has not locked, and a row that
    was taken is not due any more.

    Rounds are made here, one after the other, and not sent out as tasks of their own: there is no
    message then that can be lost, pile up behind a slow provider or need a due time of its own.
    A slow provider cannot keep leases from ending for longer than one read, since leases come
    before every read; the breaker ends an outage after a few; and while one process reads, the
    next beat's sweep runs in another, on the rows that this one has not taken.
    """
    now = database_now()
    handled = 0
    for kind in all_kinds():
        for step in (end_lease, decide_held, expire_unanswered, end_stale_approval):
            handled += _all_due(step, kind=kind, now=now)
    handled += _all_due(escalate_case, now=now)
    handled += watch_queue(now=now)
    handled += _read_providers(now=now)
    SweepRun.objects.update_or_create(
        name=NAME, defaults={"finished_at": database_now(), "handled": handled}
    )
    return handled


def _read_providers(*, now: datetime) -> int:
    """Rounds, polls and watches in turn, so that none keeps another waiting."""
    # A budget of this process's own time, not a decision: the monotonic clock is right for it.
    stop_at = time.monotonic() + settings.RECONCILE_SWEEP_SECONDS
    waiting = [
        (step, kind, list[str]())
        for step in (resolve_one, poll_one, watch_one)
        for kind in all_kinds()
    ]
    handled = 0
    while waiting and time.monotonic() < stop_at:
        for turn in list(waiting):
            step, kind, seen = turn
            for each in all_kinds():
                handled += _all_due(end_lease, kind=each, now=database_now())
            if len(seen) < BATCH_MAX and _one(step, kind=kind, now=now, seen=seen):
                handled += 1
            else:
                waiting.remove(turn)
    return handled


def _all_due(step: Step, *, now: datetime, **of: EffectKind) -> int:
    seen: list[str] = []
    while len(seen) < BATCH_MAX and _one(step, now=now, seen=seen, **of):
        pass
    return len(seen)


def _one(step: Step, *, now: datetime, seen: list[str], **of: EffectKind) -> bool:
    """Do one due row. What goes wrong with it is logged, and it is not taken again this time."""
    before = len(seen)
    try:
        return step(now=now, seen=seen, **of)
    except _ENDS_THE_SWEEP:
        raise
    except Exception:
        if len(seen) == before:
            raise  # no row was taken: it is not about one action
        log.exception(
            "A sweep could not move something on; it is tried again in the next one.",
            extra={"action": f"{NAME}.failed", "action_id": seen[-1], "step": step.__name__},
        )
        return True
