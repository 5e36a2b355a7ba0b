"""Approve or reject: one person's decision about one action, written once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from approvals.models import Approval
from effects import cases
from effects.kinds import EffectKind, Locked, kind_of
from effects.models import Case
from effects.states import State
from effects.transitions import move

NOTE_CHARACTERS_MAX = 2_000
# What a decision answers: "the approval no longer holds" and "it was refunded elsewhere".
_CASES_ANSWERED = (Case.Kind.STALE_APPROVAL, Case.Kind.FOUND_ELSEWHERE)


class Why(StrEnum):
    """Why a decision was not taken. Nothing was changed."""

    UNKNOWN_ACTION = "unknown_action"
    NOT_PERMITTED = "not_permitted"
    IS_PROPOSER = "is_proposer"
    ALREADY_DECIDED = "already_decided"
    CHANGED_SINCE = "changed_since"
    NOT_ALLOWED = "not_allowed"
    BAD_NOTE = "bad_note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """The action is AUTHORIZED by this person; the approval holds until `expires_at`."""

    action_id: str
    number: int
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The action is REJECTED by this person."""

    action_id: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The decision was not taken and nothing was changed. `sentence` is for the person."""

    why: Why
    sentence: str


def approve(
    *, action_id: str, user: User, note: str, seen_version: int, seen_payload_hash: str
) -> Approved | Refused:
    """Allow one action that awaits a person. One transaction.

    `user` is the session's user and nothing else; `seen_version` (of the resource) and
    `seen_payload_hash` are what that person was shown.

    1. Lock the resource and the action.
    2. Refuse, changing nothing: see `_refusal`; and a yes to what no yes can allow.
    3. Append the Approval, bound to payload, version, balances and an end.
    4. Close the cases that asked for this decision, with who and why.
    5. AWAITING_APPROVAL -> AUTHORIZED. The claim compares all of it again.
    6. After the commit, hint a worker.
    """
    with transaction.atomic():
        found = _lock(action_id=action_id)
        if isinstance(found, Refused):
            return found
        kind, locked = found
        refusal = _refusal(
            kind=kind,
            locked=locked,
            user=user,
            note=note,
            seen_version=seen_version,
            seen_payload_hash=seen_payload_hash,
        )
        if refusal is not None:
            return refusal
        impossible = kind.why_never(locked=locked)
        if impossible:
            return Refused(
                why=Why.NOT_ALLOWED,
                sentence=f"Not approved, and nothing was sent: {impossible}. Reject it, or leave "
                "it until that has changed.",
            )
        expires_at = locked.now + timedelta(seconds=settings.APPROVAL_TTL_SECONDS)
        approval = _append(kind=kind, locked=locked, user=user, note=note, expires_at=expires_at)
        _close_cases(locked=locked, user=user, note=note, word="approved")
        move(
            kind=kind,
            locked=locked,
            target=State.AUTHORIZED,
            event=f"{kind.name}.approved",
            actor=actor_of(user),
            data={"approval": approval.number, "note": note},
            due_at=locked.now + timedelta(seconds=settings.DISPATCH_SWEEP_SECONDS),
            decided_by="person",
            bound_version=approval.resource_version,
            bound_facts=approval.facts,
            bound_until=expires_at,
        )
        transaction.on_commit(lambda: kind.hint(action_id=action_id))
    return Approved(action_id=action_id, number=approval.number, expires_at=expires_at)


def reject(
    *, action_id: str, user: User, note: str, seen_version: int, seen_payload_hash: str
) -> Rejected | Refused:
    """Decide against one action that awaits a person. One transaction; arguments as `approve`."""
    with transaction.atomic():
        found = _lock(action_id=action_id)
        if isinstance(found, Refused):
            return found
        kind, locked = found
        refusal = _refusal(
            kind=kind,
            locked=locked,
            user=user,
            note=note,
            seen_version=seen_version,
            seen_payload_hash=seen_payload_hash,
        )
        if refusal is not None:
            return refusal
        approval = _append(kind=kind, locked=locked, user=user, note=note, expires_at=None)
        _close_cases(locked=locked, user=user, note=note, word="rejected")
        move(
            kind=kind,
            locked=locked,
            target=State.REJECTED,
            event=f"{kind.name}.rejected",
            actor=actor_of(user),
            data={"approval": approval.number, "note": note},
            due_at=None,
            decided_by="person",
            bound_until=None,
        )
    return Rejected(action_id=action_id, number=approval.number)


def actor_of(user: User) -> str:
    """How history names a person. Cut to what the columns hold."""
    return f"person:{user.get_username()}"[:80]


def _lock(*, action_id: str) -> tuple[EffectKind, Locked] | Refused:
    kind = kind_of(action_id)
    locked = kind.lock(action_id=action_id) if kind is not None else None
    if kind is None or locked is None:
        return Refused(why=Why.UNKNOWN_ACTION, sentence="There is no such action.")
    return kind, locked


def _refusal(
    *,
    kind: EffectKind,
    locked: Locked,
    user: User,
    note: str,
    seen_version: int,
    seen_payload_hash: str,
) -> Refused | None:
    """Why this person may not decide this action now, or None.

    In order: permission, four eyes, already decided, changed since it was shown, the note.
    """
    action = locked.action
    if not user.has_perm(kind.decide_permission):
        return Refused(
            why=Why.NOT_PERMITTED,
            sentence=f"Deciding this needs the permission {kind.decide_permission}. Nothing was "
            "changed.",
        )
    if action.proposed_by in (user.get_username(), actor_of(user)):
        return Refused(
            why=Why.IS_PROPOSER,
            sentence="Whoever proposed it cannot decide it. Nothing was changed; ask somebody "
            "else.",
        )
    if action.state != State.AWAITING_APPROVAL:
        return Refused(
            why=Why.ALREADY_DECIDED,
            sentence=f"Already decided: it is {State(action.state).label}. Nothing was changed.",
        )
    version = kind.version_of(locked=locked)
    if seen_version != version or seen_payload_hash != action.payload_hash:
        return Refused(
            why=Why.CHANGED_SINCE,
            sentence=f"Nothing was decided: you were shown {locked.resource_name} at version "
            f"{seen_version}, and it is at version {version} now. Look again, then decide.",
        )
    if "\x00" in note or len(note) > NOTE_CHARACTERS_MAX:
        return Refused(
            why=Why.BAD_NOTE,
            sentence=f"The note must be text of at most {NOTE_CHARACTERS_MAX} characters. Nothing "
            "was changed.",
        )
    if not note.strip() and _open_cases(locked=locked).exists():
        return Refused(
            why=Why.BAD_NOTE,
            sentence="A case is open on this action and your decision closes it: say why in the "
            "note. Nothing was changed.",
        )
    return None


def _open_cases(*, locked: Locked) -> QuerySet[Case]:
    return Case.objects.filter(
        action_id=locked.action.action_id, kind__in=_CASES_ANSWERED, closed_at__isnull=True
    )


def _append(
    *, kind: EffectKind, locked: Locked, user: User, note: str, expires_at: datetime | None
) -> Approval:
    """The Approval row; a yes ends, a no does not. Numbered under the action's lock."""
    action_id = locked.action.action_id
    return Approval.objects.create(
        effect=kind.name,
        action_id=action_id,
        number=Approval.objects.filter(action_id=action_id).count() + 1,
        approved=expires_at is not None,
        decided_by=user,
        decided_at=locked.now,
        payload_hash=locked.action.payload_hash,
        resource_version=kind.version_of(locked=locked),
        facts=kind.binding_of(locked=locked),
        expires_at=expires_at,
        note=note,
    )


def _close_cases(*, locked: Locked, user: User, note: str, word: str) -> None:
    cases.close_for_action(
        locked=locked,
        kinds=_CASES_ANSWERED,
        actor=actor_of(user),
        resolution=f"{word}: {note}",
    )
