"""Compare an order with its payment as it was read, whoever read it and why."""

from __future__ import annotations

from datetime import datetime

from effects import cases
from effects.models import Case
from effects.outcomes import Listing, LookUp, ProviderEffect
from effects.states import FINAL_STATES
from providers.port import PaymentTotals
from refunds.elsewhere import (
    book_elsewhere,
    evidence_of,
    known_refs,
    listed,
    unexplained_minor,
)
from refunds.models import Order, RefundAction
from refunds.shown import Shown, refunds_are_known, write_shown


def write_read(
    *,
    order: Order,
    totals: PaymentTotals,
    look: LookUp | None,
    read_at: datetime,
    now: datetime,
) -> None:
    """Write down what a payment's totals, and its refunds if they were listed, show of an order.

    The order is locked, `read_at` database time before the totals were read, `look` a list that was
    read after them: where more went back than is known here, its refunds are booked.
    """
    unlisted_minor: int | None = None
    if isinstance(look, Listing):
        known = known_refs(order=order, look=look)
        strangers = tuple(
            effect
            for effect in look.effects
            if effect.ref not in known and effect.settlement != "failed"
        )
        new = book_elsewhere(order=order, action=None, refunds=strangers, now=now)
        if new:
            order.provider_read_at = read_at
            order.updated_at = now
            order.save(
                update_fields=[
                    "refunded_minor",
                    "unlisted_minor",
                    "version",
                    "provider_read_at",
                    "updated_at",
                ]
            )
            _tell_elsewhere(order=order, new=new, now=now)
        unlisted_minor = unexplained_minor(totals=totals, look=look)
    elif refunds_are_known(order=order, totals=totals):
        unlisted_minor = 0
    write_shown(
        order=order,
        shown=Shown(totals=totals, read_at=read_at, unlisted_minor=unlisted_minor),
        now=now,
    )


def _tell_elsewhere(*, order: Order, new: list[ProviderEffect], now: datetime) -> None:
    """A case for refunds made elsewhere that meet an open action, or came after the order did.

    What was refunded before the order was known here is its past: it is counted, and no case.
    """
    since = [
        refund
        for refund in new
        if refund.created_at is None or refund.created_at > order.created_at
    ]
    open_actions = RefundAction.objects.filter(order=order).exclude(state__in=FINAL_STATES)
    told = new if open_actions.exists() else since
    if told:
        cases.open_resource_case(
            kind=Case.Kind.FOUND_ELSEWHERE,
            effect="refund",
            resource=str(order),
            reason=(
                f"Order {order.order_id}: {order.provider.capitalize()} shows refunds that were "
                f"not made by this service: {listed(told)}. They count as refunded. Decide "
                "whether what is asked for beside them is still owed; until this is closed, no "
                "policy alone refunds anything of this order."
            ),
            evidence=evidence_of(told),
            now=now,
        )
