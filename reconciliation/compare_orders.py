"""Compare: orders that were stated since their payment was last read, and orders that differ.

The door takes what a merchant states without asking anybody; whether the provider shows the same is
found out here.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta

from billiard.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import F

from effects.clock import database_now
from effects.models import Breaker, SweepRun
from effects.outcomes import Unreadable
from effects.send import refuse_open_transaction
from providers.port import PaymentTotals
from providers.registry import payment_provider
from reconciliation.breaker import account_of
from refunds.models import Order
from refunds.shown import write_missing, write_shown

log = logging.getLogger(__name__)

NAME = "reconciliation.compare_orders"
# A crash in the middle, or an answer that cannot be used, costs one order this long.
RETRY = timedelta(minutes=5)
# A key without the permission to read payments gets it by a person, if at all.
NOT_ALLOWED = timedelta(days=1)
# One run takes no more of the provider than this, and half of the time between two runs: the
# rounds of unknown outcomes share its rate limits and the workers. An import of orders by file is
# compared at that pace; orders that come from the provider itself are compared when they come.
BATCH_MAX = 100
_ENDS_THE_RUN = (SoftTimeLimitExceeded, OperationalError, InterfaceError)


def compare_orders() -> int:
    """Compare the orders that are due, longest first; returns how many it took. Bounded."""
    now = database_now()
    stop_at = time.monotonic() + settings.RECONCILE_SWEEP_SECONDS / 2
    seen: list[int] = []
    while len(seen) < BATCH_MAX and time.monotonic() < stop_at:
        before = len(seen)
        try:
            if not compare_one(now=now, seen=seen):
                break
        except _ENDS_THE_RUN:
            raise
        except Exception:
            if len(seen) == before:
                raise  # no row was taken: it is not about one order
            log.exception(
                "An order could not be compared with its payment; it is tried again later.",
                extra={"action": f"{NAME}.failed"},
            )
    SweepRun.objects.update_or_create(
        name=NAME, defaults={"finished_at": database_now(), "handled": len(seen)}
    )
    return len(seen)


def compare_one(*, now: datetime, seen: list[int]) -> bool:
    """Compare the order that is due, those that were never read first. False: none is due.

    1. Take it and write the next due time, so that a crash or a slow read costs one try. While the
       account's circuit breaker is open nothing is read.
    2. Read the payment's totals, with no transaction open. What cannot be read says nothing of the
       account: a key that may refund and not read payments is a good key.
    3. Lock again, and write down what was shown. An order that was stated again meanwhile is due at
       once: what was read is older.
    """
    with transaction.atomic():
        order = (
            Order.objects.select_for_update(skip_locked=True, no_key=True)
            .filter(compare_due_at__lte=now)
            .exclude(pk__in=seen)
            .order_by(F("shown_at").asc(nulls_first=True), "compare_due_at")
            .first()
        )
        if order is None:
            return False
        seen.append(order.pk)
        read_at = database_now()
        closed_from = _closed_until(order, now=read_at)
        Order.objects.filter(pk=order.pk).update(compare_due_at=closed_from or read_at + RETRY)
    if closed_from is not None:
        return True
    refuse_open_transaction()
    totals = payment_provider(order.provider).read_payment(
        payment_ref=order.payment_ref, account=order.account
    )
    with transaction.atomic():
        again = Order.objects.select_for_update(no_key=True).get(pk=order.pk)
        written_at = database_now()
        if again.stated_at is not None and again.stated_at > read_at:
            Order.objects.filter(pk=again.pk).update(compare_due_at=written_at)
        elif isinstance(totals, PaymentTotals):
            write_shown(order=again, totals=totals, read_at=read_at, now=written_at)
        elif _is_missing(totals):
            write_missing(order=again, now=written_at)
        elif totals.misconfigured:
            log.warning(
                "The API key may not read payments, so orders are not compared with them.",
                extra={"action": f"{NAME}.not_allowed"},
            )
            Order.objects.filter(pk=again.pk).update(compare_due_at=written_at + NOT_ALLOWED)
    return True


def _closed_until(order: Order, *, now: datetime) -> datetime | None:
    """Until when the account's breaker keeps reads away. The probe is left to unknown outcomes."""
    breaker = Breaker.objects.filter(account=account_of(order), open_until__isnull=False).first()
    if breaker is None or breaker.open_until is None:
        return None
    return max(breaker.open_until, now) + RETRY


def _is_missing(read: Unreadable) -> bool:
    """Whether the provider answered that it knows no such payment."""
    # https://docs.stripe.com/error-codes#resource-missing
    return read.evidence.http_status == 404 and read.evidence.error_code == "resource_missing"
