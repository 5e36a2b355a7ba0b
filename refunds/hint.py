"""Telling a worker that something may be due. The row is the queue; this may be lost."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


def tell_a_worker(*, action_id: str) -> bool:
    """Put the action's id on the broker, if it can be reached; False when it surely was not told.

    Never raises. The dispatch sweep finds what this loses.
    """
    from refunds.tasks import dispatch_action

    try:
        dispatch_action.delay(action_id)
    except Exception as error:
        # The broker's own exceptions have no common base; the row is committed and due.
        log.warning(
            "The worker was not told of %s (%s); the sweep will find it.",
            action_id,
            type(error).__name__,
        )
        return False
    return True
