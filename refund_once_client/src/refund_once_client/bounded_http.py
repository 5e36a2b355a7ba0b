"""HTTP where one deadline holds for a whole request, also against a server that drips.

httpx bounds each read by itself: a head that comes a line at a time, or one `100 Continue` after
another, keeps a blocking call for ever. Here every use of the connection gets what is left of the
request's time. With asyncio nothing like this is needed: a task can be cancelled.

What is not bounded is the lookup of a host's name: it is the operating system's own.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

# What httpx itself keeps open, and for how long.
_CONNECTIONS_MAX = 100
_KEPT_CONNECTIONS_MAX = 20
_KEPT_SECONDS = 5.0

# By time.monotonic(). A blocking request is sent and read by one thread, so this is its own.
_ends_at: ContextVar[float | None] = ContextVar("refund_once_request_ends_at", default=None)


@contextmanager
def until(ends_at: float) -> Iterator[None]:
    """What goes through a `BoundedTransport` in here is over at that time (time.monotonic())."""
    token = _ends_at.set(ends_at)
    try:
        yield
    finally:
        _ends_at.reset(token)


class BoundedTransport(httpx.BaseTransport):
    """HTTP/1.1 as httpx speaks it, over connections that keep the deadline of a request.

    `ssl_context` is for certificates of your own; without it, httpx's authorities are believed.
    """

    def __init__(self, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=ssl_context or httpx.create_ssl_context(trust_env=False),
            max_connections=_CONNECTIONS_MAX,
            max_keepalive_connections=_KEPT_CONNECTIONS_MAX,
            keepalive_expiry=_KEPT_SECONDS,
            network_backend=_BoundedNetwork(),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send it and read the head of its answer. Raises httpx's own errors."""
        url = request.url
        with _errors_of_httpx():
            answer = self._pool.handle_request(
                httpcore.Request(
                    method=request.method,
                    url=httpcore.URL(
                        scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
                    ),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        return httpx.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Body(answer),
            extensions=answer.extensions,
        )

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        with _errors_of_httpx():
            yield from self._answer.iter_stream()

    def close(self) -> None:
        with _errors_of_httpx():
            self._answer.close()


@contextmanager
def _errors_of_httpx() -> Iterator[None]:
    """httpcore's errors as those of httpx, which have the same names."""
    try:
        yield
    except (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.UnsupportedProtocol,
    ) as error:
        raise getattr(httpx, type(error).__name__)(str(error)) from error


class _BoundedNetwork(httpcore.NetworkBackend):
    def __init__(self) -> None:
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        failed: Exception = httpcore.ConnectError("the host has no address")
        # One address at a time: given the name, it would take the timeout for each of them.
        for *_, address in found:
            try:
                stream = self._plain.connect_tcp(
                    str(address[0]),
                    port,
                    _seconds(timeout, httpcore.ConnectTimeout),
                    local_address,
                    socket_options,
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
            else:
                return _BoundedStream(stream)
        raise failed


class _BoundedStream(httpcore.NetworkStream):
    """A connection by TCP, and by TLS after `start_tls`."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _seconds(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # Not the stream's own `write`: it takes the timeout for each part that the other end takes.
        # A socket of TLS is one of `ssl`, which encrypts what it is given.
        connection: socket.socket = self._stream.get_extra_info("socket")
        left = memoryview(buffer)
        try:
            while left:
                connection.settimeout(_seconds(timeout, httpcore.WriteTimeout))
                left = left[connection.send(left) :]
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        seconds = _seconds(timeout, httpcore.ConnectTimeout)
        return _BoundedStream(self._stream.start_tls(ssl_context, server_hostname, seconds))

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _seconds(timeout: float | None, late: type[Exception]) -> float | None:
    """The timeout, or what is left of the request's time. Raises `late` when nothing is."""
    ends_at = _ends_at.get()
    if ends_at is None:
        return timeout
    left = ends_at - time.monotonic()
    if left <= 0:
        raise late("the time of the whole request is over")
    return left if timeout is None else min(timeout, left)
