"""What callers give, checked before it is sent: ids, amounts, currencies, times, lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from refund_once_client.exchange import is_duration
from refund_once_client.problems import refused_here

T = TypeVar("T")

# Above it JSON numbers stop being exact (RFC 8259, section 6); the service's own limit.
AMOUNT_MINOR_MAX = 2**53 - 1

_IDENTIFIER = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CURRENCY = re.compile(r"[A-Z]{3}")
_ACTION_ID = re.compile(r"refund:order-[A-Za-z0-9_.-]{1,64}:request-[A-Za-z0-9_.-]{1,64}")
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundLine:
    """Which line of the order a part of the amount is for."""

    line_id: str
    amount_minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderLine:
    """One line of an order. None: not known."""

    line_id: str
    amount_minor: int
    tax_minor: int | None = None
    final_sale: bool | None = None
    returned: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """What an order was paid with. `account` "" is the platform's own."""

    payment_intent: str
    provider: str = "stripe"
    account: str = ""
    method: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Customer:
    """Whom an order was sold to."""

    ref: str
    email: str
    risk: str | None = None


def identifier(value: Any, *, field: str) -> str:
    """1 to 64 of `A-Z a-z 0-9 _ . -`. Raises Problem."""
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
        raise refused_here(field, "must be 1 to 64 characters of A-Z a-z 0-9 _ . -")
    return value


def identifier_in_path(value: Any, *, field: str) -> str:
    """An identifier that an address can end in. Raises Problem."""
    if identifier(value, field=field) in (".", ".."):
        raise refused_here(field, "cannot stand in an address: servers take it for a folder")
    return str(value)


def action_id(value: Any) -> str:
    """The id of a refund action. Raises Problem."""
    if not isinstance(value, str) or not _ACTION_ID.fullmatch(value):
        raise refused_here("action_id", "must be an action's id, like refund:order-4821:request-3")
    return value


def session_id(value: Any) -> str:
    """The public id of a session, never its token. Raises Problem."""
    if not isinstance(value, str) or value.startswith("ro_") or not _SESSION_ID.fullmatch(value):
        raise refused_here("session_id", "must be the session_id of an opened session")
    return value


def action_id_of(*, order_id: Any, request_id: Any) -> str:
    """The id that the refund of this request of this order has. Raises Problem."""
    order = identifier(order_id, field="order_id")
    return f"refund:order-{order}:request-{identifier(request_id, field='request_id')}"


def amount(value: Any, *, field: str = "amount_minor", at_least: int = 1) -> int:
    """Minor units as an int, and nothing that only looks like one. Raises Problem."""
    if type(value) is not int:
        raise refused_here(field, "must be an int of minor units, like 7900 for 79.00 USD")
    if not at_least <= value <= AMOUNT_MINOR_MAX:
        raise refused_here(field, f"must be between {at_least} and {AMOUNT_MINOR_MAX}")
    return value


def currency(value: Any) -> str:
    """Three letters, in upper case. Raises Problem."""
    upper = value.upper() if isinstance(value, str) and value.isascii() else ""
    if not _CURRENCY.fullmatch(upper):
        raise refused_here("currency", "must be an ISO 4217 code of three letters, like USD")
    return upper


def text(value: Any, *, field: str) -> str:
    """A string of Unicode. What else it must be, the service says. Raises Problem."""
    if not isinstance(value, str):
        raise refused_here(field, "must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refused_here(field, "must not hold half of a surrogate pair") from None
    return value


def flag(value: Any, *, field: str) -> bool | None:
    """True, False, or None where it is not known. Raises Problem."""
    if value is not None and not isinstance(value, bool):
        raise refused_here(field, "must be True, False or None")
    return value


def duration(value: Any, *, field: str) -> float:
    """Seconds, above 0. Raises Problem."""
    if not is_duration(value) or value <= 0:
        raise refused_here(field, "must be a number of seconds above 0, and not infinite")
    return float(value)


def time(value: Any, *, field: str) -> str:
    """A time with its zone, as RFC 3339 in UTC. Raises Problem."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise refused_here(field, "must be a datetime with its zone")
    try:
        return value.astimezone(UTC).isoformat()
    except OverflowError:
        raise refused_here(field, "must be between 2000 and 2100") from None


def payment(value: Any) -> dict[str, str]:
    """As the service takes it. Raises Problem."""
    known = _one(value, Payment, field="payment")
    return {
        name: text(getattr(known, name), field=f"payment.{name}")
        for name in ("provider", "payment_intent", "account", "method")
    }


def customer(value: Any) -> dict[str, str]:
    """As the service takes it. Raises Problem."""
    known = _one(value, Customer, field="customer")
    sent = {name: getattr(known, name) for name in ("ref", "email")}
    if known.risk is not None:
        sent["risk"] = known.risk
    return {name: text(part, field=f"customer.{name}") for name, part in sent.items()}


def _one(value: Any, kind: type[T], *, field: str) -> T:
    if not isinstance(value, kind):
        raise refused_here(field, f"must be of {kind.__name__}")
    return value


def _each(lines: Any, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Each line, and what it is called."""
    if not isinstance(lines, Iterable):
        raise refused_here("lines", f"must be a list of {kind.__name__}")
    for at, line in enumerate(lines):
        where = f"lines[{at}]"
        yield where, _one(line, kind, field=where)


def refund_lines(lines: Iterable[RefundLine]) -> list[dict[str, Any]]:
    """As the service takes them. Raises Problem."""
    return [
        {
            "line_id": text(line.line_id, field=f"{where}.line_id"),
            "amount_minor": amount(line.amount_minor, field=f"{where}.amount_minor"),
        }
        for where, line in _each(lines, RefundLine)
    ]


def order_lines(lines: Iterable[OrderLine]) -> list[dict[str, Any]]:
    """As the service takes them. Raises Problem."""
    sent = []
    for where, line in _each(lines, OrderLine):
        tax = line.tax_minor
        known = {
            "line_id": text(line.line_id, field=f"{where}.line_id"),
            "amount_minor": amount(line.amount_minor, field=f"{where}.amount_minor", at_least=0),
            "tax_minor": None
            if tax is None
            else amount(tax, field=f"{where}.tax_minor", at_least=0),
            "final_sale": flag(line.final_sale, field=f"{where}.final_sale"),
            "returned": flag(line.returned, field=f"{where}.returned"),
        }
        sent.append(without_none(known))
    return sent


def without_none(known: dict[str, Any]) -> dict[str, Any]:
    """Only what is known is sent."""
    return {name: value for name, value in known.items() if value is not None}
