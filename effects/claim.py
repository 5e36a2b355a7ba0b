"""Claim: the one place where an action becomes somebody's to send."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction

from effects import cases, crashpoints
from effects.crashpoints import crash_point
from effects.kinds import Back, EffectKind, Locked, No, Wait
from effects.models import Case
from effects.states import State
from effects.transitions import move, postpone
from kernel.errors import Bug
from kernel.identity import idempotency_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """This worker, and no other, may send the action once before the lease is over.

    `claimed_at` is database time.
    """

    action: Any
    token: UUID
    claimed_at: datetime
    idempotency_key: str
    look_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NotClaimed:
    """Nothing is to be sent by this delivery; `reason` says why, for the log."""

    reason: str


def claim(*, kind: EffectKind, action_id: str, worker: str) -> Claimed | NotClaimed:
    """Take one AUTHORIZED action for sending, or say why not. One transaction.

    1. Lock the action and its resource. Unknown id: nothing to do.
    2. Anything but AUTHORIZED: another worker got there first.
    3. Compare the decision with the locked facts: go on, wait, back to a person, or no.
    4. A key that was used and is past its limit is never sent again: UNKNOWN, to be found out.
    5. Reserve what it takes (I3), unless an earlier attempt's reservation still stands.
    6. AUTHORIZED -> SUBMITTING, with the attempt, its lease and its fencing token.

    Committed together, before any byte leaves. If this process dies afterwards, the lease ends
    and the sweep reads the attempt as UNKNOWN.
    """
    with transaction.atomic():
        result = _claim(kind=kind, action_id=action_id, worker=worker)
        crash_point(crashpoints.BEFORE_CLAIM_COMMITS)
    crash_point(crashpoints.AFTER_CLAIM)
    return result


def _claim(*, kind: EffectKind, action_id: str, worker: str) -> Claimed | NotClaimed:
    locked = kind.lock(action_id=action_id)
    if locked is None:
        return NotClaimed(reason="there is no such action")
    action = locked.action
    if action.state != State.AUTHORIZED:
        return NotClaimed(reason=f"it is {action.state}: another worker got there first")
    if locked.unresolved:
        raise Bug(f"{action_id} is AUTHORIZED with {len(locked.unresolved)} unresolved attempts")

    verdict = kind.recheck(locked=locked)
    if isinstance(verdict, Wait):
        postpone(kind=kind, locked=locked, due_at=locked.now + timedelta(seconds=verdict.seconds))
        return NotClaimed(reason=verdict.reason)
    if isinstance(verdict, Back):
        send_back(kind=kind, locked=locked, verdict=verdict, actor=worker)
        return NotClaimed(reason=verdict.reason)
    if isinstance(verdict, No):
        move(
            kind=kind,
            locked=locked,
            target=State.REJECTED,
            event=f"{kind.name}.rejected",
            actor="policy",
            data={"reason": verdict.reason, **verdict.note},
            due_at=None,
        )
        return NotClaimed(reason=verdict.reason)

    resend_limit = timedelta(seconds=settings.KEY_RESEND_SECONDS)
    first_use = action.key_first_used_at or locked.now
    if locked.now - first_use >= resend_limit:
        move(
            kind=kind,
            locked=locked,
            target=State.UNKNOWN,
            event=f"{kind.name}.key_too_old",
            actor=worker,
            data={"key_first_used_at": first_use.isoformat()},
            due_at=locked.now,
            unknown_since=action.unknown_since or locked.now,
        )
        return NotClaimed(reason="its key is past the limit for sending again")

    if not kind.reserve(locked=locked):
        # recheck compared the same locked balances, so only a broken kind gets here.
        raise Bug(f"{action_id} passed its recheck and does not fit the balance")
    token = uuid4()
    key = idempotency_key(action_id=action.action_id, generation=action.generation)
    look_first = kind.must_look_first(locked=locked)
    lease_until = locked.now + timedelta(seconds=settings.SUBMIT_LEASE_SECONDS)
    move(
        kind=kind,
        locked=locked,
        target=State.SUBMITTING,
        event=f"{kind.name}.claimed",
        actor=worker,
        data={"attempt": action.attempt_count + 1, "key": key, **verdict.note},
        due_at=lease_until,
        attempt_count=action.attempt_count + 1,
        key_first_used_at=first_use,
    )
    kind.attempt_model._default_manager.create(
        action=action,
        token=token,
        number=action.attempt_count,
        generation=action.generation,
        idempotency_key=key,
        worker=worker,
        claimed_at=locked.now,
        lease_until=lease_until,
    )
    return Claimed(
        action=action,
        token=token,
        claimed_at=locked.now,
        idempotency_key=key,
        look_first=look_first,
    )


def send_back(*, kind: EffectKind, locked: Locked, verdict: Back, actor: str) -> None:
    """Return an action to a person; when a person had approved it, a case says what changed.

    For the claim, for an approval whose time is over, and for what proved not executed.
    """
    by_person = locked.action.decided_by == "person"
    nothing = "It was sent and did nothing" if locked.action.attempt_count else "Nothing was sent"
    move(
        kind=kind,
        locked=locked,
        target=State.AWAITING_APPROVAL,
        event=f"{kind.name}.approval_stale" if by_person else f"{kind.name}.needs_approval",
        actor=actor,
        data={"reason": verdict.reason, **verdict.note},
        due_at=locked.now + timedelta(seconds=settings.APPROVAL_TTL_SECONDS),
        **verdict.columns,
    )
    if by_person:
        cases.open_case(
            kind=Case.Kind.STALE_APPROVAL,
            effect=kind.name,
            locked=locked,
            reason=f"{nothing}. It was approved, but {verdict.reason}. Decide again.",
            evidence=verdict.note,
        )
