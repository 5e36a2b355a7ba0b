"""Acts: what a person does about an action whose outcome is in question, with everything it means.

What each act is and when it is possible stands in `reconciliation.possible_acts`. Whatever reads
the provider does so between two transactions, and everything is compared again in the second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction

from approvals.models import CaseAct
from effects.claim import send_back
from effects.doubt import LINKED, WATCH_EVERY
from effects.kinds import Back, EffectKind, Locked, kind_of
from effects.models import Case
from effects.outcomes import ProviderEffect, Unreadable
from effects.people import EXPLANATION_CHARACTERS_MIN, NOTE_CHARACTERS_MAX, actor_of, is_note
from effects.record import adopt, evidence_json, resolve_attempts
from effects.states import State
from effects.transitions import move
from effects.transitions import note as note_in_history
from kernel.errors import Bug
from kernel.money import format_amount
from reconciliation.check_now import SENTENCES, Seen, ask, record_seen
from reconciliation.circumstances import Circumstances, read_circumstances
from reconciliation.possible_acts import (
    Name,
    first_word,
    people_needed,
    permission_missing,
    why_not,
)
from reconciliation.second_look import BY_LIST, BY_TOTALS
from reconciliation.settle import Finding
from refunds.withdraw import Withdrawn, withdraw_refund

# A provider's id; what else could be typed there must not become part of an address.
_REFERENCE = re.compile(r"[A-Za-z0-9_]{1,80}")
# Two names, and what stands around them, in the 80 characters of `resolved_by`.
_NAME_CHARACTERS_MAX = 36


class Why(StrEnum):
    """Why an act was not done. Nothing was changed, but for what was read being written down."""

    NO_CASE = "no_case"
    NOT_PERMITTED = "not_permitted"
    BAD_REASON = "bad_reason"
    BAD_NOTE = "bad_note"
    BAD_AMOUNT = "bad_amount"
    BAD_REFERENCE = "bad_reference"
    NOT_NOW = "not_now"
    CHANGED_SINCE = "changed_since"
    NOT_LINKED = "not_linked"
    UNREADABLE = "unreadable"
    SEEN_OTHERWISE = "seen_otherwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What a person gives with every act.

    `reason` is a `CaseAct.Reason`, `note` text of 15 characters or more, and `seen_version` the
    version of the case on that person's page (`reconciliation.circumstances.case_version`).
    """

    reason: str
    note: str
    seen_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """It is done. `state` is where the action stands now, `sentence` for the person."""

    action_id: str
    state: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondNeeded:
    """This person's word is written down; nothing happens before a second person agrees."""

    action_id: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDone:
    """It was not done; `sentence` says why, and what to do."""

    why: Why
    sentence: str


Result = Done | SecondNeeded | NotDone


@dataclass(frozen=True, slots=True, kw_only=True)
class _Act:
    """One act of one person, as it was asked for."""

    name: Name
    case_id: UUID
    user: User
    word: Word
    subject: str = ""
    typed_amount_minor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entered:
    """An act that may go on, in the open transaction: its action is locked."""

    kind: EffectKind
    locked: Locked
    here: Circumstances


# -- the acts -------------------------------------------------------------------------------------


