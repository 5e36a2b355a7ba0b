"""What is due and needs no provider: held proposals, and decisions whose time is over."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from effects import cases
from effects.claim import send_back
from effects.kinds import Back, EffectKind, Locked
from effects.models import Case
from effects.states import State
from effects.transitions import move, postpone
from reconciliation.due import take_due


def decide_held(*, kind: EffectKind, now: datetime, seen: list[str]) -> bool:
    """Run the policy again on one HELD action. False: none is due. One transaction.

    1. Take the HELD action that is due the longest, and ask its kind to decide it now.
    2. Decided: it goes where the decision says, and a worker is told when that is AUTHORIZED.
    3. Still held: it is looked at again in the next sweep. Past the time that an approval would
       have had, a person is told, once.
    """
    with transaction.atomic():
        locked = take_due(kind=kind, states=(State.HELD,), now=now, seen=seen)
        if locked is None:
            return False
        action = locked.action
        decided = kind.decide_held(locked=locked)
        approval_ttl = timedelta(seconds=settings.APPROVAL_TTL_SECONDS)
        if decided.target is not State.HELD:
            due = {
                State.AUTHORIZED: locked.now + timedelta(seconds=settings.DISPATCH_SWEEP_SECONDS),
                State.AWAITING_APPROVAL: locked.now + approval_ttl,
            }
            move(
                kind=kind,
                locked=locked,
                target=decided.target,
                event=f"{kind.name}.decided",
                actor="policy",
                data={"reason": decided.reason, **decided.note},
                due_at=due.get(decided.target),
                **decided.columns,
            )
            if decided.target is State.AUTHORIZED:
                transaction.on_commit(lambda: kind.hint(action_id=action.action_id))
            return True
        postpone(
            kind=kind,
            locked=locked,
            due_at=locked.now + timedelta(seconds=settings.RECONCILE_SWEEP_SECONDS),
        )
        if locked.now - action.created_at >= approval_ttl:
            cases.open_case_once(
                kind=Case.Kind.HELD_TOO_LONG,
                effect=kind.name,
                locked=locked,
                reason=(
                    f"It has been held since {action.created_at:%Y-%m-%d %H:%M} UTC because "
                    f"{decided.reason}. Nothing was sent, and the customer expects an answer. It "
                    "is decided by itself once that has changed; until then, change it or "
                    "withdraw the request."
                ),
                evidence={"reason": decided.reason},
            )
    return True


def expire_unanswered(*, kind: EffectKind, now: datetime, seen: list[str]) -> bool:
    """AWAITING_APPROVAL -> EXPIRED when nobody decided in time. False: none is due."""
    with transaction.atomic():
        locked = take_due(kind=kind, states=(State.AWAITING_APPROVAL,), now=now, seen=seen)
        if locked is None:
            return False
        waited = {"awaited_since": locked.action.state_since.isoformat()}
        move(
            kind=kind,
            locked=locked,
            target=State.EXPIRED,
            event=f"{kind.name}.expired",
            actor="sweep",
            data=waited,
            due_at=None,
        )
        cases.open_case(
            kind=Case.Kind.EXPIRED,
            effect=kind.name,
            locked=locked,
            reason=(
                f"It was not approved or rejected in time. {_what_was_done(locked)} The customer "
                "still expects an answer: give it, and propose again under a new request id if "
                "money is due."
            ),
            evidence=waited,
        )
    return True


def _what_was_done(locked: Locked) -> str:
    """What was done for an action that has expired, as sentences for its case."""
    if locked.action.due_at is None:
        return "Nothing was done, and nothing will be done under this request."
    return (
        "Nothing more will be sent under this request, but one was sent before and taken for not "
        "executed. The provider is read again day by day, in case it was after all: look there "
        "before you answer."
    )


def end_stale_approval(*, kind: EffectKind, now: datetime, seen: list[str]) -> bool:
    """AUTHORIZED -> AWAITING_APPROVAL when the approval's time is over. False: none is.

    The claim would find the same; this is for an action that no worker has claimed, so that a
    person hears of it.
    """
    with transaction.atomic():
        locked = take_due(
            kind=kind, states=(State.AUTHORIZED,), now=now, seen=seen, by="bound_until"
        )
        if locked is None:
            return False
        send_back(
            kind=kind,
            locked=locked,
            verdict=Back(reason="the approval has expired before it could be sent"),
            actor="sweep",
        )
    return True
