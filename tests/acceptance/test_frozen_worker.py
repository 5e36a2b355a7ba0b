"""A worker that was frozen after its claim, and wakes when others have gone on.

What stops its bytes differs with the instant. Just before they leave, the total deadline of its own
call is over, too. Right after the claim all of that is still to come: the payment was read lately,
so it is not read again, and the fence alone stands between the sleeper and a second request.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from effects import crashpoints
from tests.acceptance.world import World, running_world

pytestmark = pytest.mark.timeout(240)

# Long enough for the lease to end, the settle time to pass and another to have sent: the short
# timeouts make that some 6 s, a busy machine more.
FROZEN_SECONDS = 16
# Celery's own limits must not wake it before.
PATIENT = {
    "TASK_SOFT_TIME_LIMIT_SECONDS": "40",
    "TASK_HARD_TIME_LIMIT_SECONDS": "45",
    "BROKER_VISIBILITY_TIMEOUT_SECONDS": "50",
}


def test_frozen_workers_wake_fenced_when_another_has_sent() -> None:
    with running_world(workers=2, env=PATIENT) as world:
        # One sleeps at each point, both through the same time. Proposed at once, so that neither is
        # sent again while a point still waits for the other.
        order_ids = [world.order(order_id="frozen1"), world.order(order_id="frozen2")]
        for order_id in order_ids:
            world.propose(order_id, request_id="before", amount_minor=1_000)
        world.rest()
        points = Path(world.stack.env["CRASH_POINTS_DIR"])
        armed = [points / crashpoints.AFTER_CLAIM, points / crashpoints.BEFORE_BYTES_LEAVE]
        for point in armed:
            point.write_text(f"freeze {FROZEN_SECONDS}")
        with ThreadPoolExecutor(2) as pool:
            assert [status for status, _ in pool.map(world.propose, order_ids)] == [201, 201]
        world.until("both workers to freeze", lambda: not any(point.exists() for point in armed))
        sleepers = [f"refund:order-{order_id}:request-r1" for order_id in order_ids]
        for action_id in sleepers:
            another_has_sent(world, action_id)
        for action_id in sleepers:
            woke_fenced(world, action_id)
        assert world.problems() == []


def woken(world: World, action_id: str) -> list[dict[str, Any]]:
    return [e for e in world.events(action_id) if e["kind"] == "refund.late_answer"]


def another_has_sent(world: World, action_id: str) -> None:
    world.until("another to have sent", lambda: world.action(action_id)["state"] == "SUCCEEDED")
    # The sleeper has not woken yet: what it finds is an action that is over.
    assert not woken(world, action_id)


def woke_fenced(world: World, action_id: str) -> None:
    (late,) = world.until("the sleeper to wake", lambda: woken(world, action_id))
    assert late["data"]["attempt"] == 1
    assert late["data"]["outcome"] == "not_sent:fenced"
    assert world.states(action_id) == [
        *("AUTHORIZED", "SUBMITTING", "UNKNOWN", "AUTHORIZED", "SUBMITTING", "SUCCEEDED"),
    ]
    assert len(world.posts(action_id)) == 1
    assert len(world.refunds(action_id)) == 1
