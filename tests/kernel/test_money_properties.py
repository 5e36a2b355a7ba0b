"""Amounts of every currency, by properties: nothing is converted, nothing is lost."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.errors import InvalidInput
from kernel.money import (
    AMOUNT_MINOR_MAX,
    THREE_DECIMAL,
    WHOLE_UNITS_IN_HUNDREDTHS,
    ZERO_DECIMAL,
    decimals,
    format_amount,
    require_amount,
    require_currency,
)

currencies = st.sampled_from(
    [
        "USD",
        "EUR",
        *sorted(ZERO_DECIMAL),
        *sorted(THREE_DECIMAL),
        *sorted(WHOLE_UNITS_IN_HUNDREDTHS),
    ]
)
amounts = st.integers(min_value=1, max_value=AMOUNT_MINOR_MAX)


@given(st.integers(min_value=-AMOUNT_MINOR_MAX, max_value=AMOUNT_MINOR_MAX), currencies)
def test_a_shown_amount_is_the_amount(amount_minor: int, currency: str) -> None:
    shown, _, code = format_amount(amount_minor, currency).partition(" ")
    assert code == currency
    assert Decimal(shown).scaleb(decimals(currency)) == amount_minor
    whole, _, fraction = shown.lstrip("-").partition(".")
    assert len(fraction) == decimals(currency)
    assert whole == "0" or not whole.startswith("0")


@given(amounts, currencies)
def test_an_amount_is_accepted_as_it_is_or_refused_with_its_reason(
    amount_minor: int, currency: str
) -> None:
    step = 10 if currency in THREE_DECIMAL else 100 if currency in WHOLE_UNITS_IN_HUNDREDTHS else 1
    if amount_minor % step == 0:
        assert require_amount(amount_minor, currency=currency) == amount_minor
    else:
        with pytest.raises(InvalidInput, match=f"divisible by {step} in {currency}"):
            require_amount(amount_minor, currency=currency)


@given(st.floats() | st.text() | st.booleans() | st.none() | st.decimals())
def test_only_an_integer_is_an_amount(value: object) -> None:
    with pytest.raises(InvalidInput):
        require_amount(value, currency="USD")


@given(st.text() | st.integers() | st.none() | st.binary())
def test_a_currency_is_three_ascii_letters(value: object) -> None:
    is_one = isinstance(value, str) and len(value) == 3 and value.isascii() and value.isalpha()
    if is_one:
        assert require_currency(value) == str(value).upper()
    else:
        with pytest.raises(InvalidInput, match="currency"):
            require_currency(value)


def test_each_currency_stands_on_one_list() -> None:
    assert not ZERO_DECIMAL & THREE_DECIMAL
    assert not ZERO_DECIMAL & WHOLE_UNITS_IN_HUNDREDTHS
    assert decimals("JPY") == 0
    assert decimals("KWD") == 3
    assert decimals("ISK") == decimals("UGX") == decimals("USD") == 2
