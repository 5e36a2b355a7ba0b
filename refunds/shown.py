"""What the provider shows of an order's payment, beside what was stated about it.

The provider is the truth for what was captured and refunded, and for nothing else: an order counts
with the smaller of the two, and a difference is a person's. Nothing here calls a provider: who read
the payment, outside of any transaction, brings what was shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Sum
from django.db.models.functions import Coalesce

from effects import cases
from effects.models import Case
from kernel.money import format_amount
from providers.port import PaymentTotals
from refunds.models import Order, RefundEvent
from refunds.overdrawn import open_overdrawn_order

ACTOR = "provider"
# While they differ. Either side may end it: a later capture, a new statement of the order or of
# another order of the same payment. A new statement of this order is compared at once.
COMPARE_AGAIN = timedelta(hours=1)
_CHANGED = "case.figures_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One reading of a payment. `read_at` is database time just before it was read.

    `unlisted_minor` is what the provider's total shows as refunded and no refund known here or
    listed by the provider explains; None where the refunds were not listed after it.
    """

    totals: PaymentTotals
    read_at: datetime
    unlisted_minor: int | None = None


def is_uncompared(order: Order) -> bool:
    """Whether this order was stated and its payment was never read since."""
    return order.shown_at is None and order.compare_due_at is not None


def captured_that_counts(
    *,
    stated_minor: int,
    currency: str,
    shown_minor: int | None,
    shown_currency: str,
) -> int:
    """The smaller of what is stated and what is shown; 0 where they are in two currencies."""
    if shown_minor is None:
        return stated_minor
    return min(stated_minor, shown_minor) if currency == shown_currency else 0


def lowers(*, order: Order, totals: PaymentTotals, unlisted_minor: int) -> bool:
    """Whether what is shown leaves less of the order than it counts with now."""
    counts = captured_that_counts(
        stated_minor=order.stated_minor,
        currency=order.currency,
        shown_minor=totals.captured_minor,
        shown_currency=totals.currency,
    )
    return counts < order.captured_minor or unlisted_minor > order.unlisted_minor


def refunds_are_known(*, order: Order, totals: PaymentTotals) -> bool:
    """Whether what is shown as refunded is no more than the refunds that are known here."""
    known = order.refunded_minor - order.unlisted_minor
    return totals.currency != order.currency or totals.refunded_minor <= known


def write_shown(*, order: Order, shown: Shown, now: datetime) -> None:
    """Write what the provider shows of a locked order's payment, with everything that follows.

    1. What was captured counts as the smaller of the two. An order that nobody but the provider
       has stated takes what it shows.
    2. What the total shows as refunded beyond every known refund counts as refunded.
    3. A change of either is a new version, so that no earlier approval stands.
    4. A difference is a case on the order, which says it in a sentence; it closes itself when the
       difference ends, and while it lasts the payment is read again.

    What was read before what is known already changes nothing.
    """
    if order.shown_at is not None and shown.read_at < order.shown_at:
        return
    totals = shown.totals
    before = (order.captured_minor, order.refunded_minor)
    same_currency = totals.currency == order.currency
    stated = order.stated_minor
    if is_stated_by_provider(order) and same_currency:
        stated = totals.captured_minor
    if shown.unlisted_minor is not None and same_currency:
        order.refunded_minor += shown.unlisted_minor - order.unlisted_minor
        order.unlisted_minor = shown.unlisted_minor
    order.captured_minor = captured_that_counts(
        stated_minor=stated,
        currency=order.currency,
        shown_minor=totals.captured_minor,
        shown_currency=totals.currency,
    )
    order.stated_captured_minor = None if stated == order.captured_minor else stated
    order.shown_captured_minor = totals.captured_minor
    order.shown_refunded_minor = totals.refunded_minor
    order.shown_currency = totals.currency
    order.shown_at = shown.read_at
    changed = before != (order.captured_minor, order.refunded_minor)
    if changed:
        order.version += 1
        order.updated_at = now
        _tell(order=order, event="order.shown_otherwise", now=now, data=_figures(order))
    reason = _why_different(order)
    is_open = _tell_difference(order=order, reason=reason, now=now)
    order.compare_due_at = now + COMPARE_AGAIN if is_open else None
    order.save(
        update_fields=[
            "captured_minor",
            "stated_captured_minor",
            "refunded_minor",
            "unlisted_minor",
            "shown_captured_minor",
            "shown_refunded_minor",
            "shown_currency",
            "shown_at",
            "compare_due_at",
            "version",
            "updated_at",
        ]
    )
    gone = order.refunded_minor + order.settled_otherwise_minor + order.disputed_minor
    # What is only reserved has not gone: the claim asks again before anything is sent.
    if changed and same_currency and gone > order.captured_minor:
        open_overdrawn_order(order=order, now=now)


