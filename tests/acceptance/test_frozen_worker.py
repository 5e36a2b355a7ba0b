"""A worker that was frozen after its claim, and wakes when others have gone on.

What stops its bytes differs with the instant. Just before they leave, the total deadline of its own
call is over, too. Right after the claim all of that is still to come: the payment was read lately,
so it is not read again, and the fence alone stands between the sleeper and a second request.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from effects import crashpoints
from tests.acceptance.world import running_world

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


@pytest.mark.parametrize("point", [crashpoints.AFTER_CLAIM, crashpoints.BEFORE_BYTES_LEAVE])
def test_a_frozen_worker_wakes_fenced_when_another_has_sent(point: str) -> None:
    with running_world(workers=2, env=PATIENT) as world:
        order_id = world.order(order_id="frozen")
        action_id = f"refund:order-{order_id}:request-r1"
        world.propose(order_id, request_id="before", amount_minor=1_000)
        world.rest()
        armed = Path(world.stack.env["CRASH_POINTS_DIR"]) / point
        armed.write_text(f"freeze {FROZEN_SECONDS}")
        assert world.propose(order_id)[0] == 201
        world.until("the worker to freeze", lambda: not armed.exists())
        world.until("another to have sent", lambda: world.action(action_id)["state"] == "SUCCEEDED")
        # The sleeper has not woken yet: what it finds is an action that is over.
        late = "refund.late_answer"
        assert late not in [event["kind"] for event in world.events(action_id)]
        woken = world.until(
            "the sleeper to wake",
            lambda: [event for event in world.events(action_id) if event["kind"] == late],
        )
        assert woken[0]["data"]["attempt"] == 1
        assert woken[0]["data"]["outcome"] == "not_sent:fenced"
        assert world.states(action_id) == [
            *("AUTHORIZED", "SUBMITTING", "UNKNOWN", "AUTHORIZED", "SUBMITTING", "SUCCEEDED"),
        ]
        assert len(world.posts(action_id)) == 1
        assert len(world.refunds(action_id)) == 1
        assert world.problems() == []
