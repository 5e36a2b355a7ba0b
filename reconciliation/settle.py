"""Settle: what a look at the provider proves about an action, and what follows from it.

The one place for that, whether a round, a person's "check now" or a poll looked. It never posts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.db import transaction

from effects import cases
from effects.claim import send_back
from effects.kinds import (
    Absent,
    Back,
    Contradiction,
    EffectKind,
    Found,
    Judgement,
    Locked,
    No,
    OnlyFailed,
    Reading,
)
from effects.models import Case
from effects.outcomes import ProviderEffect
from effects.record import adopt, resolve_attempts
from effects.states import State
from effects.transitions import move, note
from kernel.errors import Bug
from reconciliation.second_look import BY_LIST

# What says that the effect exists, so that a listing without it contradicts our own record.
_EXISTS = (State.SUCCEEDED, State.PENDING)


class Finding(StrEnum):
    """What a look came to."""

    FOUND = "found"
    FAILED = "failed"
    NOT_EXECUTED = "not_executed"
    REFUSED = "refused"
    INCONCLUSIVE = "inconclusive"
    CONTRADICTION = "contradiction"
    OVERTAKEN = "overtaken"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Whether "not found" proves "not executed" now; `missing` says what is missing, or ""."""

    missing: str
    refused_code: str = ""


def settle(
    *, kind: EffectKind, locked: Locked, reading: Reading, actor: str, data: dict[str, Any]
) -> Finding:
    """Write down what a readable look showed and what follows, in the caller's transaction.

    1. Judge it for where the action stands: see `_in_its_place`.
    2. Append what was seen to the history, `data` beside it.
    3. Effects made elsewhere are written down: before a decision is made again on them, else after.
    4. Found: adopt it, from whatever state. Only failed: the action has failed, if it stood where
       it could. A contradiction: an incident, the order is paused, nothing is adopted.
    5. Absent: only for an UNKNOWN action, and only as proof, is it "not executed".
    """
    action = locked.action
    judgement = _in_its_place(kind=kind, locked=locked, reading=reading)
    proof = (
        _proof_of_absence(kind=kind, locked=locked, reading=reading)
        if isinstance(judgement, Absent) and action.state == State.UNKNOWN
        else Proof(missing=f"it was {State(action.state).label} when this was recorded")
    )
    finding = _finding(judgement, proof=proof, state=State(action.state))
    if _overtaken(locked=locked, reading=reading):
        finding = Finding.OVERTAKEN
    _note_look(
        kind=kind,
        locked=locked,
        reading=reading,
        is_absent=isinstance(judgement, Absent),
        finding=finding,
        proof=proof,
        actor=actor,
        data=data,
    )
    locked.reading = reading
    evidence = {"read_at": reading.read_at.isoformat(), **reading.evidence, **data}
    if isinstance(judgement, Found) and finding is Finding.FOUND:
        adopt(kind=kind, locked=locked, effect=judgement.effect, actor=actor, data=evidence)
    elif isinstance(judgement, Contradiction) and finding is Finding.CONTRADICTION:
        _open_incident(kind=kind, locked=locked, judgement=judgement, evidence=evidence)
    elif isinstance(judgement, OnlyFailed) and finding is Finding.FAILED:
        _fail(kind=kind, locked=locked, effects=judgement.effects, actor=actor, data=evidence)
    kind.observe(locked=locked, reading=reading)
    if finding in (Finding.NOT_EXECUTED, Finding.REFUSED):
        _not_executed(
            kind=kind, locked=locked, reading=reading, proof=proof, actor=actor, data=evidence
        )
    return finding


def settle_known(
    *, kind: EffectKind, locked: Locked, effect: ProviderEffect, actor: str, data: dict[str, Any]
) -> Finding:
    """The same for the one effect the action is known by, read by its id."""
    if effect.settlement != "failed":
        adopt(kind=kind, locked=locked, effect=effect, actor=actor, data=data)
        return Finding.FOUND
    if locked.action.state not in _EXISTS:
        return Finding.INCONCLUSIVE
    _fail(kind=kind, locked=locked, effects=(effect,), actor=actor, data=data)
    return Finding.FAILED


