"""How a test holds a sandbox: `Sandbox` in this process, `SandboxClient` for another one's."""

import http.client
import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from . import pipeline
from .control import CALLS, PREFIX, Control
from .messages import Answer, Request
from .settings import DEFAULT_ACCOUNTS, Settings
from .store import World
from .wire import Server

Body = dict[str, Any]
DEFAULT_API_KEY = next(iter(DEFAULT_ACCOUNTS.values()))[0]


class Controls:
    """The control API as methods. Every other control call: `call("name", …)`."""

    def call(self, name: str, **body: Any) -> Body:
        """Raises ValueError with the sandbox's own words when the call could not be carried out."""
        raise NotImplementedError

    def payment(self, *, amount: int, currency: str = "usd", **more: Any) -> Body:
        """A paid payment: `{"payment_intent": …, "charge": …}` as on the wire."""
        return self.call("payment", amount=amount, currency=currency, **more)

    def fault(
        self,
        name: str,
        *,
        match: Body | None = None,
        times: int | None = 1,
        skip: int = 0,
        **params: Any,
    ) -> Body:
        """Add a rule to the script; without `match` it means the request the fault is made for."""
        return self.call("faults", fault=name, match=match, times=times, skip=skip, **params)

    def faults(self) -> list[Body]:
        return list(self.call("faults")["faults"])

    def clear_faults(self) -> None:
        self.call("faults-clear")

    def ledger(self, payment_intent: str | None = None) -> Body:
        """`{"refunds": […], "payments": {id: {…}}}`: what really exists, whatever was answered."""
        return self.call("ledger", payment_intent=payment_intent)

    def refunds(self, payment_intent: str | None = None) -> list[Body]:
        return list(self.ledger(payment_intent)["refunds"])

    def customer(self, id: str | None = None, **more: Any) -> Body:
        return self.call("customer", id=id, **more)

    def credits(self, customer: str | None = None) -> list[Body]:
        """Every transaction on a customer's balance, oldest first, amounts as on the wire."""
        return list(self.call("credits", customer=customer)["credits"])

    def credit_outside(self, customer: str, *, amount: int, **more: Any) -> Body:
        """Store credit given by hand, or below 0 used up; `amount` is what the customer gets."""
        return self.call("credit-outside", customer=customer, amount=amount, **more)

    def requests(self, method: str | None = None, path: str | None = None) -> list[Body]:
        return list(self.call("requests", method=method, path=path)["requests"])

    def advance(self, seconds: float) -> Body:
        return self.call("clock", advance_seconds=seconds)

    def refund_outside(self, payment: str, *, amount: int | None = None, **more: Any) -> Body:
        return self.call("refund-outside", payment=payment, amount=amount, **more)

    def fail_refund(self, refund: str, *, reason: str = "expired_or_canceled_card") -> Body:
        return self.call("fail-refund", refund=refund, reason=reason)

    def settle_refund(self, refund: str) -> Body:
        return self.call("settle-refund", refund=refund)

    def dispute(self, payment: str, *, status: str = "needs_response", **more: Any) -> Body:
        return self.call("dispute", payment=payment, status=status, **more)

    def close_dispute(self, dispute: str, *, status: str) -> Body:
        return self.call("dispute", close=dispute, status=status)

    def prune_keys(self, *, older_than_seconds: float | None = None) -> int:
        return int(self.call("prune-keys", older_than_seconds=older_than_seconds)["pruned"])

    def settings(self, **changes: Any) -> Body:
        return self.call("settings", **changes)

    def latency(self, ms: float) -> None:
        self.call("latency", ms=ms)

    def down(self, seconds: float) -> None:
        self.call("down", seconds=seconds)

    def webhook(self, url: str, secret: str | list[str], **more: Any) -> Body:
        return self.call("webhooks", url=url, secret=secret, **more)

    def reset(self) -> None:
        self.call("reset")


class Sandbox(Controls):
    """A sandbox on threads of this process; a context manager, or `start()` and `stop()`."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        state: Path | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.world = World(settings=settings, journal=state)
        self._server = Server(host, port, self._answer)
        self._control = Control(self.world, self._server)
        self.port = self._server.port
        self.url = self._server.url
        self.api_key = DEFAULT_API_KEY

    def start(self) -> Self:
        self.world.resume()
        self.world.scheduler.start()
        self.world.webhooks.start()
        self._server.start()
        return self

    def stop(self) -> None:
        self.world.stopping.set()
        self._server.stop()
        self.world.webhooks.stop()
        self.world.scheduler.stop()
        self.world.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def call(self, name: str, **body: Any) -> Body:
        made = self._control.call(name, body)
        if made.after is not None:
            made.after()
        return _read(made.status, made.body)

    def _answer(self, request: Request) -> Answer:
        if request.path.startswith(PREFIX):
            return self._control.answer(request)
        return pipeline.answer(self.world, request)


class SandboxClient(Controls):
    """The same over HTTP, for a sandbox that runs as its own process."""

    def __init__(self, url: str, *, timeout_seconds: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self.api_key = DEFAULT_API_KEY
        self._timeout_seconds = timeout_seconds

    def call(self, name: str, **body: Any) -> Body:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=self._timeout_seconds
        )
        try:
            connection.request("POST", PREFIX + name, json.dumps(body).encode())
            response = connection.getresponse()
            return _read(response.status, response.read())
        finally:
            connection.close()


def _read(status: int, body: bytes) -> Body:
    made: Body = json.loads(body)
    if status != 200:
        raise ValueError(made["error"])
    return made


__all__ = ["CALLS", "DEFAULT_API_KEY", "Controls", "Sandbox", "SandboxClient"]
