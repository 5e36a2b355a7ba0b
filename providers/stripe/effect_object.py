"""What Stripe shows, read once at the boundary into our own shape."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from effects.outcomes import ProviderEffect

# https://docs.stripe.com/api/refunds/object#refund_object-status. The list is open: a word we do
# not know has not settled, so it counts as pending and is looked at again.
SETTLEMENT = {
    "succeeded": "succeeded",
    "pending": "pending",
    "requires_action": "requires_action",
    "failed": "failed",
    "canceled": "failed",
}

# What a secret of Stripe looks like; an error may quote a part of one.
_SECRET = re.compile(r"\b(?:sk|rk|pk|whsec)_[A-Za-z0-9_*]+")


class NotReadable(ValueError):
    """The text is not an object we can read."""


def clean_text(text: str, *, characters_max: int) -> str:
    """Text from outside, fit for a database and a log: no secrets, NULs or lone surrogates."""
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")
    return _SECRET.sub("[key]", text)[:characters_max]


def parse_json(body: bytes) -> Any:
    """The JSON value of a body, or None when it is not JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def read_refund(value: Any) -> ProviderEffect:
    """A refund object as a ProviderEffect. Raises NotReadable when anything we need is missing.

    `currency` is in upper case, as everywhere in this product.
    """
    value = required_object(value, "refund")
    status = required_text(value, "status")
    return ProviderEffect(
        ref=required_text(value, "id"),
        amount_minor=required_integer(value, "amount"),
        currency=required_text(value, "currency").upper(),
        payment_ref=optional_text(value, "payment_intent"),
        status=status,
        settlement=SETTLEMENT.get(status, "pending"),
        created_at=read_time(value.get("created")),
        failure_reason=optional_text(value, "failure_reason"),
        pending_reason=optional_text(value, "pending_reason"),
        metadata=read_metadata(value),
    )


def read_credit(value: Any) -> ProviderEffect:
    """A customer balance transaction as a ProviderEffect. Raises NotReadable.

    `payment_ref` is the customer, and `amount_minor` what the customer was given: negative when the
    transaction took something from their balance. It has no status: where it exists, it is done.
    """
    value = required_object(value, "customer_balance_transaction")
    return ProviderEffect(
        ref=required_text(value, "id"),
        amount_minor=-required_integer(value, "amount"),
        currency=required_text(value, "currency").upper(),
        payment_ref=required_text(value, "customer"),
        status="succeeded",
        settlement="succeeded",
        created_at=read_time(value.get("created")),
        metadata=read_metadata(value),
    )


def required_object(value: Any, name: str) -> dict[str, Any]:
    """The value, if it is one of Stripe's objects of that name. Raises NotReadable."""
    if not isinstance(value, dict) or value.get("object") != name:
        raise NotReadable(f"not a {name} object")
    return value


def required_integer(value: dict[str, Any], field: str) -> int:
    number = value.get(field)
    if type(number) is not int:
        raise NotReadable(f"{field} is not an integer")
    return number


def required_text(value: dict[str, Any], field: str) -> str:
    text = optional_text(value, field)
    if not text:
        raise NotReadable(f"{field} is missing")
    return text


def optional_text(value: dict[str, Any], field: str) -> str:
    text = value.get(field)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise NotReadable(f"{field} is not text")
    return clean_text(text, characters_max=255)


def read_metadata(value: dict[str, Any]) -> dict[str, str]:
    """An object's metadata, short and clean. Raises NotReadable."""
    metadata = value.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise NotReadable("metadata is not an object")
    return {
        clean_text(str(key), characters_max=100): clean_text(str(text), characters_max=1000)
        for key, text in metadata.items()
    }


def read_time(created: Any) -> datetime | None:
    """One of Stripe's times, in seconds since 1970; None for what is none."""
    if type(created) is not int:
        return None
    try:
        return datetime.fromtimestamp(created, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return None
