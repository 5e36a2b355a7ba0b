"""The frozen request: built once when an action is recorded, read back unchanged for each send."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kernel.errors import Bug
from providers.stripe.objects import CREDIT, REFUND, ObjectKind

METADATA_VALUE_CHARACTERS_MAX = 500  # https://docs.stripe.com/api/metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The content of one frozen request. `amount_minor` is what the customer gets, positive."""

    kind: ObjectKind
    account: str
    amount_minor: int
    currency: str
    belongs_to: str
    metadata: dict[str, str]
    params: dict[str, Any]


def stripe_reason(reason_code: str) -> str:
    """Stripe's word for one of our reason codes. Ours travels in the metadata."""
    return (
        "duplicate"
        if reason_code in {"duplicate", "duplicate_charge"}
        else ("requested_by_customer")
    )


def refund_payload(
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
    """The request of a refund as a JSON value, to be frozen by `kernel.canonical.canonical_json`.

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
    _checked(REFUND, value)
    return value


def credit_payload(
    *,
    account: str,
    customer: str,
    amount_minor: int,
    currency: str,
    action_id: str,
    instance: str,
    order_id: str,
    request_id: str,
) -> dict[str, Any]:
    """The request of a store credit, in the same way. Raises Bug when a value cannot be sent."""
    value = {
        "account": account,
        "amount": -amount_minor if type(amount_minor) is int else amount_minor,
        "currency": currency,
        "customer": customer,
        # The customer may read it on an invoice.
        "description": f"Store credit for order {order_id}",
        "metadata": {
            "action_id": action_id,
            "instance": instance,
            "order_id": order_id,
            "request_id": request_id,
        },
    }
    _checked(CREDIT, value)
    return value


def parse_payload(kind: ObjectKind, text: str) -> Payload:
    """Read a frozen request back. Raises Bug when it is not exactly one that was built here."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Bug(f"the frozen payload is not JSON: {error}") from error
    return _checked(kind, value)


def _checked(kind: ObjectKind, value: Any) -> Payload:
    fields = {*kind.texts, "amount", "metadata"}
    if not isinstance(value, dict) or value.keys() != fields:
        raise Bug(f"a {kind.noun} payload has exactly the fields {sorted(fields)}")
    amount, metadata = value["amount"], value["metadata"]
    # Left out or None, Stripe refunds everything that is left of the payment; True is 1.
    if type(amount) is not int or amount * kind.sign <= 0:
        sign = "positive" if kind.sign > 0 else "negative"
        raise Bug(f"a {kind.noun}'s amount is an explicit {sign} integer, not {_short(amount)}")
    for field, pattern in kind.texts.items():
        text = value[field]
        if not isinstance(text, str) or pattern.fullmatch(text) is None:
            raise Bug(f"not a {field} that may be sent: {_short(text)}")
    if not isinstance(metadata, dict) or metadata.keys() != kind.metadata_keys:
        raise Bug(f"a {kind.noun}'s metadata has exactly the keys {sorted(kind.metadata_keys)}")
    for key, text in metadata.items():
        if not isinstance(text, str) or not 0 < len(text) <= METADATA_VALUE_CHARACTERS_MAX:
            raise Bug(f"metadata {key} is 1 to {METADATA_VALUE_CHARACTERS_MAX} characters")
    # In a fixed order: equal payloads give equal bytes.
    in_order = value | {"metadata": {key: metadata[key] for key in sorted(metadata)}}
    return Payload(
        kind=kind,
        account=value["account"],
        amount_minor=amount * kind.sign,
        currency=value["currency"],
        belongs_to=value[kind.belongs_to],
        metadata=metadata,
        params={name: in_order[name] for name in kind.sent},
    )


def _short(value: object) -> str:
    return repr(value)[:80]
