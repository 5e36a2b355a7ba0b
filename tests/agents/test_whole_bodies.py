"""Bodies that did not come whole are refused before anything is done: in chunks, or cut off."""

from __future__ import annotations

import io
import json
import re
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client

from effects.states import State
from tests import builders
from tests.agents.conftest import Caller
from tests.stack import MakeStack

pytestmark = pytest.mark.django_db


def send(caller: Caller, method: str, path: str, body: bytes, **environ: Any) -> Any:
    """A request whose WSGI environment is as a server gives it; answers Django's response."""
    given = {
        "REQUEST_METHOD": method,
        "PATH_INFO": f"/api/v1{path}",
        "CONTENT_TYPE": "application/json",
        "HTTP_AUTHORIZATION": f"Bearer {caller.key}",
        "wsgi.input": io.BytesIO(body),
    }
    return Client(raise_request_exception=False).request(**given, **environ)


@pytest.mark.parametrize("call", ["propose", "mirror", "withdraw"])
@pytest.mark.parametrize(
    ("status", "kind", "body", "environ"),
    [
        (411, "length-required", b'{"x": 1}', {"HTTP_TRANSFER_ENCODING": "chunked"}),
        (411, "length-required", b"", {"HTTP_TRANSFER_ENCODING": "chunked"}),
        (400, "malformed-json", b"", {"CONTENT_LENGTH": "16"}),
        (400, "malformed-json", b"{}", {"CONTENT_LENGTH": "16"}),
    ],
)
def test_a_body_that_does_not_come_whole_is_refused_and_nothing_is_done(
    caller: Caller, call: str, status: int, kind: str, body: bytes, environ: dict[str, Any]
) -> None:
    action = builders.action(
        builders.order(), amount_minor=15_000, proposer=caller.key.split("_")[2]
    )
    method, path = {
        "propose": ("POST", "/refunds"),
        "mirror": ("PUT", "/orders/4821"),
        "withdraw": ("POST", f"/refunds/{action.action_id}/withdraw"),
    }[call]
    answer = send(caller, method, path, body, **environ)
    assert answer.status_code == status, answer.content
    assert json.loads(answer.content)["type"] == f"urn:refund-once:problem:{kind}"
    action.refresh_from_db()
    assert action.state == State.AWAITING_APPROVAL


def test_a_stranger_is_told_401_before_a_body_is_read() -> None:
    answer = send(Caller("none"), "POST", "/refunds", b"", CONTENT_LENGTH="16")
    assert answer.status_code == 401


def test_the_document_declares_that_a_length_is_required() -> None:
    document = Client().get("/api/v1/openapi.json").json()
    with_body = [
        operation["responses"]
        for operations in document["paths"].values()
        for method, operation in operations.items()
        if method in ("post", "put")
    ]
    assert len(with_body) == 6
    assert all("411" in responses and "400" in responses for responses in with_body)


@pytest.mark.parametrize(("body", "status"), [(None, 200), ({}, 200), ({"why": "x"}, 422)])
def test_withdraw_takes_no_fields(caller: Caller, body: Any, status: int) -> None:
    action = builders.action(
        builders.order(), amount_minor=15_000, proposer=caller.key.split("_")[2]
    )
    answer = caller.call("POST", f"/refunds/{action.action_id}/withdraw", body)
    assert answer.status_code == status
    action.refresh_from_db()
    assert (action.state == State.CANCELLED) == (status == 200)


# No transaction of this process stays open while the stack starts: Postgres would end it.
@pytest.mark.django_db(transaction=True)
def test_the_real_server_tells_a_body_that_is_not_whole_and_takes_no_address_from_a_header(
    make_stack: MakeStack,
) -> None:
    stack = make_stack()
    found = re.search(r"ro_live_\w+", stack.manage("agent_key", "create", "shop"))
    assert found is not None
    url = urlsplit(stack.url)
    assert url.hostname is not None
    for framing, status in (
        ("Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 411),
        ("Content-Length: 16\r\n\r\n", 400),
        ("Content-Length: 16\r\n\r\n{}", 400),
        ("Content-Length: 2\r\n\r\n{}", 404),
        ("\r\n", 404),
    ):
        with socket.create_connection((url.hostname, url.port or 80), timeout=10) as connection:
            connection.sendall(
                f"POST /api/v1/refunds/refund:order-1:request-1/withdraw HTTP/1.1\r\n"
                f"Host: {url.netloc}\r\nAuthorization: Bearer {found.group(0)}\r\n"
                f"Content-Type: application/json\r\nConnection: close\r\n{framing}".encode()
            )
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as answer:
                assert answer.readline().split()[1] == str(status).encode(), framing
    # A header must not choose the address: gunicorn takes SCRIPT_NAME from a proxy by default.
    for script in ("/mcp", "/foo"):
        with socket.create_connection((url.hostname, url.port or 80), timeout=10) as connection:
            connection.sendall(
                f"GET /mcp/metrics HTTP/1.1\r\nHost: {url.netloc}\r\nSCRIPT_NAME: {script}\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            with connection.makefile("rb") as answer:
                assert answer.readline().split()[1] == b"404", script