def link_refund(*, case_id: UUID, user: User, word: Word, provider_ref: str) -> Result:
    """Take a refund that a person names as this action's, after fetching and verifying it.

    1. Refuse what cannot be: see `_enter`.
    2. Fetch it from the provider by its id, with no transaction open.
    3. Lock and compare again. It must be of this payment, for this amount, alive and nobody
       else's; what is not goes into the history, since it may be an attempt to hide something.
    4. One that carries our action id is adopted at once, by the same code as any other; one that
       does not, when a second person has named the same one.
    """
    provider_ref = provider_ref.strip()
    if not _REFERENCE.fullmatch(provider_ref):
        return NotDone(
            why=Why.BAD_REFERENCE,
            sentence="Type the id of a refund as the provider shows it, like re_3Nabc. Nothing was "
            "changed.",
        )
    act = _Act(name=Name.LINK, case_id=case_id, user=user, word=word, subject=provider_ref)
    with transaction.atomic():
        entered = _enter(act)
        if isinstance(entered, NotDone):
            return entered
    effect = entered.kind.fetch(action=entered.locked.action, ref=provider_ref)
    with transaction.atomic():
        entered = _enter(act)
        if isinstance(entered, NotDone):
            return entered
        if isinstance(effect, Unreadable):
            return _not_linked(
                act,
                entered,
                why=Why.UNREADABLE,
                reason=f"the provider does not show it now ({effect.reason})",
                data=evidence_json(effect.evidence),
            )
        link = entered.kind.judge_link(locked=entered.locked, effect=effect)
        if link.why_not:
            return _not_linked(act, entered, why=Why.NOT_LINKED, reason=link.why_not, data={})
        first = first_word(act.name, here=entered.here, subject=provider_ref)
        if not link.is_marked and (first is None or first.person_id == user.pk):
            return _ask_for_second(act, entered, first=first)
        _write(act, entered, first=None if link.is_marked else first)
        return _adopt(act, entered, effect=effect, first=None if link.is_marked else first)


def send_again(*, case_id: UUID, user: User, word: Word) -> Result:
    """Let the stored request be sent again under the same key, on proof that it did nothing.

    1. Refuse what cannot be: see `_enter`.
    2. Read the provider once more, with no transaction open.
    3. Lock and compare again, then settle by the same code as a round. Only "not executed" makes
       the action AUTHORIZED, or AWAITING_APPROVAL when the approval no longer holds.
    """
    act = _Act(name=Name.SEND_AGAIN, case_id=case_id, user=user, word=word)
    with transaction.atomic():
        entered = _enter(act)
        if isinstance(entered, NotDone):
            return entered
    seen = ask(kind=entered.kind, action=entered.locked.action)
    with transaction.atomic():
        entered = _enter(act)
        if isinstance(entered, NotDone):
            return entered
        finding = _record(act, entered, seen=seen)
        if finding is not Finding.NOT_EXECUTED:
            return _seen_otherwise(entered, finding=finding)
        _write(act, entered, first=None)
        state = State(entered.locked.action.state)
        return _done(
            entered,
            "It is sent again under the same key."
            if state is State.AUTHORIZED
            else "Nothing was executed, but the decision no longer holds. Nothing is sent before "
            "it is decided again.",
        )


def allow_new_key(*, case_id: UUID, user: User, word: Word, typed_amount: str) -> Result:
    """Declare that nothing was executed under the old key, and let it be sent under a new one.

    `typed_amount` is the action's amount as the person typed it, like `79.00`. As `_declare`; then
    the key generation grows by one and the action awaits approval: a new key is a new decision.
    """
    return _declare(
        _Act(name=Name.NEW_KEY, case_id=case_id, user=user, word=word), typed_amount=typed_amount
    )


def give_up(*, case_id: UUID, user: User, word: Word) -> Result:
    """End an action of unknown outcome as failed, so that a remedy can be proposed.

    As `_declare`; then the action is FAILED_FINAL, with the case of a customer who is still owed.
    """
    return _declare(_Act(name=Name.GIVE_UP, case_id=case_id, user=user, word=word))


def withdraw(*, case_id: UUID, user: User, word: Word) -> Result:
    """Cancel an action of which nothing was executed. One transaction."""
    act = _Act(name=Name.WITHDRAW, case_id=case_id, user=user, word=word)
    with transaction.atomic():
        entered = _enter(act)
        if isinstance(entered, NotDone):
            return entered
        _write(act, entered, first=None)
        withdrawn = withdraw_refund(action_id=entered.locked.action.action_id, actor=actor_of(user))
        if not isinstance(withdrawn, Withdrawn):
            raise Bug(f"{entered.locked.action.action_id} could be withdrawn under this lock")
        entered.locked.action = withdrawn.action
        return _done(entered, "It is withdrawn. Nothing is sent for it.")


