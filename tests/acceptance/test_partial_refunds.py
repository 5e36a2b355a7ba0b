"""Parts of one order, each allowed by policy: one after the other, and nobody is asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import redis

from tests.acceptance.world import running_world

pytestmark = pytest.mark.timeout(240)

# Parts of 200.00, each below the ceiling and none like another; together all of it. As many as the
# default policy allows one customer in a month without a person.
AMOUNTS_MINOR = (2_000, 3_000, 4_000, 5_000, 6_000)
WORKERS = 3


def test_concurrent_refunds_of_one_order_all_go_through_without_a_person() -> None:
    with running_world(workers=WORKERS) as world:
        order_id = world.order(captured_minor=20_000)
        # Each answer takes a while, so that all of them meet in the claim of the same order.
        world.provider.latency(100)
        # Proposed while nothing of the order is on the wire: beside that, a person is asked.
        world.stack.kill("beat")
        for index in range(WORKERS):
            world.stack.kill("worker", index=index)

        def propose(part: int) -> tuple[int, dict[str, Any]]:
            return world.propose(
                order_id, request_id=f"part{part}", amount_minor=AMOUNTS_MINOR[part]
            )

        with ThreadPoolExecutor(len(AMOUNTS_MINOR)) as pool:
            proposed = list(pool.map(propose, range(len(AMOUNTS_MINOR))))
        assert {(status, body.get("state")) for status, body in proposed} == {(201, "AUTHORIZED")}
        actions = [str(body["action_id"]) for _, body in proposed]

        # All workers are there before any of them hears of it.
        with redis.Redis.from_url(world.stack.redis_url) as broker:
            broker.flushdb()
        for index in range(WORKERS):
            world.stack.restart("worker", index=index)
        for action_id in actions * 3:
            world.publish("refunds.dispatch", action_id)
        world.stack.restart("beat")
        world.until(
            "all parts to be refunded",
            lambda: {world.action(action_id)["state"] for action_id in actions} == {"SUCCEEDED"},
            seconds=120,
        )

        for action_id in actions:
            assert world.states(action_id) == ["AUTHORIZED", "SUBMITTING", "SUCCEEDED"]
            assert len(world.posts(action_id)) == 1
            assert world.open_cases(action_id) == []
        (order,) = world.query("SELECT * FROM refunds_order WHERE order_id = %s", order_id)
        assert order["refunded_minor"] == sum(AMOUNTS_MINOR) == 20_000
        assert order["reserved_minor"] == 0
        assert world.count("approvals_approval") == 0
        assert one_after_the_other(
            world.query(
                "SELECT claimed_at, closed_at FROM refunds_refundattempt ORDER BY claimed_at"
            )
        )
        # Each was decided again on what the one before had left, and that is on record.
        (decided,) = world.query(
            "SELECT count(*) AS n, count(*) FILTER (WHERE verdict <> 'ALLOW') AS others "
            "FROM policies_decisionrecord"
        )
        assert (decided["n"], decided["others"]) == (2 * len(actions) - 1, 0)
        assert world.problems() == []


def one_after_the_other(attempts: list[dict[str, Any]]) -> bool:
    """Whether no attempt began before the one ahead of it was answered."""
    return all(later["claimed_at"] >= earlier["closed_at"] for earlier, later in pairwise(attempts))
