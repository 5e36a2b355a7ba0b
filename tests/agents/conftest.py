"""A caller with a key of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client

from agents.keys import create_key


class Caller:
    """The API as a merchant's backend uses it. `body` is JSON unless it is bytes already."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.client = Client(raise_request_exception=False)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        **headers: str,
    ) -> Any:
        """One request; answers Django's response."""
        sent = {"Authorization": f"Bearer {self.key}", **headers}
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body)
        return self.client.generic(
            method,
            f"/api/v1{path}",
            data,
            content_type=content_type if data else "application/octet-stream",
            headers={name: value for name, value in sent.items() if value},
        )


def read(response: HttpResponse, status: int) -> Any:
    """The JSON of an answer that must have this status."""
    assert response.status_code == status, (response.status_code, response.content)
    assert response["X-Request-ID"]
    value = json.loads(response.content)
    if status >= 400:
        assert response["Content-Type"] == "application/problem+json"
        assert value["status"] == status
        assert value["instance"] == f"urn:refund-once:request:{response['X-Request-ID']}"
    return value


def order_body(**changes: Any) -> dict[str, Any]:
    """An order that cost 200.00, as a backend states it."""
    return {
        "currency": "USD",
        "captured_minor": 20_000,
        "payment": {"provider": "stripe", "payment_intent": "pi_4821"},
        "customer": {"ref": "cus_88", "email": "ada@example.com"},
        "placed_at": "2026-11-01T10:00:00Z",
        **changes,
    }


def refund_body(order_id: str, **changes: Any) -> dict[str, Any]:
    """A proposal of 79.00."""
    return {
        "order_id": order_id,
        "request_id": "3",
        "amount_minor": 7_900,
        "currency": "USD",
        "reason": "requested_by_customer",
        **changes,
    }


@pytest.fixture
def caller(request: pytest.FixtureRequest) -> Caller:
    """A caller whose key has been used today already, as nearly every request's has."""
    marker = request.node.get_closest_marker("django_db")
    transactional = bool(marker and marker.kwargs.get("transaction"))
    request.getfixturevalue("transactional_db" if transactional else "db")
    caller = Caller(create_key(name="shop").key)
    caller.call("GET", "/orders/none")
    return caller
