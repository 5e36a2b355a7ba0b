"""What a refund consists of, and that many refunds of an order come to the one of the whole."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.money import THREE_DECIMAL
from policies.components import SHIPPING, Component, asked_by_line, left_by_line, split, tax_share
from policies.decision import Verdict
from policies.facts import Facts, OrderLine, RefundLine
from policies.parameters import Parameters
from policies.rules import RULES
from tests.policies.any_kind import on_any_machine
from tests.policies.examples import FACTS, lines, with_facts

CAPS = Parameters(ceiling_minor={}, reasons=(), component_caps=True)


def part(line_id: str, net_minor: int, tax_minor: int) -> Component:
    return Component(line_id=line_id, net_minor=net_minor, tax_minor=tax_minor)


@pytest.mark.parametrize(
    ("asked", "refunded", "expected"),
    [
        ({"lamp": 12_000}, {}, (part("lamp", 10_000, 2_000),)),
        ({"lamp": 6_000}, {}, (part("lamp", 5_000, 1_000),)),
        ({"lamp": 6_000}, {"lamp": 6_000}, (part("lamp", 5_000, 1_000),)),
        # 2000 * 2 / 12000 is 0.33, 2000 * 3 / 12000 is a half, which is rounded up, and the next
        # cent has none of it.
        ({"lamp": 2}, {}, (part("lamp", 2, 0),)),
        ({"lamp": 3}, {}, (part("lamp", 2, 1),)),
        ({"lamp": 1}, {"lamp": 2}, (part("lamp", 0, 1),)),
        ({"lamp": 1}, {"lamp": 3}, (part("lamp", 1, 0),)),
        ({"shipping": 500}, {}, (part("shipping", 500, 0),)),
        (
            {"vase": 7_500, "lamp": 6, "shipping": 1},
            {"shipping": 1},
            (part("vase", 7_000, 500), part("lamp", 5, 1), part("shipping", 1, 0)),
        ),
    ],
)
def test_a_part_of_a_line_is_price_and_tax(
    asked: dict[str, int], refunded: dict[str, int], expected: tuple[Component, ...]
) -> None:
    facts = with_facts(lines=lines(**asked), lines_refunded_minor=refunded)
    assert split(facts) == expected


def test_a_line_without_any_price_has_no_share() -> None:
    free = OrderLine(line_id="gift", amount_minor=0, tax_minor=0)
    facts = with_facts(order_lines=(free,), lines=lines(gift=0))
    assert split(facts) == (part("gift", 0, 0),)


@pytest.mark.parametrize(
    ("tax_minor", "part", "whole", "share"),
    [(2_000, 0, 12_000, 0), (2_000, 2, 12_000, 0), (2_000, 3, 12_000, 1), (2_000, 8, 12_000, 1),
     (2_000, 9, 12_000, 2), (2_000, 11_997, 12_000, 2_000), (2_000, 11_996, 12_000, 1_999),
     (2_000, 12_000, 12_000, 2_000), (5, 5, 5, 5), (0, 3, 5, 0), (1, 1, 3, 0), (1, 2, 3, 1),
     (0, 0, 0, 0)],
)  # fmt: skip
def test_a_share_is_rounded_half_up_and_the_whole_has_all_of_it(
    tax_minor: int, part: int, whole: int, share: int
) -> None:
    assert tax_share(tax_minor, part=part, whole=whole) == share


def test_a_line_named_twice_is_summed() -> None:
    facts = with_facts(lines=(*lines(lamp=1, vase=2), *lines(lamp=3)))
    assert asked_by_line(facts) == {"lamp": 4, "vase": 2}


def test_what_is_left_of_each_line_includes_its_tax() -> None:
    facts = with_facts(lines_refunded_minor={"lamp": 2_000, "shipping": 501, "cup": 9})
    assert left_by_line(facts) == {"shipping": -1, "lamp": 10_000, "vase": 7_500}
    assert left_by_line(replace(facts, shipping_minor=None)) == {"lamp": 10_000, "vase": 7_500}
    assert left_by_line(replace(facts, order_lines=None, shipping_minor=0)) == {"shipping": -501}


def test_a_line_that_is_called_shipping_is_that_line() -> None:
    named = OrderLine(line_id=SHIPPING, amount_minor=900, tax_minor=100)
    facts = with_facts(order_lines=(named,), lines=lines(shipping=1_000))
    assert left_by_line(facts) == {"shipping": 1_000}
    assert split(facts) == (part("shipping", 900, 100),)


# -- properties -----------------------------------------------------------------------------------

# Whole units of what a provider accepts: three-decimal amounts are divisible by 10.
STEP = {"JPY": 1, "USD": 1, "KWD": 10}
assert "KWD" in THREE_DECIMAL


@st.composite
def orders_refunded_bit_by_bit(draw: st.DrawFn) -> tuple[Facts, list[dict[str, int]]]:
    """An order, and refunds that together name every minor unit of it once, in any order."""
    currency = draw(st.sampled_from(sorted(STEP)))
    step = STEP[currency]
    units = st.integers(min_value=0, max_value=40_000)
    order_lines, left = [], {}
    for number in range(draw(st.integers(min_value=1, max_value=3))):
        gross = draw(units) * step
        tax = draw(st.integers(min_value=0, max_value=gross))
        order_lines.append(
            OrderLine(line_id=f"line-{number}", amount_minor=gross - tax, tax_minor=tax)
        )
        left[f"line-{number}"] = gross
    shipping = left[SHIPPING] = draw(units) * step
    facts = replace(
        FACTS,
        currency=currency,
        order_lines=tuple(order_lines),
        shipping_minor=shipping,
        captured_minor=sum(left.values()),
        refunded_minor=0,
        lines_refunded_minor={},
    )
    bits = []
    for line_id, gross in left.items():
        cuts = draw(st.lists(st.integers(min_value=0, max_value=gross // step), max_size=6))
        edges = [0, *sorted(cuts), gross // step]
        bits += [(line_id, (high - low) * step) for low, high in pairwise(edges) if high > low]
    refunds: list[dict[str, int]] = []
    for line_id, amount in draw(st.permutations(bits)):
        # Some bits go out together, in one refund of several lines.
        if refunds and line_id not in refunds[-1] and draw(st.booleans()):
            refunds[-1][line_id] = amount
        else:
            refunds.append({line_id: amount})
    return facts, refunds


def refund(facts: Facts, asked: dict[str, int], before: dict[str, int]) -> Facts:
    return replace(
        facts,
        amount_minor=sum(asked.values()),
        refunded_minor=sum(before.values()),
        lines_refunded_minor=before,
        lines=tuple(RefundLine(line_id=i, amount_minor=amount) for i, amount in asked.items()),
    )


@on_any_machine
@given(orders_refunded_bit_by_bit())
def test_an_order_refunded_bit_by_bit_is_the_whole_at_once_to_the_minor_unit(
    case: tuple[Facts, list[dict[str, int]]],
) -> None:
    facts, refunds = case
    before: dict[str, int] = {}
    net: dict[str, int] = {}
    tax: dict[str, int] = {}
    for asked in refunds:
        now = refund(facts, asked, before)
        assert RULES["component_caps"](now, CAPS).verdict is Verdict.ALLOW
        assert RULES["headroom"](now, CAPS).verdict is Verdict.ALLOW
        for component in split(now):
            assert component.net_minor >= 0
            assert component.tax_minor >= 0
            assert component.net_minor + component.tax_minor == asked[component.line_id]
            net[component.line_id] = net.get(component.line_id, 0) + component.net_minor
            tax[component.line_id] = tax.get(component.line_id, 0) + component.tax_minor
        before = {
            line_id: before.get(line_id, 0) + asked.get(line_id, 0)
            for line_id in before.keys() | asked.keys()
        }
    whole = {i: left for i, left in left_by_line(facts).items() if left}
    at_once = split(refund(facts, whole, {}))
    assert {c.line_id: c.net_minor for c in at_once} == net
    assert {c.line_id: c.tax_minor for c in at_once} == tax
    assert sum(net.values()) + sum(tax.values()) == facts.captured_minor
    stored = {line.line_id: line.tax_minor for line in facts.order_lines or ()}
    assert {i: t for i, t in tax.items() if t} == {i: t for i, t in stored.items() if t}


@on_any_machine
@given(orders_refunded_bit_by_bit(), st.data())
def test_no_line_is_ever_refunded_beyond_what_is_left_of_it(
    case: tuple[Facts, list[dict[str, int]]], data: Any
) -> None:
    facts, _ = case
    left = left_by_line(facts)
    before = {
        line_id: data.draw(st.integers(min_value=0, max_value=cap)) for line_id, cap in left.items()
    }
    asked = {
        line_id: data.draw(st.integers(min_value=1, max_value=cap + 2))
        for line_id, cap in left.items()
        if data.draw(st.booleans())
    }
    if not asked:
        return
    said = RULES["component_caps"](refund(facts, asked, before), CAPS)
    fits = all(asked[line_id] + before[line_id] <= left[line_id] for line_id in asked)
    assert said.verdict is (Verdict.ALLOW if fits else Verdict.DENY)
