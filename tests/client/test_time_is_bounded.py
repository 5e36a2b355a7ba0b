"""A server that never comes to an end: every call does, in the time that was named."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from refund_once_client import (
    AsyncRefundOnce,
    BoundedTransport,
    NoAnswer,
    OutcomeUnknown,
    Patience,
    RefundOnce,
    RefundSession,
)
from refund_once_client.bounded_http import until
from tests.client.conftest import Client, session_client
from tests.client.test_any_faults import ACTION_ID, PROPOSAL, found
from tests.providers.loopback import Handler, Request, answer_bytes, loopback

KEY = "ro_live_0123456789ab_" + "0" * 64
SESSION = "ro_session_0123456789ab_" + "0" * 64
CERTIFICATE = Path(__file__).parent.parent / "providers/loopback.pem"

TIMEOUT_SECONDS = 0.6
BRIEF = Patience(tries_max=3, total_seconds=1.2, pause_first_seconds=0.05)
# What README promises, and what a busy machine adds.
BOUND_SECONDS = BRIEF.total_seconds + TIMEOUT_SECONDS
SLACK_SECONDS = 1.5
# A server that drips goes on for longer than any of these calls may last.
DRIPS_SECONDS = 12.0


def drips(first: bytes, again: bytes, *, every_seconds: float = 0.1) -> Handler:
    """A beginning, and then the same thing again and again."""

    def handler(connection: socket.socket, request: Request) -> None:
        connection.sendall(first)
        ends_at = time.monotonic() + DRIPS_SECONDS
        while time.monotonic() < ends_at:
            connection.sendall(again)
            time.sleep(every_seconds)

    return handler


DRIPPING = {
    "lines of a head": drips(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
    "letters of a head": drips(b"HTTP/1.1 200 OK\r\nX-A: ", b"b"),
    "100 Continue": drips(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "100 Continue without a pause": drips(
        b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, every_seconds=0
    ),
    "102 Processing": drips(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "a body": drips(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"x"),
    "a body in chunks": drips(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"
    ),
    "the size of a chunk": drips(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;a=", b"b"
    ),
    "nothing": drips(b"", b""),
}


def brief(way: str, url: str, **options: Any) -> Client:
    """A client that gives up soon."""
    options = {"timeout_seconds": TIMEOUT_SECONDS, "patience": BRIEF} | options
    return Client(RefundOnce if way == "blocking" else AsyncRefundOnce, url, KEY, **options)


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """What it takes, and that no thread of the client's is left behind."""
    threads = {thread for thread in threading.enumerate() if not thread.daemon}
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds + SLACK_SECONDS
    assert {thread for thread in threading.enumerate() if not thread.daemon} <= threads


@pytest.mark.parametrize("dripping", DRIPPING)
def test_a_server_that_drips_bounds_no_call_but_is_bounded(way: str, dripping: str) -> None:
    with loopback(DRIPPING[dripping]) as server:
        with ends_within(BOUND_SECONDS), pytest.raises(OutcomeUnknown) as caught:
            brief(way, server.base).propose_refund(**PROPOSAL)
        assert caught.value.may_be_recorded
        assert len(server.requests) > 1


@pytest.mark.parametrize("dripping", ["lines of a head", "100 Continue", "a body"])
def test_tls_does_not_lift_the_bound(dripping: str) -> None:
    trusted = ssl.create_default_context(cafile=CERTIFICATE)
    with loopback(DRIPPING[dripping], certificate=CERTIFICATE) as server:
        transport = BoundedTransport(ssl_context=trusted)
        with (
            httpx.Client(transport=transport, trust_env=False) as http,
            ends_within(BOUND_SECONDS),
            pytest.raises(NoAnswer),
        ):
            brief("blocking", server.base, http=http).get_order("1")
        assert server.requests


