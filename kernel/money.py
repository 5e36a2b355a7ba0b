"""Money as integer minor units beside a currency code, and how a person reads it.

The number of decimals is how *Stripe* counts a currency, which is not always ISO 4217
(https://docs.stripe.com/currencies). It is used for display and validation; nothing here ever
converts an amount.
"""

from __future__ import annotations

import re

from kernel.errors import InvalidInput

# Stripe's zero-decimal list. UGX stands in it too, but Stripe's special cases say that UGX is sent
# with two decimals that are 00, and that row is the operative one.
ZERO_DECIMAL = frozenset(
    [
        "BIF",
        "CLP",
        "DJF",
        "GNF",
        "JPY",
        "KMF",
        "KRW",
        "MGA",
        "PYG",
        "RWF",
        "VND",
        "VUV",
        "XAF",
        "XOF",
        "XPF",
    ]
)  # docs.stripe.com/currencies#zero-decimal
THREE_DECIMAL = frozenset(["BHD", "JOD", "KWD", "OMR", "TND"])
# Sent with two decimals for compatibility, though they have none: 5 ISK is 500.
WHOLE_UNITS_IN_HUNDREDTHS = frozenset({"ISK", "UGX"})

# 2^53 - 1: above it JSON numbers stop being exact in canonical form. Stripe's own ceiling is lower.
AMOUNT_MINOR_MAX = 2**53 - 1

_CODE = re.compile(r"[A-Z]{3}")


def require_currency(value: object, *, field: str = "currency") -> str:
    """Return the three upper-case letters of a currency; lower case is accepted."""
    if not isinstance(value, str) or not value.isascii() or not _CODE.fullmatch(value.upper()):
        raise InvalidInput(field=field, reason="must be a three-letter currency code, like USD")
    return value.upper()


def decimals(currency: str) -> int:
    """How many decimals a person reads in an amount of this currency: 0, 2 or 3."""
    if currency in ZERO_DECIMAL:
        return 0
    return 3 if currency in THREE_DECIMAL else 2


def require_amount(value: object, *, currency: str, field: str = "amount_minor") -> int:
    """Return a positive integer amount the provider would accept in this currency.

    Booleans, floats and strings are refused, however whole they look. Three-decimal amounts must
    be divisible by 10, ISK and UGX by 100 (https://docs.stripe.com/currencies).
    """
    if type(value) is not int:
        raise InvalidInput(field=field, reason="must be a JSON integer of minor units, like 7900")
    if not 0 < value <= AMOUNT_MINOR_MAX:
        raise InvalidInput(field=field, reason=f"must be between 1 and {AMOUNT_MINOR_MAX}")
    if currency in THREE_DECIMAL and value % 10:
        raise InvalidInput(field=field, reason=f"must be divisible by 10 in {currency}")
    if currency in WHOLE_UNITS_IN_HUNDREDTHS and value % 100:
        raise InvalidInput(field=field, reason=f"must be divisible by 100 in {currency}")
    return value


def format_amount(amount_minor: int, currency: str) -> str:
    """An amount for people: `79.00 USD`, `5800 JPY`, `5.120 KWD`."""
    places = decimals(currency)
    sign, digits = ("-" if amount_minor < 0 else ""), str(abs(amount_minor)).rjust(places + 1, "0")
    if places == 0:
        return f"{sign}{digits} {currency}"
    return f"{sign}{digits[:-places]}.{digits[-places:]} {currency}"
