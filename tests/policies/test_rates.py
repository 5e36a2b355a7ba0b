"""Conversion by pinned rates: exact, rounded up, and nothing without both rates."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.money import AMOUNT_MINOR_MAX, decimals
from policies.parameters import Parameters
from policies.rates import base_amount, base_sum, to_base, usable_rates
from tests.policies.any_kind import on_any_machine
from tests.policies.examples import FACTS, with_facts

RATES = {"EUR": "1", "USD": "1.25", "JPY": "160", "KWD": "0.385", "GBP": "0.8"}
BASE = Parameters(ceiling_minor={}, reasons=())


@pytest.mark.parametrize(
    ("amount_minor", "currency", "base_currency", "expected"),
    [
        (100, "EUR", "USD", 125),
        (125, "USD", "EUR", 100),
        (1, "USD", "EUR", 1),  # 0.8 cents are one
        (126, "USD", "EUR", 101),
        (160, "JPY", "EUR", 100),
        (161, "JPY", "EUR", 101),
        (128, "JPY", "USD", 100),
        (100, "USD", "JPY", 128),
        (101, "USD", "JPY", 130),
        (385, "KWD", "EUR", 100),
        (386, "KWD", "EUR", 101),
        (100, "EUR", "KWD", 385),
        (80, "GBP", "USD", 125),
        (AMOUNT_MINOR_MAX, "EUR", "USD", -(-AMOUNT_MINOR_MAX * 5 // 4)),
        (0, "EUR", "USD", 0),
    ],
)
def test_an_amount_is_converted_exactly_and_rounded_up(
    amount_minor: int, currency: str, base_currency: str, expected: int
) -> None:
    assert (
        to_base(
            amount_minor=amount_minor, currency=currency, base_currency=base_currency, rates=RATES
        )
        == expected
    )


def test_nothing_is_converted_where_the_currency_is_the_base_currency() -> None:
    for amount in (-1, 0, 79):
        assert to_base(amount_minor=amount, currency="SEK", base_currency="SEK", rates={}) == amount


def test_nothing_needs_no_rate() -> None:
    assert to_base(amount_minor=0, currency="SEK", base_currency="USD", rates={}) == 0


@pytest.mark.parametrize("missing", ["USD", "EUR"])
def test_without_both_rates_there_is_no_amount(missing: str) -> None:
    rates = {name: rate for name, rate in RATES.items() if name != missing}
    assert to_base(amount_minor=1, currency="EUR", base_currency="USD", rates=rates) is None


@pytest.mark.parametrize(
    "rate",
    ["", "0", "0.0", "-1", "+1", "1e3", "NaN", "Infinity", "1,5", "1.", ".5", " 1", "1\n", "½",
     "٣", "1" * 21, "1." + "1" * 21],
)  # fmt: skip
def test_what_is_no_positive_decimal_is_no_rate(rate: str) -> None:
    rates = {"EUR": rate, "USD": "1"}
    assert to_base(amount_minor=1, currency="EUR", base_currency="USD", rates=rates) is None
    assert to_base(amount_minor=1, currency="USD", base_currency="EUR", rates=rates) is None


def test_the_longest_rates_are_read() -> None:
    rates = {"EUR": "1" * 20 + "." + "1" * 20, "USD": "1" * 20 + "." + "1" * 20}
    assert to_base(amount_minor=7, currency="EUR", base_currency="USD", rates=rates) == 7


@pytest.mark.parametrize(
    ("age_days", "max_age_days", "usable"),
    [(0, 0, True), (1, 0, False), (5, 5, True), (6, 5, False), (-1, 5, False), (None, 5, False)],
)
def test_a_rate_serves_as_long_as_the_policy_says(
    age_days: int | None, max_age_days: int, usable: bool
) -> None:
    facts = with_facts(currency="JPY", amount_minor=128, rates_age_days=age_days)
    parameters = replace(BASE, rate_max_age_days=max_age_days)
    assert usable_rates(facts, parameters) == (FACTS.rates if usable else {})
    assert base_amount(facts, parameters) == (100 if usable else None)
    assert base_sum({"JPY": 128}, facts, parameters) == (100 if usable else None)


def test_sums_are_rounded_up_each_and_miss_a_rate_together() -> None:
    assert base_sum({}, FACTS, BASE) == 0
    assert base_sum({"USD": 7}, FACTS, BASE) == 7
    assert base_sum({"USD": 7, "JPY": 1, "EUR": 1}, FACTS, BASE) == 7 + 1 + 2
    assert base_sum({"USD": 7, "SEK": 1}, FACTS, BASE) is None
    assert base_sum({"SEK": 1, "USD": 7}, FACTS, BASE) is None
    assert base_sum({"USD": 7, "SEK": 0}, FACTS, BASE) == 7


currencies = st.sampled_from(["USD", "EUR", "JPY", "KWD", "ISK"])
rates = st.fixed_dictionaries(
    {
        name: st.decimals(min_value="0.0000000001", max_value=10**9, places=10).map("{:f}".format)
        for name in ("USD", "EUR", "JPY", "KWD", "ISK")
    }
)
amounts = st.integers(min_value=0, max_value=AMOUNT_MINOR_MAX)


@on_any_machine
@given(amounts, currencies, currencies, rates)
def test_a_conversion_is_the_exact_one_rounded_up(
    amount: int, currency: str, base: str, rates: dict[str, str]
) -> None:
    converted = to_base(amount_minor=amount, currency=currency, base_currency=base, rates=rates)
    exact = (
        Fraction(amount, 10 ** decimals(currency))
        / Fraction(rates[currency])
        * Fraction(rates[base])
        * 10 ** decimals(base)
    )
    if currency == base:
        assert converted == amount
    else:
        assert converted is not None
        assert converted - 1 < exact <= converted


@on_any_machine
@given(amounts, amounts, currencies, currencies, rates)
def test_more_money_is_never_less_in_the_base_currency(
    one: int, other: int, currency: str, base: str, rates: dict[str, str]
) -> None:
    low, high = (
        to_base(amount_minor=amount, currency=currency, base_currency=base, rates=rates)
        for amount in sorted((one, other))
    )
    assert low is not None
    assert high is not None
    assert low <= high
