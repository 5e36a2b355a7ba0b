"""Record: write down what an attempt came back with, and what follows from it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F

from effects import cases, crashpoints
from effects.crashpoints import crash_point
from effects.doubt import ANSWER, leaves_doubt
from effects.kinds import EffectKind, Locked
from effects.models import Case, Switch
from effects.outcomes import (
    Evidence,
    Misconfigured,
    NotSent,
    Outcome,
    Pending,
    ProviderEffect,
    RateLimited,
    Refused,
    Succeeded,
    Unknown,
)
from effects.send import Sent
from effects.states import State
from effects.transitions import move, note, postpone
from kernel.errors import Bug

# Not sent and 429 are tried again after 2, 4, 8 … seconds, at most every 5 minutes: soon enough
# for a restart of the network, rare enough not to be the load that keeps it down.
BACKOFF_FIRST_SECONDS = 2.0
BACKOFF_MAX_SECONDS = 300.0
# "to a case after an hour" (design, The way of a refund, 7).
CANNOT_SEND_CASE_SECONDS = 3600

# Whether the provider acted is asked only in these; an answer that says no moves nothing else.
_OPEN_QUESTION = (State.SUBMITTING, State.UNKNOWN)
# The fence may have refused because of the key's age: its no must not make the key young again.
_FENCED = ("fenced", "fence_failed")
# In these the one effect of the action is known, and a doubt about an attempt changes nothing.
_KNOWN_DONE = (State.SUCCEEDED, State.PENDING)


def record(*, kind: EffectKind, token: UUID, sent: Sent, actor: str) -> None:
    """Write one answer down, with everything that follows from it. One transaction.

    1. Lock the resource, the action and the attempt that carries this token.
    2. Close that attempt with the answer, and resolve it if the answer proves anything. An
       attempt that was closed meanwhile keeps its row; the late answer goes into the history.
    3. Success and acceptance move the action from any state, and resolve every attempt under
       the same key, since the provider makes one effect of one key. Not when it is late about an
       effect that the action is known by already: that was read since, and may have failed.
    4. A refusal, or proof of not sent, moves it only while it is SUBMITTING or UNKNOWN, and only
       if no other attempt is unresolved: that one's answer, or its lease, decides.
    5. Anything else is UNKNOWN, due for reconciliation.
    6. What the look before the send showed is written down too.

    If this process dies before the commit, the lease ends and reconciliation finds it out.
    """
    with transaction.atomic():
        found = kind.lock_attempt(token=token)
        if found is None:
            raise Bug(f"no attempt carries the token {token}")
        locked, attempt = found
        locked.reading = sent.reading
        _record(kind=kind, locked=locked, attempt=attempt, outcome=sent.outcome, actor=actor)
        if sent.reading is not None:
            kind.observe(locked=locked, reading=sent.reading)
        crash_point(crashpoints.DURING_RECORD)
        if locked.queued_sibling:
            sibling = locked.queued_sibling
            transaction.on_commit(lambda: kind.hint(action_id=sibling))
    crash_point(crashpoints.AFTER_RECORD)


def _record(
    *, kind: EffectKind, locked: Locked, attempt: Any, outcome: Outcome, actor: str
) -> None:
    resolution = _resolution_of(outcome)
    evidence = {"outcome": _word(outcome), **evidence_json(outcome.evidence)}
    late = attempt.is_closed
    proved_undone = attempt.resolution == "not_executed"
    _close(kind=kind, locked=locked, attempt=attempt, outcome=outcome, resolution=resolution)
    others = tuple(token for token in locked.unresolved if token != attempt.token)
    if resolution:
        locked.unresolved = others
    if late:
        note(
            kind=kind,
            locked=locked,
            event=f"{kind.name}.late_answer",
            actor=actor,
            data={"attempt": attempt.number, **evidence},
        )

    if isinstance(outcome, Succeeded | Pending):
        if late and outcome.effect.ref == locked.action.provider_ref:
            return  # older than what the action knows of this effect
        adopt(
            kind=kind,
            locked=locked,
            effect=outcome.effect,
            actor=actor,
            data={"attempt": attempt.number, **evidence},
            generation=attempt.generation,
        )
    elif isinstance(outcome, Refused):
        _refused(
            kind=kind, locked=locked, outcome=outcome, others=others, actor=actor, data=evidence
        )
    elif isinstance(outcome, NotSent | RateLimited | Misconfigured):
        if isinstance(outcome, Misconfigured):
            pause_account(locked=locked, reason=outcome.reason, evidence=evidence)
        _turned_away(
            kind=kind,
            locked=locked,
            outcome=outcome,
            attempt_token=attempt.token,
            others=others,
            actor=actor,
            data=evidence,
        )
    elif isinstance(outcome, Unknown):
        _unknown(
            kind=kind,
            locked=locked,
            outcome=outcome,
            others=others,
            proved_undone=proved_undone,
            actor=actor,
            data=evidence,
        )
    else:
        raise Bug(f"unhandled outcome {outcome!r}")


def _resolution_of(outcome: Outcome) -> str:
    if isinstance(outcome, Succeeded | Pending):
        return "executed"
    if isinstance(outcome, Refused) and outcome.effect is not None:
        return "executed"
    if isinstance(outcome, Unknown):
        return ""
    return "not_executed"


def _word(outcome: Outcome) -> str:
    """The outcome as one stored word, like `succeeded` or `unknown:read_timeout`."""
    name = {
        Succeeded: "succeeded",
        Pending: "pending",
        Refused: "refused",
        NotSent: "not_sent",
        RateLimited: "rate_limited",
        Misconfigured: "misconfigured",
        Unknown: "unknown",
    }[type(outcome)]
    detail = getattr(outcome, "reason", "") or getattr(outcome, "code", "")
    return f"{name}:{detail}"[:40] if detail else name


def evidence_json(evidence: Evidence) -> dict[str, Any]:
    """Evidence without its empty parts, for a JSON column."""
    return {name: value for name, value in asdict(evidence).items() if value not in (None, "", {})}


def _close(
    *, kind: EffectKind, locked: Locked, attempt: Any, outcome: Outcome, resolution: str
) -> None:
    """Write the answer into its own attempt, where nothing is written yet."""
    columns: dict[str, Any] = {}
    if not attempt.is_closed:
        columns |= {
            "closed_at": locked.now,
            "outcome": _word(outcome),
            "evidence": evidence_json(outcome.evidence),
        }
    if resolution and not attempt.resolution:
        columns |= {
            "resolution": resolution,
            "resolved_at": locked.now,
            "resolved_by": ANSWER,
        }
    if columns:
        kind.attempt_model._default_manager.filter(pk=attempt.pk).update(**columns)


def resolve_attempts(
    *,
    kind: EffectKind,
    locked: Locked,
    resolution: str,
    resolved_by: str,
    generation: int | None = None,
) -> None:
    """Resolve the action's unresolved attempts, closing those that nobody answers any more."""
    if not locked.unresolved:
        return
    rows = kind.attempt_model._default_manager.filter(action=locked.action, resolution="")
    if generation is not None:
        rows = rows.filter(generation=generation)
    rows.filter(closed_at__isnull=True).update(closed_at=locked.now, outcome="no_answer")
    rows.update(resolution=resolution, resolved_at=locked.now, resolved_by=resolved_by)
    locked.resolved_in_doubt |= leaves_doubt(resolution=resolution, resolved_by=resolved_by)


