"""A kill switch is flipped while workers send: nothing leaves any more but what was on the wire.

One world, four rounds: fifty refunds are allowed and on their way, then the operator's command
stops their agent, their account, their kind, everything. What counts is the moment at which the
switch can be seen in the database, against the times in the attempts and in the provider's log.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.acceptance.world import World, running_world

pytestmark = pytest.mark.timeout(240)

ACTIONS = 50
WORKERS = 2
CONCURRENCY = 2
# What can be on the wire at one moment.
SLOTS = WORKERS * CONCURRENCY
# Of each answer. A refund is two requests, so the fifty take several seconds and the switch comes
# in the midst of them; still far below the read timeout.
LATENCY_MS = 400
CONNECTED = "acct_connected"


@dataclass(frozen=True)
class Round:
    """Fifty actions that a switch covers, and one more whose refund the provider has pending."""

    scope: str
    actions: tuple[str, ...]
    pending: str


def action_of(order_id: str) -> str:
    return f"refund:order-{order_id}:request-r1"


def all_at_once(call: Callable[[str], Any], order_ids: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, order_ids))


def begin(world: World, name: str, *, scope: str, account: str = "") -> Round:
    """Orders, a refund that the provider leaves pending, then fifty proposals."""
    world.provider.latency(0)
    order_ids = [f"{name}{number}" for number in range(ACTIONS)]
    all_at_once(lambda order_id: world.order(order_id=order_id, account=account), order_ids)
    pending = world.order(order_id=f"{name}-pending", account=account, behaviour="pending")
    assert world.propose(pending)[0] == 201
    world.until(
        "the provider's pending", lambda: world.action(action_of(pending))["state"] == "PENDING"
    )
    world.provider.latency(LATENCY_MS)

    def propose(order_id: str) -> None:
        status, body = world.propose(order_id)
        assert (status, body["state"]) == (201, "AUTHORIZED"), body

    all_at_once(propose, order_ids)
    return Round(
        scope=scope,
        actions=tuple(action_of(order_id) for order_id in order_ids),
        pending=action_of(pending),
    )


@contextmanager
def seen_at(world: World, scope: str) -> Iterator[list[float]]:
    """When the database first shows the switch on, as its own time; at or after the commit."""
    seen: list[float] = []
    watching, over = threading.Event(), threading.Event()

    def watch() -> None:
        with world.rows() as connection:
            while not seen:
                is_last = over.is_set()
                row = connection.execute(
                    "SELECT extract(epoch FROM clock_timestamp())::float8 AS at "
                    "FROM effects_switch WHERE scope = %s AND ended_at IS NULL",
                    [scope],
                ).fetchone()
                if row is not None:
                    seen.append(row["at"])
                watching.set()
                if is_last:
                    return
                over.wait(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        assert watching.wait(10)
        yield seen
    finally:
        over.set()
        thread.join()


def in_states(world: World, actions: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in world.query(
        "SELECT action_id, state FROM refunds_refundaction WHERE action_id = ANY(%s)",
        list(actions),
    ):
        found.setdefault(row["state"], []).append(row["action_id"])
    return found


def posts_after(world: World, round_: Round, at: float) -> list[str]:
    """The refund requests of the round's actions that reached the provider after a moment."""
    return [
        request["idempotency_key"]
        for request in world.provider.requests("POST", "/v1/refunds")
        if request["at"] > at and request["idempotency_key"] in round_.actions
    ]


def claims_after(world: World, round_: Round, at: float) -> int:
    (row,) = world.query(
        "SELECT count(*) AS n FROM refunds_refundattempt t "
        "JOIN refunds_refundaction a ON a.id = t.action_id "
        "WHERE a.action_id = ANY(%s) AND t.claimed_at > to_timestamp(%s)",
        list(round_.actions),
        at,
    )
    return int(row["n"])


def turned_away(world: World, waiting: list[str], *, since: float) -> bool:
    """Whether every action has been tried since then, and put off by the switch."""
    rows = world.query("SELECT due_at FROM refunds_refundaction WHERE action_id = ANY(%s)", waiting)
    # An action that nobody tried is due half a second after it was allowed.
    return all(row["due_at"].timestamp() > since + 5 for row in rows)


