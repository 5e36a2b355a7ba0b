"""What the tests of this room send, and a provider that talks to a loopback server."""

from __future__ import annotations

from typing import Any

from kernel.canonical import canonical_json
from providers.port import SendRequest
from providers.sandbox import Sandbox
from providers.stripe.adapter import StripeProvider
from providers.stripe.payload import credit_payload, refund_payload

ACTION = "refund:order-4821:request-3"
CREDIT_ACTION = "credit:order-4821:request-3"


def a_payload(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "account": "",
        "payment_intent": "pi_1",
        "amount_minor": 7900,
        "currency": "USD",
        "reason_code": "damaged",
        "action_id": ACTION,
        "instance": "shop-1",
        "order_id": "4821",
        "request_id": "3",
    }
    return refund_payload(**(values | changes))


def a_request(*, key: str = ACTION, **changes: Any) -> SendRequest:
    return SendRequest(
        payload=canonical_json(a_payload(**changes)),
        idempotency_key=key,
        account=changes.get("account", ""),
    )


def a_credit_payload(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "account": "",
        "customer": "cus_1",
        "amount_minor": 7900,
        "currency": "USD",
        "action_id": CREDIT_ACTION,
        "instance": "shop-1",
        "order_id": "4821",
        "request_id": "3",
    }
    return credit_payload(**(values | changes))


def a_credit_request(*, key: str = CREDIT_ACTION, **changes: Any) -> SendRequest:
    return SendRequest(
        payload=canonical_json(a_credit_payload(**changes)),
        idempotency_key=key,
        account=changes.get("account", ""),
    )


def provider_of(sandbox: Sandbox, **changes: Any) -> StripeProvider:
    return a_provider(sandbox.url, api_key=sandbox.api_key, **changes)


def a_provider(api_base: str | None, **changes: Any) -> StripeProvider:
    values: dict[str, Any] = {
        "api_key": "sk_test_platform",
        "api_base": api_base,
        "connect_timeout_seconds": 1.0,
        "read_timeout_seconds": 1.0,
        "total_timeout_seconds": 2.5,
    }
    return StripeProvider(**(values | changes))
