"""How many decimals a currency has at Stripe, what amounts it takes, and how errors print them.

Source: Stripe's "Supported currencies". UGX stands there among the zero-decimal ones and again as a
special case sent with two decimals; the special case is the one that works, as for ISK.
"""

from .errors import StripeError, invalid

ZERO_DECIMAL = frozenset(
    [
        "bif",
        "clp",
        "djf",
        "gnf",
        "jpy",
        "kmf",
        "krw",
        "mga",
        "pyg",
        "rwf",
        "vnd",
        "vuv",
        "xaf",
        "xof",
        "xpf",
    ]
)
THREE_DECIMAL = frozenset(["bhd", "jod", "kwd", "omr", "tnd"])
# Sent with two decimals that must be 00.
WHOLE_UNITS_ONLY = frozenset(["isk", "ugx"])
# Stripe takes more than eight digits for these.
LARGE_AMOUNTS = frozenset(["idr", "inr", "cop", "huf", "jpy", "lbp"])
AMOUNT_MINOR_MAX = 99_999_999
LARGE_AMOUNT_MINOR_MAX = 999_999_999_999

_SYMBOLS = {"usd": "$", "eur": "€", "gbp": "£", "jpy": "¥", "cad": "CA$", "aud": "A$"}


def decimals(currency: str) -> int:
    if currency in ZERO_DECIMAL:
        return 0
    return 3 if currency in THREE_DECIMAL else 2


def shown(amount_minor: int, currency: str) -> str:
    """`$30.00` for 3000 usd, without ever going through a float."""
    places = decimals(currency)
    whole, part = divmod(amount_minor, 10**places)
    number = f"{whole:,}" + (f".{part:0{places}d}" if places else "")
    symbol = _SYMBOLS.get(currency)
    return f"{symbol}{number}" if symbol else f"{number} {currency.upper()}"


def check_amount(amount_minor: int, currency: str) -> None:
    """Raise the 400 for an amount that this currency cannot have. The wording is not recorded."""
    limit = LARGE_AMOUNT_MINOR_MAX if currency in LARGE_AMOUNTS else AMOUNT_MINOR_MAX
    if amount_minor > limit:
        raise StripeError(
            status=400,
            code="amount_too_large",
            param="amount",
            message=f"Amount must be no more than {shown(limit, currency)}",
        )
    if currency in WHOLE_UNITS_ONLY and amount_minor % 100:
        raise invalid(
            f"Amounts in {currency} must be divisible by 100.",
            param="amount",
            code="parameter_invalid_integer",
        )
    if currency in THREE_DECIMAL and amount_minor % 10:
        raise invalid(
            f"The least significant digit of an amount in {currency} must be 0.",
            param="amount",
            code="parameter_invalid_integer",
        )
