"""A refund as Stripe shows it, read once at the boundary into our own shape."""

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


class NotARefund(ValueError):
    """The text is not a refund object we can read."""


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
    """A refund object as a ProviderEffect. Raises NotARefund when anything we need is missing.

    `currency` is in upper case, as everywhere in this product.
    """
    if not isinstance(value, dict) or value.get("object") != "refund":
        raise NotARefund("not a refund object")
    metadata = value.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise NotARefund("metadata is not an object")
    amount, created = value.get("amount"), value.get("created")
    if type(amount) is not int:
        raise NotARefund("amount is not an integer")
    status = _required(value, "status")
    return ProviderEffect(
        ref=_required(value, "id"),
        amount_minor=amount,
        currency=_required(value, "currency").upper(),
        payment_ref=_optional(value, "payment_intent"),
        status=status,
        settlement=SETTLEMENT.get(status, "pending"),
        created_at=_time(created),
        failure_reason=_optional(value, "failure_reason"),
        pending_reason=_optional(value, "pending_reason"),
        metadata={
            clean_text(str(key), characters_max=100): clean_text(str(text), characters_max=1000)
            for key, text in metadata.items()
        },
    )


def _required(value: dict[str, Any], field: str) -> str:
    text = _optional(value, field)
    if not text:
        raise NotARefund(f"{field} is missing")
    return text


def _optional(value: dict[str, Any], field: str) -> str:
    text = value.get(field)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise NotARefund(f"{field} is not text")
    return clean_text(text, characters_max=255)


def _time(created: Any) -> datetime | None:
    if type(created) is not int:
        return None
    try:
        return datetime.fromtimestamp(created, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return None
