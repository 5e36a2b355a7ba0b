"""The circuit breaker of one provider account: who cannot be read is not asked all the time.

It stands in a row, so that all workers see the same. Only reads obey it; sends have their own
answers. A round that does not start burns no try, but the time until a person is told runs on.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from effects.models import Breaker

# One unreadable answer is weather; five in a row, from whichever actions, is an outage, and each
# further read would cost a worker the whole read timeout.
OPENS_AFTER_UNREADABLE = 5
# Long enough to spare a provider that struggles, short against the 24 hours of the window.
OPEN_SECONDS = 60


def account_of(action: Any) -> str:
    """The breaker's name for an action's account."""
    return f"{action.provider}:{action.account}"


def wait_until(*, account: str, now: datetime) -> datetime | None:
    """Until when no read of this account may start; None: read now.

    Half open: when the time is over, one reader goes through as a probe, and the others wait as
    long again. What the probe brings closes the breaker or keeps it open.
    """
    breaker = Breaker.objects.filter(account=account, open_until__isnull=False).first()
    if breaker is None or breaker.open_until is None:
        return None
    if breaker.open_until > now:
        return breaker.open_until
    again = now + timedelta(seconds=OPEN_SECONDS)
    is_probe = Breaker.objects.filter(pk=breaker.pk, open_until=breaker.open_until).update(
        open_until=again
    )
    return None if is_probe else again


def remember_read(*, account: str, readable: bool, now: datetime) -> None:
    """Count one read. One that worked closes the breaker. In the caller's transaction."""
    if readable:
        Breaker.objects.filter(account=account).exclude(failures=0, open_until__isnull=True).update(
            failures=0, open_until=None
        )
        return
    breaker, _ = Breaker.objects.select_for_update(no_key=True).get_or_create(account=account)
    breaker.failures += 1
    if breaker.failures >= OPENS_AFTER_UNREADABLE:
        breaker.open_until = now + timedelta(seconds=OPEN_SECONDS)
    breaker.save(update_fields=["failures", "open_until"])
