"""Taking what is due: one row at a time, oldest first, never one that somebody else holds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from effects.kinds import EffectKind, Locked
from effects.states import State


def take_due(
    *,
    kind: EffectKind,
    states: Sequence[State],
    now: datetime,
    seen: list[str],
    by: str = "due_at",
) -> Locked | None:
    """Lock the action of these states that is due the longest; None: nothing (more) is due.

    In the caller's transaction. `by` names the column that says since when. `seen` are the actions
    this sweep has taken already, and gets this one: a sweep looks at a row once, also when looking
    at it failed.
    """
    column: dict[str, Any] = {f"{by}__lte": now}
    action_id = (
        kind.action_model._default_manager.select_for_update(skip_locked=True, no_key=True)
        .filter(state__in=states, **column)
        .exclude(action_id__in=seen)
        .order_by(by)
        .values_list("action_id", flat=True)
        .first()
    )
    if action_id is None:
        return None
    seen.append(action_id)
    return kind.lock(action_id=action_id)
