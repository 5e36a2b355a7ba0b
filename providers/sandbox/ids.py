"""Ids that look like Stripe's: a payment's charge, refunds and transactions share an infix."""

import random
import string

# Not the module's own generator: a test tool that seeds that one (hypothesis does, for every
# example) would have the same ids made again, for other objects.
_RANDOM = random.SystemRandom()
_ALPHABET = string.ascii_letters + string.digits


def letters(count: int) -> str:
    return "".join(_RANDOM.choices(_ALPHABET, k=count))


def digits(count: int) -> str:
    return "".join(_RANDOM.choices(string.digits, k=count))


def infix() -> str:
    return "3" + letters(15)


def infix_of(id: str) -> str:
    """What `ch_3AbC…` shares with `re_3AbC…`; ids given by a test have none and get a fresh one."""
    _, _, rest = id.partition("_")
    return rest[:16] if len(rest) >= 24 and rest.startswith("3") else infix()


def new(prefix: str, shared: str | None = None) -> str:
    return f"{prefix}_{shared}{letters(8)}" if shared else f"{prefix}_{letters(24)}"


def request() -> str:
    return f"req_{letters(14)}"