# -- what all of them begin with ------------------------------------------------------------------


def _enter(act: _Act) -> _Entered | NotDone:
    """Lock the action and say why the act is refused, if it is. In the caller's transaction.

    In order: the permission; the reason code and the note; whether the case is as the person saw
    it; then its conditions and four eyes, which an old page would have got wrong.
    """
    missing = permission_missing(act.name, user=act.user)
    if missing:
        return NotDone(why=Why.NOT_PERMITTED, sentence=f"{missing} Nothing was changed.")
    refusal = _bad_word(act.word)
    if refusal is not None:
        return refusal
    case = Case.objects.filter(case_id=act.case_id).first()
    kind = kind_of(case.action_id) if case is not None else None
    locked = kind.lock(action_id=case.action_id) if case is not None and kind is not None else None
    if case is None or kind is None or locked is None:
        return NotDone(
            why=Why.NO_CASE, sentence="There is no such case about an action. Nothing was changed."
        )
    case.refresh_from_db()  # as it stands under the action's lock
    here = read_circumstances(kind=kind, action=locked.action, case=case, now=locked.now)
    if act.word.seen_version != here.version:
        return _changed_since(here, seen_version=act.word.seen_version)
    condition = why_not(act.name, here=here, user=act.user)
    if condition:
        return NotDone(why=Why.NOT_NOW, sentence=f"{condition} Nothing was changed.")
    return _Entered(kind=kind, locked=locked, here=here)


def _bad_word(word: Word) -> NotDone | None:
    if word.reason not in CaseAct.Reason.values:
        return NotDone(
            why=Why.BAD_REASON,
            sentence=f"Choose a reason: {', '.join(CaseAct.Reason.labels)}. Nothing was changed.",
        )
    # The database counts what is between the spaces, and so does this.
    told = len(word.note.strip(" "))
    if told < EXPLANATION_CHARACTERS_MIN or not word.note.strip() or not is_note(word.note):
        return NotDone(
            why=Why.BAD_NOTE,
            sentence=f"Say in the note, in {EXPLANATION_CHARACTERS_MIN} to {NOTE_CHARACTERS_MAX} "
            "characters, what you found and where. Nothing was changed.",
        )
    return None


def _changed_since(here: Circumstances, *, seen_version: int) -> NotDone:
    new = here.version - seen_version
    what = f"{new} new event{'' if new == 1 else 's'}" if new > 0 else "Something has changed"
    return NotDone(
        why=Why.CHANGED_SINCE,
        sentence=f"{what} since you opened this page. Nothing was changed; read the history, then "
        "decide again.",
    )


# -- declarations ---------------------------------------------------------------------------------


def _declare(act: _Act, *, typed_amount: str | None = None) -> Result:
    """Vouch that nothing was executed: two people, or one beside a stored refusal.

    1. Refuse what cannot be: see `_enter`; and an amount that is not the action's.
    2. The first person's word is written down, and that is all.
    3. For the second, read the provider once more in both ways, with no transaction open.
    4. Lock and compare again, and write down what was seen. Anything but nothing ends it: what was
       found is adopted, what is contradictory is an incident.
    5. Every condition once more, on what was just seen.
    6. Write the second row, resolve the attempts by these people, and do it.
    """
    with transaction.atomic():
        entered = _enter(act)
        if isinstance(entered, NotDone):
            return entered
        action = entered.locked.action
        if typed_amount is not None:
            if not _is_amount(typed_amount, action.amount_minor, action.currency):
                return NotDone(
                    why=Why.BAD_AMOUNT,
                    sentence="Type the amount as it stands there: "
                    f"{format_amount(action.amount_minor, action.currency)}. Nothing was changed.",
                )
            act = replace(act, typed_amount_minor=action.amount_minor)
        first = first_word(act.name, here=entered.here)
        if first is None and people_needed(act.name, here=entered.here) > 1:
            return _ask_for_second(act, entered, first=None)
    seen = ask(kind=entered.kind, action=action)
    with transaction.atomic():
        entered = _enter(act)
        if isinstance(entered, NotDone):
            return entered
        finding = _record(act, entered, seen=seen)
        again = _as_seen_now(entered)
        if not _shows_nothing(again, seen=seen):
            return _seen_otherwise(again, finding=finding)
        condition = why_not(act.name, here=again.here, user=act.user)
        if condition:
            return NotDone(why=Why.NOT_NOW, sentence=f"{condition} Nothing was declared.")
        alone = people_needed(act.name, here=again.here) == 1
        first = None if alone else first_word(act.name, here=again.here)
        if first is None and not alone:
            return _ask_for_second(act, again, first=None)
        return _carry_out(act, again, first=first)


