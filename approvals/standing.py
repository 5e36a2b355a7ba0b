"""How the yeses of a round stand now: what each was bound to, and whether its giver still may."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Case, Exists, IntegerField, OuterRef, Value, When

from approvals.models import Approval

# Higher ones imply the lower. Tier 1 is the kind's own permission, like `refunds.decide_refund`.
TIER_PERMISSIONS: dict[int, str] = {
    3: "approvals.approve_tier_3",
    2: "approvals.approve_tier_2",
}
# Where those permissions are granted. Asked in SQL for several people at once, so that the claim
# need not ask each of them.
_BACKEND = "django.contrib.auth.backends.ModelBackend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Yes:
    """One person's yes: its row, and `tier_now`, the giver's tier at this moment (0: none)."""

    number: int
    user_id: int
    username: str
    decided_at: datetime
    expires_at: datetime
    payload_hash: str
    resource_version: int
    facts: dict[str, Any]
    tier_now: int


def tier_of(user: User, *, decide_permission: str) -> int:
    """The highest tier that this person may decide; 0 for somebody who may not, or is disabled."""
    for tier, permission in TIER_PERMISSIONS.items():
        if user.has_perm(permission):
            return tier
    return int(user.has_perm(decide_permission))


def yeses_of(*, action_id: str, approval_round: int, decide_permission: str) -> tuple[Yes, ...]:
    """The yeses of one round of an action, oldest first. One query."""
    rows = (
        Approval.objects.filter(action_id=action_id, round=approval_round, approved=True)
        .select_related("decided_by")
        .annotate(tier_now=_tier_now(decide_permission))
        .order_by("number")
    )
    return tuple(
        Yes(
            number=row.number,
            user_id=row.decided_by.pk,
            username=row.decided_by.get_username(),
            decided_at=row.decided_at,
            expires_at=row.expires_at or row.decided_at,  # a yes has an end
            payload_hash=row.payload_hash,
            resource_version=row.resource_version,
            facts=row.facts,
            tier_now=row.tier_now,
        )
        for row in rows
    )


def _tier_now(decide_permission: str) -> Case:
    """The giver's tier as SQL: active people who hold the permission, directly or by a group."""

    def may(permission: str) -> Exists:
        people = User.objects.with_perm(permission, backend=_BACKEND)
        return Exists(people.filter(pk=OuterRef("decided_by")))

    tiers = [When(may(permission), then=tier) for tier, permission in TIER_PERMISSIONS.items()]
    return Case(
        *tiers,
        When(may(decide_permission), then=1),
        default=Value(0),
        output_field=IntegerField(),
    )
