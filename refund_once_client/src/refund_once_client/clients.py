"""The four clients: blocking and asyncio, for an agent key and for a session token.

They only drive the calls' steps (exchange.py). What is sent, when, and what an answer proves is
decided in one place for all of them.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import httpx

from refund_once_client.answers import Action
from refund_once_client.bounded_http import BoundedTransport, until
from refund_once_client.calls import KeyCalls, SessionCalls
from refund_once_client.exchange import (
    Answer,
    Came,
    Lost,
    Patience,
    Request,
    Steps,
    is_duration,
)

T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C")
M = TypeVar("M", bound=Callable[..., Any])

# The service answers a proposal in well under a second, and waits 5 s for an order's lock.
TIMEOUT_SECONDS = 10.0
CONNECT_TIMEOUT_SECONDS = 5.0
# A page of 50 actions takes some 150 kB.
ANSWER_BYTES_MAX = 4 * 1024 * 1024

# The service was not reached, so it cannot have acted.
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_TOKEN = re.compile(r"ro_[A-Za-z0-9_-]{8,512}")
# A name, as letters, digits and what else is seen in names of containers, or an IPv6 address.
_HOST = re.compile(rb"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_TIME_IS_OVER = Lost(why="no time was left", is_sent=False)
_CLOSED = "This client is closed: make another one."


class _Spoiled(Exception):
    """An answer that is read no further; the message says why."""


class _Wire(Generic[C]):
    """What both ways of driving share: the address, the credential, and what came back."""

    def __init__(self, base_url: str, token: str, calls: C, *, timeout_seconds: float) -> None:
        self._base = _address(base_url)
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise ValueError("an agent key begins with ro_live_, a session token with ro_session_")
        if not is_duration(timeout_seconds) or timeout_seconds <= 0:
            raise ValueError("timeout_seconds must be a number above 0, and not infinite")
        self._token = token
        self._calls = calls
        self._timeout_seconds = timeout_seconds

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._base}>"

    def _seconds(self, request: Request) -> float:
        """How long the request may take, from connecting to the end of its answer."""
        within = request.within_seconds
        return self._timeout_seconds if within is None else min(self._timeout_seconds, within)

    def _arguments(self, request: Request, *, seconds: float) -> dict[str, Any]:
        # A connection that is not there by half of the time is given up while that is still known
        # to be the reason: then nothing was sent.
        connecting = min(seconds / 2, CONNECT_TIMEOUT_SECONDS)
        return {
            "method": request.method,
            "url": self._base + request.path,
            "content": request.body,
            "headers": {
                "Authorization": f"Bearer {self._token}",
                "Accept": "application/json, application/problem+json",
                "User-Agent": "refund-once-client",
                **request.headers,
            },
            "timeout": httpx.Timeout(seconds, connect=connecting, pool=connecting),
            # An answer from elsewhere is none, and the credential goes to this address only.
            "follow_redirects": False,
        }


def _address(base_url: Any) -> str:
    """Where the service is, without a slash at its end. Raises ValueError."""
    wrong = ValueError("base_url must be like https://refunds.example.com, and hold no secret")
    try:
        url = httpx.URL(base_url)
        # As the system's resolver takes it, which is asked only when a call is under way.
        host = url.host.encode("idna")
    except (httpx.InvalidURL, TypeError, ValueError):
        raise wrong from None
    if url.scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise wrong
    if url.userinfo or url.query or url.fragment:
        raise wrong
    if url.port is not None and not 0 < url.port < 2**16:
        raise wrong
    return str(url).rstrip("/")


class _Body:
    """An answer's bytes, as many and as long as is reasonable."""

    def __init__(self, ends_at: float) -> None:
        self._ends_at = ends_at
        self._bytes = bytearray()

    def add(self, chunk: bytes) -> None:
        self._bytes += chunk
        if len(self._bytes) > ANSWER_BYTES_MAX:
            raise _Spoiled(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        if time.monotonic() > self._ends_at:
            raise _Spoiled("an answer that does not end")

    def answer(self, response: httpx.Response) -> Answer:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(status=response.status_code, headers=headers, body=bytes(self._bytes))


def _lost(error: Exception) -> Lost:
    why = str(error) if isinstance(error, _Spoiled) else f"{type(error).__name__} {error}".strip()
    return Lost(why=why, is_sent=not isinstance(error, _NEVER_SENT))


class _Blocking(_Wire[C]):
    def __init__(
        self,
        base_url: str,
        token: str,
        calls: C,
        *,
        timeout_seconds: float,
        http: httpx.Client | None,
    ) -> None:
        super().__init__(base_url, token, calls, timeout_seconds=timeout_seconds)
        self._http_is_ours = http is None
        self._http = http or httpx.Client(trust_env=False, transport=BoundedTransport())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, unless the httpx client is your own."""
        if self._http_is_ours:
            self._http.close()

    def _run(self, steps: Steps[T]) -> T:
        if self._http.is_closed:
            raise ValueError(f"{_CLOSED} Nothing was sent.")
        came: Came = None
        while True:
            try:
                step = steps.send(came)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Request):
                came = self._send(step)
            else:
                came = None
                time.sleep(step.seconds)

    def _send(self, request: Request) -> Answer | Lost:
        seconds = self._seconds(request)
        if seconds <= 0:
            return _TIME_IS_OVER
        ends_at = time.monotonic() + seconds
        arguments = self._arguments(request, seconds=seconds)
        body = _Body(ends_at)
        try:
            with until(ends_at), self._http.stream(**arguments) as response:
                for chunk in response.iter_bytes():
                    body.add(chunk)
                return body.answer(response)
        except (httpx.HTTPError, httpx.StreamError, _Spoiled) as error:
            return _lost(error)
        except RuntimeError:
            # Closed by another thread, while what was sent before may be recorded.
            if self._http.is_closed:
                return Lost(why=_CLOSED, is_sent=True)
            raise


class _Awaiting(_Wire[C]):
    def __init__(
        self,
        base_url: str,
        token: str,
        calls: C,
        *,
        timeout_seconds: float,
        http: httpx.AsyncClient | None,
    ) -> None:
        super().__init__(base_url, token, calls, timeout_seconds=timeout_seconds)
        self._http_is_ours = http is None
        self._http = http or httpx.AsyncClient(trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections, unless the httpx client is your own."""
        if self._http_is_ours:
            await self._http.aclose()

    async def _run(self, steps: Steps[T]) -> T:
        if self._http.is_closed:
            raise ValueError(f"{_CLOSED} Nothing was sent.")
        came: Came = None
        while True:
            try:
                step = steps.send(came)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Request):
                came = await self._send(step)
            else:
                came = None
                await asyncio.sleep(step.seconds)

    async def _send(self, request: Request) -> Answer | Lost:
        seconds = self._seconds(request)
        if seconds <= 0:
            return _TIME_IS_OVER
        arguments = self._arguments(request, seconds=seconds)
        body = _Body(time.monotonic() + seconds)
        try:
            async with (
                asyncio.timeout(seconds),
                self._http.stream(**arguments) as response,
            ):
                async for chunk in response.aiter_bytes():
                    body.add(chunk)
                return body.answer(response)
        except TimeoutError:
            return Lost(why=f"not answered within {seconds:g} s", is_sent=True)
        except (httpx.HTTPError, httpx.StreamError, _Spoiled) as error:
            return _lost(error)
        except RuntimeError:
            # Closed by another task, while what was sent before may be recorded.
            if self._http.is_closed:
                return Lost(why=_CLOSED, is_sent=True)
            raise