def _carry_out(act: _Act, entered: _Entered, *, first: CaseAct | None) -> Done:
    """The declaration is made: nothing was executed under this key, by these people's word."""
    kind, locked = entered.kind, entered.locked
    people = [first.person.get_username()] if first is not None else []
    people.append(act.user.get_username())
    # Reasons reach whoever proposed it, and the names of staff do not: those are in `said`.
    who = "two people" if first is not None else "a person"
    _write(act, entered, first=first)
    resolve_attempts(
        kind=kind,
        locked=locked,
        resolution="not_executed",
        resolved_by=f"{'people' if first is not None else 'person'}:{_names(first, act.user)}",
    )
    locked.unresolved = ()
    said = {
        "declared_by": people,
        "stored_refusal": entered.here.refusal,
        "generation": locked.action.generation,
    }
    if act.name is Name.GIVE_UP:
        refusal = entered.here.refusal
        move(
            kind=kind,
            locked=locked,
            target=State.FAILED_FINAL,
            # A stored refusal is the provider's proof that it failed; two people's word is not.
            event=f"{kind.name}.failed" if first is None else f"{kind.name}.given_up",
            actor=actor_of(act.user),
            data={"code": refusal, "reason": f"given up by {who}", **said},
            due_at=locked.now + WATCH_EVERY,
        )
        return _done(
            entered,
            "Nothing is sent for it any more. It is read again day by day, and the case of the "
            "failed refund is open: decide on a remedy there.",
        )
    needed = kind.needed(locked=locked)
    send_back(
        kind=kind,
        locked=locked,
        verdict=Back(
            reason=f"{who} declared that its request did nothing, and a new key is a new decision",
            note=said,
            columns={
                "generation": locked.action.generation + 1,
                "key_first_used_at": None,
                "tries": 0,
                "unknown_since": None,
                "waiting_since": None,
                "review_tier": needed.tier,
                "review_people": needed.people,
            },
        ),
        actor=actor_of(act.user),
    )
    return _done(
        entered, "The old key is never used again. Nothing is sent before it is approved anew."
    )


def _names(first: CaseAct | None, user: User) -> str:
    """Who resolves an attempt, in the characters that its column has."""
    people = [first.person.get_username()] if first is not None else []
    return ",".join(name[:_NAME_CHARACTERS_MAX] for name in [*people, user.get_username()])


def _shows_nothing(entered: _Entered, *, seen: Seen) -> bool:
    """Whether both ways of looking, just now, showed nothing of this action."""
    reading, second = seen.reading, seen.second
    if entered.locked.action.state != State.UNKNOWN or reading is None or second is None:
        return False
    by_list = entered.here.last_look(BY_LIST)
    by_totals = entered.here.last_look(BY_TOTALS)
    return bool(
        by_list
        and by_totals
        and by_list.is_absent
        and by_totals.is_absent
        and by_list.read_at == reading.read_at
        and by_totals.read_at == second.read_at
    )


def _is_amount(typed: str, amount_minor: int, currency: str) -> bool:
    """Whether a person typed exactly this amount, with or without its currency."""
    number = format_amount(amount_minor, currency).removesuffix(currency).strip()
    return typed.strip().upper().removesuffix(currency).strip() == number


# -- what all of them end with --------------------------------------------------------------------


