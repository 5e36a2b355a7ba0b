"""Escalate: what could not be found out goes in front of a person, with all that is known."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from effects import cases, crashpoints
from effects.crashpoints import crash_point
from effects.kinds import EffectKind, Locked
from effects.models import Case
from effects.transitions import note, postpone

# "After three inconclusive tries, or 24 hours, whichever is first" (design, Reconciliation).
TRIES_MAX = 3


def window_end(action: Any) -> datetime:
    """When a person takes over, however many tries there were."""
    unknown_since: datetime = action.unknown_since
    return unknown_since + timedelta(seconds=settings.RECONCILE_WINDOW_SECONDS)


def why_over(*, action: Any, now: datetime) -> str:
    """Why no further try is due for an UNKNOWN action, as half a sentence; "" while one is."""
    if action.tries >= TRIES_MAX:
        return f"{action.tries} tries did not settle it"
    if now >= window_end(action):
        return f"it has been unknown since {_time(action.unknown_since)}"
    return ""


def escalate(*, kind: EffectKind, locked: Locked, why: str, looked: dict[str, Any]) -> None:
    """Open the case of an UNKNOWN action and stop polling, in the caller's transaction.

    1. The case, with the age of the key, every attempt and the last look as evidence.
    2. Nothing is due any more. Webhooks, the statement and a person's "check now" still settle
       it, and the case then closes itself.
    """
    action = locked.action
    evidence = {
        "why": why,
        "tries": action.tries,
        "unknown_since": action.unknown_since.isoformat(),
        "key_first_used_at": _iso(action.key_first_used_at),
        "attempts": [
            {**attempt, "claimed_at": attempt["claimed_at"].isoformat()}
            for attempt in kind.attempt_model._default_manager.filter(action=action)
            .order_by("number")
            .values("number", "idempotency_key", "claimed_at", "outcome", "resolution")
        ],
        "last_look": looked,
    }
    cases.open_case(
        kind=Case.Kind.UNKNOWN_OUTCOME,
        effect=kind.name,
        locked=locked,
        reason=_reason(action=action, now=locked.now, why=why),
        evidence=evidence,
    )
    postpone(kind=kind, locked=locked, due_at=None)
    note(
        kind=kind,
        locked=locked,
        event=f"{kind.name}.escalated",
        actor="reconciliation",
        data={"why": why, "tries": action.tries},
    )
    crash_point(crashpoints.DURING_ESCALATION)


def _reason(*, action: Any, now: datetime, why: str) -> str:
    """The case's sentences: what is not known, how old the key is, what to do."""
    age = now - (action.key_first_used_at or now)
    limit = timedelta(seconds=settings.KEY_RESEND_SECONDS)
    if age >= limit:
        key = (
            f"Its key is {_hours(age)} old, past the limit of {_hours(limit)}: nothing will be "
            "sent under it again."
        )
    else:
        key = f"Its key is {_hours(age)} old and could be sent again for {_hours(limit - age)}."
    return (
        f"It was sent, and whether it was executed is not known: {why}. {key} Polling has "
        f"stopped. Find {action.action_id} in the provider's dashboard (it is in the metadata), "
        'then use "check now", which records what the provider shows. Do not pay by another way '
        "before that."
    )


def _hours(span: timedelta) -> str:
    minutes = int(span.total_seconds() // 60)
    return f"{minutes // 60} h {minutes % 60} min"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _iso(moment: datetime | None) -> str:
    return moment.isoformat() if moment else ""
