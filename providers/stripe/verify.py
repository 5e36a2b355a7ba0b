"""Is this the answer to what we sent? A swapped answer must never be believed."""

from __future__ import annotations

from effects.outcomes import ProviderEffect
from providers.stripe.payload import Payload


def what_differs(
    *, effect: ProviderEffect, payload: Payload, sent_key: str, echoed_key: str
) -> str:
    """The first thing in which an answer differs from what was sent; "" when nothing does.

    Stripe repeats the idempotency key in a header. One that differs is somebody else's answer; one
    that is absent proves nothing, since the echo is not a documented promise, and the metadata
    carries our action id anyway.
    """
    if echoed_key and echoed_key != sent_key:
        return "idempotency_key"
    if effect.amount_minor != payload.amount_minor:
        return "amount"
    if effect.currency.upper() != payload.currency.upper():
        return "currency"
    if effect.payment_ref != payload.belongs_to:
        return payload.kind.belongs_to
    for key in ("action_id", "instance"):
        if effect.metadata.get(key) != payload.metadata[key]:
            return f"metadata.{key}"
    return ""