def _record(act: _Act, entered: _Entered, *, seen: Seen) -> Finding:
    actor = actor_of(act.user)
    finding, _ = record_seen(
        kind=entered.kind,
        locked=entered.locked,
        seen=seen,
        actor=actor,
        data={"asked_by": actor, "before": act.name.value},
    )
    return finding


def _as_seen_now(entered: _Entered) -> _Entered:
    """The same with the circumstances after what was just written down."""
    here = entered.here
    case = Case.objects.get(pk=here.case.pk)
    return replace(
        entered,
        here=read_circumstances(
            kind=entered.kind, action=entered.locked.action, case=case, now=entered.locked.now
        ),
    )


def _ask_for_second(
    act: _Act, entered: _Entered, *, first: CaseAct | None
) -> SecondNeeded | NotDone:
    if first is not None:
        return NotDone(
            why=Why.NOT_NOW,
            sentence="You have asked for it already. A second person must agree.",
        )
    _write(act, entered, first=None, stage="asked for a second person")
    return SecondNeeded(
        action_id=entered.locked.action.action_id,
        sentence="Your word is written down. Nothing is done before a second person agrees.",
    )


def _write(act: _Act, entered: _Entered, *, first: CaseAct | None, stage: str = "done") -> None:
    """This person's row, and a line of history with who, why and what about."""
    here, word = entered.here, act.word
    action = entered.locked.action
    CaseAct.objects.create(
        case=here.case,
        action_id=action.action_id,
        generation=action.generation,
        act=act.name.value,
        subject=act.subject,
        round=first.round if first else here.next_round(act.name.value, subject=act.subject),
        place=2 if first else 1,
        person=act.user,
        reason=word.reason,
        note=word.note,
        seen_version=word.seen_version,
        typed_amount_minor=act.typed_amount_minor,
        at=entered.locked.now,
    )
    note_in_history(
        kind=entered.kind,
        locked=entered.locked,
        event=f"{entered.kind.name}.case_act",
        actor=actor_of(act.user),
        data={
            "act": act.name.value,
            "stage": stage,
            "about": act.subject,
            "after": first.person.get_username() if first else "",
            "reason_code": word.reason,
            "note": word.note,
            "seen_version": word.seen_version,
        },
    )


def _adopt(act: _Act, entered: _Entered, *, effect: ProviderEffect, first: CaseAct | None) -> Done:
    """Take it. By two people's word alone, the action's own request may still come to pass."""
    by_two = f"{LINKED}{_names(first, act.user)}" if first is not None else ""
    adopt(
        kind=entered.kind,
        locked=entered.locked,
        effect=effect,
        actor=actor_of(act.user),
        data={"linked_by": act.user.get_username()},
        resolved_by=by_two,
    )
    return _done(entered, f"{effect.ref} is this refund.")


def _not_linked(
    act: _Act, entered: _Entered, *, why: Why, reason: str, data: dict[str, object]
) -> NotDone:
    note_in_history(
        kind=entered.kind,
        locked=entered.locked,
        event=f"{entered.kind.name}.link_refused",
        actor=actor_of(act.user),
        data={"about": act.subject, "why": reason, "note": act.word.note, **data},
    )
    return NotDone(why=why, sentence=f"{act.subject} was not linked: {reason}.")


def _seen_otherwise(entered: _Entered, *, finding: Finding) -> NotDone:
    unreadable = finding is Finding.UNREADABLE
    why = (
        "" if finding is not Finding.INCONCLUSIVE else " The two look-ups do not both show nothing."
    )
    return NotDone(
        why=Why.UNREADABLE if unreadable else Why.SEEN_OTHERWISE,
        sentence=f"Not done, because the provider was read first. {SENTENCES[finding]}{why} It is "
        f"{State(entered.locked.action.state).label}.",
    )


def _done(entered: _Entered, sentence: str) -> Done:
    state = State(entered.locked.action.state)
    return Done(
        action_id=entered.locked.action.action_id,
        state=state.value,
        sentence=f"{sentence} It is {state.label}.",
    )
