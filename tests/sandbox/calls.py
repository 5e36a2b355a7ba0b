"""How these tests call the sandbox: the real SDK, and raw sockets where the bytes matter."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest
import stripe

from providers.sandbox import Sandbox

stripe.enable_telemetry = False

TIMEOUT_SECONDS = 0.5


def stripe_client(
    sandbox: Sandbox, *, api_key: str | None = None, timeout_seconds: float = 5.0
) -> stripe.StripeClient:
    return stripe.StripeClient(
        api_key or sandbox.api_key,
        base_addresses={"api": sandbox.url},
        max_network_retries=0,
        http_client=stripe.RequestsClient(timeout=timeout_seconds),
    )


def impatient_client(sandbox: Sandbox) -> stripe.StripeClient:
    return stripe_client(sandbox, timeout_seconds=TIMEOUT_SECONDS)


def paid(sandbox: Sandbox, amount: int = 7900, **more: Any) -> str:
    """The id of a new payment."""
    return str(sandbox.payment(amount=amount, **more)["payment_intent"]["id"])


def refund(
    client: stripe.StripeClient,
    payment: str,
    amount: int = 2500,
    key: str | None = "k1",
    **more: Any,
) -> stripe.Refund:
    options: Any = {"idempotency_key": key} if key else {}
    params: Any = {"payment_intent": payment, "amount": amount, **more}
    return client.v1.refunds.create(params, options)


def failure(call: Callable[[], object]) -> Any:
    """The StripeError that `call` raises."""
    with pytest.raises(stripe.StripeError) as caught:
        call()
    return caught.value


@contextmanager
def connected(sandbox: Sandbox) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", sandbox.port), timeout=5) as sock:
        yield sock


def raw_request(
    method: str, path: str, params: dict[str, Any] | None = None, **headers: str
) -> bytes:
    body = urlencode(params or {}).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: sandbox",
        "Authorization: Bearer sk_test_sandbox",
        "Content-Type: application/x-www-form-urlencoded",
        f"Content-Length: {len(body)}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def until_closed(sock: socket.socket) -> bytes:
    """All bytes up to FIN. Raises ConnectionResetError on RST."""
    got = b""
    while data := sock.recv(65_536):
        got += data
    return got


def create_raw(sandbox: Sandbox, payment: str, key: str = "k1") -> bytes:
    """POST one refund and read until the sandbox ends the connection."""
    with connected(sandbox) as sock:
        sock.sendall(
            raw_request(
                "POST",
                "/v1/refunds",
                {"payment_intent": payment, "amount": 2500},
                Idempotency_Key=key,
            )
        )
        return until_closed(sock)
