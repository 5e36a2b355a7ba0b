"""What nobody should ask is told as a problem with its request id, and is no error of ours."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from django.test import Client

from agents.models import SecurityEvent
from tests import builders
from tests.agents.conftest import Caller, read, refund_body

pytestmark = pytest.mark.django_db

RESOURCE = "/.well-known/oauth-protected-resource/mcp"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "path",
    [
        *("/api", "/api/", "/api/v1", "/api/v2/refunds", "/mcp/", "/mcp/x"),
        *("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/x"),
        "/.well-known/oauth-authorization-server",
    ],
)
def test_beside_the_agents_addresses_is_a_problem_and_no_redirect(method: str, path: str) -> None:
    client = Client(enforce_csrf_checks=True)
    response: Any = client.generic(method, path, b"{}", content_type="application/json")
    assert read(response, 404)["type"] == "urn:refund-once:problem:not-found"


def test_the_page_of_staff_still_gets_its_slash() -> None:
    assert Client().get("/admin")["Location"] == "/admin/"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_what_mcp_is_can_only_be_read(method: str) -> None:
    response: Any = Client(enforce_csrf_checks=True).generic(method, RESOURCE, b"")
    assert read(response, 405)["type"] == "urn:refund-once:problem:method-not-allowed"
    assert "GET" in response["Allow"]
    assert Client().get(RESOURCE)["Content-Type"] == "application/json"


@pytest.mark.parametrize("path", ["/.well-known/oauth-protected-resource", "/mcp/", "/api/v1"])
def test_a_real_credential_there_is_recorded(caller: Caller, path: str) -> None:
    response: Any = Client().get(path, headers={"Authorization": f"Bearer {caller.key}"})
    read(response, 404)
    assert SecurityEvent.objects.get().kind == SecurityEvent.Kind.ELSEWHERE


@pytest.mark.parametrize("host", ["evil", "evil.example:80", "a b", "127.0.0.1:x", "[::"])
@pytest.mark.parametrize("path", ["/api/v1/refunds", "/mcp", "/admin/login/", RESOURCE, "/x"])
def test_another_host_is_a_problem_and_one_quiet_line(
    host: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        response: Any = Client().get(path, HTTP_HOST=host)
    assert read(response, 400)["type"] == "urn:refund-once:problem:host-unknown"
    assert host not in json.loads(response.content)["detail"]
    (line,) = [one for one in caplog.records if one.name == "agents.hosts"]
    assert (line.levelname, line.exc_info) == ("WARNING", None)
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


def test_an_encoding_is_named_in_any_case_and_a_token_after_any_space(caller: Caller) -> None:
    order = builders.order()
    body = refund_body(order.order_id)
    sent = {"Content-Encoding": "IDENTITY", "Authorization": f"Bearer   {caller.key}"}
    read(caller.call("POST", "/refunds", body, **sent), 201)
    read(caller.call("POST", "/refunds", body, **{"Content-Encoding": "GZIP"}), 415)
