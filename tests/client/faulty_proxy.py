"""A proxy that spoils answers, before or after the service has done what it was asked.

    proxy.begin("dropped_after", "ok")

Each request takes the next fault; when none is left they are passed on. Everything that arrived is
kept, as it arrived.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Longer than any client of these tests waits.
HANG_SECONDS = 30

#: What the service did with the request, and what the caller gets.
AFTER = ("dropped_after", "502_after", "hangs_after", "garbage_after", "cut_after", "foreign_after")
BEFORE = ("dropped_before", "502_before", "404_of_a_proxy", "429", "503")
FAULTS = AFTER + BEFORE


@dataclass(frozen=True, slots=True)
class Arrived:
    """One request as it was sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class FaultyProxy:
    """A server on a free port of this machine; a context manager."""

    def __init__(self, *, port: int) -> None:
        self.upstream_port = port
        self.faults: deque[str] = deque()
        self.arrived: list[Arrived] = []
        self.answered: list[Reply] = []
        self.retry_after_seconds = 1
        self.over = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def begin(self, *faults: str) -> None:
        """Forget what arrived, and meet the next requests with these."""
        self.arrived.clear()
        self.faults.clear()
        self.faults.extend(faults)

    def sent(self, method: str, path: str | None = None) -> list[Arrived]:
        """The requests of this method that arrived, oldest first."""
        return [one for one in self.arrived if one.method == method and path in (None, one.path)]

    def pass_on(self, arrived: Arrived) -> Reply:
        """Let the service do it; its answer."""
        upstream = http.client.HTTPConnection("127.0.0.1", self.upstream_port, timeout=30)
        try:
            headers = {**arrived.headers, "Connection": "close"}
            upstream.request(arrived.method, arrived.path, arrived.body or None, headers)
            answer = upstream.getresponse()
            reply = Reply(answer.status, answer.getheaders(), answer.read())
        finally:
            upstream.close()
        self.answered.append(reply)
        return reply


class _Server(ThreadingHTTPServer):
    proxy: FaultyProxy
    daemon_threads = False  # waited for by server_close, so that no socket outlives its test

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that has hung up is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        proxy = self.server.proxy
        self.close_connection = True
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name != "Host"}
        arrived = Arrived(self.command, self.path, headers, body)
        proxy.arrived.append(arrived)
        fault = proxy.faults.popleft() if proxy.faults else "ok"
        reply = proxy.pass_on(arrived) if fault == "ok" or fault in AFTER else None
        if fault == "hangs_after":
            proxy.over.wait(HANG_SECONDS)
        if fault in ("hangs_after", "dropped_after", "dropped_before"):
            return
        self._reply(_spoiled(fault, reply, proxy), cut=fault == "cut_after")

    do_GET = do_PUT = do_POST = do_DELETE = _serve

    def _reply(self, reply: Reply, *, cut: bool) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.headers:
            if name.lower() not in ("connection", "content-length", "server", "date"):
                self.send_header(name, value)
        if reply.status != 204:
            self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(reply.body[: len(reply.body) // 2] if cut else reply.body)


def _spoiled(fault: str, reply: Reply | None, proxy: FaultyProxy) -> Reply:
    html = [("Content-Type", "text/html")]
    if fault in ("502_after", "502_before"):
        return Reply(502, html, b"<h1>Bad gateway</h1>")
    if fault == "404_of_a_proxy":
        return Reply(404, html, b"<h1>Not found</h1>")
    if fault == "garbage_after":
        return Reply(200, html, b"<h1>Please sign in to this network</h1>")
    if fault == "429":
        return _problem(429, "rate-limited", proxy.retry_after_seconds)
    if fault == "503":
        return _problem(503, "unavailable", proxy.retry_after_seconds)
    if reply is None:
        raise ValueError(fault)
    if fault == "foreign_after":
        # As a cache does that looks at the address only.
        return Reply(reply.status, reply.headers, reply.body.replace(b":request-", b":request-x"))
    return reply


def _problem(status: int, kind: str, retry_after_seconds: int) -> Reply:
    details = {
        "type": f"urn:refund-once:problem:{kind}",
        "title": "Not now",
        "status": status,
        "detail": "Nothing was done.",
        "instance": "urn:refund-once:request:none",
    }
    headers = [
        ("Content-Type", "application/problem+json"),
        ("Retry-After", str(retry_after_seconds)),
    ]
    return Reply(status, headers, json.dumps(details).encode())
