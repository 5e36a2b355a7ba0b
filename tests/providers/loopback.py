"""Small real servers on a loopback port, which answer in the ways a scripted test needs."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True, kw_only=True)
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    raw: bytes

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query))


Handler = Callable[[socket.socket, Request], None]


@dataclass
class Loopback:
    """A listening server: its address, every request it read, and how it answers the next ones."""

    base: str
    handler: Handler
    requests: list[Request] = field(default_factory=list)
    connections: int = 0


@contextmanager
def loopback(handler: Handler, *, certificate: Path | None = None) -> Iterator[Loopback]:
    """A server for as long as the block lasts; over TLS when given a certificate with its key."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    scheme = "https" if certificate else "http"
    server = Loopback(base=f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", handler=handler)
    ended = threading.Event()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate:
        tls.load_cert_chain(certificate)

    def serve(connection: socket.socket) -> None:
        try:
            connection.settimeout(10)
            if certificate:
                connection = tls.wrap_socket(connection, server_side=True)
            while (request := read_request(connection)) is not None:
                server.requests.append(request)
                server.handler(connection, request)
                if request.headers.get("connection", "").lower() == "close":
                    return
        except OSError:
            pass  # The client went away, which many of these tests are about.
        finally:
            connection.close()

    def accept() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            server.connections += 1
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        ended.set()
        # Closing alone does not wake a thread that waits in accept.
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(timeout=5)


def read_request(connection: socket.socket) -> Request | None:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    while len(body) < length:
        body += connection.recv(65536)
    method, target, _ = first.split(" ", 2)
    return Request(
        method=method, target=target, headers=headers, body=body, raw=head + b"\r\n\r\n" + body
    )


def answer_bytes(
    status: int, body: bytes | dict[str, Any], headers: dict[str, str] | None = None
) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + content


def answers(
    status: int, body: bytes | dict[str, Any], headers: dict[str, str] | None = None
) -> Handler:
    """Answer every request the same way."""

    def handler(connection: socket.socket, request: Request) -> None:
        connection.sendall(answer_bytes(status, body, headers))

    return handler


def raw_answer(text: bytes) -> Handler:
    """Write these bytes and close."""

    def handler(connection: socket.socket, request: Request) -> None:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_RDWR)

    return handler


def drips(text: bytes, *, every_seconds: float) -> Handler:
    """Write one byte at a time, each well inside any read timeout."""

    def handler(connection: socket.socket, request: Request) -> None:
        for byte in text:
            connection.sendall(bytes([byte]))
            time.sleep(every_seconds)

    return handler


def resets() -> Handler:
    """Reset the connection after the whole request was read."""

    def handler(connection: socket.socket, request: Request) -> None:
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.close()

    return handler


def silent(seconds: float) -> Handler:
    """Say nothing for a while, then close."""

    def handler(connection: socket.socket, request: Request) -> None:
        time.sleep(seconds)

    return handler


def refunds_everything(connection: socket.socket, request: Request) -> None:
    """Answer as Stripe would: each POST makes the refund its form asks for."""
    connection.sendall(
        answer_bytes(
            200,
            refund_body(request.form),
            {
                "Request-Id": "req_1",
                "Idempotency-Key": request.headers.get("idempotency-key", ""),
                "Content-Type": "application/json",
            },
        )
    )


def refund_body(form: dict[str, str], **changes: Any) -> dict[str, Any]:
    metadata = {
        key.removeprefix("metadata[").removesuffix("]"): value
        for key, value in form.items()
        if key.startswith("metadata[")
    }
    return {
        "id": "re_" + metadata.get("request_id", "x"),
        "object": "refund",
        "amount": int(form.get("amount", "0")),
        "currency": "usd",
        "created": 1_800_000_000,
        "payment_intent": form.get("payment_intent"),
        "charge": "ch_1",
        "status": "succeeded",
        "reason": form.get("reason"),
        "metadata": metadata,
    } | changes
