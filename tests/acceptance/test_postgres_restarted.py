"""Postgres dies under load, twice: callers are told to come again, and nothing is lost or doubled.

It runs on servers of its own, with everything on that keeps data through a crash.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from config.embedded.servers import Servers
from config.processes import ServerError
from tests.acceptance.world import World, world_with_servers

pytestmark = pytest.mark.timeout(300)

CALLERS = 3
# Under load before, while it is away, and after.
BEFORE_SECONDS = 3.0
AWAY_SECONDS = 2.0
AFTER_SECONDS = 3.0
REST_SECONDS = 120.0


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[World, Servers]]:
    with world_with_servers(workers=2, beat=2) as found:
        found[0].lift_limits()
        yield found


class Callers:
    """Backends that propose without a pause, each repeating the same request until answered."""

    def __init__(self, world: World, *, name: str) -> None:
        self.world = world
        self.name = name
        self.statuses: Counter[int] = Counter()
        self.bodies: dict[int, str] = {}
        self.accepted: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(number,)) for number in range(CALLERS)
        ]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self, number: int) -> None:
        made = 0
        while not self._stop.is_set():
            made += 1
            order_id = f"{self.name}-{number}-{made}"
            self._until_answered(order_id)

    def _until_answered(self, order_id: str) -> None:
        ordered = False
        while True:
            try:
                if not ordered:
                    self.world.order(order_id=order_id)
                    ordered = True
                status, body = self.world.propose(order_id)
            except OSError:
                time.sleep(0.05)
                continue
            self.statuses[status] += 1
            self.bodies.setdefault(status, str(body))
            if status in (200, 201):
                self.accepted.append(str(body["action_id"]))
                return
            if status != 503:
                return  # told by the assertion on statuses
            time.sleep(0.05)


def start_again(servers: Servers) -> None:
    """On the same port; what the dead one's children still hold is let go in a moment."""
    for _ in range(40):
        try:
            servers.postgres.restart()
            return
        except ServerError:
            time.sleep(0.5)
    raise AssertionError("Postgres did not come up again")


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGKILL], ids=["immediate", "killed"])
def test_postgres_dying_under_load_loses_and_doubles_nothing(
    running: tuple[World, Servers], number: signal.Signals
) -> None:
    """SIGQUIT is `pg_ctl stop -m immediate`; SIGKILL takes the postmaster from its children."""
    world, servers = running
    world.provider.latency(100)  # so that some are on the wire when it happens
    workers = [worker.pid for worker in world.stack.processes["worker"]]
    with Callers(world, name=number.name.lower()) as callers:
        time.sleep(BEFORE_SECONDS)
        servers.postgres.process.signal_group(number)
        servers.postgres.process.wait(timeout_seconds=20)
        time.sleep(AWAY_SECONDS)
        start_again(servers)
        time.sleep(AFTER_SECONDS)
    print(callers.statuses)
    assert set(callers.statuses) <= {200, 201, 503}, callers.bodies
    assert callers.statuses[503] > 0
    assert callers.statuses[201] > 0

    world.provider.latency(0)
    world.rest(seconds=REST_SECONDS)
    for action_id in callers.accepted:
        assert world.action(action_id)["state"] == "SUCCEEDED"
    assert world.problems() == []
    (succeeded,) = world.query(
        "SELECT count(*) AS n FROM refunds_refundaction WHERE state = 'SUCCEEDED'"
    )
    assert len(world.provider.refunds()) == succeeded["n"]
    assert [worker.pid for worker in world.stack.processes["worker"]] == workers
    assert world.stack.dead() == []