def adopt(
    *,
    kind: EffectKind,
    locked: Locked,
    effect: ProviderEffect,
    actor: str,
    data: dict[str, Any],
    generation: int | None = None,
    resolved_by: str = "",
) -> None:
    """Take the provider's live effect as this action's, from whatever state it stands in.

    One key makes one effect, so every attempt under that key is resolved by it (by the actor, or
    as `resolved_by` says). Another effect
    than the one already known is a second refund: an incident, and nothing is overwritten.
    """
    action = locked.action
    data = {"provider_ref": effect.ref, "status": effect.status, **data}
    if (
        action.provider_ref
        and action.provider_ref != effect.ref
        and action.state
        in (
            State.SUCCEEDED,
            State.PENDING,
        )
    ):
        note(kind=kind, locked=locked, event=f"{kind.name}.incident", actor=actor, data=data)
        cases.open_case(
            kind=Case.Kind.INCIDENT,
            effect=kind.name,
            locked=locked,
            reason=(
                f"The provider shows two effects of this action: {action.provider_ref} and "
                f"{effect.ref}. Nothing was changed here. Compare both in the provider's "
                "dashboard and settle the second by hand."
            ),
            evidence=data,
        )
        return
    resolve_attempts(
        kind=kind,
        locked=locked,
        resolution="executed",
        resolved_by=resolved_by or actor,
        generation=generation or action.generation,
    )
    kind.recognise(locked=locked, effect=effect)
    columns = {
        "provider_ref": effect.ref,
        "provider_status": effect.status,
        "waiting_since": None,
    }
    target = State.SUCCEEDED if effect.settlement == "succeeded" else State.PENDING
    if action.state == target:
        # A success that is watched stays watched.
        due_at = _due_after_adoption(target=target, now=locked.now) or action.due_at
        postpone(kind=kind, locked=locked, due_at=due_at, **columns)
        return
    move(
        kind=kind,
        locked=locked,
        target=target,
        event=f"{kind.name}.{target.value.lower()}",
        actor=actor,
        data=data,
        due_at=_due_after_adoption(target=target, now=locked.now),
        **columns,
    )


