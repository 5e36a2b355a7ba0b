"""Every address and every tool, held against what agents are for. What is not listed is refused.

A new address of the API, of MCP or beside the staff site fails here until somebody has said which
credentials it is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from agents.api import api
from agents.keys import create_key
from agents.models import Scope, SecurityEvent
from refunds.models import Order
from tests import builders
from tests.agents.conftest import Caller, order_body, read, refund_body
from tests.agents.mcp_client import Tools
from tests.agents.test_sessions import opened

pytestmark = pytest.mark.django_db

ORDERS, REFUNDS, SESSIONS = Scope.ORDERS.value, Scope.REFUNDS.value, Scope.SESSIONS.value
SESSION = "a session"

# Which credentials open what. Nothing else of the API opens anything.
ALLOWED: dict[tuple[str, str], set[str]] = {
    ("PUT", "orders/{order_id}"): {ORDERS},
    ("GET", "orders/{order_id}"): {ORDERS, SESSION},
    ("POST", "sessions"): {SESSIONS},
    ("GET", "sessions/current"): {SESSIONS, SESSION},
    ("DELETE", "sessions/{session_id}"): {SESSIONS},
    ("POST", "refunds"): {REFUNDS, SESSION},
    ("GET", "refunds"): {REFUNDS, SESSION},
    ("POST", "refunds/withdraw"): {REFUNDS, SESSION},
    ("GET", "refunds/{action_id}"): {REFUNDS, SESSION},
    ("POST", "refunds/{action_id}/withdraw"): {REFUNDS, SESSION},
    ("POST", "policy/explain"): {REFUNDS},
}
# Anybody reads these, with and without a credential.
PUBLIC = {
    "/api/v1/docs",
    "/api/v1/openapi.json",
    "/.well-known/oauth-protected-resource/mcp",
    "/healthz",
    "/readyz",
}
TOOLS = {"get_refundable", "propose_refund", "refund_status", "withdraw_refund"}
# The whole site outside the API: the beginning of every address; the last answers 404 to the rest.
BESIDE = (
    *("/metrics", "/mcp", "/admin/", "/.well-known/oauth-protected-resource/mcp"),
    "/^(?:api|mcp|",
)


def routes(resolver: Any = None, before: str = "/") -> Iterator[str]:
    """Every address of the site, as the list of addresses writes it."""
    for pattern in (resolver or get_resolver()).url_patterns:
        here = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern, here)
        else:
            assert isinstance(pattern, URLPattern)
            yield here


def filled(route: str) -> str:
    """An address that a route fits, with ids that are nobody's."""
    route = route.replace(
        "^(?P<app_label>effects|auth|policies|refunds|approvals|agents)/$", "auth/"
    )
    route = route.replace("(?P<url>.*)$", "no/such/page")
    route = route.replace(r"^(?:api|mcp|\.well-known)\b", ".well-known/none")
    return re.sub(r"<[^>]*>", "1", route)


def operations() -> Iterator[tuple[str, str]]:
    """Every call of the API, as Ninja has it."""
    for prefix, router in api._routers:
        for path, view in router.path_operations.items():
            for operation in view.operations:
                for method in operation.methods:
                    yield method, f"{prefix}{path}".strip("/")


def sample(order: Order, path: str, *, action_id: str, session_id: str) -> str:
    values = {"order_id": order.order_id, "action_id": action_id, "session_id": session_id}
    return "/" + path.format(**values)


def body_of(method: str, path: str, order: Order) -> Any:
    if method in ("GET", "DELETE"):
        return None
    bodies: dict[str, Any] = {
        "orders/{order_id}": order_body(),
        "sessions": {"order_id": order.order_id, "request_id": "8"},
        "refunds": refund_body(order.order_id, request_id="7"),
        "policy/explain": {
            name: value
            for name, value in refund_body(order.order_id).items()
            if name != "request_id"
        },
    }
    return bodies.get(path)


def test_every_call_of_the_api_is_listed() -> None:
    assert set(operations()) == set(ALLOWED)


def test_every_address_beside_the_api_is_listed() -> None:
    beside = [route for route in routes() if not route.startswith("/api/v1/")]
    assert [route for route in beside if not route.startswith(BESIDE)] == []
    inside = {route for route in routes() if route.startswith("/api/v1/")}
    named = {f"/api/v1/{path}".replace("{", "<").replace("}", ">") for _, path in ALLOWED}
    assert inside - named == {"/api/v1/docs", "/api/v1/openapi.json", "/api/v1/"}


@pytest.mark.parametrize("call", ALLOWED, ids=" ".join)
@pytest.mark.parametrize("credential", [*Scope.values, SESSION])
def test_a_credential_opens_what_it_is_listed_for_and_nothing_else(
    call: tuple[str, str], credential: str
) -> None:
    order = builders.order()
    method, path = call
    if credential == SESSION:
        session, who = opened(Caller(create_key(name="shop").key), order)
        session_id = session["session_id"]
    else:
        who, session_id = Caller(create_key(name="shop", scopes=[credential]).key), "0" * 18
    action_id = f"refund:order-{order.order_id}:request-7"
    address = sample(order, path, action_id=action_id, session_id=session_id)
    response = who.call(method, address, body_of(method, path, order))
    if credential in ALLOWED[call]:
        # 422: a key's list of refunds names its order.
        assert response.status_code in (200, 201, 204, 404, 422), response.content
        assert not SecurityEvent.objects.exists()
        return
    assert read(response, 403)["type"] == "urn:refund-once:problem:forbidden"
    event = SecurityEvent.objects.get()
    assert event.kind == SecurityEvent.Kind.NOT_FOR_THIS
    assert event.address == f"{method} /api/v1/{path}"


