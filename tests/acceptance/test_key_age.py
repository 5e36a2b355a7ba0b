"""Past the limit for sending a key again nothing is posted under it, whatever is asked for.

At the provider the keys are forgotten, so that any request that left would be a second refund.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from config.environment import PROVIDER_KEY_LIFE_SECONDS
from effects import crashpoints
from tests.acceptance.world import World, running_world

pytestmark = pytest.mark.timeout(300)

FROZEN_SECONDS = 12
# Celery's own limits must not wake a frozen worker before its time.
PATIENT = {
    "TASK_SOFT_TIME_LIMIT_SECONDS": "40",
    "TASK_HARD_TIME_LIMIT_SECONDS": "45",
    "BROKER_VISIBILITY_TIMEOUT_SECONDS": "50",
}


def move_clock(world: World, seconds: int) -> None:
    """Every session that begins from now on lives this much later. Workers begin one per task."""
    name = urlsplit(world.stack.database_url).path.strip("/")
    with psycopg.connect(world.stack.database_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET refund_once.clock_skew_seconds = {}").format(
                sql.Identifier(name), sql.Literal(str(seconds))
            )
        )


def ask_for_everything(world: World, action_ids: list[str]) -> None:
    """Deliveries, sweeps, an operator's questions and the same proposals again."""
    for action_id in action_ids:
        for _ in range(5):
            world.publish("refunds.dispatch", action_id)
        world.publish("refunds.dispatch_due")
        world.publish("reconciliation.sweep", queue="slow")
    for action_id in action_ids:
        world.manage("reconcile", "--action", action_id, "--by", "operator")
        order_id = action_id.split(":")[1].removeprefix("order-")
        status, body = world.propose(order_id)
        assert (status, body["action_id"], body["retry"]) == (200, action_id, "never")
    world.manage("reconcile")


def wait_for_first_attempt(world: World, action_id: str, state: str) -> None:
    def there() -> bool:
        action = world.action(action_id)
        return (action["state"], action["attempt_count"]) == (state, 1)

    world.until(f"{action_id} to be {state} after one attempt", there)


def armed_freeze(world: World, seconds: float) -> Path:
    armed = Path(world.stack.env["CRASH_POINTS_DIR"]) / crashpoints.BEFORE_BYTES_LEAVE
    armed.write_text(f"freeze {seconds}")
    return armed


def test_with_the_clock_past_the_limit_no_request_leaves() -> None:
    # Beat comes later: until then nothing moves but what is hinted.
    with running_world(workers=2, beat=0, env=PATIENT) as world:
        # One is UNKNOWN and was in truth never executed.
        unknown = f"refund:order-{world.order(order_id='unknown')}:request-r1"
        world.provider.fault("reset-before-execution", match={"idempotency_key": unknown})
        world.propose("unknown")
        # One was turned away and stands AUTHORIZED, its key used.
        turned_away = f"refund:order-{world.order(order_id='turned-away')}:request-r1"
        world.provider.fault("rate-limit-429", match={"idempotency_key": turned_away})
        world.propose("turned-away")
        wait_for_first_attempt(world, unknown, "UNKNOWN")
        wait_for_first_attempt(world, turned_away, "AUTHORIZED")
        # One is claimed, and its worker stands still before the bytes leave.
        frozen = f"refund:order-{world.order(order_id='frozen')}:request-r1"
        armed = armed_freeze(world, FROZEN_SECONDS)
        world.propose("frozen")
        world.until("the worker to freeze", lambda: not armed.exists())
        action_ids = [unknown, turned_away, frozen]
        posts = {action_id: len(world.posts(action_id)) for action_id in action_ids}
        assert posts == {unknown: 1, turned_away: 1, frozen: 0}

        move_clock(world, PROVIDER_KEY_LIFE_SECONDS + 60)
        world.provider.prune_keys()
        # Its lease is taken from the sleeper before anything that a busy machine takes long for.
        world.publish("reconciliation.sweep", queue="slow")
        world.until("the lease to be over", lambda: world.action(frozen)["state"] != "SUBMITTING")
        world.stack.restart("web")  # it keeps its sessions
        ask_for_everything(world, action_ids)
        world.until(
            "the sleeper to have woken",
            lambda: [e for e in world.events(frozen) if e["kind"] == "refund.late_answer"],
        )
        ask_for_everything(world, action_ids)
        # New workers, and sweeps, as after a night.
        for index in (0, 1):
            world.stack.restart("worker", index=index)
        for _ in range(4):
            ask_for_sweeps(world)
        world.until("rest", lambda: at_rest_after_a_sweep(world))

        assert {a: len(world.posts(a)) for a in action_ids} == posts
        assert world.provider.refunds() == []
        for action_id in action_ids:
            assert world.action(action_id)["state"] == "UNKNOWN"
            assert world.open_cases(action_id) == ["unknown-outcome"]
        assert world.problems() == []


def at_rest_after_a_sweep(world: World) -> bool:
    """No beat asks for rounds here, and each round is due a moment after the one before."""
    ask_for_sweeps(world)
    return not world.restless()


def ask_for_sweeps(world: World) -> None:
    world.manage("reconcile")
    world.publish("refunds.dispatch_due")


def test_a_key_that_ages_while_its_worker_is_frozen_is_not_sent_though_the_lease_holds() -> None:
    # Lease and deadline outlast the freeze, so that only the age of the key can stop the bytes.
    slow = PATIENT | {
        "KEY_RESEND_SECONDS": "2",
        "PROVIDER_READ_TIMEOUT_SECONDS": "10",
        "PROVIDER_TOTAL_TIMEOUT_SECONDS": "12",
        "SUBMIT_LEASE_SECONDS": "30",
        "SETTLE_SECONDS": "45",
        # Rounds wait for the settle time, which is long here; the window is over before.
        "RECONCILE_WINDOW_SECONDS": "3",
    }
    with running_world(env=slow) as world:
        order_id = world.order(order_id="aged")
        action_id = f"refund:order-{order_id}:request-r1"
        armed = armed_freeze(world, 4)
        world.propose(order_id)
        world.until("the worker to freeze", lambda: not armed.exists())
        world.until(
            "a person to own it", lambda: world.open_cases(action_id) == ["unknown-outcome"]
        )
        kinds = [event["kind"] for event in world.events(action_id)]
        assert "refund.not_sent" in kinds
        assert "refund.key_too_old" in kinds
        assert "refund.lease_over" not in kinds
        assert world.posts(action_id) == []
        assert world.provider.refunds() == []
        assert world.problems() == []
