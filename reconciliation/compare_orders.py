"""Compare: orders that were stated since their payment was last read, and orders that differ.

The door takes what a merchant states without asking anybody; whether the provider shows the same is
found out here, before a refund is proposed if it can be, and before the first send in any case
(`refunds.kind`).
"""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta

from billiard.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db import InterfaceError, OperationalError, transaction

from effects.clock import database_now
from effects.models import SweepRun
from effects.outcomes import LookUp, Unreadable
from effects.send import refuse_open_transaction
from providers.port import PaymentTotals
from providers.registry import payment_provider
from reconciliation.breaker import account_of, remember_read, wait_until
from refunds.compare import write_read
from refunds.models import Order
from refunds.shown import refunds_are_known, write_missing

log = logging.getLogger(__name__)

NAME = "reconciliation.compare_orders"
# A crash in the middle, or an answer that cannot be used, costs one order this long.
RETRY = timedelta(minutes=5)
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
    """Compare the order that is due the longest. False: none is due.

    1. Take it and write the next due time, so that a crash or a slow read costs one try. While the
       account's circuit breaker is open nothing is read.
    2. Read the payment's totals, with no transaction open; and, where more went back than is known
       here, its refunds after them, so that whatever the totals count is in the list.
    3. Lock again, and write down what was shown, with everything that follows. An order that has
       another payment by now is due at once.
    """
    with transaction.atomic():
        order = (
            Order.objects.select_for_update(skip_locked=True, no_key=True)
            .filter(compare_due_at__lte=now)
            .exclude(pk__in=seen)
            .order_by("compare_due_at")
            .first()
        )
        if order is None:
            return False
        seen.append(order.pk)
        read_at = database_now()
        closed_from = wait_until(account=account_of(order), now=read_at)
        Order.objects.filter(pk=order.pk).update(compare_due_at=closed_from or read_at + RETRY)
    if closed_from is not None:
        return True
    refuse_open_transaction()
    provider = payment_provider(order.provider)
    totals = provider.read_payment(payment_ref=order.payment_ref, account=order.account)
    look: LookUp | None = None
    if isinstance(totals, PaymentTotals) and not refunds_are_known(order=order, totals=totals):
        look = provider.list_refunds(payment_ref=order.payment_ref, account=order.account)
    with transaction.atomic():
        again = Order.objects.select_for_update(no_key=True).get(pk=order.pk)
        written_at = database_now()
        missing = isinstance(totals, Unreadable) and _is_missing(totals)
        readable = missing or not (isinstance(totals, Unreadable) or isinstance(look, Unreadable))
        remember_read(account=account_of(order), readable=readable, now=written_at)
        if _payment(again) != _payment(order):
            Order.objects.filter(pk=again.pk).update(compare_due_at=written_at)
        elif missing:
            write_missing(order=again, now=written_at)
        elif readable and isinstance(totals, PaymentTotals):
            write_read(order=again, totals=totals, look=look, read_at=read_at, now=written_at)
    return True


def _is_missing(read: Unreadable) -> bool:
    """Whether the provider answered that it knows no such payment."""
    # https://docs.stripe.com/error-codes#resource-missing
    return read.evidence.http_status == 404 and read.evidence.error_code == "resource_missing"


def _payment(order: Order) -> tuple[str, str, str]:
    return order.provider, order.account, order.payment_ref