def test_every_tool_is_listed_and_takes_no_id() -> None:
    session, _ = opened(Caller(create_key(name="shop").key), builders.order())
    tools = Tools(session["token"]).result("tools/list")["tools"]
    assert {tool["name"] for tool in tools} == TOOLS
    for tool in tools:
        properties = tool["inputSchema"].get("properties", {})
        assert not [name for name in properties if name.endswith("_id") or name == "id"], tool
        assert tool["inputSchema"]["additionalProperties"] is False


def test_a_key_opens_no_tool() -> None:
    response = Tools(create_key(name="shop").key).request("tools/list")
    assert response.status_code == 403
    event = SecurityEvent.objects.get()
    assert (event.kind, event.address) == (SecurityEvent.Kind.NOT_FOR_THIS, "POST /mcp")


@pytest.fixture
def credentials() -> list[str]:
    """The strongest of both kinds."""
    key = create_key(name="shop").key
    return [key, opened(Caller(key), builders.order())[0]["token"]]


def test_an_agents_credential_finds_nothing_anywhere_else(credentials: list[str]) -> None:
    elsewhere = {filled(route) for route in routes()} | {
        "/", "/static/console/console.css", "/admin", "/metrics/", "/mcp/", "//api/v1/refunds",
        "/API/v1/refunds", "/favicon.ico", "/api/v2/refunds", "/.well-known/security.txt",
    }  # fmt: skip
    elsewhere = {
        address
        for address in elsewhere
        if not address.startswith("/api/v1/") and address not in {*PUBLIC, "/mcp"}
    }
    assert len(elsewhere) > 150
    client = Client()
    for text in credentials:
        for address in sorted(elsewhere):
            response = client.get(address, headers={"Authorization": f"Bearer {text}"})
            assert response.status_code == 404, address
            assert response["Content-Type"] == "application/problem+json", address
            assert "Set-Cookie" not in response.headers, address
    found = set(SecurityEvent.objects.values_list("kind", "actor"))
    assert {kind for kind, _ in found} == {SecurityEvent.Kind.ELSEWHERE}
    templates = set(SecurityEvent.objects.values_list("address", flat=True))
    assert {"GET /metrics", "GET /admin/login/", "GET (no such address)"} <= templates
    assert "GET /admin/refunds/order/{object_id}/change/" in templates


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PROPFIND"])
def test_by_no_method(credentials: list[str], method: str) -> None:
    for address in ("/admin/login/", "/metrics", "/nowhere"):
        response = Client(enforce_csrf_checks=True).generic(
            method, address, b"", headers={"Authorization": f"Bearer {credentials[0]}"}
        )
        assert response.status_code == 404
    assert SecurityEvent.objects.count() == 3
    if method == "PROPFIND":
        assert SecurityEvent.objects.filter(address__startswith="OTHER ").count() == 3


SPELLINGS = [
    "Bearer {}",
    "bearer {}",
    "BEARER {}",
    "Bearer   {}",
    "\tBearer {} ",
    "{}",
    "Token {}",
    "Basic abc,Bearer {}",
    "Bearer {},Bearer x",
    "Bearer realm={}",
    'Bearer "{}"',
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_however_it_is_spelled(credentials: list[str], spelling: str) -> None:
    for text in credentials:
        for sent in (text, text.upper()):
            response = Client().get("/metrics", headers={"Authorization": spelling.format(sent)})
            assert response.status_code == 404
    assert SecurityEvent.objects.filter(kind=SecurityEvent.Kind.ELSEWHERE).count() == 2


def test_an_address_of_the_api_that_does_not_exist_is_none_of_theirs(
    credentials: list[str],
) -> None:
    for text in credentials:
        read(Caller(text).call("GET", "/customers"), 404)
    found = SecurityEvent.objects.filter(kind=SecurityEvent.Kind.ELSEWHERE)
    assert set(found.values_list("address", flat=True)) == {"GET /api/v1/"}
    assert found.count() == 2


def test_what_anybody_may_read_is_read_with_a_credential_too(credentials: list[str]) -> None:
    for address in sorted(PUBLIC):
        response = Client().get(address, headers={"Authorization": f"Bearer {credentials[0]}"})
        assert response.status_code == 200, address
    assert not SecurityEvent.objects.exists()


def test_what_is_no_credential_passes_and_writes_nothing() -> None:
    for sent in ("", "Bearer x", "Bearer ro_", "Basic dXNlcjpwYXNz", "Bearer eyJhbGciOi.x.y"):
        response = Client().get("/metrics", headers={"Authorization": sent} if sent else {})
        assert response.status_code == 200, sent
    made_up = "Bearer ro_live_000000000000_" + "0" * 64
    assert Client().get("/metrics", headers={"Authorization": made_up}).status_code == 404
    assert not SecurityEvent.objects.exists()


def test_nobody_is_signed_in_by_it(credentials: list[str]) -> None:
    """A person's cookie and an agent's credential together are no person."""
    client = Client()
    client.force_login(builders.person())
    assert client.get("/admin/").status_code == 200
    response = client.get("/admin/", headers={"Authorization": f"Bearer {credentials[0]}"})
    assert response.status_code == 404


def test_it_stands_before_whatever_reads_or_begins_something(settings: Any) -> None:
    place = settings.MIDDLEWARE.index("agents.elsewhere.refuse_agents_elsewhere")
    for name in settings.MIDDLEWARE[:place]:
        assert name.rpartition(".")[2] in ("SecurityMiddleware", "answer_health_first")
