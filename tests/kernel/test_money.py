"""Amounts: integers of minor units, refused when they are not, shown in their own currency."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidInput
from kernel.money import AMOUNT_MINOR_MAX, format_amount, require_amount, require_currency


@pytest.mark.parametrize(
    ("amount_minor", "currency", "shown"),
    [
        (7_900, "USD", "79.00 USD"),
        (5_800, "JPY", "5800 JPY"),
        (5_120, "KWD", "5.120 KWD"),
        (5, "USD", "0.05 USD"),
        (0, "EUR", "0.00 EUR"),
        (-3_000, "USD", "-30.00 USD"),
        (500, "ISK", "5.00 ISK"),
    ],
)
def test_an_amount_is_shown_in_its_currency(amount_minor: int, currency: str, shown: str) -> None:
    assert format_amount(amount_minor, currency) == shown


@pytest.mark.parametrize("value", [10.1, 79.0, "79", "10.1", True, None, [79], 79j])
def test_what_is_not_an_integer_is_not_an_amount(value: object) -> None:
    with pytest.raises(InvalidInput, match="amount_minor"):
        require_amount(value, currency="USD")


@pytest.mark.parametrize("value", [0, -1, AMOUNT_MINOR_MAX + 1])
def test_an_amount_has_limits(value: int) -> None:
    with pytest.raises(InvalidInput, match="between"):
        require_amount(value, currency="USD")


@pytest.mark.parametrize(
    ("value", "currency", "is_accepted"),
    [
        (5_120, "KWD", True),
        (5_124, "KWD", False),
        (500, "ISK", True),
        (550, "ISK", False),
        (100, "UGX", True),
        (101, "UGX", False),
        (1, "JPY", True),
        (AMOUNT_MINOR_MAX, "USD", True),
    ],
)
def test_odd_currencies_take_only_what_the_provider_takes(
    value: int, currency: str, is_accepted: bool
) -> None:
    if is_accepted:
        assert require_amount(value, currency=currency) == value
        return
    with pytest.raises(InvalidInput, match="divisible"):
        require_amount(value, currency=currency)


@pytest.mark.parametrize("value", ["US", "USDT", "U$D", "", None, 840, "ÜSD", "usd\n", "ﬁx"])
def test_a_currency_is_three_letters(value: object) -> None:
    with pytest.raises(InvalidInput, match="currency"):
        require_currency(value)


def test_a_currency_in_lower_case_is_the_same_one() -> None:
    assert require_currency("usd") == "USD"
