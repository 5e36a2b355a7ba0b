"""One request over both doors at the same instant; a caller who hangs up; a lost database."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from django.db import connection
from psycopg import sql

from config.stack import Stack
from refunds.models import RefundAction, RefundEvent
from tests import builders
from tests.agents.conftest import Caller, order_body
from tests.agents.mcp_client import LEGACY, NOW, WORDS, Tools, opened
from tests.stack import MakeStack, with_path

DELIVERIES = 60
CANARY = "Ada Lovelace is ill"


@pytest.mark.django_db(transaction=True)
def test_sixty_proposals_of_one_request_over_both_doors_are_one_action(caller: Caller) -> None:
    """Every tenth says another amount: it must find the first one, or be the first."""
    order = builders.order()
    sessions = [opened(caller, order).token for _ in range(3)]
    ready = threading.Barrier(DELIVERIES)

    def deliver(number: int) -> str:
        token = sessions[number % 3]
        amount = 3_000 if number % 10 == 9 else 7_900
        try:
            ready.wait(timeout=30)
            if number % 2:
                words = WORDS | {"amount_minor": amount, "currency": order.currency}
                status = Caller(token).call("POST", "/refunds", words).status_code
                return {201: "recorded", 200: "replayed", 409: "conflict"}.get(status, "unanswered")
            tools = Tools(token, era=NOW if number % 4 else LEGACY[0])
            outcome: str = tools.call("propose_refund", **WORDS | {"amount_minor": amount})[
                "outcome"
            ]
            return outcome
        finally:
            connection.close()

    with ThreadPoolExecutor(DELIVERIES) as threads:
        outcomes = Counter(threads.map(deliver, range(DELIVERIES)))
    # A crowd on a slow machine may wait for the order's lock for too long.
    assert set(outcomes) <= {"recorded", "replayed", "conflict", "unanswered"}
    assert outcomes["recorded"] == 1, outcomes
    assert outcomes["replayed"] > 0
    assert outcomes["conflict"] > 0
    assert RefundAction.objects.count() == 1
    assert RefundEvent.objects.filter(kind="refund.proposed").count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_calls_in_one_turn_are_one_action(caller: Caller) -> None:
    tools = opened(caller)
    ready = threading.Barrier(2)

    def deliver(_: int) -> str:
        try:
            ready.wait(timeout=30)
            outcome: str = Tools(tools.token).call("propose_refund", **WORDS)["outcome"]
            return outcome
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(deliver, range(2))) == ["recorded", "replayed"]
    assert RefundAction.objects.count() == 1


def eventually(found: Callable[[], bool], *, seconds: float = 10) -> None:
    """Wait until something is so; fail when it does not become so."""
    until = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < until
        time.sleep(0.05)


def session_of(stack: Stack, order_id: str) -> Tools:
    """Tools of a session that the stack's own HTTP API opened."""
    found = re.search(r"ro_live_\w+", stack.manage("agent_key", "create", f"shop-{order_id}"))
    assert found is not None
    with httpx.Client(
        base_url=f"{stack.url}/api/v1", headers={"Authorization": f"Bearer {found.group(0)}"}
    ) as backend:
        backend.put(f"/orders/{order_id}", json=order_body()).raise_for_status()
        answer = backend.post("/sessions", json={"order_id": order_id, "request_id": "7"})
    token: str = answer.raise_for_status().json()["token"]
    return Tools(token)


def send_raw(stack: Stack, tools: Tools, *, note: str) -> socket.socket:
    """A proposal on a connection of its own, sent whole; its answer is not read yet."""
    params = {"name": "propose_refund", "arguments": WORDS | {"note": note}}
    body = json.dumps(tools.message("tools/call", params)).encode()
    url = urlsplit(stack.url)
    headers = {
        "Host": url.netloc,
        "Authorization": f"Bearer {tools.token}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **tools.headers("tools/call", params),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    opened_socket = socket.create_connection((str(url.hostname), url.port or 80), timeout=20)
    opened_socket.sendall(f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + body)
    return opened_socket


def outcome_over_http(stack: Stack, tools: Tools, name: str, **arguments: Any) -> str:
    """The outcome of one call on a connection of its own."""
    params = {"name": name, "arguments": arguments}
    answer = httpx.post(
        f"{stack.url}/mcp",
        json=tools.message("tools/call", params),
        headers={"Authorization": f"Bearer {tools.token}", **tools.headers("tools/call", params)},
        timeout=20,
    )
    assert answer.status_code == 200, answer.text
    result = answer.json()["result"]
    assert result["isError"] is False
    outcome: str = result["structuredContent"]["outcome"]
    return outcome


@contextmanager
def nobody_may_connect(stack: Stack) -> Iterator[None]:
    """The stack's database ends every connection, and takes none."""
    name = urlsplit(stack.database_url).path.lstrip("/")
    allow = sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS {}")
    with psycopg.connect(with_path(stack.database_url, "postgres"), autocommit=True) as admin:
        admin.execute(allow.format(sql.Identifier(name), sql.Literal(False)))
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        try:
            yield
        finally:
            admin.execute(allow.format(sql.Identifier(name), sql.Literal(True)))


# No transaction of this process stays open while the stack starts: Postgres would end it.
@pytest.mark.django_db(transaction=True)
def test_a_caller_who_hangs_up_and_a_database_that_is_away_on_the_real_server(
    make_stack: MakeStack,
) -> None:
    stack = make_stack(env={"LOG_LEVEL": "DEBUG"}, workers=0, beat=0)
    tools = session_of(stack, "4821")
    with psycopg.connect(stack.database_url, autocommit=True) as database:

        def count(query: str) -> int:
            row = database.execute(query).fetchone()
            assert row is not None
            return int(row[0])

        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        # Somebody has the order while the proposal arrives, so that the caller can go before it is
        # recorded.
        with psycopg.connect(stack.database_url) as holder:
            holder.execute("SELECT 1 FROM refunds_order FOR UPDATE")
            for _ in range(2):
                gone = send_raw(stack, tools, note=CANARY)
                eventually(lambda: count(waiting) > 0)
                gone.close()
            assert count("SELECT count(*) FROM refunds_refundaction") == 0
            holder.commit()
        eventually(lambda: count("SELECT count(*) FROM refunds_refundaction") == 1)
        with send_raw(stack, tools, note=CANARY) as stayed, stayed.makefile("rb") as answer:
            assert answer.readline().split()[1] == b"200"
            assert b'"outcome":"replayed"' in answer.read()
        proposed = "SELECT count(*) FROM refunds_refundevent WHERE kind = 'refund.proposed'"
        assert count(proposed) == 1
    assert outcome_over_http(stack, tools, "refund_status") == "found"
    with nobody_may_connect(stack):
        assert outcome_over_http(stack, tools, "refund_status") == "unanswered"
        assert outcome_over_http(stack, tools, "get_refundable") == "unanswered"
        assert outcome_over_http(stack, tools, "propose_refund", **WORDS) == "unanswered"
    assert outcome_over_http(stack, tools, "refund_status") == "found"
    logs = "".join(log.read_text(errors="replace") for log in stack.folder.glob("*.log"))
    assert "MCP: replayed" in logs
    assert "Lovelace" not in logs
    assert tools.token not in logs