def _due_after_adoption(*, target: State, now: datetime) -> datetime | None:
    if target is State.PENDING:
        return now + timedelta(seconds=settings.PENDING_POLL_SECONDS)
    return None


def _refused(
    *,
    kind: EffectKind,
    locked: Locked,
    outcome: Refused,
    others: tuple[UUID, ...],
    actor: str,
    data: dict[str, Any],
) -> None:
    """A definite no: final, unless the provider must be read first."""
    if others or locked.action.state not in _OPEN_QUESTION:
        return  # the history has the late answer
    data = {"code": outcome.code, **data}
    if outcome.read_first:
        _to_unknown(kind=kind, locked=locked, actor=actor, data=data, due_at=locked.now)
        return
    columns: dict[str, Any] = {}
    if outcome.effect is not None:
        columns = {
            "provider_ref": outcome.effect.ref,
            "provider_status": outcome.effect.status,
        }
        data |= {"provider_ref": outcome.effect.ref, "reason": outcome.effect.failure_reason}
    move(
        kind=kind,
        locked=locked,
        target=State.FAILED_FINAL,
        event=f"{kind.name}.failed",
        actor=actor,
        data=data,
        due_at=None,
        **columns,
    )


def _turned_away(
    *,
    kind: EffectKind,
    locked: Locked,
    outcome: NotSent | RateLimited | Misconfigured,
    attempt_token: UUID,
    others: tuple[UUID, ...],
    actor: str,
    data: dict[str, Any],
) -> None:
    """This attempt did nothing: back by due time, with backoff, and to a case after an hour."""
    action = locked.action
    if others or action.state not in _OPEN_QUESTION:
        return
    columns: dict[str, Any] = {}
    if (
        isinstance(outcome, NotSent)
        and outcome.reason not in _FENCED
        and kind.key_never_left(locked=locked, but=attempt_token)
    ):
        # The provider has never seen this key, so it has no age yet.
        columns["key_first_used_at"] = None
    waiting_since = action.waiting_since or locked.now
    waited = (locked.now - waiting_since).total_seconds()
    pause = min(max(BACKOFF_FIRST_SECONDS, waited), BACKOFF_MAX_SECONDS)
    if isinstance(outcome, RateLimited) and outcome.retry_after_seconds is not None:
        pause = max(pause, min(outcome.retry_after_seconds, BACKOFF_MAX_SECONDS))
    move(
        kind=kind,
        locked=locked,
        target=State.AUTHORIZED,
        event=f"{kind.name}.not_sent",
        actor=actor,
        data=data,
        due_at=locked.now + timedelta(seconds=pause),
        waiting_since=waiting_since,
        **columns,
    )
    if waited >= CANNOT_SEND_CASE_SECONDS:
        cases.open_case(
            kind=Case.Kind.CANNOT_SEND,
            effect=kind.name,
            locked=locked,
            reason=(
                f"It could not be sent for {int(waited // 60)} minutes ({data['outcome']}). "
                "Nothing reached the provider. It goes on trying; look at the provider's status "
                "and at our network, or withdraw it."
            ),
            evidence=data,
        )


