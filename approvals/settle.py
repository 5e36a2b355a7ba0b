"""Settle: a person closes a case by their word, where a word is enough."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction

from effects import cases
from effects.clock import database_now
from effects.kinds import kind_named
from effects.models import Case, Switch
from effects.people import NOTE_CHARACTERS_MAX, actor_of, is_note
from effects.states import State
from effects.transitions import note as note_in_history

PERMISSION = "effects.settle_case"

# What closes the other kinds; a word does not.
NOT_BY_HAND: dict[str, str] = {
    Case.Kind.UNKNOWN_OUTCOME: "Only evidence from the provider closes it, or one of the acts on "
    "this page: check now, or look at the provider's dashboard.",
    Case.Kind.STALE_APPROVAL: "Approve or reject the action; that closes the case.",
    Case.Kind.PENDING_TOO_LONG: "It closes when the provider settles the refund. Polling goes on.",
    Case.Kind.QUEUE: "It closes itself when the queue is drained: approve or reject what waits.",
    Case.Kind.CANNOT_SEND: "It closes when the action is sent or withdrawn. It goes on trying.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The case is closed by this person."""

    case_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSettled:
    """The case stays as it was; `sentence` says why. `permitted` is False for the wrong person."""

    sentence: str
    permitted: bool = True


def not_by_hand(case: Case, *, action_is_final: bool) -> str:
    """Why a word does not close this case, or nothing: it does, or the case outlived its action."""
    return "" if action_is_final else NOT_BY_HAND.get(case.kind, "")


def settle_case(*, case_id: UUID, user: User, note: str) -> Settled | NotSettled:
    """Close one open case with a note. One transaction.

    1. The person holds the permission, and says why.
    2. The kind is one that a person settles, or the action is over and the case outlived it.
    3. Under the action's lock: something else still moves the action, or it is over. The last
       case of an action that nothing moves stays open, or nobody would ever look at it again.
    4. A paused account's case stays open while its kill switch is on.
    5. Close it, and write that into the action's history.
    """
    if not user.has_perm(PERMISSION):
        return NotSettled(
            permitted=False, sentence=f"Settling a case needs the permission {PERMISSION}."
        )
    if not note.strip() or not is_note(note):
        return NotSettled(
            sentence=f"Say in the note what was found and done (at most {NOTE_CHARACTERS_MAX} "
            "characters). The case is still open."
        )
    with transaction.atomic():
        case = Case.objects.filter(case_id=case_id).first()
        if case is None:
            return NotSettled(sentence="There is no such case.")
        if Switch.objects.filter(scope=case.resource, ended_at__isnull=True).exists():
            return NotSettled(
                sentence=f"The case is still open: the kill switch {case.resource!r} is on. Turn "
                "it off first."
            )
        now = database_now()
        locked = None
        if case.action_id:
            kind = kind_named(case.effect)
            locked = kind.lock(action_id=case.action_id)
        why_not = not_by_hand(case, action_is_final=bool(locked and locked.action.is_final))
        if locked is not None and not why_not:
            why_not = kind.why_case_stays(locked=locked, case_kind=case.kind)
        if why_not:
            return NotSettled(sentence=f"The case is still open. {why_not}")
        if locked is not None:
            now = locked.now
            others = Case.objects.filter(action_id=case.action_id, closed_at__isnull=True)
            if (
                not locked.action.is_final
                and locked.action.due_at is None
                and not others.exclude(pk=case.pk).exists()
            ):
                return NotSettled(
                    sentence=f"The case is still open: the action is "
                    f"{State(locked.action.state).label}, and nothing else moves it. Check now."
                )
        if not cases.close_case(case=case, actor=actor_of(user), resolution=note, now=now):
            return NotSettled(sentence="Somebody closed it before you did. Nothing was changed.")
        if locked is not None:
            note_in_history(
                kind=kind,
                locked=locked,
                event=f"{kind.name}.case_closed",
                actor=actor_of(user),
                data={"case": case.kind, "note": note},
            )
    return Settled(case_id=case_id)
