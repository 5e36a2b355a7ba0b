"""Doubt: a final action whose request may come to pass after all is read again, day by day."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

# Stripe reports a refund that failed late within about 30 days; nothing says how late one may
# succeed, so the same is allowed. https://docs.stripe.com/refunds#failed-refunds
WATCH_DAYS = 30
# Late successes come in days, not minutes, and every read is one request that somebody's quota
# pays for.
WATCH_EVERY = timedelta(days=1)

# How an attempt's `resolved_by` begins when people said which effect is the action's, and that
# effect does not say it itself. The attempt's own request may still be on its way.
LINKED = "linked:"
# `resolved_by` of an attempt that its own answer resolved.
ANSWER = "answer"


def leaves_doubt(*, resolution: str, resolved_by: str) -> bool:
    """Whether an attempt that was resolved so may yet be executed, as far as it alone tells."""
    undone = resolution == "not_executed" and resolved_by != ANSWER
    return undone or resolved_by.startswith(LINKED)


def in_doubt(*, attempts: Any, action: Any) -> bool:
    """Whether a request of the action may yet be executed, or have been. One query.

    1. People linked an effect that does not carry the action's id.
    2. A list or people took an attempt for not executed, and under its key nothing was: one key
       makes one effect, so where that one is known no other can come.

    `attempts` is the model of the kind's attempts.
    """
    rows = list(
        attempts._default_manager.filter(action=action).values_list(
            "generation", "resolution", "resolved_by"
        )
    )
    if any(resolved_by.startswith(LINKED) for _, _, resolved_by in rows):
        return True
    made = {generation for generation, resolution, _ in rows if resolution == "executed"}
    return any(
        generation not in made and leaves_doubt(resolution=resolution, resolved_by=resolved_by)
        for generation, resolution, resolved_by in rows
    )
