"""The incident of an order that an observed fact has overdrawn."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from effects import cases
from effects.kinds import Locked
from effects.models import Case
from kernel.money import format_amount
from refunds.models import Order


def open_overdrawn(*, locked: Locked) -> None:
    """The incident of a locked effect whose order an observed fact has overdrawn."""
    reason, evidence = _why_overdrawn(locked.resource)
    cases.open_case(
        kind=Case.Kind.INCIDENT,
        effect="refund",
        locked=locked,
        reason=reason,
        evidence=evidence,
    )


def open_overdrawn_order(*, order: Order, now: datetime) -> None:
    """The same for a locked order, whatever action it meets."""
    reason, evidence = _why_overdrawn(order)
    cases.open_resource_case(
        kind=Case.Kind.INCIDENT,
        effect="refund",
        resource=str(order),
        reason=reason,
        evidence=evidence,
        now=now,
    )


def _why_overdrawn(order: Order) -> tuple[str, dict[str, Any]]:
    return (
        f"Order {order.order_id} is overdrawn by "
        f"{format_amount(-order.refundable_minor, order.currency)}: more was refunded, is in "
        "flight or is disputed than was captured. Nothing more is sent for this order. "
        "Compare it with the provider's ledger.",
        {
            "captured_minor": order.captured_minor,
            "refunded_minor": order.refunded_minor,
            "reserved_minor": order.reserved_minor,
            "disputed_minor": order.disputed_minor,
        },
    )
