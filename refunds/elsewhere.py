"""Refunds on our payments that no action of ours made: known by the provider's id, and counted."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from effects.outcomes import Listing, ProviderEffect
from kernel.money import format_amount
from refunds.models import ExternalRefund, Order, RefundAction, RefundEvent


def known_refs(*, order: Order, look: Listing) -> set[str]:
    """The refunds in a listing that a row of ours stands for.

    A refund made elsewhere by its id; an action by the id it is known by or, while that is still
    being found out, by what we wrote into the refund's metadata: a reservation holds its amount
    already, and counting it as made elsewhere would take it out of the balance twice.
    """
    rows = RefundAction.objects.filter(order=order).values_list(
        "action_id", "provider_ref", "reserved_minor", "instance"
    )
    known = {ref for _, ref, _, _ in rows}
    known |= set(ExternalRefund.objects.filter(order=order).values_list("provider_ref", flat=True))
    reserving = {(action_id, instance) for action_id, _, reserved, instance in rows if reserved}
    return known | {
        effect.ref
        for effect in look.effects
        if (effect.metadata.get("action_id"), effect.metadata.get("instance")) in reserving
    }


def book_elsewhere(
    *,
    order: Order,
    action: RefundAction | None,
    refunds: Iterable[ProviderEffect],
    now: datetime,
) -> list[ProviderEffect]:
    """Book refunds made elsewhere on a locked order; returns those that are new.

    Each takes up the balance and is a new version; the caller writes the order.
    """
    known = ExternalRefund.objects.filter(order=order).values_list("provider_ref", flat=True)
    before = set(known) if refunds else set()
    new = [refund for refund in refunds if refund.ref not in before]
    for refund in new:
        ExternalRefund.objects.create(
            order=order,
            provider_ref=refund.ref,
            amount_minor=refund.amount_minor,
            currency=refund.currency,
            status=refund.status,
            seen_at=now,
            made_at=refund.created_at,
        )
        if takes_up_balance(currency=refund.currency, status=refund.status, order=order):
            order.refunded_minor += refund.amount_minor
        order.version += 1
        RefundEvent.objects.create(
            order=order,
            action=action,
            kind="order.external_refund_found",
            actor="provider",
            at=now,
            data={"order_version": order.version, **evidence_of([refund])[refund.ref]},
        )
    return new


def takes_up_balance(*, currency: str, status: str, order: Order) -> bool:
    """Whether a refund made elsewhere counts against the order. Another currency cannot."""
    return currency == order.currency and status not in ("failed", "canceled")


def listed(refunds: list[ProviderEffect]) -> str:
    """Refunds made elsewhere as people read them: amount, id, and when, as far as it is known."""
    return ", ".join(
        f"{format_amount(refund.amount_minor, refund.currency)} ({refund.ref}"
        + (f", {refund.created_at:%Y-%m-%d %H:%M} UTC" if refund.created_at else "")
        + ")"
        for refund in refunds
    )


def evidence_of(refunds: list[ProviderEffect]) -> dict[str, dict[str, Any]]:
    """The same for a JSON column, by the provider's id."""
    return {
        refund.ref: {
            "provider_ref": refund.ref,
            "amount_minor": refund.amount_minor,
            "currency": refund.currency,
            "status": refund.status,
            "made_at": refund.created_at.isoformat() if refund.created_at else "",
        }
        for refund in refunds
    }
