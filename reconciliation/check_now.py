"""Check now: a person asks the provider about one action, whatever its state (case T61)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from effects.clock import database_now
from effects.kinds import EffectKind, Locked, Reading, kind_of
from effects.outcomes import LookUp, ProviderEffect, Unreadable
from effects.states import State
from effects.transitions import note
from reconciliation.breaker import account_of, remember_read
from reconciliation.resolve import note_unreadable
from reconciliation.second_look import SecondLook, look_again, note_second_look
from reconciliation.settle import Finding, settle, settle_known

# A person who clicks twice means it once; the provider's list cannot have changed in between.
ASK_AGAIN_SECONDS = 10

SENTENCES: dict[Finding, str] = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the provider answered to a person's question, before anything was concluded from it.

    `reading` is None when the answer is one effect, or could not be read. `second` is None unless
    the outcome is in question and there is a second way to look.
    """

    answer: LookUp | ProviderEffect
    reading: Reading | None
    second: SecondLook | None


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
        refusal = why_not_now(kind=kind, action=locked.action, now=locked.now)
        if refusal:
            return _checked(locked=locked, finding=None, sentence=refusal)
        note(kind=kind, locked=locked, event=f"{kind.name}.check_asked", actor=actor, data={})
    seen = ask(kind=kind, action=locked.action)
    with transaction.atomic():
        again = kind.lock(action_id=action_id) or locked
        finding, unexplained = record_seen(
            kind=kind, locked=again, seen=seen, actor=actor, data={"asked_by": actor}
        )
    sentence = SENTENCES[finding]
    if unexplained:
        sentence = f"{sentence} Look closer: {unexplained}."
    return _checked(locked=again, finding=finding, sentence=sentence)


def ask(*, kind: EffectKind, action: Any) -> Seen:
    """Read the provider about one action, in two ways while its outcome is in question.

    No transaction may be open. Nothing is written.
    """
    read_at = database_now()
    if not kind.promises(action=action).searchable:
        return Seen(answer=kind.retrieve(action=action), reading=None, second=None)
    look = kind.look(action=action)
    return Seen(
        answer=look,
        reading=kind.judge(action=action, look=look, read_at=read_at),
        second=look_again(kind=kind, action=action, look=look)
        if action.state == State.UNKNOWN
        else None,
    )


def record_seen(
    *, kind: EffectKind, locked: Locked, seen: Seen, actor: str, data: dict[str, Any]
) -> tuple[Finding, str]:
    """Write down what was seen and what follows, in the caller's transaction.

    Returns what the look came to, and what the resource's totals leave unexplained beside it.
    """
    remember_read(
        account=account_of(locked.action),
        readable=not isinstance(seen.answer, Unreadable),
        now=locked.now,
    )
    if isinstance(seen.answer, ProviderEffect):
        known = settle_known(kind=kind, locked=locked, effect=seen.answer, actor=actor, data=data)
        return known, ""
    if seen.reading is None:
        note_unreadable(kind=kind, locked=locked, look=seen.answer, actor=actor, data=data)
        return Finding.UNREADABLE, ""
    unexplained = ""
    if seen.second is not None:
        unexplained = note_second_look(
            kind=kind, locked=locked, second=seen.second, actor=actor, data=data
        )
    finding = settle(kind=kind, locked=locked, reading=seen.reading, actor=actor, data=data)
    return finding, unexplained if locked.action.state == State.UNKNOWN else ""


def why_not_now(*, kind: EffectKind, action: Any, now: datetime) -> str:
    """Why the provider is not asked now, as a sentence; "" when it is."""
    history: Any = kind.event_model._default_manager
    asked_lately = history.filter(
        action=action,
        kind=f"{kind.name}.check_asked",
        at__gt=now - timedelta(seconds=ASK_AGAIN_SECONDS),
    )
    if asked_lately.exists():
        return f"It was asked less than {ASK_AGAIN_SECONDS} seconds ago. Look at its history."
    if not kind.promises(action=action).searchable and not action.provider_ref:
        return (
            "This provider cannot be searched and no effect of it is known. Look in the provider's "
            "dashboard, then settle the case by hand."
        )
    return ""


def _checked(*, locked: Locked, finding: Finding | None, sentence: str) -> Checked:
    state = State(locked.action.state)
    return Checked(
        action_id=locked.action.action_id,
        asked=finding is not None,
        finding=finding,
        state=state.value,
        sentence=f"{sentence} It is {state.label}.",
    )
