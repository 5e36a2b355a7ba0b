"""Webhook deliveries: signed as Stripe signs, retried, and on demand late, doubled or reordered."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import itertools
import json
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from . import events
from .listing import Object

if TYPE_CHECKING:
    from .store import Account, World


@dataclass(slots=True)
class Endpoint:
    """`account` None: events of all accounts. Several secrets: one signature for each."""

    id: str
    url: str
    secrets: list[str]
    types: list[str]
    account: str | None = None


@dataclass(slots=True)
class Delivery:
    account: Account
    event: Object
    endpoint: Endpoint
    attempt: int = 1


def signature(payload: bytes, secrets: list[str], at: int) -> str:
    """The Stripe-Signature header: `t=…,v1=…` with one v1 for each secret."""
    signed = f"{at}.".encode() + payload
    made = [hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets]
    return ",".join([f"t={at}", *(f"v1={digest}" for digest in made)])


class Webhooks:
    """One thread delivers, one after another. Settings say how late, how often, in which order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.endpoints: list[Endpoint] = []
        self.attempts: list[dict[str, Any]] = []
        self._waiting: list[Delivery] = []
        self._ready: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()
        self._count = itertools.count(1)
        self._thread = threading.Thread(target=self._loop, name="sandbox-webhooks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ready.put(None)
        self._thread.join(timeout=2)

    def add(
        self,
        url: str,
        secrets: list[str],
        types: list[str] | None = None,
        account: str | None = None,
    ) -> Endpoint:
        endpoint = Endpoint(f"we_{next(self._count)}", url, secrets, types or ["*"], account)
        self.endpoints.append(endpoint)
        return endpoint

    def remove(self, id: str | None) -> None:
        """One endpoint, or with None all. What waits for it is not delivered."""
        gone = [e for e in self.endpoints if id is None or e.id == id]
        self.endpoints = [e for e in self.endpoints if e not in gone]
        self._waiting = [d for d in self._waiting if d.endpoint not in gone]

    def forget(self) -> None:
        self._waiting.clear()
        self.attempts.clear()

    # In the world's lock

    def queue(self, account: Account, event: Object) -> None:
        """Put a new event on its way to every endpoint that wants it."""
        wanted = [
            endpoint
            for endpoint in self.endpoints
            if endpoint.account in (None, account.id)
            and ("*" in endpoint.types or event["type"] in endpoint.types)
        ]
        if not wanted:
            return
        event["pending_webhooks"] = len(wanted)
        event["_delivery"] = "pending"
        settings = self._world.settings
        for endpoint in wanted:
            for _ in range(settings.webhook_copies):
                self._waiting.append(Delivery(account, event, endpoint))
        if not settings.webhooks_paused:
            self._flush_in(settings.webhook_delay_seconds)

    def requeue(self, account: Account, event: Object) -> None:
        """Send one event again, to every endpoint, as a person does in the dashboard."""
        self.queue(account, event)
        self._world.put(account, event)

    def release(self) -> None:
        """Deliver what waits, now."""
        self._flush_in(0)

    def _flush_in(self, seconds: float) -> None:
        if seconds > 0:
            self._world.scheduler.at(self._world.clock.now() + seconds, self._flush)
        else:
            self._world.scheduler.at(0, self._flush)

    def _flush(self) -> None:
        with self._world.lock:
            waiting, self._waiting = self._waiting, []
            if self._world.settings.webhook_order == "reversed":
                waiting.reverse()
        for delivery in waiting:
            self._ready.put(delivery)

    # In the delivering thread, without the lock

    def _loop(self) -> None:
        while (delivery := self._ready.get()) is not None:
            if not self._world.stopping.is_set():
                self._deliver(delivery)

    def _deliver(self, delivery: Delivery) -> None:
        world, event = self._world, delivery.event
        with world.lock:
            if world.accounts.get(delivery.account.id) is not delivery.account:
                return  # a reset has forgotten this event
            payload = json.dumps(events.rendered(event), ensure_ascii=False, indent=2).encode()
        status, problem = self._post(delivery.endpoint, payload)
        delivered = status is not None and 200 <= status < 300
        with world.transaction():
            if world.accounts.get(delivery.account.id) is not delivery.account:
                return
            self.attempts.append(
                {
                    "event": event["id"],
                    "type": event["type"],
                    "endpoint": delivery.endpoint.id,
                    "url": delivery.endpoint.url,
                    "attempt": delivery.attempt,
                    "status": status,
                    "error": problem,
                    "at": world.clock.now(),
                }
            )
            delays = world.settings.webhook_retry_delays_seconds
            if delivered:
                event["pending_webhooks"] = max(0, event["pending_webhooks"] - 1)
                if event["pending_webhooks"] == 0:
                    event["_delivery"] = "delivered"
            elif delivery.attempt <= len(delays):
                again = Delivery(
                    delivery.account, event, delivery.endpoint, attempt=delivery.attempt + 1
                )
                world.scheduler.at(
                    world.clock.now() + delays[delivery.attempt - 1],
                    lambda: self._ready.put(again),
                )
            else:
                event["_delivery"] = "failed"
            world.put(delivery.account, event)

    def _post(self, endpoint: Endpoint, payload: bytes) -> tuple[int | None, str | None]:
        """One attempt, with its own timestamp and signature. A redirect counts as a failure."""
        parts = urlsplit(endpoint.url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        connection = kind(
            parts.hostname or "", parts.port, timeout=self._world.settings.webhook_timeout_seconds
        )
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": "Stripe/1.0 (+https://stripe.com/docs/webhooks)",
            # Real time: receivers compare it with theirs, whatever the sandbox clock says.
            "Stripe-Signature": signature(payload, endpoint.secrets, int(time.time())),
        }
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("POST", target, payload, headers)
            response = connection.getresponse()
            response.read()
            return response.status, None
        except (OSError, http.client.HTTPException) as problem:
            return None, f"{type(problem).__name__}: {problem}"
        finally:
            connection.close()