def write_missing(*, order: Order, now: datetime) -> None:
    """The provider knows no such payment: a case. What was stated still counts, for people.

    A key of another account shows every payment as missing, which must not reject refunds.
    """
    where = f" in the account {order.account}" if order.account else ""
    is_open = _tell_difference(
        order=order,
        reason=(
            f"Order {order.order_id}: you say it was paid with {order.payment_ref}, "
            f"{_provider(order)} knows no such payment{where}. Policy alone sends nothing for this "
            "order. State the order again with the payment that it was paid with; if other orders "
            "say the same, look at the API key and the mode. This case closes itself when the "
            "payment can be read."
        ),
        now=now,
    )
    again = now + COMPARE_AGAIN if is_open else None
    Order.objects.filter(pk=order.pk).update(compare_due_at=again)


def is_stated_by_provider(order: Order) -> bool:
    """Whether nobody but the provider has stated this order so far."""
    return order.source_version < 0


def _why_different(order: Order) -> str:
    """How what was stated differs from what the provider shows, as sentences; "" if it does not."""
    provider = _provider(order)
    shown_minor, currency = order.shown_captured_minor or 0, order.shown_currency
    stated = format_amount(order.stated_minor, order.currency)
    shown = format_amount(shown_minor, currency)
    parts: list[str] = []
    if currency != order.currency:
        parts.append(
            f"you say {stated} captured, {provider} shows {shown}, in another currency. Nothing is "
            "sent for this order"
        )
    elif shown_minor != order.stated_minor and not _is_shared(order):
        less = format_amount(min(shown_minor, order.stated_minor), currency)
        parts.append(
            f"you say {stated} captured, {provider} shows {shown}. No more than {less} is refunded"
        )
    if order.unlisted_minor:
        refunded = order.shown_refunded_minor or 0
        parts.append(
            f"{provider} shows {format_amount(refunded, currency)} refunded, and "
            f"{format_amount(order.unlisted_minor, currency)} of it is in no refund that is known "
            "here. It counts as refunded"
        )
    if not parts:
        return ""
    return (
        f"Order {order.order_id}: {'. '.join(parts)}. Compare {order.payment_ref} in the "
        "provider's dashboard with the order. This case closes itself when both say the same."
    )


def _is_shared(order: Order) -> bool:
    """Whether the orders that were paid with this payment add up to what it shows."""
    if (order.shown_captured_minor or 0) < order.stated_minor:
        return False
    others = (
        Order.objects.filter(
            payment_ref=order.payment_ref, provider=order.provider, account=order.account
        )
        .exclude(pk=order.pk)
        .aggregate(stated=Sum(Coalesce(F("stated_captured_minor"), F("captured_minor"))))
    )
    return order.stated_minor + (others["stated"] or 0) == order.shown_captured_minor


def _tell_difference(*, order: Order, reason: str, now: datetime) -> bool:
    """Open, change or close the order's case; whether one is open."""
    about = Case.objects.filter(
        kind=Case.Kind.CONTRADICTION, resource=str(order), action_id=""
    ).order_by("-pk")
    case = about.select_for_update(no_key=True).filter(closed_at__isnull=True).first()
    if case is None and not reason:
        return False
    if case is not None and not reason:
        cases.close_case(
            case=case,
            actor=ACTOR,
            resolution="The provider and what is stated say the same now.",
            now=now,
        )
        _tell(order=order, event="order.agrees", now=now, data=_figures(order))
        return False
    if case is not None:
        if case.reason != reason:
            cases.change_case(
                case=case,
                event=_CHANGED,
                actor=ACTOR,
                data={"before": case.reason},
                now=now,
                reason=reason,
                evidence=_figures(order),
                snoozed_until=None,
            )
        return True
    closed = about.first()
    if closed is not None and closed.closed_by != ACTOR and closed.reason == reason:
        return False  # a person has settled exactly this
    cases.open_resource_case(
        kind=Case.Kind.CONTRADICTION,
        effect="refund",
        resource=str(order),
        reason=reason,
        evidence=_figures(order),
        now=now,
    )
    _tell(order=order, event="order.differs", now=now, data=_figures(order))
    return True


def _figures(order: Order) -> dict[str, Any]:
    return {
        "currency": order.currency,
        "stated_captured_minor": order.stated_minor,
        "captured_minor": order.captured_minor,
        "refunded_minor": order.refunded_minor,
        "payment_ref": order.payment_ref,
        "shown_currency": order.shown_currency,
        "shown_captured_minor": order.shown_captured_minor,
        "shown_refunded_minor": order.shown_refunded_minor,
        "unlisted_minor": order.unlisted_minor,
        "shown_at": order.shown_at.isoformat() if order.shown_at else "",
    }


def _tell(*, order: Order, event: str, now: datetime, data: dict[str, Any]) -> None:
    RefundEvent.objects.create(
        order=order,
        kind=event,
        actor=ACTOR,
        at=now,
        data={"order_version": order.version, **data},
    )


def _provider(order: Order) -> str:
    return order.provider.capitalize()
