"""The dispatch sweep: what a lost hint left behind is found by its due time."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction

from effects.clock import database_now
from effects.models import SweepRun
from effects.states import State
from refunds.kind import REFUND
from refunds.models import RefundAction

# One sweep hints at most this many; the next one follows within seconds.
BATCH_MAX = 200
# A hinted action is not hinted again before this: with no worker alive, the broker would otherwise
# fill with copies of the same few ids.
HINT_AGAIN_SECONDS = 30


def hint_due_actions() -> int:
    """Hint every AUTHORIZED action that is due, oldest first; returns how many.

    A hint changes nothing by itself, so two sweeps at once are harmless: the claim lets one
    worker through. The due time moves on only for hints that the broker took.
    """
    with transaction.atomic():
        now = database_now()
        due = list(
            RefundAction.objects.select_for_update(skip_locked=True, no_key=True)
            .filter(state=State.AUTHORIZED, due_at__lte=now)
            .order_by("due_at")
            .values_list("action_id", flat=True)[:BATCH_MAX]
        )
        RefundAction.objects.filter(action_id__in=due).update(
            due_at=now + timedelta(seconds=HINT_AGAIN_SECONDS)
        )
    lost = [action_id for action_id in due if not REFUND.hint(action_id=action_id)]
    with transaction.atomic():
        if lost:
            RefundAction.objects.filter(action_id__in=lost, state=State.AUTHORIZED).update(
                due_at=now
            )
        SweepRun.objects.update_or_create(
            name="refunds.dispatch_due",
            defaults={"finished_at": database_now(), "handled": len(due)},
        )
    return len(due)
