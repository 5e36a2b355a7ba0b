"""A lease that is over: whoever held it may have sent, and nobody is waiting for the answer."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from effects import crashpoints
from effects.crashpoints import crash_point
from effects.kinds import EffectKind
from effects.states import State
from effects.transitions import move
from reconciliation.due import take_due


def end_lease(*, kind: EffectKind, now: datetime, seen: list[str]) -> bool:
    """Make one SUBMITTING action past its lease UNKNOWN. False: there is none. One transaction.

    1. Take the action whose lease has been over the longest.
    2. Close its open attempt as `no_answer`. Its outcome stays unknown: the request may have been
       sent, may still be executed, and its answer may still come.
    3. SUBMITTING -> UNKNOWN, never AUTHORIZED, due for its first round.

    The worker that held it can do no harm: it finds its attempt closed before it sends, and an
    answer that comes late is recorded all the same.
    """
    with transaction.atomic():
        locked = take_due(kind=kind, states=(State.SUBMITTING,), now=now, seen=seen)
        if locked is None:
            return False
        open_attempts = kind.attempt_model._default_manager.filter(
            action=locked.action, closed_at__isnull=True
        )
        numbers = list(open_attempts.values_list("number", flat=True))
        open_attempts.update(closed_at=locked.now, outcome="no_answer")
        move(
            kind=kind,
            locked=locked,
            target=State.UNKNOWN,
            event=f"{kind.name}.lease_over",
            actor="sweep",
            data={
                "attempts": numbers,
                "reason": "the lease ended without an answer; the request may have been executed",
            },
            due_at=locked.now + timedelta(seconds=settings.RECONCILE_DELAYS_SECONDS[0]),
            unknown_since=locked.action.unknown_since or locked.now,
            waiting_since=None,
        )
    crash_point(crashpoints.AFTER_LEASE_SWEPT)
    return True
