"""Cases over their due time: each goes to the next in line, and the log says so."""

from __future__ import annotations

import logging
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q

from effects import cases
from effects.models import ESCALATIONS_MAX, Case

log = logging.getLogger(__name__)


def escalate_case(*, now: datetime, seen: list[str]) -> bool:
    """Escalate the open case that is over its due time the longest. False: none is.

    One transaction. Two sweeps take different cases, and the count says how far each one got.

    1. Take the case: over its due time and never escalated, or over twice that and escalated once.
    2. Give it to CASE_ESCALATION_OWNER, awake, with a line of its history.
    3. Log it as an error, by ids alone.
    """
    due_twice_at = F("due_at") + (F("due_at") - F("opened_at"))
    with transaction.atomic():
        case = (
            Case.objects.select_for_update(skip_locked=True, no_key=True)
            .filter(closed_at__isnull=True, escalations__lt=ESCALATIONS_MAX, due_at__lte=now)
            .alias(due_twice_at=due_twice_at)
            .filter(Q(escalations=0) | Q(due_twice_at__lte=now))
            .exclude(case_id__in=seen)
            .order_by("due_at")
            .first()
        )
        if case is None:
            return False
        seen.append(str(case.case_id))
        level, before = case.escalations + 1, case.owner
        cases.change_case(
            case=case,
            event="case.escalated",
            actor="sweep",
            data={
                "level": level,
                "due_at": case.due_at.isoformat(),
                "from": before,
                "to": settings.CASE_ESCALATION_OWNER,
            },
            now=now,
            escalations=level,
            snoozed_until=None,
            **cases.owned_by(settings.CASE_ESCALATION_OWNER),
        )
    log.error(
        "A case is past its due time and was given to the next in line.",
        extra={
            "action": "case.escalated",
            "case_id": str(case.case_id),
            "case_kind": case.kind,
            "level": level,
            "was_owned_by": before,
            "owner": case.owner,
        },
    )
    return True
