"""Messages that come fifty times, that nobody sent, or that mean nothing; and two beats at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.acceptance.world import World, payment_of, running_world

pytestmark = pytest.mark.timeout(240)

DELIVERIES = 50
# Whatever a message could change stands in these.
TABLES = (
    *("refunds_order", "refunds_refundaction", "refunds_refundattempt", "refunds_refundevent"),
    *("effects_case", "effects_switch", "policies_decisionrecord", "approvals_approval"),
)
FORGED_IDS: tuple[Any, ...] = (
    *("refund:order-nobody:request-r1", "refund:order-known:request-r1:g2", "", " ", "refund:"),
    *("mail:order-known:request-r1", "refund:order-known:request-R1", "known", "1"),
    "refund:order-known:request-r1'; DROP TABLE refunds_refundaction; --",
    "' OR '1'='1",
    "../../etc/passwd",
    "refund:order-known:request-r1\x00",
    "refund:order-known:request-\ud800",
    "x" * 1_000_000,
    *(None, True, 0, -1, 2**70, 1.5, float("nan"), [], ["refund:order-known:request-r1"]),
    {"action_id": "refund:order-known:request-r1"},
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running_world(workers=2, beat=2) as running:
        yield running


def waiting(world: World) -> int:
    """Messages that the broker still holds, taken or not."""
    with redis.Redis.from_url(world.stack.redis_url) as broker:
        lengths = [broker.llen(queue) for queue in ("dispatch", "slow")]
        return sum(int(length) for length in lengths) + int(broker.hlen("unacked"))


def held(world: World) -> dict[str, int]:
    return {table: world.count(table) for table in TABLES}


def pids(world: World) -> list[int]:
    """The workers' processes; a worker that died is a failure here."""
    assert world.stack.dead() == []
    return [worker.pid for worker in world.stack.processes["worker"]]


def test_fifty_deliveries_of_one_message_are_one_request_and_one_refund(world: World) -> None:
    order_id = world.order(order_id="fifty")
    action_id = f"refund:order-{order_id}:request-r1"
    # Both workers stand still while the messages pile up, then take them all at once.
    for index in (0, 1):
        world.stack.kill("worker", signal.SIGSTOP, index=index)
    assert world.propose(order_id)[0] == 201
    for _ in range(DELIVERIES):
        world.publish("refunds.dispatch", action_id)
    for index in (0, 1):
        world.stack.kill("worker", signal.SIGCONT, index=index)
    world.until("every message to be taken", lambda: not waiting(world))
    world.rest()
    assert world.action(action_id)["state"] == "SUCCEEDED"
    assert len(world.posts(action_id)) == 1
    assert len(world.refunds(action_id)) == 1
    assert world.states(action_id).count("SUBMITTING") == 1
    assert world.problems() == []


def test_deliveries_long_after_it_is_over_do_nothing(world: World) -> None:
    order_id = world.order(order_id="over")
    action_id = str(world.propose(order_id)[1]["action_id"])
    world.rest()
    before = held(world)
    for _ in range(DELIVERIES):
        world.publish("refunds.dispatch", action_id)
    world.until("every message to be taken", lambda: not waiting(world))
    assert held(world) == before
    assert len(world.posts(action_id)) == 1


def asked(world: World) -> int:
    """Requests about refunds. Payments are read whenever an order was stated."""
    return len([line for line in world.provider.requests() if "refund" in line["path"]])


def test_forged_messages_change_nothing_and_the_workers_go_on(world: World) -> None:
    world.order(order_id="known")
    world.propose("known")
    world.rest()
    before, requests, workers = held(world), asked(world), pids(world)

    for forged in FORGED_IDS:
        world.publish("refunds.dispatch", forged)
    world.publish("refunds.dispatch")
    world.publish("refunds.dispatch", "one", "two", "three")
    world.publish("refunds.dispatch", kwargs={"action_id": "x", "amount_minor": 7_900})
    world.publish("refunds.pay_everybody", "refund:order-known:request-r1")
    world.publish("reconciliation.sweep", "an argument", queue="slow")
    world.publish("os.system", "touch /tmp/forged", queue="slow")
    world.publish("refunds.dispatch", "refund:order-known:request-r1", serializer="yaml")

    world.until("every message to be taken", lambda: not waiting(world))
    assert pids(world) == workers
    assert held(world) == before
    assert asked(world) == requests
    # And the workers still work.
    world.order(order_id="afterwards")
    action_id = str(world.propose("afterwards")[1]["action_id"])
    world.rest()
    assert world.action(action_id)["state"] == "SUCCEEDED"
    assert len(world.refunds(action_id)) == 1
    assert world.problems() == []


def test_two_beats_at_once_open_one_case_and_burn_no_try_twice(world: World) -> None:
    found = []
    for order_id in ("beats1", "beats2", "beats3"):
        world.order(order_id=order_id)
        found.append(f"refund:order-{order_id}:request-r1")
        world.provider.fault("reset-after-execution", match={"idempotency_key": found[-1]})
        world.propose(order_id)
    # One cannot be read. More of them would open the account's circuit breaker.
    world.order(order_id="unreadable")
    unread = "refund:order-unreadable:request-r1"
    world.provider.fault("reset-after-execution", match={"idempotency_key": unread})
    world.provider.fault(
        "list-unreadable",
        match={"method": "GET", "params": {"payment_intent": payment_of("unreadable")}},
        skip=1,
        times=None,
    )
    world.propose("unreadable")
    for _ in range(20):  # beats that came too often
        world.publish("reconciliation.sweep", queue="slow")
        world.publish("refunds.dispatch_due")
    world.rest()
    for action_id in found:
        assert world.action(action_id)["state"] == "SUCCEEDED"
        assert world.action(action_id)["tries"] == 1
    assert world.open_cases(unread) == ["unknown-outcome"]
    assert world.action(unread)["tries"] == 3
    kinds = [event["kind"] for event in world.events(unread)]
    assert kinds.count("refund.escalated") == 1
    assert kinds.count("refund.looked") == 3
    for action_id in (*found, unread):
        assert len(world.posts(action_id)) == 1
    assert world.problems() == []
    world.provider.clear_faults()
    sweeps = world.query("SELECT name FROM effects_sweeprun ORDER BY name")
    assert [row["name"] for row in sweeps] == [
        "reconciliation.compare_orders",
        "reconciliation.sweep",
        "refunds.dispatch_due",
    ]
    assert world.stack.dead() == []
