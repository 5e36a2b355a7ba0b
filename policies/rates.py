"""Amounts in the policy's base currency, by pinned rates of one day. Integers only.

A converted amount is rounded up to the next minor unit, so that no limit is passed by rounding.
"""

from __future__ import annotations

import re
from decimal import Decimal

from kernel.money import decimals
from policies.facts import Facts
from policies.parameters import Parameters

# More digits than any currency has had; what is longer is no rate.
_RATE = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?", re.ASCII)


def to_base(
    *, amount_minor: int, currency: str, base_currency: str, rates: dict[str, str]
) -> int | None:
    """An amount in minor units of the base currency, rounded up; None without both rates.

    `rates`: units of each currency for one unit of a reference that both are quoted in. Nothing is
    converted where the currency is the base currency, and nothing is nothing in any of them.
    """
    if currency == base_currency or amount_minor == 0:
        return amount_minor
    own, base = _rate(rates.get(currency)), _rate(rates.get(base_currency))
    if own is None or base is None:
        return None
    # amount / 10^decimals / own * base * 10^decimals of the base, over one denominator.
    numerator = amount_minor * base[0] * own[1] * _minor_units(base_currency)
    denominator = base[1] * own[0] * _minor_units(currency)
    return -(-numerator // denominator)


def _minor_units(currency: str) -> int:
    return int(10 ** decimals(currency))


def _rate(text: str | None) -> tuple[int, int] | None:
    """A rate as numerator and denominator, both positive; None where there is none."""
    if text is None or not _RATE.fullmatch(text):
        return None
    numerator, denominator = Decimal(text).as_integer_ratio()
    return (numerator, denominator) if numerator else None


def usable_rates(facts: Facts, parameters: Parameters) -> dict[str, str]:
    """The pinned rates, unless the policy calls them too old or their age is not known."""
    age_days = facts.rates_age_days
    if age_days is None or not 0 <= age_days <= parameters.rate_max_age_days:
        return {}
    return facts.rates


def base_amount(facts: Facts, parameters: Parameters) -> int | None:
    """The refund's amount in the base currency; None: no rate of the day."""
    return to_base(
        amount_minor=facts.amount_minor,
        currency=facts.currency,
        base_currency=parameters.base_currency,
        rates=usable_rates(facts, parameters),
    )


def base_sum(sums_minor: dict[str, int], facts: Facts, parameters: Parameters) -> int | None:
    """Sums by currency as one in the base currency; None: one of them has no rate of the day."""
    total = 0
    for currency, amount_minor in sums_minor.items():
        converted = to_base(
            amount_minor=amount_minor,
            currency=currency,
            base_currency=parameters.base_currency,
            rates=usable_rates(facts, parameters),
        )
        if converted is None:
            return None
        total += converted
    return total
