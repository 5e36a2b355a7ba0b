"""The product, running: servers that really write to disk, the sandbox, web, workers, beat.

Everything is the Procfile's, except that the workers' pool is chosen here. Nothing outside this
machine is talked to, and nothing that was there before is used.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from bench.machine import Meter, memory_mb
from bench.measured import BenchError, Run, latencies_ms
from config.embedded.places import ephemeral_folder
from config.embedded.servers import Servers
from config.stack import Stack, procfile
from kernel.money import AMOUNT_MINOR_MAX
from policies.parameters import Limit
from policies.read_parameters import COUNT_MAX
from providers.sandbox import SandboxClient

#: Addresses of a running stack in the environment would send the bench somewhere else.
NOT_INHERITED = (
    *("DATABASE_URL", "REDIS_URL", "BROKER_URL", "CRASH_POINTS_DIR", "LOG_LEVEL"),
    *("WORKER_POOL", "WORKER_CONCURRENCY", "WEB_WORKERS", "WEB_THREADS"),
    *("STRIPE_API_KEY", "STRIPE_API_KEYS", "STRIPE_API_BASE", "STRIPE_WEBHOOK_SECRETS"),
)
AMOUNT_MINOR = 7_900
CAPTURED_MINOR = 20_000
#: How often the database is asked how many are still open: an index of open actions answers it.
POLL_SECONDS = 0.02
#: Nothing here takes this long unless it hangs.
STUCK_SECONDS = 180.0
OVER = "('SUCCEEDED', 'REJECTED', 'EXPIRED', 'CANCELLED')"


def _out_of_reach(limit: Limit) -> Limit:
    """The same limit, which is read and compared and never passed."""
    largest = {"count": COUNT_MAX, "base_minor": AMOUNT_MINOR_MAX}
    out: dict[str, Any] = {
        f"{word}_{figure}": value
        for word in ("review", "hold")
        for figure, value in largest.items()
        if getattr(limit, f"{word}_{figure}") is not None
    }
    return replace(limit, **out)


def procfile_pool() -> tuple[str, int]:
    """The pool and the concurrency that the Procfile names."""
    found = re.search(r"WORKER_POOL:-(\w+)}.*WORKER_CONCURRENCY:-(\d+)}", procfile()["worker"])
    if found is None:
        raise BenchError("the Procfile's worker names no WORKER_POOL and WORKER_CONCURRENCY")
    return found.group(1), int(found.group(2))


@contextmanager
def durable_servers() -> Iterator[Servers]:
    """A Postgres with fsync on and a Valkey, gone with their data afterwards."""
    folder, lock = ephemeral_folder()
    try:
        with Servers(folder / "servers") as servers:
            yield servers
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


class World:
    """A running stack with an agent key and a policy that asks nobody."""

    def __init__(self, *, servers: Servers, folder: Path, say: Callable[[str], None]) -> None:
        self.servers = servers
        self.stack = Stack(
            folder=folder,
            servers=servers,
            env={
                "DATABASE_URL": servers.postgres.url(),
                "REDIS_URL": servers.valkey.url(),
                # Counted like others, and too many to stop the one agent that asks here.
                "AGENT_REQUESTS_PER_MINUTE": "1000000",
            },
            # What the provider tells by itself is not part of a refund's way to SUCCEEDED.
            webhooks=False,
            migrate=False,
            say=say,
        )
        self.stack.manage("migrate", "--noinput", "--verbosity", "0")
        self._use_django()
        self.key = ""
        self.pool = ""

    def _use_django(self) -> None:
        """This process reads and writes the same database, and sends to the same broker."""
        os.environ.update({name: value for name, value in self.stack.env.items() if name.isupper()})
        os.environ.setdefault("STRIPE_API_BASE", "http://127.0.0.1:1")
        os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
        os.environ["LOG_LEVEL"] = "ERROR"
        import django

        import config.celery  # noqa: F401  # the app that publishes

        django.setup()
        from policies.versions import DEFAULT_PARAMETERS, publish

        publish(
            parameters=replace(
                DEFAULT_PARAMETERS,
                ceiling_minor=dict.fromkeys(DEFAULT_PARAMETERS.ceiling_minor, AMOUNT_MINOR_MAX),
                # One agent asks for everything here, as fast as it can. The limits are read and
                # kept like others, and are too high to stop it.
                velocity=tuple(map(_out_of_reach, DEFAULT_PARAMETERS.velocity)),
                budgets=tuple(map(_out_of_reach, DEFAULT_PARAMETERS.budgets)),
                anomaly_factor=1,
                anomaly_floor_count=COUNT_MAX,
            ),
            published_by="bench",
        )

    def start(self) -> None:
        self.stack.start()
        from agents.keys import create_key

        self.key = create_key(name="bench").key
        self.provider = SandboxClient(self.stack.sandbox_url)
        self.watch = psycopg.connect(self.servers.postgres.url(), autocommit=True)

    def stop(self) -> None:
        self.stack.stop(timeout_seconds=10)

    # ---- what is running

    def meter(self) -> Meter:
        """Measures from here on, by the stack's own groups of processes."""
        groups = {
            kind: [process.pid for process in processes]
            for kind, processes in self.stack.processes.items()
        }
        groups["postgres"] = [self.servers.postgres.process.pid]
        groups["broker"] = [self.servers.valkey.process.pid]
        return Meter(groups=groups)

    def warm_up(self) -> None:
        """The first refund of each process imports, connects and reads the policy."""
        _, slots = procfile_pool()
        self.end_to_end(count=8 * slots, in_flight=2 * slots, clients=4, label="warm-up")

    def use_pool(self, pool: str, concurrency: int) -> None:
        """Start the worker again with another pool; as it is when it runs with this one."""
        if self.pool == (wanted := f"{pool}-{concurrency}"):
            return
        (worker,) = self.stack.processes["worker"]
        worker.env |= {"WORKER_POOL": pool, "WORKER_CONCURRENCY": str(concurrency)}
        self.stack.restart("worker")
        self.pool = wanted
        self.drain(count=max(4 * concurrency, 16), label="warm-up")

    @contextmanager
    def latency(self, ms: int) -> Iterator[None]:
        """Every call of the provider takes this long: a read and a send are two."""
        self.provider.latency(ms)
        try:
            yield
        finally:
            self.provider.latency(0)

    # ---- orders

    def orders(self, count: int) -> list[str]:
        """New paid orders, each with a payment of its own at the provider."""
        from django.utils import timezone

        from refunds.models import Order

        run = secrets.token_hex(4)
        names = [f"bench-{run}-{number}" for number in range(count)]
        now = timezone.now()
        Order.objects.bulk_create(
            Order(
                order_id=name,
                currency="USD",
                captured_minor=CAPTURED_MINOR,
                provider="stripe",
                payment_ref=f"pi_{name.replace('-', '')}",
                customer_ref=f"customer-{name}",
                customer_email="customer@example.com",
                placed_at=now,
                created_at=now,
                updated_at=now,
            )
            for name in names
        )
        for name in names:
            self.provider.payment(
                amount=CAPTURED_MINOR, currency="usd", id=f"pi_{name.replace('-', '')}"
            )
        return names

    def open_actions(self) -> int:
        """How many actions are not over."""
        query = f"SELECT count(*) FROM refunds_refundaction WHERE state NOT IN {OVER}"
        row = self.watch.execute(query).fetchone()
        return int(row[0]) if row else 0

    def check(self, orders: Sequence[str]) -> dict[str, float]:
        """When each became SUCCEEDED (Unix seconds), by order. BenchError unless each did, once.

        The provider's own ledger must show one refund of the amount for each, and no other.
        """
        rows = self.watch.execute(
            "SELECT o.order_id, a.state, a.attempt_count, extract(epoch FROM a.state_since)"
            " FROM refunds_refundaction a JOIN refunds_order o ON o.id = a.order_id"
            " WHERE o.order_id = ANY(%s)",
            [list(orders)],
        ).fetchall()
        wrong = [row[:3] for row in rows if row[1:3] != ("SUCCEEDED", 1)]
        if wrong or len(rows) != len(orders):
            raise BenchError(
                f"{len(rows)} of {len(orders)} refunds are recorded, and not each SUCCEEDED by one "
                f"attempt: {wrong[:5]}"
            )
        payments = {f"pi_{name.replace('-', '')}" for name in orders}
        amounts: dict[str, list[int]] = {payment: [] for payment in payments}
        for refund in self.provider.refunds():
            if refund["payment_intent"] in payments:
                amounts[refund["payment_intent"]].append(refund["amount"])
        if differing := {p: a for p, a in amounts.items() if a != [AMOUNT_MINOR]}:
            raise BenchError(
                f"The provider's ledger must show one refund of {AMOUNT_MINOR} for each of "
                f"{len(orders)} payments; it differs for {len(differing)}: "
                f"{dict(list(differing.items())[:5])}"
            )
        return {row[0]: float(row[3]) for row in rows}

    # ---- loads

    def end_to_end(self, *, count: int, in_flight: int, clients: int, label: str) -> Run:
        """Propose over HTTP until all have SUCCEEDED, with at most `in_flight` not over yet.

        1. Each client thread keeps one connection and proposes one refund after the other.
        2. The database is asked how many are open; proposals wait while that is `in_flight`.
        3. Once none is open the meter stops, and every refund is compared with the ledger.
        """
        orders = self.orders(count)
        turn = threading.Condition()
        todo, sent_at, answered, over = list(reversed(orders)), dict[str, float](), 0, 0
        problems: list[BaseException] = []

        def client() -> None:
            nonlocal answered
            try:
                connection = http.client.HTTPConnection(urlsplit(self.stack.url).netloc, timeout=30)
                while True:
                    with turn:
                        turn.wait_for(lambda: len(sent_at) - over < in_flight or problems)
                        if not todo or problems:
                            return
                        order = todo.pop()
                        sent_at[order] = time.time()
                    self._propose(connection, order)
                    with turn:
                        answered += 1
            except BaseException as error:
                problems.append(error)
                with turn:
                    turn.notify_all()

        threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
        meter = self.meter()
        with meter:
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + STUCK_SECONDS
            while over < count and not problems:
                time.sleep(POLL_SECONDS)
                with turn:
                    # Answered before open is read: what is answered and not open is over.
                    before = answered
                    over = max(over, before - self.open_actions())
                    turn.notify_all()
                if time.monotonic() > deadline:
                    problems.append(BenchError(f"{label}: {count - over} of {count} did not end"))
        with turn:
            turn.notify_all()
        for thread in threads:
            thread.join(timeout=30)
        if problems:
            raise problems[0]
        done_at = self.check(orders)
        started = min(sent_at.values())
        return Run(
            label=label,
            count=count,
            seconds=max(done_at.values()) - started,
            cpu_seconds=meter.cpu_seconds,
            foreign_share=meter.foreign_share,
            **latencies_ms([done_at[order] - sent_at[order] for order in orders]),
        )

    def _propose(self, connection: http.client.HTTPConnection, order: str) -> None:
        body = {
            "order_id": order,
            "request_id": "1",
            "amount_minor": AMOUNT_MINOR,
            "currency": "USD",
            "reason": "requested_by_customer",
        }
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            connection.request("POST", "/api/v1/refunds", json.dumps(body), headers)
            answer = connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            # An idle connection was closed by the server, as it may: a proposal can be repeated.
            connection.close()
            connection.request("POST", "/api/v1/refunds", json.dumps(body), headers)
            answer = connection.getresponse()
        said = answer.read()
        if answer.status != 201 or json.loads(said)["state"] != "AUTHORIZED":
            raise BenchError(f"POST /api/v1/refunds was answered {answer.status}: {said[:300]!r}")

    def drain(self, *, count: int, label: str) -> Run:
        """Work off a backlog of authorised refunds whose messages wait in the broker.

        1. The worker is stopped where it stands (SIGSTOP).
        2. The refunds are proposed, in this process: rows, and a message for each.
        3. The worker goes on (SIGCONT); once no action is open the meter stops.
        """
        from refunds.propose import Proposal, Recorded, propose_refund

        orders = self.orders(count)
        self.stack.kill("worker", signal.SIGSTOP)
        for order in orders:
            proposed = propose_refund(
                proposal=Proposal(
                    order_id=order,
                    request_id="1",
                    amount_minor=AMOUNT_MINOR,
                    currency="USD",
                    reason="requested_by_customer",
                    proposer="bench",
                )
            )
            if not isinstance(proposed, Recorded) or proposed.action.state != "AUTHORIZED":
                raise BenchError(f"{order}: {proposed!r}")
        meter = self.meter()
        with meter:
            started = time.time()
            self.stack.kill("worker", signal.SIGCONT)
            deadline = time.monotonic() + STUCK_SECONDS
            while left := self.open_actions():
                if time.monotonic() > deadline:
                    raise BenchError(f"{label}: {left} of {count} did not end")
                time.sleep(POLL_SECONDS)
        done_at = self.check(orders)
        return Run(
            label=label,
            count=count,
            seconds=max(done_at.values()) - started,
            cpu_seconds=meter.cpu_seconds,
            foreign_share=meter.foreign_share,
            worker_memory_mb=memory_mb([worker.pid for worker in self.stack.processes["worker"]]),
        )


@contextmanager
def running_world(*, say: Callable[[str], None]) -> Iterator[World]:
    """Servers and product; ended afterwards, by the ids of what was started."""
    for name in NOT_INHERITED:
        os.environ.pop(name, None)
    with durable_servers() as servers, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        world = World(servers=servers, folder=Path(folder), say=say)
        try:
            yield world
        finally:
            world.stop()
