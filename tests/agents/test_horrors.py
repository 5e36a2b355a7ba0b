"""The hand-made horrors on every operation of the document, by everybody who may call it.

What is expected is the same everywhere: a 4xx that names the part, a problem, and no row. Single
fields with their own rules are in test_bad_input.py.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client

from agents.models import AgentSession, IdempotencyValue
from effects.states import State
from refunds.models import RefundAction
from tests.agents.conftest import Caller, read
from tests.agents.operations import OPERATIONS, Operation, World, world
from tests.agents.test_bad_input import MALFORMED, rows
from tests.agents.test_whole_bodies import send
from tests.stack import MakeStack

pytestmark = pytest.mark.django_db

every = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.operation_id)
with_content = pytest.mark.parametrize(
    "operation",
    [one for one in OPERATIONS if one.takes_content],
    ids=lambda one: one.operation_id,
)
METHODS = ("GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")

# As JSON text, what no field of any type can be.
WRONG_VALUES = [
    "1.5",
    "1e3",
    "-0",
    "NaN",
    "9223372036854775808",
    "9" * 5_000,
    '"\\u0000"',
    '"a\\u0000b"',
    '"\\ud800"',
    json.dumps("x" * 20_000),
    '{"unknown": 1}',
    "[" * 20 + "]" * 20,
]
# In a path, what no id can be.
WRONG_IDS = [
    "a%00b",
    "a%20b",
    "%FF",
    "a%ED%A0%80b",
    "4821%0A",
    "a" * 300,
    "a" * 5_000,
    "%F0%9F%92%A9",
    "a:b:c:d",
    "%2e%2e%5C",
]


@pytest.fixture
def here(caller: Caller, settings: Any) -> Iterator[World]:
    """The world, in which nothing may have changed at the end."""
    # A test asks more in a second than a conversation in a minute.
    settings.SESSION_REQUESTS_PER_MINUTE = 100_000
    made = world(caller)
    before = everything()
    yield made
    assert everything() == before
    assert RefundAction.objects.get().state == State.AWAITING_APPROVAL
    assert AgentSession.objects.get().revoked_at is None


def everything() -> dict[str, int]:
    """How many rows there are of everything that a request could write."""
    return rows() | {
        "AgentSession": AgentSession.objects.count(),
        "IdempotencyValue": IdempotencyValue.objects.count(),
    }


@with_content
def test_what_is_not_one_json_object_is_400(here: World, operation: Operation) -> None:
    for caller, _ in here.ways(operation):
        for text in MALFORMED:
            response = caller.call(operation.method, here.address(operation), text)
            assert read(response, 400)["type"].endswith(":malformed-json"), text[:40]


@with_content
def test_another_content_type_is_415(here: World, operation: Operation) -> None:
    for caller, body in here.ways(operation):
        data = json.dumps(body or {}).encode()
        for content_type in (
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/json; charset=utf-16",
            "application/problem+json",
            "application/xml",
            "nonsense",
            "",
        ):
            response = caller.call(
                operation.method, here.address(operation), data, content_type=content_type
            )
            assert read(response, 415)["type"].endswith(":unsupported-media-type"), content_type
        packed = {"Content-Encoding": "gzip"}
        read(caller.call(operation.method, here.address(operation), data, **packed), 415)


@with_content
def test_a_body_that_is_too_large_is_413(here: World, operation: Operation) -> None:
    for caller, body in here.ways(operation):
        for size in (64 * 1024 + 1, 300_000, 2_000_000):
            data = json.dumps(body or {}).encode().ljust(size)
            response = caller.call(operation.method, here.address(operation), data)
            assert read(response, 413)["type"].endswith(":body-too-large"), size


@with_content
def test_a_body_that_does_not_come_whole_is_refused(here: World, operation: Operation) -> None:
    for caller, body in here.ways(operation):
        data = json.dumps(body or {}).encode()
        for status, sent, environ in (
            (411, data, {"HTTP_TRANSFER_ENCODING": "chunked"}),
            (411, b"", {"HTTP_TRANSFER_ENCODING": "chunked"}),
            (411, data, {"HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": str(len(data))}),
            (411, data, {"HTTP_TRANSFER_ENCODING": "identity"}),
            (400, b"", {"CONTENT_LENGTH": str(len(data))}),
            (400, data[:-1], {"CONTENT_LENGTH": str(len(data))}),
            (400, data, {"CONTENT_LENGTH": str(len(data) + 1)}),
        ):
            read(send(caller, operation.method, here.address(operation), sent, **environ), status)


@with_content
def test_every_field_refuses_what_no_field_can_be_and_is_named(
    here: World, operation: Operation
) -> None:
    for caller, body in here.ways(operation):
        for name in body or {}:
            others = {other: value for other, value in body.items() if other != name}
            start = json.dumps(others)[:-1] + (", " if others else "")
            for wrong in WRONG_VALUES:
                text = f"{start}{json.dumps(name)}: {wrong}}}".encode()
                answer = read(caller.call(operation.method, here.address(operation), text), 422)
                assert re.split(r"[.\[]", answer["field"])[0] == name, (wrong[:40], answer)
            twice = f"{json.dumps(body)[:-1]}, {json.dumps(name)}: 1}}".encode()
            answer = read(caller.call(operation.method, here.address(operation), twice), 422)
            assert {"field": name, "reason": "is given twice"} in answer["fields"]


@with_content
def test_a_field_that_nobody_knows_is_named(here: World, operation: Operation) -> None:
    for caller, body in here.ways(operation):
        for name in ("unknown", "a\x00b", "\ud800", "x" * 5_000, "", "__proto__", "agent"):
            wrong = (body or {}) | {name: 1}
            answer = read(caller.call(operation.method, here.address(operation), wrong), 422)
            shown = name[:80].encode("utf-8", "backslashreplace").decode()
            assert shown in [found["field"] for found in answer["fields"]] or shown == ""


@every
def test_a_parameter_that_nobody_knows_or_comes_twice_is_named(
    here: World, operation: Operation
) -> None:
    for caller, body in here.ways(operation):
        address = here.address(operation)
        queries = {"unknown=1": "unknown", "a%00b=1": "a\x00b", "unknown": "unknown"}
        queries |= {f"{name}=1&{name}=1": name for name in operation.query_parameters}
        queries |= {f"{name}=%FF": name for name in operation.query_parameters}
        queries |= {f"{name}=a%00b": name for name in operation.query_parameters}
        queries |= {f"{name}=": name for name in operation.query_parameters}
        queries |= {"&".join(f"a{n}=1" for n in range(2_000)): "query"}
        for query, name in queries.items():
            answer = read(caller.call(operation.method, f"{address}?{query}", body), 422)
            assert name in [found["field"] for found in answer["fields"]], query[:40]


@every
def test_an_id_that_cannot_be_one_is_named(here: World, operation: Operation) -> None:
    for caller, body in here.ways(operation):
        for name in operation.path_parameters:
            for wrong in WRONG_IDS:
                address = here.address(operation, **{name: wrong})
                answer = read(caller.call(operation.method, address, body), 422)
                assert name in [found["field"] for found in answer["fields"]], wrong[:40]


@every
def test_nobody_else_is_let_in(here: World, operation: Operation) -> None:
    known = {caller.key for caller in here.callers.values()}
    address = here.address(operation)
    for text in known:
        kind, prefix, secret = text.rsplit("_", 2)
        for wrong in (
            f"{kind}_{prefix}_{'0' * len(secret)}",
            f"{kind}_{'0' * len(prefix)}_{secret}",
            text[:-1],
            text + "0",
            text.upper(),
            f"{text} {text}",
            f"{text},{text}",
            "x" * 8_000,
            "\u00e4",
            "%00",
        ):
            read(Caller(wrong).call(operation.method, address, operation.body("AgentKey")), 401)
        for header in ("", text, f"Basic {text}", f"Bearer{text}", "Bearer", "Bearer "):
            response: Any = Client(raise_request_exception=False).generic(
                operation.method,
                f"/api/v1{address}",
                json.dumps(operation.body("AgentKey") or {}),
                content_type="application/json",
                headers={"Authorization": header} if header else {},
            )
            read(response, 401)
        inside: Any = Client(raise_request_exception=False).generic(
            operation.method, f"/api/v1{address}?access_token={text}&token={text}"
        )
        assert inside.status_code in (401, 422)
    if "Session" not in operation.credentials:
        tools = here.callers["Session"]
        response = tools.call(operation.method, address, operation.body("AgentKey"))
        assert read(response, 403)["type"].endswith(":forbidden")


@pytest.mark.parametrize("path", sorted({one.path for one in OPERATIONS}))
def test_another_method_is_405_and_names_the_right_ones(here: World, path: str) -> None:
    right = {one.method for one in OPERATIONS if one.path == path}
    # /refunds/withdraw and /sessions/current also fit /refunds/{action_id} and {session_id}.
    for method in METHODS:
        if method in right:
            continue
        response = here.callers["AgentKey"].call(method, path.format(**here.ids))
        if response.status_code == 422:
            assert "{" not in path
            continue
        assert read(response, 405)["type"].endswith(":method-not-allowed"), method
        assert right <= set(response["Allow"].split(", "))


# No transaction of this process stays open while the stack starts: Postgres would end it.
@pytest.mark.django_db(transaction=True)
def test_slow_bodies_are_read_whole_and_keep_nobody_else_waiting(make_stack: MakeStack) -> None:
    stack = make_stack(workers=0, beat=0)
    found = re.search(r"ro_live_\w+", stack.manage("agent_key", "create", "shop"))
    assert found is not None
    url = urlsplit(stack.url)
    assert url.hostname is not None
    host, port = url.hostname, url.port or 80
    ids = {"order_id": "1", "action_id": "refund:order-1:request-1", "session_id": "abc"}

    def begin(operation: Operation, body: bytes) -> socket.socket:
        connection = socket.create_connection((host, port), timeout=30)
        connection.sendall(
            f"{operation.method} /api/v1{operation.path.format(**ids)} HTTP/1.1\r\n"
            f"Host: {url.netloc}\r\nAuthorization: Bearer {found.group(0)}\r\n"
            f"Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
        )
        return connection

    statuses: dict[str, int] = {}

    def drip(operation: Operation) -> None:
        body = json.dumps(operation.body("AgentKey") or {}).encode().ljust(40)
        with begin(operation, body) as connection:
            for start in range(0, len(body), len(body) // 4 + 1):
                time.sleep(0.4)
                connection.sendall(body[start : start + len(body) // 4 + 1])
            with connection.makefile("rb") as answer:
                statuses[operation.operation_id] = int(answer.readline().split()[1])

    slow = [one for one in OPERATIONS if one.takes_content]
    threads = [threading.Thread(target=drip, args=(one,)) for one in slow]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    begun = time.monotonic()
    with socket.create_connection((host, port), timeout=30) as connection:
        connection.sendall(f"GET /healthz HTTP/1.0\r\nHost: {url.netloc}\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            assert b"200" in answer.readline()
    waited = time.monotonic() - begun
    for thread in threads:
        thread.join(timeout=60)
    assert waited < 1.5
    assert set(statuses) == {one.operation_id for one in slow}
    assert statuses.pop("mirror_order") == 201
    assert set(statuses.values()) == {404}
    # One that never ends is let go of.
    abandoned = [begin(one, b"x" * 100) for one in slow]
    for connection in abandoned:
        connection.sendall(b'{"amount_minor": 1')
        connection.close()
    with urllib.request.urlopen(f"{stack.url}/healthz", timeout=10) as answer:
        assert answer.status == 200
