"""The frozen request: built once when an action is recorded, read back unchanged for each send."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from kernel.errors import Bug

# Stripe's enum has a third word, `fraudulent`, which puts the customer's card and e-mail on block
# lists. It is never sent. https://docs.stripe.com/api/refunds/create
STRIPE_REASONS = frozenset({"duplicate", "requested_by_customer"})
METADATA_KEYS = frozenset({"action_id", "instance", "reason", "order_id", "request_id"})
METADATA_VALUE_CHARACTERS_MAX = 500  # https://docs.stripe.com/api/metadata

_STRIPE_ID = re.compile(r"[A-Za-z0-9_]{1,255}")
_CURRENCY = re.compile(r"[A-Za-z]{3}")
_FIELDS = frozenset({"account", "amount", "currency", "metadata", "payment_intent", "reason"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The content of one frozen request. `currency` is not sent: it is what the answer must say."""

    account: str
    amount_minor: int
    currency: str
    payment_intent: str
    reason: str
    metadata: dict[str, str]

    def params(self) -> dict[str, Any]:
        """What goes to `POST /v1/refunds`, in a fixed order: equal payloads give equal bytes."""
        return {
            "payment_intent": self.payment_intent,
            "amount": self.amount_minor,
            "reason": self.reason,
            "metadata": {key: self.metadata[key] for key in sorted(self.metadata)},
        }


def stripe_reason(reason_code: str) -> str:
    """Stripe's word for one of our reason codes. Ours travels in the metadata."""
    return (
        "duplicate"
        if reason_code in {"duplicate", "duplicate_charge"}
        else ("requested_by_customer")
    )


def build_payload(
    *,
    account: str,
    payment_intent: str,
    amount_minor: int,
    currency: str,
    reason_code: str,
    action_id: str,
    instance: str,
    order_id: str,
    request_id: str,
) -> dict[str, Any]:
    """The request as a JSON value, to be frozen by `kernel.canonical.canonical_json`.

    Nothing in it changes from one attempt to the next: Stripe refuses a repeated key whose
    parameters differ. Raises Bug when a value cannot be sent.
    """
    value = {
        "account": account,
        "amount": amount_minor,
        "currency": currency,
        "metadata": {
            "action_id": action_id,
            "instance": instance,
            "order_id": order_id,
            "reason": reason_code,
            "request_id": request_id,
        },
        "payment_intent": payment_intent,
        "reason": stripe_reason(reason_code),
    }
    _checked(value)
    return value


def parse_payload(text: str) -> Payload:
    """Read a frozen request back. Raises Bug when it is not exactly one that was built here."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Bug(f"the frozen payload is not JSON: {error}") from error
    return _checked(value)


def _checked(value: Any) -> Payload:
    if not isinstance(value, dict) or value.keys() != _FIELDS:
        raise Bug(f"a refund payload has exactly the fields {sorted(_FIELDS)}")
    amount, metadata = value["amount"], value["metadata"]
    # Left out or None, Stripe refunds everything that is left of the payment; True is 1.
    if type(amount) is not int or amount <= 0:
        raise Bug(f"a refund's amount is an explicit positive integer, not {_short(amount)}")
    if not _text(value["payment_intent"], _STRIPE_ID):
        raise Bug(f"not a payment intent: {_short(value['payment_intent'])}")
    if not _text(value["currency"], _CURRENCY):
        raise Bug(f"not a currency: {_short(value['currency'])}")
    if value["reason"] not in STRIPE_REASONS:
        raise Bug(f"not a reason that may be sent: {_short(value['reason'])}")
    if not isinstance(value["account"], str):
        raise Bug(f"not an account: {_short(value['account'])}")
    if not isinstance(metadata, dict) or metadata.keys() != METADATA_KEYS:
        raise Bug(f"a refund's metadata has exactly the keys {sorted(METADATA_KEYS)}")
    for key, text in metadata.items():
        if not isinstance(text, str) or not 0 < len(text) <= METADATA_VALUE_CHARACTERS_MAX:
            raise Bug(f"metadata {key} is 1 to {METADATA_VALUE_CHARACTERS_MAX} characters")
    return Payload(
        account=value["account"],
        amount_minor=amount,
        currency=value["currency"],
        payment_intent=value["payment_intent"],
        reason=value["reason"],
        metadata=metadata,
    )


def _short(value: object) -> str:
    return repr(value)[:80]


def _text(value: object, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
