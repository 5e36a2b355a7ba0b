"""Check now: a person asks the provider about one action, whatever its state (case T61)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction

from effects.clock import database_now
from effects.kinds import EffectKind, Locked, Reading, kind_of
from effects.outcomes import LookUp, ProviderEffect, Unreadable
from effects.states import State
from effects.transitions import note
from reconciliation.breaker import account_of, remember_read
from reconciliation.resolve import note_unreadable
from reconciliation.settle import Finding, settle, settle_known

# A person who clicks twice means it once; the provider's list cannot have changed in between.
ASK_AGAIN_SECONDS = 10

_SENTENCES: dict[Finding, str] = {
    Finding.FOUND: "The provider shows it.",
    Finding.FAILED: "The provider shows that it failed.",
    Finding.NOT_EXECUTED: "The provider shows nothing, and that proves it was not executed.",
    Finding.REFUSED: "The provider shows nothing, and it had refused the request.",
    Finding.INCONCLUSIVE: "What the provider shows settles nothing now.",
    Finding.CONTRADICTION: "What the provider shows cannot be: a case is open.",
    Finding.OVERTAKEN: "It was settled while the provider was being read.",
    Finding.UNREADABLE: "The provider could not be read. Nothing was changed; try again later.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a person's question brought.

    `asked` is False when the provider was not asked; `finding` is then None. `sentence` is for the
    person, `state` where the action stands now ("" when there is no such action).
    """

    action_id: str
    asked: bool
    finding: Finding | None
    state: str
    sentence: str


def check_now(*, action_id: str, actor: str) -> Checked:
    """Ask the provider about one action and record what it shows. Burns no try, never posts.

    1. Lock, and write down who asks; at most once in 10 seconds.
    2. Read the provider with no transaction open, whatever the state and the circuit breaker say.
    3. Lock again and settle by the same code as a round. Cases that this settles close themselves.
    """
    kind = kind_of(action_id)
    with transaction.atomic():
        locked = kind.lock(action_id=action_id) if kind is not None else None
        if kind is None or locked is None:
            return Checked(
                action_id=action_id,
                asked=False,
                finding=None,
                state="",
                sentence="There is no such action. Nothing was asked.",
            )
        refusal = _why_not(kind=kind, locked=locked)
        if refusal:
            return _checked(locked=locked, finding=None, sentence=refusal)
        note(kind=kind, locked=locked, event=f"{kind.name}.check_asked", actor=actor, data={})
    action = locked.action
    read_at = database_now()
    if kind.promises(action=action).searchable:
        seen: LookUp | ProviderEffect = kind.look(action=action)
    else:
        seen = kind.retrieve(action=action)
    reading = (
        None
        if isinstance(seen, ProviderEffect)
        else kind.judge(action=action, look=seen, read_at=read_at)
    )
    with transaction.atomic():
        again = kind.lock(action_id=action_id) or locked
        finding = _settle(kind=kind, locked=again, seen=seen, reading=reading, actor=actor)
    return _checked(locked=again, finding=finding, sentence=_SENTENCES[finding])


def _why_not(*, kind: EffectKind, locked: Locked) -> str:
    """Why the provider is not asked now, as a sentence; "" when it is."""
    action = locked.action
    history: Any = kind.event_model._default_manager
    asked_lately = history.filter(
        action=action,
        kind=f"{kind.name}.check_asked",
        at__gt=locked.now - timedelta(seconds=ASK_AGAIN_SECONDS),
    )
    if asked_lately.exists():
        return f"It was asked less than {ASK_AGAIN_SECONDS} seconds ago. Look at its history."
    if not kind.promises(action=action).searchable and not action.provider_ref:
        return (
            "This provider cannot be searched and no effect of it is known. Look in the provider's "
            "dashboard, then settle the case by hand."
        )
    return ""


def _settle(
    *,
    kind: EffectKind,
    locked: Locked,
    seen: LookUp | ProviderEffect,
    reading: Reading | None,
    actor: str,
) -> Finding:
    data = {"asked_by": actor}
    remember_read(
        account=account_of(locked.action),
        readable=not isinstance(seen, Unreadable),
        now=locked.now,
    )
    if isinstance(seen, ProviderEffect):
        return settle_known(kind=kind, locked=locked, effect=seen, actor=actor, data=data)
    if reading is None:
        note_unreadable(kind=kind, locked=locked, look=seen, actor=actor, data=data)
        return Finding.UNREADABLE
    return settle(kind=kind, locked=locked, reading=reading, actor=actor, data=data)


def _checked(*, locked: Locked, finding: Finding | None, sentence: str) -> Checked:
    state = State(locked.action.state)
    return Checked(
        action_id=locked.action.action_id,
        asked=finding is not None,
        finding=finding,
        state=state.value,
        sentence=f"{sentence} It is {state.label}.",
    )
