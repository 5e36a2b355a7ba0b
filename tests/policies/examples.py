"""Facts that every rule allows, and short ways to change one thing about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from policies.facts import SCOPES, Facts, OrderLine, OtherAction, RefundLine, Usage
from policies.parameters import Limit

HOUR = 3600.0

# 79.00 of 200.00, paid by card on Sunday, delivered the next day, asked for on Wednesday.
FACTS = Facts(
    order_id="4821",
    order_version=1,
    currency="USD",
    amount_minor=7_900,
    reason="requested_by_customer",
    captured_minor=20_000,
    refunded_minor=0,
    reserved_minor=0,
    disputed_minor=0,
    settled_otherwise_minor=0,
    own_reservation_minor=0,
    dispute_state="none",
    provider_searchable=True,
    proposer="agent-1",
    action_id="refund:order-4821:request-3",
    account="stripe:",
    decided_at="2026-03-04T12:00:00+00:00",
    placed_at="2026-03-01T12:00:00+00:00",
    delivered_at="2026-03-02T12:00:00+00:00",
    payment_method="card",
    customer_risk="low",
    shipping_minor=500,
    order_lines=(
        OrderLine(
            line_id="lamp", amount_minor=10_000, tax_minor=2_000, final_sale=False, returned=True
        ),
        OrderLine(
            line_id="vase", amount_minor=7_000, tax_minor=500, final_sale=False, returned=True
        ),
    ),
    agent_succeeded=100,
    order_age_seconds=60.0,
    usage=tuple(
        Usage(scope=scope, window=window, count=0)
        for scope, windows in SCOPES.items()
        for window in windows
    ),
    rates={"EUR": "1", "USD": "1.25", "JPY": "160", "KWD": "0.385"},
    rates_day="2026-03-03",
    rates_age_days=1,
)


def with_facts(**changes: Any) -> Facts:
    """The facts above with something changed."""
    return replace(FACTS, **changes)


def other(
    state: str,
    *,
    amount_minor: int = 100,
    age_seconds: float = HOUR,
    line_ids: tuple[str, ...] = (),
    number: int = 0,
) -> OtherAction:
    """Another action of the order."""
    return OtherAction(
        action_id=f"refund:order-4821:request-{number}",
        state=state,
        amount_minor=amount_minor,
        age_seconds=age_seconds,
        line_ids=line_ids,
    )


def used(scope: str, window: str, *, count: int = 0, **sums_minor: int) -> tuple[Usage, ...]:
    """The usage above with one scope and window changed; sums by currency, like USD=100."""
    return tuple(
        replace(usage, count=count, sums_minor=sums_minor)
        if (usage.scope, usage.window) == (scope, window)
        else usage
        for usage in FACTS.usage
    )


def unused(scope: str, window: str) -> tuple[Usage, ...]:
    """The usage above without one scope and window."""
    return tuple(u for u in FACTS.usage if (u.scope, u.window) != (scope, window))


def lines(**amounts_minor: int) -> tuple[RefundLine, ...]:
    """A refund's lines, like lamp=100."""
    return tuple(
        RefundLine(line_id=line_id, amount_minor=amount)
        for line_id, amount in amounts_minor.items()
    )


def limit(scope: str, window: str, **figures: int) -> Limit:
    """A limit, like review_count=3."""
    return Limit(scope=scope, window=window, **figures)
