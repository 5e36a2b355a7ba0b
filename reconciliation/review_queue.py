"""The queue of proposals that wait for a person: when nobody drains it, a case says so."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Min

from effects import cases
from effects.kinds import all_kinds
from effects.models import Case
from effects.states import State

log = logging.getLogger(__name__)

RESOURCE = "queue:approvals"
# Of the time that a decision has: late enough that one reviewer's lunch is no alarm, early enough
# that what waits can still be decided.
ALERT_AT_SHARE = 0.5


def watch_queue(*, now: datetime) -> bool:
    """Open the queue's case, or close it; True when one of the two was done. One transaction.

    The queue counts as not drained while something in it, of whatever kind, has waited for half of
    APPROVAL_TTL_SECONDS. One yes of two is no decision, so it waits on. Harmless when two sweeps
    do it at once: only one case can be open.
    """
    limit = timedelta(seconds=settings.APPROVAL_TTL_SECONDS * ALERT_AT_SHARE)
    with transaction.atomic():
        count, oldest = _waiting()
        is_late = oldest is not None and now - oldest >= limit
        open_cases = Case.objects.filter(
            kind=Case.Kind.QUEUE, resource=RESOURCE, closed_at__isnull=True
        )
        if not is_late:
            return bool(
                open_cases.update(
                    closed_at=now, closed_by="sweep", resolution="The queue was drained."
                )
            )
        if open_cases.exists() or oldest is None:
            return False
        cases.open_resource_case(
            kind=Case.Kind.QUEUE,
            effect="",
            resource=RESOURCE,
            reason=(
                f"{count} proposal(s) wait for a person, the oldest since {oldest:%Y-%m-%d %H:%M} "
                "UTC: half of the time for it is over, and at the end it expires undecided. "
                "Approve or reject what waits, or give more people the permission. This closes "
                "by itself."
            ),
            evidence={"waiting": count, "oldest_since": oldest.isoformat()},
            now=now,
        )
    log.error(
        "Proposals wait for a decision, and nobody takes them.",
        extra={"action": "review_queue.not_drained", "waiting": count},
    )
    return True


def _waiting() -> tuple[int, datetime | None]:
    """How many actions of all kinds wait for a person, and since when the oldest does."""
    found = [
        kind.action_model._default_manager.filter(state=State.AWAITING_APPROVAL).aggregate(
            count=Count("pk"), oldest=Min("state_since")
        )
        for kind in all_kinds()
    ]
    return (
        sum(row["count"] for row in found),
        min((row["oldest"] for row in found if row["oldest"]), default=None),
    )
