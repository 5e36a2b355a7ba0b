"""The broker emptied, gone for a while, and standing still: proposals are recorded all the same.

A message is only a hint. What is lost with the broker is found by its due time, and sent once.

All of it under a supervisor, as in production: a Celery 5.7 worker that holds a message at the
moment its Redis goes away gives up with status 1 instead of connecting again (kombu restores the
message through a channel it has just closed), and so does one that reads what is no message.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from config.embedded.places import ephemeral_folder
from config.embedded.valkey import Valkey
from tests.acceptance.world import World, running_world

pytestmark = pytest.mark.timeout(300)

# `make campaign` takes it away for a minute.
AWAY_SECONDS = 10.0
# A caller waits this long for a 201, on a busy machine: while the broker is away that is refused
# connections, while it stands still the timeout of config/wsgi.py.
ANSWERED_SECONDS = 5.0
# Celery's consumers try to connect every 2, 4, 6 … seconds; then the hints, half a minute apart.
BACK_SECONDS = 120.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Valkey]:
    folder, lock = ephemeral_folder()
    server = Valkey(folder / "valkey")
    server.start()
    try:
        yield server
    finally:
        server.process.signal_group(signal.SIGCONT)
        server.stop()
        lock.release()


@pytest.fixture(scope="module")
def world(broker: Valkey) -> Iterator[World]:
    with running_world(workers=2, env={"REDIS_URL": broker.url()}) as running, running.supervised():
        running.lift_limits()
        yield running


def propose(world: World, name: str, *, count: int) -> list[str]:
    """Refunds of that many new orders; each must be answered 201, and soon."""
    action_ids = []
    for number in range(count):
        order_id = world.order(order_id=f"{name}{number}")
        began = time.monotonic()
        status, body = world.propose(order_id)
        took = time.monotonic() - began
        assert status == 201, body
        assert took < ANSWERED_SECONDS, f"answered after {took:.1f} s"
        action_ids.append(str(body["action_id"]))
    return action_ids


def assert_each_paid_once(world: World, action_ids: list[str]) -> None:
    world.rest(seconds=BACK_SECONDS)
    for action_id in action_ids:
        assert world.action(action_id)["state"] == "SUCCEEDED"
        assert len(world.posts(action_id)) == 1
        assert len(world.refunds(action_id)) == 1
    assert world.problems() == []


def test_an_emptied_broker_loses_only_time(world: World, broker: Valkey) -> None:
    # Some messages are with the workers, whose provider is slow; the others wait in the broker.
    world.provider.latency(400)
    action_ids = propose(world, "flushed", count=12)
    with broker.connect() as connection:
        assert connection.llen("dispatch") or connection.hlen("unacked")
        connection.flushall()
    world.provider.latency(0)
    assert_each_paid_once(world, action_ids)


def test_proposals_are_recorded_while_the_broker_is_away(world: World, broker: Valkey) -> None:
    before = propose(world, "before", count=3)
    broker.stop()
    began = time.monotonic()
    during = propose(world, "during", count=6)
    assert all(world.action(action_id)["state"] == "AUTHORIZED" for action_id in during)
    time.sleep(max(0.0, AWAY_SECONDS - (time.monotonic() - began)))
    broker.restart()
    assert_each_paid_once(world, [*before, *during])


def test_proposals_are_recorded_while_the_broker_stands_still(world: World, broker: Valkey) -> None:
    """It takes connections and answers nothing: what a caller waits is a timeout, not for ever."""
    broker.process.signal_group(signal.SIGSTOP)
    try:
        action_ids = propose(world, "still", count=2)
    finally:
        broker.process.signal_group(signal.SIGCONT)
    assert_each_paid_once(world, action_ids)


def test_rubbish_in_the_broker_ends_at_most_a_worker(world: World, broker: Valkey) -> None:
    """Not even messages: whoever can write there can do this. Nothing is sent or lost by it."""
    before = world.count("refunds_refundevent")
    with broker.connect() as connection:
        for rubbish in (b"rubbish", b"{}"):
            connection.lpush("dispatch", rubbish)
        world.until("the rubbish to be taken", lambda: not connection.llen("dispatch"))
    assert world.count("refunds_refundevent") == before
    assert_each_paid_once(world, propose(world, "rubbish", count=2))
