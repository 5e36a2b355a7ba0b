"""A running stack seen from outside: propose over HTTP, read its rows, ask the provider's ledger.

The oracle is the sandbox's ledger. `World.problems()` says in sentences what is not as it must be.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from celery import Celery
from psycopg.rows import dict_row

from config.development import OFFLINE
from config.embedded.places import ephemeral_folder
from config.embedded.servers import Servers
from config.processes import ServerError
from config.stack import Stack
from providers.sandbox import SandboxClient
from tests.acceptance.operator import Operator
from tests.stack import running_stack

# How long one refund may take to come to rest under the short timeouts of tests.stack: a lease, a
# settle time and three tries, several times over on a busy machine.
REST_SECONDS = 60.0


@contextmanager
def running_world(**arguments: Any) -> Iterator[World]:
    """A world of its own on a stack of its own; see `tests.stack.running_stack`."""
    with running_stack(**arguments) as stack:
        world = World(stack)
        try:
            yield world
        finally:
            world.close()


@contextmanager
def world_with_servers(**arguments: Any) -> Iterator[tuple[World, Servers]]:
    """A world whose Postgres and Valkey nobody else uses, so that both may be taken away.

    The Postgres really writes to disk: what it acknowledged must outlive its own death.
    """
    folder, lock = ephemeral_folder()
    try:
        with (
            Servers(folder / "servers") as servers,
            pytest.MonkeyPatch.context() as patch,
        ):
            addresses = {
                "DATABASE_URL": servers.postgres.url(),
                "REDIS_URL": servers.valkey.url(),
            }
            for name, value in (OFFLINE | os.environ | addresses).items():
                patch.setenv(name, value)
            with running_world(**arguments) as world:
                yield world, servers
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def payment_of(order_id: str) -> str:
    """The payment of an order made here."""
    return f"pi_{order_id.replace('-', '_')}"


# Hundreds of refunds of one agent in minutes are what the default policy stops by itself.
WITHOUT_LIMITS = """
from dataclasses import replace
from policies.versions import DEFAULT_PARAMETERS, publish
publish(
    parameters=replace(
        DEFAULT_PARAMETERS, velocity=(), budgets=(), goodwill_budgets=(), anomaly_factor=0
    ),
    published_by="operator",
)
"""


class World:
    """One running stack with an agent key, orders and their payments."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.provider = SandboxClient(stack.sandbox_url)
        self._operator = Operator(stack)
        self._numbers = itertools.count(1)
        self._broker: Celery | None = None
        self.key = self.new_agent_key()

    def close(self) -> None:
        """End what is not the stack's."""
        self._operator.close()

    # ---- doing

    def manage(self, *arguments: str) -> str:
        """A command of an operator, and what it printed. Raises ServerError when it fails."""
        return self._operator.manage(*arguments)

    def new_agent_key(self) -> str:
        """An agent key made by the operator's command, as it is shown once."""
        said = self.manage("agent_key", "create", "acceptance")
        found = re.search(r"ro_\w+", said)
        if found is None:
            raise AssertionError(f"no key in: {said}")
        return found.group(0)

    def lift_limits(self) -> None:
        """Put a policy in force that counts nothing, for worlds of many refunds."""
        self.manage("shell", "-c", WITHOUT_LIMITS)

    def order(
        self,
        *,
        captured_minor: int = 20_000,
        order_id: str | None = None,
        source_version: int = 1,
        account: str = "",
        behaviour: str | None = None,
        url: str | None = None,
    ) -> str:
        """A paid order, mirrored over HTTP (again: the same statement); returns its id.

        `account`: the connected account that was paid; `behaviour`: of the payment's refunds.
        """
        order_id = order_id or f"o{next(self._numbers)}"
        self.provider.payment(
            amount=captured_minor,
            currency="usd",
            id=payment_of(order_id),
            account=account or None,
            behaviour=behaviour,
        )
        status, body = self.call(
            "PUT",
            f"/api/v1/orders/{order_id}",
            {
                "currency": "USD",
                "captured_minor": captured_minor,
                "payment": {
                    "provider": "stripe",
                    "payment_intent": payment_of(order_id),
                    "account": account,
                },
                # Each order another customer's: what one of them got back is a limit too.
                "customer": {"ref": f"c-{order_id}", "email": "customer@example.com"},
                "placed_at": "2026-01-15T10:00:00Z",
                "source_version": source_version,
            },
            url=url,
        )
        if status == 503:
            raise OSError(body)  # nothing was recorded: to the caller as good as nobody there
        if status not in (200, 201):
            raise AssertionError((status, body))
        return order_id

    def propose(
        self,
        order_id: str,
        *,
        request_id: str = "r1",
        amount_minor: int = 7_900,
        url: str | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Propose over HTTP; the status and the body of the answer. `url`: of which web process."""
        return self.call(
            "POST",
            "/api/v1/refunds",
            {
                "order_id": order_id,
                "request_id": request_id,
                "amount_minor": amount_minor,
                "currency": "USD",
                "reason": "requested_by_customer",
            },
            url=url,
        )

    def publish(self, task: str, *arguments: Any, queue: str = "dispatch", **more: Any) -> None:
        """Put a message straight into the broker, as anybody who can reach it could."""
        if self._broker is None:
            self._broker = Celery("outside", broker=self.stack.redis_url, set_as_current=False)
        self._broker.send_task(task, args=arguments, queue=queue, ignore_result=True, **more)

    def call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        url: str | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """One HTTP call as the agent's backend. Raises OSError when nobody answers."""
        request = urllib.request.Request(
            (url or self.stack.url) + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        except http.client.HTTPException as error:
            # Its process was killed in the middle of the answer: to the caller, nobody there.
            raise OSError(str(error)) from error

    @contextmanager
    def supervised(self) -> Iterator[list[str]]:
        """Start again whatever ends by itself, as `make up` and compose do; the names of those."""
        started: list[str] = []
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.2):
                for kind, index, process in self.stack.dead():
                    started.append(process.name)
                    try:
                        self.stack.restart(kind, index=index)
                    except ServerError:
                        continue  # it is tried again

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield started
        finally:
            over.set()
            thread.join()

    # ---- reading

    @contextmanager
    def rows(self) -> Iterator[psycopg.Connection[dict[str, Any]]]:
        """A connection of our own to the stack's database."""
        with psycopg.connect(
            self.stack.database_url, autocommit=True, row_factory=dict_row
        ) as connection:
            yield connection

    def query(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """Rows of one query."""
        with self.rows() as connection:
            return connection.execute(sql, values).fetchall()

    def action(self, action_id: str) -> dict[str, Any]:
        """One action's row."""
        (row,) = self.query("SELECT * FROM refunds_refundaction WHERE action_id = %s", action_id)
        return row

    def events(self, action_id: str) -> list[dict[str, Any]]:
        """One action's history, oldest first."""
        return self.query(
            "SELECT e.* FROM refunds_refundevent e JOIN refunds_refundaction a "
            "ON a.id = e.action_id WHERE a.action_id = %s ORDER BY e.id",
            action_id,
        )

    def states(self, action_id: str) -> list[str]:
        """The states an action went through, from its history."""
        return [event["data"]["to"] for event in self.events(action_id) if "to" in event["data"]]

    def open_cases(self, action_id: str) -> list[str]:
        """The kinds of the action's open cases."""
        rows = self.query(
            "SELECT kind FROM effects_case WHERE action_id = %s AND closed_at IS NULL", action_id
        )
        return sorted(row["kind"] for row in rows)

    def refunds(self, action_id: str) -> list[dict[str, Any]]:
        """What the provider's ledger holds for an action, failed ones left out."""
        return [
            refund
            for refund in self.provider.refunds()
            if refund["metadata"].get("action_id") == action_id and refund["status"] != "failed"
        ]

    def posts(self, action_id: str) -> list[dict[str, Any]]:
        """Every refund request that reached the provider for an action, whatever its generation."""
        return [
            request
            for request in self.provider.requests("POST", "/v1/refunds")
            if (request["idempotency_key"] or "").partition(":g")[0] == action_id
        ]

    def count(self, table: str) -> int:
        """Rows of one of our tables."""
        (row,) = self.query(f"SELECT count(*) AS n FROM {table}")
        return int(row["n"])

    # ---- waiting

    def until(self, what: str, look: Callable[[], Any], *, seconds: float = REST_SECONDS) -> Any:
        """Wait for something to be true; fails with what was waited for."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"after {seconds:g} s still not: {what}")

    def restless(self) -> list[str]:
        """Actions that neither are over nor wait for a person.

        What stands AUTHORIZED on an order with an open incident waits for the incident's owner.
        """
        rows = self.query(
            """
            SELECT a.action_id, a.state FROM refunds_refundaction a
            WHERE a.state NOT IN ('SUCCEEDED', 'FAILED_FINAL', 'REJECTED', 'EXPIRED',
                                  'CANCELLED', 'AWAITING_APPROVAL')
              AND NOT (a.due_at IS NULL AND EXISTS (
                  SELECT 1 FROM effects_case c
                  WHERE c.action_id = a.action_id AND c.closed_at IS NULL))
              AND NOT (a.state = 'AUTHORIZED' AND EXISTS (
                  SELECT 1 FROM effects_case c JOIN refunds_order o ON o.id = a.order_id
                  WHERE c.resource = 'order:' || o.order_id AND c.kind = 'incident'
                    AND c.closed_at IS NULL))
            """
        )
        return [f"{row['action_id']} is {row['state']}" for row in rows]

    def rest(self, *, seconds: float = REST_SECONDS) -> None:
        """Wait until every action is over or a person's."""
        try:
            self.until("rest", lambda: not self.restless(), seconds=seconds)
        except AssertionError:
            raise AssertionError(f"still moving after {seconds:g} s: {self.restless()}") from None

    # ---- the oracle

    def problems(self) -> list[str]:
        """Everything that must never be, found in the rows and the provider's ledger."""
        found: list[str] = []
        by_action: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for refund in self.provider.refunds():
            by_action[refund["metadata"].get("action_id", "")].append(refund)
        actions = self.query("SELECT * FROM refunds_refundaction ORDER BY id")
        for action in actions:
            found += self._action_problems(action, by_action.pop(action["action_id"], []))
        for action_id, refunds in by_action.items():
            if action_id:
                found.append(f"{action_id}: {len(refunds)} refunds and no such action")
        found += self._order_problems()
        found += self._history_problems()
        return found

    def _action_problems(self, action: dict[str, Any], refunds: list[dict[str, Any]]) -> list[str]:
        found = []
        name = action["action_id"]
        live = [refund for refund in refunds if refund["status"] not in ("failed", "canceled")]
        if len(live) > 1:
            found.append(f"{name}: paid {len(live)} times: {[r['id'] for r in live]}")
        if any(refund["amount"] != action["amount_minor"] for refund in live):
            found.append(f"{name}: another amount than authorised: {live}")
        if action["state"] in ("SUCCEEDED", "PENDING") and len(live) != 1:
            found.append(f"{name}: {action['state']} with {len(live)} refunds at the provider")
        if live and action["state"] in ("REJECTED", "EXPIRED", "CANCELLED", "FAILED_FINAL"):
            found.append(f"{name}: {action['state']} and yet paid")
        if live and action["state"] in ("HELD", "AWAITING_APPROVAL", "AUTHORIZED"):
            found.append(f"{name}: {action['state']} says that nothing was sent, and it is paid")
        return found

    def _order_problems(self) -> list[str]:
        rows = self.query(
            """
            SELECT o.order_id, o.captured_minor, o.refunded_minor, o.reserved_minor,
                   o.disputed_minor, o.payment_ref,
                   COALESCE(SUM(a.amount_minor) FILTER (WHERE a.state = 'SUCCEEDED'), 0) AS done,
                   COALESCE(SUM(a.reserved_minor), 0) AS held,
                   (SELECT COALESCE(SUM(x.amount_minor), 0) FROM refunds_externalrefund x
                     WHERE x.order_id = o.id) AS external
            FROM refunds_order o LEFT JOIN refunds_refundaction a ON a.order_id = o.id
            GROUP BY o.id
            """
        )
        found = []
        totals: dict[str, int] = defaultdict(int)
        for refund in self.provider.refunds():
            if refund["status"] not in ("failed", "canceled"):
                totals[refund["payment_intent"]] += refund["amount"]
        for row in rows:
            name = f"order {row['order_id']}"
            if row["refunded_minor"] != row["done"] + row["external"]:
                found.append(
                    f"{name}: refunded {row['refunded_minor']}, its rows say {row['done']}"
                )
            if row["reserved_minor"] != row["held"]:
                found.append(f"{name}: reserves {row['reserved_minor']}, its rows {row['held']}")
            if totals[row["payment_ref"]] > row["captured_minor"]:
                found.append(f"{name}: the provider paid more than was captured")
            if not (
                row["refunded_minor"]
                <= totals[row["payment_ref"]]
                <= row["refunded_minor"] + row["reserved_minor"]
            ):
                found.append(
                    f"{name}: the provider paid {totals[row['payment_ref']]}, we hold "
                    f"{row['refunded_minor']} refunded and {row['reserved_minor']} in flight"
                )
        return found

    def _history_problems(self) -> list[str]:
        """Each action's history is one unbroken, legal chain that ends where the row stands."""
        from effects.states import LEGAL, START_STATES

        legal = {(source.value, target.value) for source, target in LEGAL}
        rows = self.query(
            """
            SELECT a.action_id, a.state,
                   array_agg(e.data ->> 'from' ORDER BY e.id) AS sources,
                   array_agg(e.data ->> 'to' ORDER BY e.id) AS targets
            FROM refunds_refundaction a JOIN refunds_refundevent e ON e.action_id = a.id
            WHERE e.data ? 'to' GROUP BY a.id
            """
        )
        found = []
        for row in rows:
            now = row["targets"][0]
            if now not in {state.value for state in START_STATES}:
                found.append(f"{row['action_id']}: begins at {now}")
            for source, target in zip(row["sources"][1:], row["targets"][1:], strict=True):
                if source != now or (source, target) not in legal:
                    found.append(f"{row['action_id']}: {source} -> {target} after {now}")
                now = target
            if now != row["state"]:
                found.append(f"{row['action_id']}: is {row['state']}, its history ends at {now}")
        return found