def test_answers_over_tls_are_read_and_the_connection_is_used_again() -> None:
    trusted = ssl.create_default_context(cafile=CERTIFICATE)

    def handler(connection: socket.socket, request: Request) -> None:
        connection.sendall(answer_bytes(201, found(201, PROPOSAL | {"action_id": ACTION_ID}).body))

    with loopback(handler, certificate=CERTIFICATE) as server:
        transport = BoundedTransport(ssl_context=trusted)
        with httpx.Client(transport=transport, trust_env=False) as http:
            client = brief("blocking", server.base, http=http, timeout_seconds=5)
            note = "é" * 1_000_000
            assert client.propose_refund(**PROPOSAL, note=note).action_id == ACTION_ID
            assert client.get_refund(ACTION_ID).action_id == ACTION_ID
        assert (
            note.encode("unicode-escape").replace(b"\\xe9", b"\\u00e9") in server.requests[0].body
        )
        assert server.connections == 1


def listening(*, backlog: int) -> socket.socket:
    """A socket on a free port that accepts nobody and reads nothing."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    listener.bind(("127.0.0.1", 0))
    listener.listen(backlog)
    return listener


def test_a_server_that_reads_slowly_is_bounded(way: str) -> None:
    """Each part of the body that it takes would begin another timeout."""
    over = threading.Event()
    with listening(backlog=5) as listener:

        def read() -> None:
            connection, _ = listener.accept()
            with connection:
                while not over.wait(0.05) and connection.recv(20_000):
                    pass

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        once = Patience(tries_max=1, total_seconds=1)
        with ends_within(2 * TIMEOUT_SECONDS), pytest.raises(OutcomeUnknown) as caught:
            brief(way, url, patience=once).propose_refund(**PROPOSAL, note="x" * 50_000_000)
        assert caught.value.may_be_recorded
        over.set()
        reader.join(timeout=5)


def test_many_addresses_that_take_nobody_have_one_time_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with listening(backlog=0) as listener, ExitStack() as waiting:
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.settimeout(0)
            one.connect_ex(listener.getsockname())
        port = listener.getsockname()[1]
        address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [address] * 8)
        once = Patience(tries_max=1, total_seconds=1)
        bound = once.total_seconds + TIMEOUT_SECONDS
        with ends_within(bound), pytest.raises(OutcomeUnknown) as caught:
            brief("blocking", f"http://shop.test:{port}", patience=once).propose_refund(**PROPOSAL)
    # Nobody was reached, so nothing can have been recorded.
    assert not caught.value.may_be_recorded


def test_one_request_s_time_is_not_another_s() -> None:
    """Of two threads that share a client; and what is over is over before anything is sent."""

    def handler(connection: socket.socket, request: Request) -> None:
        time.sleep(0.5)
        connection.sendall(answer_bytes(200, b"{}"))

    with loopback(handler) as server, httpx.Client(transport=BoundedTransport()) as http:
        assert http.get(server.base, timeout=5).status_code == 200
        with until(time.monotonic() + 0.1), pytest.raises(httpx.ReadTimeout):
            http.get(server.base, timeout=5)
        before = len(server.requests)
        with until(time.monotonic() - 1), pytest.raises(httpx.TimeoutException):
            http.get(server.base, timeout=5)
        assert len(server.requests) == before
        assert http.get(server.base, timeout=5).status_code == 200


def test_a_task_that_is_cancelled_is_cancelled() -> None:
    with loopback(DRIPPING["lines of a head"]) as server:

        async def run() -> None:
            async with AsyncRefundOnce(server.base, KEY, timeout_seconds=30) as refunds:
                call = asyncio.create_task(refunds.get_order("1"))
                await asyncio.sleep(0.3)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call

        with ends_within(1):
            asyncio.run(run())


# ---- waiting until final


def seen_then(rest: Handler, **shown: Any) -> Handler:
    """The action once, and then something else."""
    answered: list[Request] = []

    def handler(connection: socket.socket, request: Request) -> None:
        answered.append(request)
        if len(answered) > 1:
            rest(connection, request)
            return
        row = PROPOSAL | {"action_id": ACTION_ID, "poll_after_seconds": 0} | shown
        connection.sendall(answer_bytes(200, found(200, row).body))

    return handler


def closes(connection: socket.socket, request: Request) -> None:
    """Nothing is answered."""
    connection.shutdown(socket.SHUT_RDWR)


def too_many(connection: socket.socket, request: Request) -> None:
    """Something between us, without a word of the service's."""
    connection.sendall(answer_bytes(503, b"busy", {"Retry-After": "1"}))


