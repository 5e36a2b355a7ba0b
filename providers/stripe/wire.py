"""One call on the wire: one fresh connection per request, a hard deadline, a fence, a record.

The Stripe SDK is handed this HTTP client in place of its own, for four reasons:

1. The SDK's client keeps connections open. A process that made a call and then forked shares
   that socket with its children, and they are answered with each other's refunds; and a server
   may close an idle connection in the very moment a refund is written to it, which leaves a
   refund UNKNOWN for nothing. Here a connection carries one request and is closed.
2. A read timeout is per read, so a server that drips holds a call for ever. Here a watchdog shuts
   the socket down when the whole call has used its time. It needs no signals, so it works in
   prefork, threads and gevent alike.
3. Whether a byte of the request was written decides between "nothing happened" and "nobody
   knows". The connection itself notes it, just before its first write; it is not guessed later.
4. Proxies, `.netrc` and redirects are ignored: a `.netrc` entry for the host would replace the
   API key, and a redirected POST would be sent again.

One limit: resolving a name and trying several addresses cannot be cut short. When that has used
up the time, the request is not written at all.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import requests
import stripe
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

# A page of 100 refunds is about 150 kB. Anything near this is not Stripe.
ANSWER_BYTES_MAX = 8 * 1024 * 1024


class Fenced(Exception):
    """The caller's fence said no. Nothing was written."""


class FenceFailed(Exception):
    """The caller's fence could not be asked. Nothing was written."""


class DeadlineBeforeSend(Exception):
    """The time of the whole call was used up before the request was written."""


class DeadlineCut(Exception):
    """The watchdog shut the socket down because the whole call had used its time."""


# Linux: bytes that nobody acknowledged are given up after this long. Otherwise the kernel goes on
# sending them for minutes after the call was cut, and they could arrive after "not found" was
# believed. https://man7.org/linux/man-pages/man7/tcp.7.html
_TCP_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)


