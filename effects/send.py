"""Send: look, then put one request on the wire. The one door to a provider."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db import connection
from django.db.models import Exists

from effects import crashpoints
from effects.claim import Claimed
from effects.clock import DatabaseNow
from effects.crashpoints import crash_point
from effects.kinds import Absent, Contradiction, EffectKind, Found, OnlyFailed, Reading
from effects.outcomes import (
    Evidence,
    Misconfigured,
    NotSent,
    Outcome,
    Pending,
    Refused,
    Succeeded,
    Unknown,
    Unreadable,
)
from effects.states import State
from effects.switches import scopes_covering, switches_on
from kernel.errors import Bug


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """How a send ended, and what the look before it showed (None: there was none)."""

    outcome: Outcome
    reading: Reading | None = None


def refuse_open_transaction() -> None:
    """Raise Bug when a transaction is open: no provider call may wait inside one (I8)."""
    if connection.in_atomic_block:
        raise Bug("a provider was about to be called while a transaction is open")


def send(*, kind: EffectKind, claimed: Claimed) -> Sent:
    """Send what was claimed, at most once. No transaction is open while this waits.

    1. Refuse to run inside a transaction.
    2. Before the first send, read the resource at the provider. An effect of this action that is
       already there is adopted; one that nobody knows stops the send; unreadable stops it too.
    3. Immediately before the bytes leave, ask the database whether the lease and the key still
       hold, the attempt is still open and no kill switch is on. One no, and nothing leaves.
    4. One wire request with the frozen payload and key. Never a retry.
    """
    refuse_open_transaction()
    reading: Reading | None = None
    if claimed.look_first:
        look = kind.look(action=claimed.action)
        if isinstance(look, Unreadable):
            if look.misconfigured:
                return Sent(outcome=Misconfigured(reason=look.reason, evidence=look.evidence))
            return Sent(outcome=NotSent(reason="could_not_look", evidence=look.evidence))
        # Read later than it was claimed: the earlier time is the safe one, and costs no query.
        reading = kind.judge(action=claimed.action, look=look, read_at=claimed.claimed_at)
        if reading is None:
            raise Bug("a readable listing was not judged")
        stopped = _stopped_by(reading, generation=claimed.action.generation)
        if stopped is not None:
            return Sent(outcome=stopped, reading=reading)

    def fence() -> bool:
        crash_point(crashpoints.BEFORE_BYTES_LEAVE)
        return _may_still_send(kind=kind, claimed=claimed)

    outcome = kind.send(action=claimed.action, idempotency_key=claimed.idempotency_key, fence=fence)
    crash_point(crashpoints.AFTER_ANSWER)
    return Sent(outcome=outcome, reading=reading)


def _stopped_by(reading: Reading, *, generation: int) -> Outcome | None:
    """What the look before the send makes of it; None: nothing is in the way."""
    evidence = Evidence(message="found before sending", extra=reading.evidence)
    judgement = reading.judgement
    if isinstance(judgement, Found):
        if judgement.effect.settlement == "succeeded":
            return Succeeded(effect=judgement.effect, evidence=evidence)
        return Pending(effect=judgement.effect, evidence=evidence)
    if isinstance(judgement, Contradiction):
        return Unknown(reason=judgement.reason, evidence=evidence, incident=True)
    if isinstance(judgement, OnlyFailed):
        if generation > 1:
            return None  # a failed older generation is history, not the answer
        return Refused(code="failed", evidence=evidence, effect=judgement.effects[0])
    if not isinstance(judgement, Absent):
        raise Bug(f"unhandled judgement {judgement!r}")
    if reading.strangers:
        return NotSent(reason="unknown_effect_found", evidence=evidence)
    return None


def _may_still_send(*, kind: EffectKind, claimed: Claimed) -> bool:
    """Whether the attempt is open, its lease runs long enough, its key is young enough, and no
    kill switch covers it: one may have been turned on while the provider was being read.

    One query by the database's clock. The lease must outlast the whole call, so that a sweep
    cannot find the lease over while the bytes are still on their way. This is the one function
    past which bytes leave, so the age of the key is enforced here, whatever was asked for. So is
    the state: a late answer under an older key may have settled the action since the claim.
    """
    total = timedelta(seconds=settings.PROVIDER_TOTAL_TIMEOUT_SECONDS)
    resend = timedelta(seconds=settings.KEY_RESEND_SECONDS)
    action = claimed.action
    scopes = scopes_covering(
        effect=kind.name,
        provider=action.provider,
        account=action.account,
        agent=action.proposed_by,
    )
    row = (
        kind.attempt_model._default_manager.filter(token=claimed.token)
        .values_list(
            "closed_at",
            "lease_until",
            "action__state",
            "action__key_first_used_at",
            DatabaseNow(),
            Exists(switches_on(now=DatabaseNow()).filter(scope__in=scopes)),
        )
        .first()
    )
    if row is None:
        return False
    closed_at, lease_until, state, key_first_used_at, now, is_stopped = row
    return (
        not is_stopped
        and closed_at is None
        and state == State.SUBMITTING
        and lease_until - now >= total
        and key_first_used_at is not None
        and now - key_first_used_at < resend
    )


Fence = Callable[[], bool]