def _in_its_place(*, kind: EffectKind, locked: Locked, reading: Reading) -> Judgement:
    """What the look says about an action that stands where this one stands.

    1. An action known by its effect, and a listing without that effect: a contradiction, where the
       provider's list shows at once what was done.
    2. Failed effects of older key generations are history, not the answer. A key makes at most one
       effect, so with fewer failed effects than generations the newest key may have made none.
       Reading that as absent is safe: all it can lead to is the same key again, and under it the
       provider answers what it did.
    """
    action, judgement = locked.action, reading.judgement
    if action.state in _EXISTS and isinstance(judgement, Absent | OnlyFailed):
        effects = judgement.effects if isinstance(judgement, OnlyFailed) else ()
        if action.provider_ref in {effect.ref for effect in effects}:
            return judgement
        if kind.promises(action=action).list_is_immediately_consistent:
            return Contradiction(reason="known_effect_not_listed", effects=effects)
        return Absent()
    if isinstance(judgement, OnlyFailed) and len(judgement.effects) < action.generation:
        return Absent()
    return judgement


def _overtaken(*, locked: Locked, reading: Reading) -> bool:
    """Whether the action was settled while the provider was being read: that is better evidence.

    Not better than two effects, or another effect than the one it was settled by.
    """
    action, seen = locked.action, reading.judgement
    if isinstance(seen, Contradiction):
        return False
    if isinstance(seen, Found) and seen.effect.ref != action.provider_ref:
        return False
    return bool(
        action.provider_ref
        and action.state in (*_EXISTS, State.FAILED_FINAL)
        and action.state_since > reading.read_at
    )


def _finding(judgement: Judgement, *, proof: Proof, state: State) -> Finding:
    if isinstance(judgement, Found):
        return Finding.FOUND
    if isinstance(judgement, Contradiction):
        return Finding.CONTRADICTION
    if isinstance(judgement, OnlyFailed):
        could_fail = state in (State.UNKNOWN, *_EXISTS)
        return Finding.FAILED if could_fail else Finding.INCONCLUSIVE
    if not isinstance(judgement, Absent):
        raise Bug(f"unhandled judgement {judgement!r}")
    if proof.missing:
        return Finding.INCONCLUSIVE
    return Finding.REFUSED if proof.refused_code else Finding.NOT_EXECUTED


def _proof_of_absence(*, kind: EffectKind, locked: Locked, reading: Reading) -> Proof:
    """When "not found" is evidence of "not executed" (design, Reconciliation).

    1. No attempt is open: nobody holds a lease and may still send.
    2. The read began later than the settle time after the last claim. That is more than a lease
       and a whole request, so nothing that was sent can still be on its way.
    3. The provider promises that its list shows at once what was done, or another object of it,
       read after the list, shows that the list was complete.
    4. The key is younger than the limit for sending again, so that a delayed original and our
       own second request would meet under one key.
    """
    action = locked.action
    attempts = list(
        kind.attempt_model._default_manager.filter(action=action).values_list(
            "claimed_at", "closed_at", "outcome", "generation"
        )
    )
    if any(closed_at is None for _, closed_at, _, _ in attempts):
        return Proof(missing="an attempt is still open")
    last_claim = max((claimed_at for claimed_at, *_ in attempts), default=None)
    if last_claim is not None and reading.read_at < settled_at(last_claim):
        return Proof(missing="it was read before the settle time after the last send was over")
    consistent = kind.promises(action=action).list_is_immediately_consistent
    if not consistent and not reading.is_complete:
        return Proof(missing="the provider's list may lag behind what was done")
    first_use = action.key_first_used_at
    resend_limit = timedelta(seconds=settings.KEY_RESEND_SECONDS)
    if first_use is not None and locked.now - first_use >= resend_limit:
        return Proof(missing="its key is past the limit for sending again")
    refusals = [
        outcome
        for _, _, outcome, generation in attempts
        if generation == action.generation and outcome.startswith("refused")
    ]
    code = refusals[-1].partition(":")[2] or "refused" if refusals else ""
    return Proof(missing="", refused_code=code)


def settled_at(last_claim: datetime) -> datetime:
    """From when on "not found" can be believed."""
    return last_claim + timedelta(seconds=settings.SETTLE_SECONDS)


