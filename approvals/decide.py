"""Approve or reject: one person's decision about one action, written once.

A yes belongs to a round of its action. Enough yeses of one round, all bound to the same facts,
authorize; one no rejects.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from approvals.models import Approval
from approvals.standing import TIER_PERMISSIONS, Yes, tier_of, yeses_of
from effects import cases
from effects.kinds import EffectKind, Locked, Needed, kind_of
from effects.models import Case
from effects.people import NOTE_CHARACTERS_MAX, actor_of, is_note
from effects.states import State
from effects.transitions import move, postpone
from effects.transitions import note as note_in_history
from policies.versions import editor_in_force

# What a decision answers: "the approval no longer holds" and "it was refunded elsewhere".
_CASES_ANSWERED = (Case.Kind.STALE_APPROVAL, Case.Kind.FOUND_ELSEWHERE)


class Why(StrEnum):
    """Why a decision was not taken. Nothing was changed."""

    UNKNOWN_ACTION = "unknown_action"
    NOT_PERMITTED = "not_permitted"
    IS_PROPOSER = "is_proposer"
    IS_OWNER = "is_owner"
    IS_POLICY_EDITOR = "is_policy_editor"
    ALREADY_DECIDED = "already_decided"
    ALREADY_APPROVED = "already_approved"
    CHANGED_SINCE = "changed_since"
    NOT_ALLOWED = "not_allowed"
    TIER_TOO_LOW = "tier_too_low"
    BAD_NOTE = "bad_note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the person was shown: versions of the resource and the policy, payload and round."""

    version: int
    payload_hash: str
    round: int
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """Enough people said yes: the action is AUTHORIZED, and that holds until `expires_at`."""

    action_id: str
    number: int
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedByOne:
    """This yes was taken, and the action waits for that of `waiting_for` more people."""

    action_id: str
    number: int
    waiting_for: int


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
    *, action_id: str, user: User, note: str, seen: Seen
) -> Approved | ApprovedByOne | Refused:
    """Say yes to one action that awaits people. One transaction.

    `user` is the session's user and nothing else.

    1. Lock the resource and the action.
    2. Refuse, changing nothing: who may never say yes, what changed since it was shown, what no
       yes can allow, a tier that is too low, a second yes of one person.
    3. An earlier yes of this round that no longer holds counts no more: a new round begins.
    4. Append the Approval, bound to content, version, balances, policy and an end.
    5. More people are needed: it goes on awaiting them.
    6. Enough: close the cases that asked for this decision, AWAITING_APPROVAL -> AUTHORIZED. The
       claim compares every approval of the round again.
    7. After the commit, hint a worker.
    """
    with transaction.atomic():
        found = _lock(action_id=action_id)
        if isinstance(found, Refused):
            return found
        kind, locked = found
        refusal = why_not_yours(kind=kind, action=locked.action, user=user) or _refusal(
            kind=kind, locked=locked, note=note, seen=seen
        )
        if refusal is not None:
            return refusal
        needed = kind.needed(locked=locked)
        refusal = _not_enough(kind=kind, user=user, needed=needed)
        if refusal is not None:
            return refusal
        earlier = yeses_of(
            action_id=action_id,
            approval_round=locked.action.approval_round,
            decide_permission=kind.decide_permission,
        )
        lapsed = _lapsed(kind=kind, locked=locked, earlier=earlier, tier=needed.tier)
        if lapsed:
            earlier = ()
        elif any(yes.user_id == user.pk for yes in earlier):
            return Refused(
                why=Why.ALREADY_APPROVED,
                sentence="You have approved it, and it needs somebody else as well. Nothing was "
                "changed.",
            )
        _ask(kind=kind, locked=locked, user=user, needed=needed, lapsed=lapsed)
        expires_at = locked.now + timedelta(seconds=settings.APPROVAL_TTL_SECONDS)
        approval = _append(kind=kind, locked=locked, user=user, note=note, expires_at=expires_at)
        waiting_for = needed.people - len(earlier) - 1
        data: dict[str, Any] = {
            "approval": approval.number,
            "round": approval.round,
            "tier": approval.tier,
            "note": note,
        }
        if waiting_for > 0:
            note_in_history(
                kind=kind,
                locked=locked,
                event=f"{kind.name}.approved_by_one",
                actor=actor_of(user),
                data={**data, "waiting_for": waiting_for},
            )
            return ApprovedByOne(
                action_id=action_id, number=approval.number, waiting_for=waiting_for
            )
        expires_at = min([expires_at, *(yes.expires_at for yes in earlier)])
        _close_cases(locked=locked, user=user, note=note, word="approved")
        move(
            kind=kind,
            locked=locked,
            target=State.AUTHORIZED,
            event=f"{kind.name}.approved",
            actor=actor_of(user),
            data={**data, "earlier": [yes.username for yes in earlier]},
            due_at=locked.now + timedelta(seconds=settings.DISPATCH_SWEEP_SECONDS),
            decided_by="person",
            bound_version=approval.resource_version,
            bound_facts=approval.facts,
            bound_until=expires_at,
        )
        transaction.on_commit(lambda: kind.hint(action_id=action_id))
    return Approved(action_id=action_id, number=approval.number, expires_at=expires_at)


