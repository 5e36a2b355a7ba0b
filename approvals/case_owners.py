"""Whose a case is: a person gives it to another, or puts it off. Its due time stays."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db import models, transaction

from approvals.settle import PERMISSION
from effects.cases import change_case
from effects.clock import database_now
from effects.models import Case
from effects.people import EXPLANATION_CHARACTERS_MIN, NOTE_CHARACTERS_MAX, actor_of, is_note


class WhyAssigned(models.TextChoices):
    """Why a case gets another owner."""

    TAKEN = "taken", "the new owner takes it"
    HANDOVER = "handover", "the owner is away or goes off duty"
    BETTER_PLACED = "better-placed", "the new owner knows more about it"
    OTHER = "other", "other"


class WhySnoozed(models.TextChoices):
    """What a case waits for."""

    PROVIDER = "provider", "waiting for the provider"
    CUSTOMER = "customer", "waiting for the customer"
    COLLEAGUE = "colleague", "waiting for a colleague"
    OTHER = "other", "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The case has this owner now; `version` is what the next change compares with."""

    case_id: UUID
    owner: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snoozed:
    """The case asks nobody before `until`. Its due time is what it was."""

    case_id: UUID
    until: datetime
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotChanged:
    """The case stays as it was; `sentence` says why. `permitted` is False for the wrong person."""

    sentence: str
    permitted: bool = True


def assign_case(
    *, case_id: UUID, to: User | None, why: str, note: str, user: User, seen_version: int
) -> Assigned | NotChanged:
    """Give one open case to another person; `to` None: to the installation's default owner.

    `user` is the session's user and nothing else, `why` a `WhyAssigned`, `seen_version` the case's
    version on that person's page. One transaction.

    1. The person may settle cases, says why, and saw the case as it is.
    2. The new owner could settle it.
    3. Change the owner, wake it if it was put off, and write who, to whom and why into its history.
    """
    refusal = _refusal(user=user, why=why, choices=WhyAssigned, note=note)
    if refusal is not None:
        return refusal
    owner = settings.CASE_OWNER if to is None else to.get_username()
    if to is not None and not (to.is_staff and to.has_perm(PERMISSION)):
        return NotChanged(
            sentence=f"{owner} cannot settle cases: that needs an active member of staff with the "
            f"permission {PERMISSION}. The owner is still the same."
        )
    with transaction.atomic():
        case = _locked(case_id=case_id, seen_version=seen_version)
        if isinstance(case, NotChanged):
            return case
        if (case.owner, case.assignee_id) == (owner, to.pk if to else None):
            return NotChanged(sentence=f"{owner} owns it already. Nothing was changed.")
        change_case(
            case=case,
            event="case.assigned",
            actor=actor_of(user),
            data={"from": case.owner, "to": owner, "why": why, "note": note},
            now=database_now(),
            owner=owner,
            assignee=to,
            snoozed_until=None,
        )
    return Assigned(case_id=case_id, owner=owner, version=case.version)


def snooze_case(
    *, case_id: UUID, until: datetime, why: str, note: str, user: User, seen_version: int
) -> Snoozed | NotChanged:
    """Put one open case off until a later time, not past its due time. One transaction.

    `until` has a time zone; `why` is a `WhySnoozed`. The due time keeps running, so a case that is
    over it cannot be put off.
    """
    refusal = _refusal(user=user, why=why, choices=WhySnoozed, note=note)
    if refusal is not None:
        return refusal
    with transaction.atomic():
        case = _locked(case_id=case_id, seen_version=seen_version)
        if isinstance(case, NotChanged):
            return case
        now = database_now()
        due = f"its due time, {case.due_at:%Y-%m-%d %H:%M} UTC"
        if case.due_at <= now:
            return NotChanged(
                sentence=f"It is past {due}, and cannot be put off. Settle it, or give it to "
                "somebody who can."
            )
        if not now < until <= case.due_at:
            return NotChanged(
                sentence=f"It can be put off to a time between now and {due}, which goes on "
                "running. Nothing was changed."
            )
        change_case(
            case=case,
            event="case.snoozed",
            actor=actor_of(user),
            data={"until": until.isoformat(), "why": why, "note": note},
            now=now,
            snoozed_until=until,
        )
    return Snoozed(case_id=case_id, until=until, version=case.version)


def _refusal(
    *, user: User, why: str, choices: type[models.TextChoices], note: str
) -> NotChanged | None:
    if not user.has_perm(PERMISSION):
        return NotChanged(
            permitted=False, sentence=f"Changing a case needs the permission {PERMISSION}."
        )
    if why not in choices.values:
        return NotChanged(
            sentence=f"Choose a reason: {', '.join(choices.values)}. Nothing was changed."
        )
    told = len(note.strip())
    if told < EXPLANATION_CHARACTERS_MIN or not is_note(note):
        return NotChanged(
            sentence=f"Say in the note, in {EXPLANATION_CHARACTERS_MIN} to {NOTE_CHARACTERS_MAX} "
            "characters, what the next person must know. Nothing was changed."
        )
    return None


def _locked(*, case_id: UUID, seen_version: int) -> Case | NotChanged:
    """The case, locked and as this person saw it; in the caller's transaction."""
    case = Case.objects.select_for_update(no_key=True).filter(case_id=case_id).first()
    if case is None:
        return NotChanged(sentence="There is no such case.")
    if case.closed_at is not None:
        return NotChanged(sentence="It is closed already. Nothing was changed.")
    if case.version != seen_version:
        last = case.events.order_by("-pk").first()
        what = f": {last.kind} by {last.actor} at {last.at:%Y-%m-%d %H:%M:%S} UTC" if last else ""
        return NotChanged(
            sentence=f"It has changed since you opened this page{what}. Nothing was done; look "
            "again, then decide."
        )
    return case
