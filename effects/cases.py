"""Opening and closing cases: what a person must settle, with an owner and a due time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Q, QuerySet

from effects.kinds import Locked
from effects.models import ESCALATIONS_MAX, Case, CaseEvent

# The owner of a case has CASE_DUE_SECONDS divided by this; the kinds that are not here, all of it.
_DUE_DIVISOR: dict[Case.Kind, int] = {
    # The order is paused, and the provider's money is not what our rows say.
    Case.Kind.INCIDENT: 4,
    # Every refund of the account waits for it.
    Case.Kind.ACCOUNT_PAUSED: 4,
    # Money left that nobody expected any more, perhaps beside a remedy.
    Case.Kind.UNEXPECTED_SUCCESS: 4,
    # Twice its due time must lie well before KEY_RESEND_SECONDS: the cheapest way out, sending
    # again under the same key, ends there.
    Case.Kind.UNKNOWN_OUTCOME: 2,
    # Half of the time that a decision has is over when it is opened.
    Case.Kind.QUEUE: 2,
}

# One case of these is open at a time, and each further fact is one that a person must settle, too.
_ADDED_TO = (Case.Kind.INCIDENT, Case.Kind.UNEXPECTED_SUCCESS)
ADDED = "case.added_to"
# A page of text: more facts than that are for the history.
REASON_CHARACTERS_MAX = 4_000
ADDED_MAX = 20
_FULL = "\n\nMore was found since: see the history of this case."


def open_case(
    *,
    kind: Case.Kind,
    effect: str,
    locked: Locked,
    reason: str,
    evidence: dict[str, Any],
) -> None:
    """Open a case on a locked action, in the caller's transaction; one open per kind is enough.

    An open incident or unexpected success is told what it does not say yet.
    """
    _open(
        kind=kind,
        effect=effect,
        action_id=locked.action.action_id,
        resource=locked.resource_name,
        reason=reason,
        evidence=evidence,
        now=locked.now,
    )
    locked.open_cases += 1


def open_case_once(
    *,
    kind: Case.Kind,
    effect: str,
    locked: Locked,
    reason: str,
    evidence: dict[str, Any],
) -> None:
    """As `open_case`, unless a person has closed one of this kind: "too long" is told once."""
    if not Case.objects.filter(action_id=locked.action.action_id, kind=kind).exists():
        open_case(kind=kind, effect=effect, locked=locked, reason=reason, evidence=evidence)


def open_account_case(
    *, account: str, reason: str, evidence: dict[str, Any], now: datetime
) -> None:
    """Open the case of a paused provider account, in the caller's transaction."""
    open_resource_case(
        kind=Case.Kind.ACCOUNT_PAUSED,
        effect="",
        resource=f"account:{account}",
        reason=reason,
        evidence=evidence,
        now=now,
    )


def open_resource_case(
    *,
    kind: Case.Kind,
    effect: str,
    resource: str,
    reason: str,
    evidence: dict[str, Any],
    now: datetime,
) -> None:
    """Open a case on a resource, whatever action it meets, in the caller's transaction."""
    _open(
        kind=kind,
        effect=effect,
        action_id="",
        resource=resource,
        reason=reason,
        evidence=evidence,
        now=now,
    )


def _open(
    *,
    kind: Case.Kind,
    effect: str,
    action_id: str,
    resource: str,
    reason: str,
    evidence: dict[str, Any],
    now: datetime,
) -> None:
    new = Case(
        kind=kind,
        effect=effect,
        action_id=action_id,
        resource=resource,
        reason=reason,
        evidence=evidence,
        owner=settings.CASE_OWNER,
        opened_at=now,
        due_at=now + due_in(kind),
    )
    # ON CONFLICT DO NOTHING: the partial unique index says what "already open" means.
    Case.objects.bulk_create([new], ignore_conflicts=True)
    if kind in _ADDED_TO:
        _add(new)


def _add(new: Case) -> None:
    """Append to the open case what it does not say yet, and wake it. The same again adds nothing.

    `new` is the case that was to be opened; where it was, the open one says all of it.
    What a full case has no room for stands in its history alone.
    """
    case = (
        Case.objects.select_for_update(no_key=True)
        .filter(
            kind=new.kind, action_id=new.action_id, resource=new.resource, closed_at__isnull=True
        )
        .first()
    )
    if case is None or new.reason in case.reason:
        return
    if CaseEvent.objects.filter(case=case, kind=ADDED, data__reason=new.reason).exists():
        return
    text = f"{case.reason}\n\n{new.reason}"
    if len(text) > REASON_CHARACTERS_MAX:
        text = case.reason if case.reason.endswith(_FULL) else f"{case.reason}{_FULL}"
    added = [*case.evidence.get("added", []), new.evidence][:ADDED_MAX]
    change_case(
        case=case,
        event=ADDED,
        actor="system",
        data={"reason": new.reason, "evidence": new.evidence},
        now=new.opened_at,
        reason=text,
        evidence={**case.evidence, "added": added},
        snoozed_until=None,
    )


def due_in(kind: Case.Kind) -> timedelta:
    """How long the owner of a new case of this kind has."""
    return timedelta(seconds=settings.CASE_DUE_SECONDS / _DUE_DIVISOR.get(kind, 1))


def next_escalation(case: Case) -> datetime | None:
    """When the case goes to the next in line if it is still open: once and twice its due time."""
    if case.closed_at is not None or case.escalations >= ESCALATIONS_MAX:
        return None
    return case.due_at + case.escalations * (case.due_at - case.opened_at)


def awake(*, now: datetime) -> Q:
    """The filter of cases that ask for somebody now: open, and not put off until later."""
    return Q(closed_at__isnull=True) & (Q(snoozed_until__isnull=True) | Q(snoozed_until__lte=now))


def open_and_locked_out() -> QuerySet[Case]:
    """Open cases of people who cannot log in any more. Nobody's own are not among them."""
    return Case.objects.filter(closed_at__isnull=True, assignee__is_active=False)


def owned_by(username: str) -> dict[str, Any]:
    """The columns that make a case this person's; `assignee` only while such a person can log in.

    A name without a person stays the owner in words, so that the case is never nobody's.
    """
    person = User.objects.filter(username=username, is_active=True).first()
    return {"owner": username, "assignee": person}


def change_case(
    *, case: Case, event: str, actor: str, data: dict[str, Any], now: datetime, **columns: Any
) -> None:
    """Change whose a locked case is, or its times, with a line of its history."""
    columns["version"] = case.version + 1
    for name, value in columns.items():
        setattr(case, name, value)
    Case.objects.filter(pk=case.pk).update(**columns)
    CaseEvent(case=case, kind=event, actor=actor, at=now, data=data).save(force_insert=True)


def close_for_action(
    *, locked: Locked, kinds: tuple[Case.Kind, ...], actor: str, resolution: str
) -> int:
    """Close the action's open cases of these kinds; returns how many were open."""
    return Case.objects.filter(
        action_id=locked.action.action_id, kind__in=kinds, closed_at__isnull=True
    ).update(closed_at=locked.now, closed_by=actor, resolution=resolution)


def close_case(*, case: Case, actor: str, resolution: str, now: datetime) -> bool:
    """Close one case by a person's word; False when it was closed already."""
    return bool(
        Case.objects.filter(pk=case.pk, closed_at__isnull=True).update(
            closed_at=now, closed_by=actor, resolution=resolution
        )
    )
