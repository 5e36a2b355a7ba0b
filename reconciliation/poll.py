"""Poll: has the provider settled what it accepted? Slow, for as long as it takes."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from effects import cases
from effects.kinds import EffectKind, Locked
from effects.models import Case
from effects.outcomes import Unreadable
from effects.states import State
from effects.transitions import postpone
from reconciliation.breaker import account_of, remember_read, wait_until
from reconciliation.due import take_due
from reconciliation.resolve import ACTOR
from reconciliation.settle import settle_known

# Card networks settle a refund within days; after a week somebody should look. A customer who must
# give bank details has 45 days at Stripe before the refund fails
# (https://docs.stripe.com/refunds#refunds-requiring-action).
PENDING_TOO_LONG = timedelta(days=7)
REQUIRES_ACTION_TOO_LONG = timedelta(days=45)


def poll_one(*, kind: EffectKind, now: datetime, seen: list[str]) -> bool:
    """Read the PENDING effect that is due the longest. False: none is due.

    1. Take it and write the next due time, so that a crash or a slow read costs one poll. When it
       has gone on for too long, open a case; polling goes on beside it, and a success read next
       closes it. While the account's circuit breaker is open nothing is read.
    2. Read the one effect by its id, with no transaction open. It burns no try.
    3. Lock again. Settled or failed: it moves. Unreadable or pending still: later.
    """
    with transaction.atomic():
        locked = take_due(kind=kind, states=(State.PENDING,), now=now, seen=seen)
        if locked is None:
            return False
        action = locked.action
        closed_from = wait_until(account=account_of(action), now=locked.now)
        later = locked.now + timedelta(seconds=settings.PENDING_POLL_SECONDS)
        postpone(kind=kind, locked=locked, due_at=closed_from or later)
        _tell_when_too_long(kind=kind, locked=locked)
    if closed_from is not None:
        return True
    effect = kind.retrieve(action=action)
    readable = not isinstance(effect, Unreadable)
    with transaction.atomic():
        again = kind.lock(action_id=action.action_id)
        remember_read(account=account_of(action), readable=readable, now=locked.now)
        if again is None or again.action.state != State.PENDING:
            return True  # settled meanwhile, by a webhook or a person
        if not isinstance(effect, Unreadable):
            settle_known(kind=kind, locked=again, effect=effect, actor=ACTOR, data={"polled": True})
    return True


def _tell_when_too_long(*, kind: EffectKind, locked: Locked) -> None:
    """Open a case, once, when the provider takes longer than it should. Polling goes on."""
    action = locked.action
    if action.state != State.PENDING:
        return
    needs_customer = action.provider_status == "requires_action"
    limit = REQUIRES_ACTION_TOO_LONG if needs_customer else PENDING_TOO_LONG
    if locked.now - action.state_since < limit:
        return
    cases.open_case_once(
        kind=Case.Kind.PENDING_TOO_LONG,
        effect=kind.name,
        locked=locked,
        reason=(
            f"The provider accepted it on {action.state_since:%Y-%m-%d} ({action.provider_ref}, "
            f"{action.provider_status}) and has not settled it since. "
            + (
                "The customer has not given what the provider needs: remind them. "
                if needs_customer
                else "Ask the provider. "
            )
            + "It is still polled, and this case closes itself when it settles."
        ),
        evidence={
            "provider_ref": action.provider_ref,
            "status": action.provider_status,
            "pending_since": action.state_since.isoformat(),
        },
    )