def reject(*, action_id: str, user: User, note: str, seen: Seen) -> Rejected | Refused:
    """Decide against one action that awaits people. One transaction; arguments as `approve`.

    One no is enough, of anybody of any tier but the proposer.
    """
    with transaction.atomic():
        found = _lock(action_id=action_id)
        if isinstance(found, Refused):
            return found
        kind, locked = found
        refusal = why_not_yours(kind=kind, action=locked.action, user=user, yes=False) or _refusal(
            kind=kind, locked=locked, note=note, seen=seen
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
            data={"approval": approval.number, "round": approval.round, "note": note},
            due_at=None,
            decided_by="person",
            bound_until=None,
        )
    return Rejected(action_id=action_id, number=approval.number)


def why_not_yours(*, kind: EffectKind, action: Any, user: User, yes: bool = True) -> Refused | None:
    """Why this action is never this person's to decide (with `yes`: to approve), or None.

    Nobody decides what they proposed. Nobody approves what an agent of theirs proposed, nor under
    a policy that they were the last to edit; both may say no, which moves no money.
    """
    if not tier_of(user, decide_permission=kind.decide_permission):
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
    if not yes:
        return None
    if action.proposer_owner_id == user.pk:
        return Refused(
            why=Why.IS_OWNER,
            sentence=f"You answer for {action.proposed_by}, which proposed it, and cannot approve "
            "it. Nothing was changed; ask somebody else, or reject it.",
        )
    if editor_in_force() == user.pk:
        return Refused(
            why=Why.IS_POLICY_EDITOR,
            sentence="You were the last to edit the policy that is in force, and cannot approve "
            "under it. Nothing was changed; ask somebody else, or reject it.",
        )
    return None


def _lock(*, action_id: str) -> tuple[EffectKind, Locked] | Refused:
    kind = kind_of(action_id)
    locked = kind.lock(action_id=action_id) if kind is not None else None
    if kind is None or locked is None:
        return Refused(why=Why.UNKNOWN_ACTION, sentence="There is no such action.")
    return kind, locked


def _refusal(*, kind: EffectKind, locked: Locked, note: str, seen: Seen) -> Refused | None:
    """Why nobody may decide this now on what was shown, or None: decided, changed, the note."""
    action = locked.action
    if action.state != State.AWAITING_APPROVAL:
        return Refused(
            why=Why.ALREADY_DECIDED,
            sentence=f"Already decided: it is {State(action.state).label}. Nothing was changed.",
        )
    changed = _changed_since(kind=kind, locked=locked, seen=seen)
    if changed:
        return Refused(
            why=Why.CHANGED_SINCE,
            sentence=f"Nothing was decided: {'; '.join(changed)}. Look again, then decide.",
        )
    if not is_note(note):
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