def _note_look(
    *,
    kind: EffectKind,
    locked: Locked,
    reading: Reading,
    is_absent: bool,
    finding: Finding,
    proof: Proof,
    actor: str,
    data: dict[str, Any],
) -> None:
    seen: dict[str, Any] = {
        "method": BY_LIST,
        "result": finding.value,
        "absent": is_absent,
        "read_at": reading.read_at.isoformat(),
        **reading.evidence,
        **data,
    }
    if is_absent and finding is Finding.INCONCLUSIVE:
        seen["why_inconclusive"] = proof.missing
        seen["remark"] = f"absent at {reading.read_at.isoformat()} is not: did not happen"
    note(kind=kind, locked=locked, event=f"{kind.name}.looked", actor=actor, data=seen)


def _not_executed(
    *,
    kind: EffectKind,
    locked: Locked,
    reading: Reading,
    proof: Proof,
    actor: str,
    data: dict[str, Any],
) -> None:
    """UNKNOWN, proved not executed: failed if it was refused, else back to be sent or decided.

    1. Every unresolved attempt did nothing.
    2. A definite refusal is stored under the key and would only be answered again: FAILED_FINAL.
    3. Somebody else refunded meanwhile, or the decision no longer holds: a person decides.
    4. Else AUTHORIZED under the same key. A wait (kill switch, a sibling on the wire) is the
       claim's business.
    """
    resolve_attempts(kind=kind, locked=locked, resolution="not_executed", resolved_by=actor)
    locked.unresolved = ()
    if proof.refused_code:
        move(
            kind=kind,
            locked=locked,
            target=State.FAILED_FINAL,
            event=f"{kind.name}.failed",
            actor=actor,
            data={"code": proof.refused_code, **data},
            due_at=None,
        )
        return
    verdict = (
        Back(reason=f"{len(reading.strangers)} refunds were found that nobody here knows of")
        if reading.strangers
        else kind.recheck(locked=locked)
    )
    if isinstance(verdict, Back | No):
        send_back(
            kind=kind,
            locked=locked,
            verdict=Back(reason=verdict.reason, note={**data, **verdict.note}),
            actor=actor,
        )
        return
    move(
        kind=kind,
        locked=locked,
        target=State.AUTHORIZED,
        event=f"{kind.name}.not_executed",
        actor=actor,
        data=data,
        due_at=locked.now,
    )
    action_id = locked.action.action_id
    transaction.on_commit(lambda: kind.hint(action_id=action_id))


def _fail(
    *,
    kind: EffectKind,
    locked: Locked,
    effects: tuple[ProviderEffect, ...],
    actor: str,
    data: dict[str, Any],
) -> None:
    """The provider made it, and shows it failed. A success may end so for about 30 days."""
    known = [effect for effect in effects if effect.ref == locked.action.provider_ref]
    effect = (known or list(effects))[0]
    resolve_attempts(kind=kind, locked=locked, resolution="executed", resolved_by=actor)
    locked.unresolved = ()
    move(
        kind=kind,
        locked=locked,
        target=State.FAILED_FINAL,
        event=f"{kind.name}.failed",
        actor=actor,
        data={
            "code": "failed",
            "reason": effect.failure_reason or effect.status,
            "provider_ref": effect.ref,
            "status": effect.status,
            **data,
        },
        due_at=None,
        provider_ref=effect.ref,
        provider_status=effect.status,
    )


def _open_incident(
    *, kind: EffectKind, locked: Locked, judgement: Contradiction, evidence: dict[str, Any]
) -> None:
    refs = [effect.ref for effect in judgement.effects]
    cases.open_case(
        kind=Case.Kind.INCIDENT,
        effect=kind.name,
        locked=locked,
        reason=(
            f"What the provider shows cannot be ({judgement.reason}: "
            f"{', '.join(refs) or 'none of our effects'}). Nothing was adopted, and nothing more "
            f"is sent for {locked.resource_name} while this case is open. Compare the provider's "
            "dashboard with this action's history."
        ),
        evidence={"reason": judgement.reason, "refs": refs, **evidence},
    )
