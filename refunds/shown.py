"""What the provider shows of an order's payment, beside what is stated and known here.

The provider is the truth for what was captured and refunded. A difference is a case, and while one
is open policy asks a person; it changes no balance by itself: what was stated may be repaired, a
capture may come later, and each refund made elsewhere is counted when the look before a send finds
it. Nothing here calls a provider: who read the payment, outside of any transaction, brings what was
shown.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Sum

from effects import cases
from effects.models import Case
from effects.states import State
from kernel.money import format_amount
from providers.port import PaymentTotals
from refunds.models import Order, RefundAction, RefundEvent

ACTOR = "provider"
# While they differ, since either side may end it: hourly on the first day, when a capture or a
# repair comes most likely, then daily. A new statement of the order is compared at once.
COMPARE_AGAIN, COMPARE_SELDOM = timedelta(hours=1), timedelta(days=1)
_ON_THE_WAY = (State.SUBMITTING, State.UNKNOWN, State.PENDING)
_CHANGED = "case.figures_changed"


def write_shown(*, order: Order, totals: PaymentTotals, read_at: datetime, now: datetime) -> bool:
    """Write what a payment's totals showed of a locked order; whether they differ.

    `read_at` is database time just before they were read: a reading from before what is known
    already changes nothing. A difference is one case on the order, which says it in a sentence and
    closes itself when the difference ends; while it lasts the payment is read again, whatever a
    person does with the case.
    """
    if order.shown_at is not None and read_at < order.shown_at:
        return order.compare_due_at is not None
    order.shown_captured_minor = totals.captured_minor
    order.shown_refunded_minor = totals.refunded_minor
    order.shown_currency = totals.currency
    order.shown_at = read_at
    reason = _why_different(order)
    _tell_difference(order=order, reason=reason, now=now)
    order.compare_due_at = _next_comparison(order=order, now=now) if reason else None
    order.save(
        update_fields=[
            "shown_captured_minor",
            "shown_refunded_minor",
            "shown_currency",
            "shown_at",
            "compare_due_at",
        ]
    )
    return bool(reason)


def write_missing(*, order: Order, now: datetime) -> None:
    """The provider knows no such payment: a case. A key of another account shows all so."""
    where = f" in the account {order.account}" if order.account else ""
    _tell_difference(
        order=order,
        reason=(
            f"Order {order.order_id}: you say it was paid with {order.payment_ref}, "
            f"{_provider(order)} knows no such payment{where}. State the order again with the "
            "payment that it was paid with; if other orders say the same, look at the API key and "
            "the mode. This case closes itself when the payment can be read."
        ),
        now=now,
    )
    Order.objects.filter(pk=order.pk).update(compare_due_at=_next_comparison(order=order, now=now))


def _next_comparison(*, order: Order, now: datetime) -> datetime:
    is_fresh = now - (order.stated_at or order.created_at) < COMPARE_SELDOM
    return now + (COMPARE_AGAIN if is_fresh else COMPARE_SELDOM)


def _why_different(order: Order) -> str:
    """How what is stated and known differs from what is shown, as sentences; "" if it does not."""
    provider = _provider(order)
    shown_minor, currency = order.shown_captured_minor or 0, order.shown_currency
    stated = format_amount(order.captured_minor, order.currency)
    parts: list[str] = []
    if currency != order.currency:
        shown = format_amount(shown_minor, currency)
        parts.append(f"you say {stated} captured, {provider} shows {shown}, in another currency")
    else:
        if shown_minor != order.captured_minor and not _is_shared(order):
            shown = format_amount(shown_minor, currency)
            parts.append(f"you say {stated} captured, {provider} shows {shown}")
        refunded, known = order.shown_refunded_minor or 0, _known_minor(order)
        if known is not None and refunded > known:
            parts.append(
                f"{provider} shows {format_amount(refunded, currency)} refunded, and no more than "
                f"{format_amount(known, currency)} is known here"
            )
    if not parts:
        return ""
    return (
        f"Order {order.order_id}: {'. '.join(parts)}. Compare {order.payment_ref} in the "
        "provider's dashboard with the order. This case closes itself when both say the same."
    )


def _same_payment(order: Order) -> dict[str, Any]:
    return {
        "payment_ref": order.payment_ref,
        "provider": order.provider,
        "account": order.account,
    }


def _is_shared(order: Order) -> bool:
    """Whether the orders that were paid with this payment add up to what it shows."""
    stated = Order.objects.filter(**_same_payment(order)).aggregate(all=Sum("captured_minor"))
    return bool(stated["all"] == order.shown_captured_minor)


def _known_minor(order: Order) -> int | None:
    """The most of the payment that can have gone back by what is known here; None: not now.

    Of all orders that were paid with it. While a refund of theirs is on its way, a total says
    nothing. One that failed late may be in the total still (facts: not known), so it counts.
    """
    orders = Order.objects.filter(**_same_payment(order))
    actions = RefundAction.objects.filter(order__in=orders)
    if actions.filter(state__in=_ON_THE_WAY).exists():
        return None
    refunded = orders.aggregate(all=Sum("refunded_minor"))["all"] or 0
    failed = (
        actions.filter(state=State.FAILED_FINAL)
        .exclude(provider_ref="")
        .aggregate(all=Sum("amount_minor"))["all"]
    )
    return int(refunded + (failed or 0))


def _tell_difference(*, order: Order, reason: str, now: datetime) -> None:
    """Open, change or close the order's case."""
    about = Case.objects.filter(
        kind=Case.Kind.CONTRADICTION, resource=str(order), action_id=""
    ).order_by("-pk")
    case = about.select_for_update(no_key=True).filter(closed_at__isnull=True).first()
    if case is not None and not reason:
        cases.close_case(
            case=case,
            actor=ACTOR,
            resolution="The provider and what is stated say the same now.",
            now=now,
        )
        _tell(order=order, event="order.agrees", now=now)
    elif case is not None and case.reason != reason:
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
    elif case is None and reason:
        closed = about.first()
        if closed is not None and closed.closed_by != ACTOR and closed.reason == reason:
            return  # a person has settled exactly this
        cases.open_resource_case(
            kind=Case.Kind.CONTRADICTION,
            effect="refund",
            resource=str(order),
            reason=reason,
            evidence=_figures(order),
            now=now,
        )
        _tell(order=order, event="order.differs", now=now)


def _figures(order: Order) -> dict[str, Any]:
    return {
        "currency": order.currency,
        "captured_minor": order.captured_minor,
        "refunded_minor": order.refunded_minor,
        "payment_ref": order.payment_ref,
        "shown_currency": order.shown_currency,
        "shown_captured_minor": order.shown_captured_minor,
        "shown_refunded_minor": order.shown_refunded_minor,
        "shown_at": order.shown_at.isoformat() if order.shown_at else "",
    }


def _tell(*, order: Order, event: str, now: datetime) -> None:
    RefundEvent.objects.create(
        order=order,
        kind=event,
        actor=ACTOR,
        at=now,
        data={"order_version": order.version, **_figures(order)},
    )


def _provider(order: Order) -> str:
    return order.provider.capitalize()
