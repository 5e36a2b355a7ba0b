"""Between a framework and the refund tool: it spoils the answer of a cell's first proposal.

What is spoiled has always happened: the request is delivered, the server commits and answers, and
only then does the answer go wrong. The cell is known by its bearer token, never by text.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

#: Longer than the shortest timeout of an MCP client (5 s), shorter than all the others.
HANG_SECONDS = 8.0
#: An answer that is held for the death of its caller is given after all when that does not come.
HELD_SECONDS_MAX = 60.0


class Spoil(StrEnum):
    """What becomes of the answer."""

    NOTHING = "nothing"
    ERROR = "error"
    DROP = "drop"
    BAD_GATEWAY = "502"
    HANG = "hang"
    DUPLICATE = "duplicate"
    HOLD = "hold"


@dataclass(slots=True, eq=False)
class Cell:
    """One framework under one fault against one server, as the proxy sees it.

    - `upstream`: the MCP endpoint behind it
    - `before_commit`: called once, before the first proposal is delivered
    - `proposals`: how many calls of the tool reached the server
    - `spoiled`: set when the fault has happened
    """

    token: str
    upstream: str
    spoil: Spoil
    before_commit: Callable[[], None] | None = None
    proposals: int = 0
    committed: threading.Event = field(default_factory=threading.Event)
    spoiled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    counting: threading.Lock = field(default_factory=threading.Lock)


class FaultyProxy(ThreadingHTTPServer):
    """The proxy on a free loopback port, in threads of this process."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/mcp"
        self._cells: dict[str, Cell] = {}

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that was killed, or reset its connection, is no news."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def add(self, cell: Cell) -> None:
        """From now on, requests with the cell's token are passed on, the first proposal spoiled."""
        self._cells[cell.token] = cell

    def cell_of(self, authorization: str) -> Cell | None:
        """The cell of a request."""
        return self._cells.get(authorization.removeprefix("Bearer "))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def log_message(self, *_: object) -> None:
        pass

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        cell = self.server.cell_of(self.headers.get("Authorization", ""))
        if cell is None:
            self._answer(401, [("Content-Type", "text/plain")], b"no cell has this token")
            return
        spoil = Spoil.NOTHING
        if proposal := _is_proposal(body):
            with cell.counting:
                first = cell.proposals == 0
                cell.proposals += 1
            if first:
                spoil = cell.spoil
                if cell.before_commit is not None:
                    cell.before_commit()
        status, headers, answer = self._deliver(cell, body)
        if spoil is Spoil.DUPLICATE:
            with cell.counting:
                cell.proposals += 1
            status, headers, answer = self._deliver(cell, body)
            cell.spoiled.set()
        if proposal and status == 200:
            cell.committed.set()
        self._give(cell, spoil, status, headers, answer)

    do_GET = do_POST = do_DELETE = handle_any

    def _deliver(self, cell: Cell, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        address = urlsplit(cell.upstream)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        # Those of this connection; the next one has its own.
        headers = {n: v for n, v in self.headers.items() if n.lower() not in ("host", "connection")}
        try:
            connection.request(self.command, address.path, body or None, headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        except (OSError, http.client.HTTPException) as error:
            return 504, [("Content-Type", "text/plain")], f"nobody there: {error}".encode()
        finally:
            connection.close()

    def _give(
        self, cell: Cell, spoil: Spoil, status: int, headers: list[tuple[str, str]], answer: bytes
    ) -> None:
        if spoil is Spoil.DROP:
            cell.spoiled.set()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if spoil is Spoil.BAD_GATEWAY:
            cell.spoiled.set()
            self._answer(502, [("Content-Type", "text/html")], b"<h1>502 Bad Gateway</h1>")
            return
        if spoil is Spoil.ERROR:
            answer = _as_tool_error(answer)
            cell.spoiled.set()
        if spoil is Spoil.HANG:
            time.sleep(HANG_SECONDS)
            cell.spoiled.set()
        if spoil is Spoil.HOLD and cell.release.wait(HELD_SECONDS_MAX):
            cell.spoiled.set()
        self._answer(status, headers, answer)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        try:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the caller is gone, or was killed


def _is_proposal(body: bytes) -> bool:
    try:
        message: Any = json.loads(body)
    except ValueError:
        return False
    return (
        isinstance(message, dict)
        and message.get("method") == "tools/call"
        and message.get("params", {}).get("name") == "propose_refund"
    )


def _as_tool_error(answer: bytes) -> bytes:
    """The same answer, but the tool says that it failed."""
    message = json.loads(answer)
    message["result"].pop("structuredContent", None)
    message["result"] |= {
        "isError": True,
        "content": [
            {"type": "text", "text": "Error: upstream connect error, reset before headers"}
        ],
    }
    return json.dumps(message).encode()
