"""The real application over real HTTP, a proxy that spoils answers, and both kinds of client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from pytest_django.live_server_helper import LiveServer

from agents.keys import create_key
from refund_once_client import (
    AsyncRefundOnce,
    AsyncRefundSession,
    Patience,
    RefundOnce,
    RefundSession,
)
from tests.client.faulty_proxy import FaultyProxy

#: The shape of the default, in hundredths of its pauses.
BRISK = Patience(tries_max=4, total_seconds=30, pause_first_seconds=0.02, pause_max_seconds=0.1)
# Long enough for the application on two busy cores.
TIMEOUT_SECONDS = 3.0


class Client:
    """Either kind of client, called in the same way: `client.get_order("4821")`."""

    def __init__(self, kind: type[Any], url: str, token: str, **options: Any) -> None:
        self._kind = kind
        self._arguments = (url, token)
        self._options = {"patience": BRISK, "timeout_seconds": TIMEOUT_SECONDS} | options

    def __getattr__(self, name: str) -> Any:
        if issubclass(self._kind, AsyncRefundOnce | AsyncRefundSession):
            return lambda *args, **kwargs: asyncio.run(self._awaited(name, *args, **kwargs))
        return lambda *args, **kwargs: self._called(name, *args, **kwargs)

    def _called(self, name: str, *args: Any, **kwargs: Any) -> Any:
        with self._kind(*self._arguments, **self._options) as client:
            result = getattr(client, name)(*args, **kwargs)
            return list(result) if isinstance(result, Iterator) else result

    async def _awaited(self, name: str, *args: Any, **kwargs: Any) -> Any:
        async with self._kind(*self._arguments, **self._options) as client:
            result = getattr(client, name)(*args, **kwargs)
            if isinstance(result, AsyncIterator):
                return [one async for one in result]
            return await result


@pytest.fixture
def proxy(transactional_db: None, live_server: LiveServer) -> Iterator[FaultyProxy]:
    """The application, behind a proxy that does what it is told."""
    with FaultyProxy(port=urlsplit(live_server.url).port or 0) as proxy:
        yield proxy


@pytest.fixture
def key(transactional_db: None) -> str:
    """An agent key."""
    return create_key(name="shop").key


@pytest.fixture
def agent(key: str) -> str:
    """The public name of that key's agent: whose actions it may read."""
    return key.split("_")[2]


@pytest.fixture(params=["blocking", "asyncio"])
def way(request: pytest.FixtureRequest) -> str:
    """Each test that takes a client is run with both kinds."""
    return str(request.param)


@pytest.fixture
def refunds(way: str, proxy: FaultyProxy, key: str) -> Client:
    """A merchant's backend."""
    return Client(RefundOnce if way == "blocking" else AsyncRefundOnce, proxy.url, key)


def session_client(way: str, url: str, token: str, **options: Any) -> Client:
    """A model's tools."""
    kind = RefundSession if way == "blocking" else AsyncRefundSession
    return Client(kind, url, token, **options)