class AnswerTooLong(Exception):
    """The answer is larger than any answer Stripe gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back for the last request of a call, before anybody interpreted it."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class WireCall:
    """One call of ours, within one total deadline: one POST, or one read of several pages.

    Used as a context manager around the SDK call. `bytes_may_have_left` is set by the connection
    immediately before its first write; while it is False nothing has happened at Stripe.
    """

    def __init__(
        self,
        *,
        total_timeout_seconds: float,
        before_bytes_leave: Callable[[], bool] | None = None,
    ) -> None:
        self.answer: Answer | None = None
        self.bytes_may_have_left = False
        self.was_cut = False
        self._before_bytes_leave = before_bytes_leave
        self._started = time.monotonic()
        self._deadline = self._started + total_timeout_seconds
        self._watchdog = threading.Timer(total_timeout_seconds, self._cut)
        self._watchdog.daemon = True
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._token: Token[WireCall] | None = None

    def __enter__(self) -> Self:
        self._token = _CALL.set(self)
        self._watchdog.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watchdog.cancel()
        with self._lock:
            self._forget_socket()
        if self._token is not None:
            _CALL.reset(self._token)

    @property
    def elapsed_ms(self) -> int:
        return round((time.monotonic() - self._started) * 1000)

    def connected(self, sock: socket.socket) -> None:
        """Called by a connection that has just opened its socket, before any TLS."""
        self._require_time_left()
        if _TCP_USER_TIMEOUT is not None:
            left_ms = max(1, int((self._deadline - time.monotonic()) * 1000))
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, left_ms)
        # A duplicate of the descriptor: shutting it down cuts the connection, and it can never be
        # somebody else's file by the time the watchdog uses it.
        watched = socket.socket(fileno=os.dup(sock.fileno()))
        with self._lock:
            self._forget_socket()
            self._socket = watched

    def about_to_write(self) -> None:
        """Called by a connection that is ready to write the first byte of a request.

        Raises Fenced, FenceFailed or DeadlineBeforeSend when it must not.
        """
        fence, self._before_bytes_leave = self._before_bytes_leave, None
        if fence is not None:
            try:
                may_leave = fence()
            except Exception as error:
                raise FenceFailed(f"{type(error).__name__}: {error}") from error
            if may_leave is not True:
                raise Fenced("the claim no longer holds")
        self._require_time_left()
        self.bytes_may_have_left = True

    def require_not_cut(self) -> None:
        """Raise DeadlineCut when the watchdog ended this call.

        An answer without a length looks complete when its connection is cut, so this is asked
        after every answer too.
        """
        if self.was_cut:
            raise DeadlineCut("the whole call took longer than its total timeout")

    def _require_time_left(self) -> None:
        if self.was_cut or time.monotonic() >= self._deadline:
            raise DeadlineBeforeSend("the total timeout was over before the request was written")

    def _cut(self) -> None:
        with self._lock:
            self.was_cut = True
            if self._socket is not None:
                with suppress(OSError):  # The other side may have closed it first.
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _forget_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


_CALL: ContextVar[WireCall] = ContextVar("wire_call")


class _Connection(HTTPConnection):
    """A connection that tells the current call when it opens and when it is about to write."""

    def _new_conn(self) -> socket.socket:
        sock = super()._new_conn()
        try:
            _CALL.get().connected(sock)
        except BaseException:
            sock.close()
            raise
        return sock

    def request(self, *args: Any, **kwargs: Any) -> None:
        # Connect first, so that the fence is asked as late as possible.
        if self.is_closed:
            self.connect()
        _CALL.get().about_to_write()
        super().request(*args, **kwargs)


class _TLSConnection(_Connection, HTTPSConnection):
    """The same over TLS. The handshake is not part of the request."""


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}


class OneShotHTTPClient(stripe.HTTPClient):
    """The HTTP client the SDK uses. Safe for threads: it keeps nothing between requests."""

    # The SDK reports this name to Stripe.
    name = "requests"

    def __init__(self, *, connect_timeout_seconds: float, read_timeout_seconds: float) -> None:
        super().__init__()
        self._timeout = (connect_timeout_seconds, read_timeout_seconds)

    def request(  # type: ignore[override]  # as the SDK's own RequestsClient: bytes, not str
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        post_data: Any = None,
        *,
        _usage: list[str] | None = None,
    ) -> tuple[bytes, int, Mapping[str, str]]:
        """Send one request of the current call and read its whole answer.

        Errors of requests and urllib3 pass as they are: their cause chain is evidence.
        """
        call = _CALL.get()
        call.answer = None
        with requests.Session() as session:
            session.trust_env = False
            session.mount("http://", _Adapter(max_retries=0))
            session.mount("https://", _Adapter(max_retries=0))
            try:
                response = session.request(
                    method,
                    url,
                    headers=_plain_headers(headers or {}),
                    data=post_data,
                    timeout=self._timeout,
                    allow_redirects=False,
                    stream=True,
                    verify=stripe.ca_bundle_path,
                )
                with response:
                    body = _read(response)
            except Exception as error:
                if call.was_cut and call.bytes_may_have_left:
                    raise DeadlineCut(str(error)) from error
                raise
        call.require_not_cut()
        call.answer = Answer(status=response.status_code, headers=response.headers, body=body)
        return body, response.status_code, response.headers

    def close(self) -> None:
        """Nothing to close: every connection ended with its request."""


def _plain_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The SDK's headers, without what it says about the environment it runs in.

    It looks for variables of coding tools and reports them in two headers; what a refund service
    was started from is nobody's business.
    """
    plain = dict(headers)
    plain["User-Agent"] = f"Stripe/v1 PythonBindings/{stripe.VERSION}"
    described = json.loads(plain.get("X-Stripe-Client-User-Agent", "{}"))
    described.pop("ai_agent", None)
    plain["X-Stripe-Client-User-Agent"] = json.dumps(described)
    plain["Connection"] = "close"
    plain["Accept-Encoding"] = "identity"
    return plain


def _read(response: requests.Response) -> bytes:
    parts: list[bytes] = []
    size = 0
    for part in response.iter_content(chunk_size=64 * 1024):
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise AnswerTooLong(f"more than {ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)
