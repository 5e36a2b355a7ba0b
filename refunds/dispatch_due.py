"""The dispatch sweep: what a lost hint left behind is found by its due time."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction

from effects.clock import database_now
from effects.kinds import EffectKind, all_kinds
from effects.models import SweepRun
from effects.states import State

# One sweep hints at most this many of each kind; the next one follows within seconds.
BATCH_MAX = 200
# A hinted action is not hinted again before this: with no worker alive, the broker would otherwise
# fill with copies of the same few ids.
HINT_AGAIN_SECONDS = 30


def hint_due_actions() -> int:
    """Hint every AUTHORIZED action of every kind that is due, oldest first; returns how many.

    A hint changes nothing by itself, so two sweeps at once are harmless: the claim lets one
    worker through. The due time moves on only for hints that the broker took.
    """
    hinted = sum(_hint_due(kind=kind) for kind in all_kinds())
    SweepRun.objects.update_or_create(
        name="refunds.dispatch_due",
        defaults={"finished_at": database_now(), "handled": hinted},
    )
    return hinted


def _hint_due(*, kind: EffectKind) -> int:
    rows = kind.action_model._default_manager
    with transaction.atomic():
        now = database_now()
        due = list(
            rows.select_for_update(skip_locked=True, no_key=True)
            .filter(state=State.AUTHORIZED, due_at__lte=now)
            .order_by("due_at")
            .values_list("action_id", flat=True)[:BATCH_MAX]
        )
        rows.filter(action_id__in=due).update(due_at=now + timedelta(seconds=HINT_AGAIN_SECONDS))
    lost = [action_id for action_id in due if not kind.hint(action_id=action_id)]
    if lost:
        rows.filter(action_id__in=lost, state=State.AUTHORIZED).update(due_at=now)
    return len(due)
