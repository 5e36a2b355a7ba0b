"""What a refund consists of: parts of the order's lines, each of price and tax, and of shipping.

Tax is never computed anew. A line's stored tax is shared out over what is refunded of the line so
far, so that many refunds of a line come to the same price and tax as one of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.facts import Facts

# The name under which a refund's line is the order's shipping.
SHIPPING = "shipping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One line's part of a refund, in minor units: of its price without tax, and of its tax."""

    line_id: str
    net_minor: int
    tax_minor: int


def asked_by_line(facts: Facts) -> dict[str, int]:
    """What the refund names of each line; a line that it names twice is summed."""
    asked: dict[str, int] = {}
    for part in facts.lines:
        asked[part.line_id] = asked.get(part.line_id, 0) + part.amount_minor
    return asked


def left_by_line(facts: Facts) -> dict[str, int]:
    """What is left of each line, its tax included, and of the shipping where that is stated."""
    caps = {} if facts.shipping_minor is None else {SHIPPING: facts.shipping_minor}
    for line in facts.order_lines or ():
        caps[line.line_id] = line.amount_minor + line.tax_minor
    return {
        line_id: cap - facts.lines_refunded_minor.get(line_id, 0) for line_id, cap in caps.items()
    }


def split(facts: Facts) -> tuple[Component, ...]:
    """Each line's part of the refund as price and tax; shipping has no tax of its own.

    For lines that the order has, and within what is left of each.
    """
    lines = {line.line_id: line for line in facts.order_lines or ()}
    parts = []
    for line_id, asked_minor in asked_by_line(facts).items():
        tax_minor = 0
        if line_id in lines:
            line = lines[line_id]
            before = facts.lines_refunded_minor.get(line_id, 0)
            gross = line.amount_minor + line.tax_minor
            tax_minor = tax_share(
                line.tax_minor, part=before + asked_minor, whole=gross
            ) - tax_share(line.tax_minor, part=before, whole=gross)
        parts.append(
            Component(line_id=line_id, net_minor=asked_minor - tax_minor, tax_minor=tax_minor)
        )
    return tuple(parts)


def tax_share(tax_minor: int, *, part: int, whole: int) -> int:
    """The tax in a part of a whole, rounded half up; all of it in the whole."""
    return (2 * tax_minor * part + whole) // (2 * whole) if whole else 0