def _changed_since(*, kind: EffectKind, locked: Locked, seen: Seen) -> list[str]:
    """What is not as the person was shown it."""
    version = kind.version_of(locked=locked)
    policy = _policy_version(kind=kind, locked=locked)
    changed = []
    if seen.version != version:
        changed.append(
            f"you were shown {locked.resource_name} at version {seen.version}, and it is at "
            f"version {version} now"
        )
    if seen.payload_hash != locked.action.payload_hash:
        changed.append("you were shown another request than the one that is here now")
    if seen.policy_version != policy:
        changed.append(
            f"you were shown policy {seen.policy_version}, and policy {policy} is in force now"
        )
    if seen.round != locked.action.approval_round:
        changed.append("what others had approved no longer holds, and all decide again")
    return changed


def _policy_version(*, kind: EffectKind, locked: Locked) -> int:
    return int(kind.binding_of(locked=locked).get("policy_version", 0))


def _not_enough(*, kind: EffectKind, user: User, needed: Needed) -> Refused | None:
    """Why this person's yes cannot allow it on the facts of now."""
    if needed.never:
        return Refused(
            why=Why.NOT_ALLOWED,
            sentence=f"Not approved, and nothing was sent: {needed.never}. Reject it, or leave "
            "it until that has changed.",
        )
    tier = tier_of(user, decide_permission=kind.decide_permission)
    if tier < needed.tier:
        permission = TIER_PERMISSIONS.get(needed.tier)
        ask = f"somebody with the permission {permission}" if permission else "somebody else"
        return Refused(
            why=Why.TIER_TOO_LOW,
            sentence=f"It needs approval of tier {needed.tier}, and yours is tier {tier}. Nothing "
            f"was changed; ask {ask}, or reject it.",
        )
    return None


def _lapsed(
    *, kind: EffectKind, locked: Locked, earlier: tuple[Yes, ...], tier: int
) -> tuple[str, ...]:
    """Why the earlier yeses of this round no longer count, as half sentences; () when they do."""
    differing = [
        words for yes in earlier for words in kind.what_differs(locked=locked, yes=yes, tier=tier)
    ]
    return tuple(dict.fromkeys(differing))


def _ask(
    *, kind: EffectKind, locked: Locked, user: User, needed: Needed, lapsed: tuple[str, ...]
) -> None:
    """Write down who must approve it, and begin a new round when earlier yeses lapsed."""
    action = locked.action
    asked = {"review_tier": needed.tier, "review_people": needed.people}
    if lapsed:
        ended = action.approval_round
        postpone(kind=kind, locked=locked, due_at=action.due_at, approval_round=ended + 1, **asked)
        note_in_history(
            kind=kind,
            locked=locked,
            event=f"{kind.name}.approvals_lapsed",
            actor=actor_of(user),
            data={"reason": "; ".join(lapsed), "ended_round": ended},
        )
    elif (action.review_tier, action.review_people) != (needed.tier, needed.people):
        postpone(kind=kind, locked=locked, due_at=action.due_at, **asked)


def _open_cases(*, locked: Locked) -> QuerySet[Case]:
    return Case.objects.filter(
        action_id=locked.action.action_id, kind__in=_CASES_ANSWERED, closed_at__isnull=True
    )


def _append(
    *, kind: EffectKind, locked: Locked, user: User, note: str, expires_at: datetime | None
) -> Approval:
    """The Approval row; a yes ends, a no does not. Numbered under the action's lock."""
    action = locked.action
    facts = kind.binding_of(locked=locked)
    return Approval.objects.create(
        effect=kind.name,
        action_id=action.action_id,
        number=Approval.objects.filter(action_id=action.action_id).count() + 1,
        round=action.approval_round,
        tier=tier_of(user, decide_permission=kind.decide_permission),
        approved=expires_at is not None,
        decided_by=user,
        decided_at=locked.now,
        payload_hash=action.payload_hash,
        resource_version=kind.version_of(locked=locked),
        policy_version=int(facts.get("policy_version", 0)),
        facts=facts,
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