@pytest.mark.parametrize("rest", [DRIPPING["lines of a head"], closes, too_many])
def test_what_was_seen_is_answered_when_the_rest_of_the_waiting_is_not(
    way: str, rest: Handler
) -> None:
    with loopback(seen_then(rest)) as server:
        client = brief(way, server.base, timeout_seconds=10, patience=Patience(total_seconds=30))
        with ends_within(2):
            action = client.wait_until_final(ACTION_ID, timeout_seconds=2)
        assert (action.action_id, action.final) == (ACTION_ID, False)
        assert len(server.requests) > 1


def test_waiting_goes_on_after_reads_that_were_lost(way: str) -> None:
    lost = 2 * BRIEF.tries_max
    reads: list[Request] = []

    def rest(connection: socket.socket, request: Request) -> None:
        reads.append(request)
        if len(reads) <= lost:
            closes(connection, request)
            return
        row = PROPOSAL | {"action_id": ACTION_ID, "state": "SUCCEEDED", "final": True}
        connection.sendall(answer_bytes(200, found(200, row).body))

    with loopback(seen_then(rest)) as server:
        action = brief(way, server.base).wait_until_final(ACTION_ID, timeout_seconds=20)
    assert (action.state, action.final) == ("SUCCEEDED", True)


@pytest.mark.parametrize("kind", ["backend", "tools"])
def test_waiting_that_never_sees_the_action_is_no_answer_in_time(way: str, kind: str) -> None:
    with loopback(DRIPPING["lines of a head"]) as server:
        slow: dict[str, Any] = {"timeout_seconds": 10, "patience": Patience()}
        wait: Callable[[], Any]
        if kind == "backend":
            wait = lambda: brief(way, server.base, **slow).wait_until_final(  # noqa: E731
                ACTION_ID, timeout_seconds=1
            )
        else:
            wait = lambda: session_client(  # noqa: E731
                way, server.base, SESSION, **slow
            ).wait_until_final(timeout_seconds=1)
        with ends_within(1), pytest.raises(NoAnswer):
            wait()


def test_a_tool_s_proposal_and_the_read_before_it_have_one_time_together(way: str) -> None:
    with loopback(DRIPPING["lines of a head"]) as server:
        tools = session_client(
            way, server.base, SESSION, timeout_seconds=TIMEOUT_SECONDS, patience=BRIEF
        )
        with ends_within(BOUND_SECONDS), pytest.raises(NoAnswer):
            tools.propose(amount_minor=1, reason="damaged")


# ---- closed


@pytest.mark.parametrize("kind", [RefundOnce, RefundSession])
def test_a_closed_client_says_so_and_sends_nothing(kind: type[Any]) -> None:
    with loopback(DRIPPING["nothing"]) as server:
        client = kind(server.base, KEY)
        client.close()
        with pytest.raises(ValueError, match=r"closed.*Nothing was sent"):
            client.wait_until_final(*([ACTION_ID] if kind is RefundOnce else []))
        assert server.requests == []


def test_a_closed_asyncio_client_says_so() -> None:
    async def run() -> None:
        client = AsyncRefundOnce("http://127.0.0.1:9", KEY)
        await client.aclose()
        await client.get_order("1")

    with pytest.raises(ValueError, match=r"closed.*Nothing was sent"):
        asyncio.run(run())


def test_a_client_that_is_closed_while_a_proposal_is_out_does_not_know_its_outcome() -> None:
    with loopback(closes) as server:
        client = RefundOnce(server.base, KEY, patience=Patience(tries_max=2, pause_first_seconds=1))
        closing = threading.Timer(0.3, client.close)
        closing.start()
        with pytest.raises(OutcomeUnknown) as caught:
            client.propose_refund(**PROPOSAL)
        closing.join()
    assert caught.value.may_be_recorded
    assert "closed" in caught.value.tried[-1]
