"""Opening and closing cases: what a person must settle, with an owner and a due time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from effects.kinds import Locked
from effects.models import Case


def open_case(
    *,
    kind: Case.Kind,
    effect: str,
    locked: Locked,
    reason: str,
    evidence: dict[str, Any],
) -> None:
    """Open a case on a locked action, in the caller's transaction; one open per kind is enough."""
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
    _open(
        kind=Case.Kind.ACCOUNT_PAUSED,
        effect="",
        action_id="",
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
    # ON CONFLICT DO NOTHING: the partial unique index says what "already open" means.
    Case.objects.bulk_create(
        [
            Case(
                kind=kind,
                effect=effect,
                action_id=action_id,
                resource=resource,
                reason=reason,
                evidence=evidence,
                owner=settings.CASE_OWNER,
                opened_at=now,
                due_at=now + timedelta(seconds=settings.CASE_DUE_SECONDS),
            )
        ],
        ignore_conflicts=True,
    )


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