def _shown_as(call: Callable[..., Any]) -> Callable[[M], M]:
    """Give a method the name, the words and the parameters of its call, and the call's result."""

    def decorate(method: M) -> M:
        update_wrapper(method, call)
        signature = inspect.signature(call)
        result = str(signature.return_annotation).removeprefix("Steps[").removesuffix("]")
        signed: Any = method
        signed.__signature__ = signature.replace(return_annotation=result)
        return method

    return decorate


def _blocking(
    call: Callable[Concatenate[C, P], Steps[T]],
) -> Callable[Concatenate[_Blocking[C], P], T]:
    """A call as a method that returns its result."""

    @_shown_as(call)
    def method(self: _Blocking[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(call(self._calls, *args, **kwargs))

    return method


def _awaiting(
    call: Callable[Concatenate[C, P], Steps[T]],
) -> Callable[Concatenate[_Awaiting[C], P], Coroutine[Any, Any, T]]:
    """A call as a coroutine method."""

    @_shown_as(call)
    async def method(self: _Awaiting[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(call(self._calls, *args, **kwargs))

    return method


class RefundOnce(_Blocking[KeyCalls]):
    """A merchant's backend, with its agent key. Threads may share one.

    `timeout_seconds` is for each whole request. `http` is an httpx client of your own, for proxies
    and certificates; the client made here takes neither from the environment. Requests through it
    are bounded as a whole where its transport is a `BoundedTransport`.
    """

    def __init__(
        self,
        base_url: str,
        agent_key: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        patience: Patience | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        calls = KeyCalls(patience=patience or Patience())
        super().__init__(base_url, agent_key, calls, timeout_seconds=timeout_seconds, http=http)

    put_order = _blocking(KeyCalls.put_order)
    get_order = _blocking(KeyCalls.get_order)
    propose_refund = _blocking(KeyCalls.propose_refund)
    get_refund = _blocking(KeyCalls.get_refund)
    page_of_refunds = _blocking(KeyCalls.page_of_refunds)
    withdraw_refund = _blocking(KeyCalls.withdraw_refund)
    wait_until_final = _blocking(KeyCalls.wait_until_final)
    explain = _blocking(KeyCalls.explain)
    open_session = _blocking(KeyCalls.open_session)
    revoke_session = _blocking(KeyCalls.revoke_session)

    def list_refunds(self, order_id: str, *, page_size: int | None = None) -> Iterator[Action]:
        """All actions of an order, newest first, a page at a time as they are asked for."""
        cursor = None
        while True:
            page = self.page_of_refunds(order_id=order_id, cursor=cursor, limit=page_size)
            yield from page.data
            cursor = page.next_cursor
            if cursor is None:
                return


class RefundSession(_Blocking[SessionCalls]):
    """A model's tools, with a session token: bound to one request, and no call takes an id."""

    def __init__(
        self,
        base_url: str,
        session_token: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        patience: Patience | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        calls = SessionCalls(patience=patience or Patience())
        super().__init__(base_url, session_token, calls, timeout_seconds=timeout_seconds, http=http)

    current = _blocking(SessionCalls.current)
    propose = _blocking(SessionCalls.propose)
    status = _blocking(SessionCalls.status)
    withdraw = _blocking(SessionCalls.withdraw)
    wait_until_final = _blocking(SessionCalls.wait_until_final)


class AsyncRefundOnce(_Awaiting[KeyCalls]):
    """`RefundOnce` for asyncio. A call that is cancelled was not answered: call it again."""

    def __init__(
        self,
        base_url: str,
        agent_key: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        patience: Patience | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        calls = KeyCalls(patience=patience or Patience())
        super().__init__(base_url, agent_key, calls, timeout_seconds=timeout_seconds, http=http)

    put_order = _awaiting(KeyCalls.put_order)
    get_order = _awaiting(KeyCalls.get_order)
    propose_refund = _awaiting(KeyCalls.propose_refund)
    get_refund = _awaiting(KeyCalls.get_refund)
    page_of_refunds = _awaiting(KeyCalls.page_of_refunds)
    withdraw_refund = _awaiting(KeyCalls.withdraw_refund)
    wait_until_final = _awaiting(KeyCalls.wait_until_final)
    explain = _awaiting(KeyCalls.explain)
    open_session = _awaiting(KeyCalls.open_session)
    revoke_session = _awaiting(KeyCalls.revoke_session)

    async def list_refunds(
        self, order_id: str, *, page_size: int | None = None
    ) -> AsyncIterator[Action]:
        """All actions of an order, newest first, a page at a time as they are asked for."""
        cursor = None
        while True:
            page = await self.page_of_refunds(order_id=order_id, cursor=cursor, limit=page_size)
            for action in page.data:
                yield action
            cursor = page.next_cursor
            if cursor is None:
                return


class AsyncRefundSession(_Awaiting[SessionCalls]):
    """`RefundSession` for asyncio."""

    def __init__(
        self,
        base_url: str,
        session_token: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        patience: Patience | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        calls = SessionCalls(patience=patience or Patience())
        super().__init__(base_url, session_token, calls, timeout_seconds=timeout_seconds, http=http)

    current = _awaiting(SessionCalls.current)
    propose = _awaiting(SessionCalls.propose)
    status = _awaiting(SessionCalls.status)
    withdraw = _awaiting(SessionCalls.withdraw)
    wait_until_final = _awaiting(SessionCalls.wait_until_final)