def flip_and_watch(world: World, round_: Round, *, outsider: str = "") -> list[str]:
    """The switch goes on in the midst of it, then off again; what it stopped. Not `outsider`."""
    world.until(
        "the first to be on the wire or paid",
        lambda: set(in_states(world, round_.actions)) > {"AUTHORIZED"},
    )
    with seen_at(world, round_.scope) as seen:
        world.manage("pause", "on", round_.scope, "--reason", "drill", "--by", "operator")
    (flipped,) = seen
    world.until(
        "what was on the wire to be answered",
        lambda: set(in_states(world, round_.actions)) <= {"SUCCEEDED", "AUTHORIZED"},
    )
    waiting = in_states(world, round_.actions).get("AUTHORIZED", [])
    assert len(waiting) >= SLOTS, f"{round_.scope}: too little was left to stop"

    # Every way there is to be sent.
    for action_id in waiting:
        world.publish("refunds.dispatch", action_id)
    world.publish("refunds.dispatch_due")
    world.publish("reconciliation.sweep", queue="slow")
    world.until("all to be turned away", lambda: turned_away(world, waiting, since=flipped))

    # Finding out goes on: the provider settles the pending one, and a poll hears of it.
    (refund,) = world.refunds(round_.pending)
    world.provider.settle_refund(refund["id"])
    world.until(
        "the pending one to be found out",
        lambda: world.action(round_.pending)["state"] == "SUCCEEDED",
    )
    if outsider:
        world.until(
            "what the switch does not cover to be sent",
            lambda: world.action(outsider)["state"] == "SUCCEEDED",
        )

    assert claims_after(world, round_, flipped) == 0
    late = posts_after(world, round_, flipped)
    assert len(late) <= SLOTS, late
    assert sorted(in_states(world, round_.actions)["AUTHORIZED"]) == sorted(waiting)
    world.manage("pause", "off", round_.scope, "--by", "operator")
    return waiting


def wake(world: World, waiting: list[str]) -> None:
    """Have them sent now, and not in the midst of the next round, whose workers they would keep."""
    world.provider.latency(0)
    for action_id in waiting:
        world.publish("refunds.dispatch", action_id)
    world.until("them to be paid", lambda: set(in_states(world, tuple(waiting))) == {"SUCCEEDED"})


def test_after_a_flip_nothing_leaves_but_what_was_on_the_wire_and_after_it_all_goes_once() -> None:
    with running_world(workers=WORKERS, env={"WORKER_CONCURRENCY": str(CONCURRENCY)}) as world:
        world.lift_limits()
        world.provider.settings(pending_settles_after_seconds=None)
        usual, other = world.key, world.new_agent_key()

        def outsider(name: str) -> str:
            order_id = world.order(order_id=name)
            assert world.propose(order_id)[0] == 201
            return action_of(order_id)

        world.key = other
        agent = begin(world, "agent", scope=f"agent:{other.split('_')[2]}")
        world.key = usual
        wake(world, flip_and_watch(world, agent, outsider=outsider("by-another-agent")))

        account = begin(world, "account", scope=f"account:stripe:{CONNECTED}", account=CONNECTED)
        wake(world, flip_and_watch(world, account, outsider=outsider("on-another-account")))

        kind = begin(world, "kind", scope="kind:refund")
        wake(world, flip_and_watch(world, kind))

        everything = begin(world, "global", scope="global")
        # Nobody wakes these.
        flip_and_watch(world, everything)
        world.provider.latency(0)
        started = time.monotonic()
        world.rest()
        assert time.monotonic() - started < 30
        paid = Counter(
            refund["metadata"].get("action_id")
            for refund in world.provider.refunds()
            if refund["status"] != "failed"
        )
        for round_ in (agent, account, kind, everything):
            assert set(in_states(world, round_.actions)) == {"SUCCEEDED"}
            for action_id in round_.actions:
                assert paid[action_id] == 1
        assert world.problems() == []