def _unknown(
    *,
    kind: EffectKind,
    locked: Locked,
    outcome: Unknown,
    others: tuple[UUID, ...],
    proved_undone: bool,
    actor: str,
    data: dict[str, Any],
) -> None:
    if locked.action.state == State.SUBMITTING and not others:
        first_delay = settings.RECONCILE_DELAYS_SECONDS[0]
        _to_unknown(
            kind=kind,
            locked=locked,
            actor=actor,
            data=data,
            due_at=locked.now + timedelta(seconds=first_delay),
        )
    if proved_undone and locked.action.state not in (*_KNOWN_DONE, *_OPEN_QUESTION):
        # Nothing more is sent for the order while this case is open: a request that was taken for
        # undone may yet show up, and another one beside it would pay twice.
        cases.open_case(
            kind=Case.Kind.INCIDENT,
            effect=kind.name,
            locked=locked,
            reason=(
                f"It is {State(locked.action.state).label}, and a request that was taken for not "
                f"executed has come back without a usable answer ({outcome.reason}): it may have "
                'been executed after all. Use "check now" some minutes from now, and look for '
                f"{locked.action.action_id} in the provider's dashboard."
            ),
            evidence=data,
        )
    if outcome.incident:
        cases.open_case(
            kind=Case.Kind.INCIDENT,
            effect=kind.name,
            locked=locked,
            reason=(
                f"The provider's answer cannot be ours ({outcome.reason}). Nothing was adopted. "
                "The order is paused until a person has compared the provider's ledger with this "
                "action's history."
            ),
            evidence=data,
        )


def _to_unknown(
    *,
    kind: EffectKind,
    locked: Locked,
    actor: str,
    data: dict[str, Any],
    due_at: datetime,
) -> None:
    """UNKNOWN, with the first of this generation remembered, or only a new due time."""
    action = locked.action
    if action.state == State.UNKNOWN:
        postpone(kind=kind, locked=locked, due_at=due_at)
        return
    move(
        kind=kind,
        locked=locked,
        target=State.UNKNOWN,
        event=f"{kind.name}.unknown",
        actor=actor,
        data=data,
        due_at=due_at,
        unknown_since=action.unknown_since or locked.now,
        waiting_since=None,
    )


def pause_account(*, locked: Locked, reason: str, evidence: dict[str, Any]) -> None:
    """Stop sends to an account whose key, mode or id the provider does not accept."""
    action = locked.action
    scope = f"account:{action.provider}:{action.account}"
    # One switch is on per scope: one that ran out must not be taken for the pause.
    Switch.objects.filter(scope=scope, ended_at__isnull=True, until__lte=locked.now).update(
        ended_at=F("until"), ended_by="system"
    )
    Switch.objects.bulk_create(
        [
            Switch(
                scope=scope,
                reason=f"the provider answered {reason}; nothing was sent since",
                set_by="system",
                set_at=locked.now,
            )
        ],
        ignore_conflicts=True,
    )
    cases.open_account_case(
        account=f"{action.provider}:{action.account}",
        reason=(
            f"The provider does not accept our credentials or account ({reason}). Sends to it "
            "are paused; approved refunds wait. Repair the key, then turn the switch "
            f"{scope!r} off."
        ),
        evidence=evidence,
        now=locked.now,
    )
