"""Celery's way in: five lines each. A message carries an id and nothing else."""

from __future__ import annotations

from celery import shared_task

# The longest a real action id can be is 160 characters; a forged message may hold anything.
ACTION_ID_CHARACTERS_MAX = 160


@shared_task(name="refunds.dispatch")
def dispatch_action(action_id: str) -> str:
    """Send one effect if it is due. Harmless when repeated, reordered, forged or late."""
    from refunds.dispatch import dispatch

    if not isinstance(action_id, str) or len(action_id) > ACTION_ID_CHARACTERS_MAX:
        return "not an action id"
    return dispatch(action_id=action_id)


@shared_task(name="refunds.dispatch_due")
def dispatch_due() -> int:
    """Find what a lost hint left AUTHORIZED, and hint again."""
    from refunds.dispatch_due import hint_due_actions

    return hint_due_actions()
