"""A real worker, killed with SIGKILL at every named point and at the points inside the provider.

After each kill a new worker is started, as a supervisor would, and nobody tells it anything. What
must then be: the provider's ledger shows one refund, the row agrees, the history is one legal
chain, nothing is open without an owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from effects import crashpoints
from tests.acceptance.world import World, payment_of, running_world

pytestmark = pytest.mark.timeout(300)

ON_THE_WAY = (
    crashpoints.BEFORE_CLAIM_COMMITS,
    crashpoints.AFTER_CLAIM,
    crashpoints.BEFORE_BYTES_LEAVE,
    crashpoints.AFTER_ANSWER,
    crashpoints.DURING_RECORD,
    crashpoints.AFTER_RECORD,
)
# These are reached only when an answer was lost and reconciliation has to find out.
IN_RECONCILIATION = (
    crashpoints.AFTER_LEASE_SWEPT,
    crashpoints.AFTER_ROUND_OPENED,
    crashpoints.AFTER_ROUND_READ,
    crashpoints.DURING_ROUND_RECORD,
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running_world() as running:
        yield running


def arm(world: World, point: str) -> Path:
    """Arm one point for one SIGKILL of the worker, its pool included."""
    armed = Path(world.stack.env["CRASH_POINTS_DIR"]) / point
    armed.write_text("kill-group")
    return armed


def wait_for_the_kill(world: World, armed: Path) -> None:
    """Until the point has fired and the worker is dead; then start another."""
    folder = armed.parent
    world.until(f"{armed.name} to fire", lambda: list(folder.glob(f"{armed.name}.fired-*")))
    (worker,) = world.stack.processes["worker"]
    world.until("the worker to be dead", lambda: not worker.alive)
    for fired in folder.glob(f"{armed.name}.fired-*"):
        fired.unlink()
    world.stack.restart("worker")


def refund(world: World, point: str) -> str:
    """Propose one refund for an order named after the point."""
    order_id = world.order(order_id=point)
    status, body = world.propose(order_id)
    assert status == 201, body
    return str(body["action_id"])


def assert_paid_once(world: World, action_id: str) -> None:
    world.rest()
    assert world.action(action_id)["state"] == "SUCCEEDED"
    assert len(world.refunds(action_id)) == 1
    assert world.states(action_id)[-1] == "SUCCEEDED"
    assert world.problems() == []


@pytest.mark.parametrize("point", ON_THE_WAY)
def test_a_worker_killed_on_the_way_pays_once(world: World, point: str) -> None:
    armed = arm(world, point)
    action_id = refund(world, point)
    wait_for_the_kill(world, armed)
    assert_paid_once(world, action_id)


@pytest.mark.parametrize("point", IN_RECONCILIATION)
def test_a_worker_killed_while_finding_out_pays_once(world: World, point: str) -> None:
    action_id = f"refund:order-{point}:request-r1"
    # A lease runs out only when its worker dies; everywhere else a lost answer will do.
    if point == crashpoints.AFTER_LEASE_SWEPT:
        first = arm(world, crashpoints.AFTER_CLAIM)
        assert refund(world, point) == action_id
        armed = arm(world, point)
        wait_for_the_kill(world, first)
    else:
        world.provider.fault("reset-after-execution", match={"idempotency_key": action_id})
        armed = arm(world, point)
        assert refund(world, point) == action_id
    wait_for_the_kill(world, armed)
    assert_paid_once(world, action_id)


def test_a_worker_killed_while_escalating_still_ends_with_a_case(world: World) -> None:
    point = crashpoints.DURING_ESCALATION
    action_id = f"refund:order-{point}:request-r1"
    world.provider.fault("reset-after-execution", match={"idempotency_key": action_id})
    world.provider.fault(
        "list-unreadable",
        match={"method": "GET", "params": {"payment_intent": payment_of(point)}},
        skip=1,
        times=None,
    )
    armed = arm(world, point)
    assert refund(world, point) == action_id
    wait_for_the_kill(world, armed)
    world.rest()
    assert world.action(action_id)["state"] == "UNKNOWN"
    assert world.open_cases(action_id) == ["unknown-outcome"]
    assert len(world.refunds(action_id)) == 1
    assert world.problems() == []
    world.provider.clear_faults()


@pytest.mark.parametrize(
    ("moment", "fault"),
    [
        ("after the bytes left", "hang-before-execution"),
        ("after the provider committed", "hang-after-execution"),
    ],
)
def test_a_worker_killed_while_the_provider_has_the_request_pays_once(
    world: World, moment: str, fault: str
) -> None:
    order_id = fault
    action_id = f"refund:order-{order_id}:request-r1"
    world.provider.fault(fault, match={"idempotency_key": action_id}, seconds=30)
    assert refund(world, order_id) == action_id
    world.until(
        f"the request to be at the provider: {moment}",
        lambda: [
            request
            for request in world.provider.requests("POST", "/v1/refunds")
            if request["idempotency_key"] == action_id
        ],
    )
    world.stack.kill("worker")
    world.stack.restart("worker")
    assert_paid_once(world, action_id)
    assert "UNKNOWN" in world.states(action_id)


def test_every_named_crash_point_is_tried_here() -> None:
    tried = {*ON_THE_WAY, *IN_RECONCILIATION, crashpoints.DURING_ESCALATION}
    assert tried == set(crashpoints.CRASH_POINTS)
