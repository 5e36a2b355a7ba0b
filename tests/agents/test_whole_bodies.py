"""Bodies that did not come whole are refused before anything is done: in chunks, or cut off."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.test import Client

from effects.states import State
from tests import builders
from tests.agents.conftest import Caller

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
    action = builders.action(builders.order(), amount_minor=15_000)
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
    assert len(with_body) == 3
    assert all("411" in responses and "400" in responses for responses in with_body)


@pytest.mark.parametrize(("body", "status"), [(None, 200), ({}, 200), ({"why": "x"}, 422)])
def test_withdraw_takes_no_fields(caller: Caller, body: Any, status: int) -> None:
    action = builders.action(builders.order(), amount_minor=15_000)
    answer = caller.call("POST", f"/refunds/{action.action_id}/withdraw", body)
    assert answer.status_code == status
    action.refresh_from_db()
    assert (action.state == State.CANCELLED) == (status == 200)
