"""The stale approval: two people approve 79.00 at version 18, another's 30.00 goes through, 79.00
resumes: nothing is sent, it is said what changed, and both must approve again.
"""

from __future__ import annotations

from datetime import UTC

import pytest
import redis

from tests.acceptance.people import ENOUGH, FIRST_YES, people_of_tier_2
from tests.acceptance.world import World, payment_of, running_world

pytestmark = pytest.mark.timeout(240)

VERSION = 18
CAPTURED_MINOR = 20_000


def bring_to_version(world: World, order_id: str, version: int) -> None:
    """What was captured changes, as when parts of an order ship one after the other."""
    for step in range(1, version + 1):
        captured = CAPTURED_MINOR - (version - step) * 100
        status, body = world.call(
            "PUT",
            f"/api/v1/orders/{order_id}",
            {
                "currency": "USD",
                "captured_minor": captured,
                "payment": {"provider": "stripe", "payment_intent": payment_of(order_id)},
                "customer": {"ref": "c1", "email": "customer@example.com"},
                "placed_at": "2026-01-15T10:00:00Z",
                "source_version": step,
            },
        )
        assert status == (201 if step == 1 else 200), body
    assert body["version"] == version
    assert body["refundable_minor"] == CAPTURED_MINOR


def test_an_approval_that_went_stale_sends_nothing_and_a_new_one_sends_once() -> None:
    # Without beat: what happens, happens in the order told here.
    with running_world(workers=1, beat=0) as world:
        alice, bob = people_of_tier_2(world, "alice", "bob")
        order_id = "4821"
        world.provider.payment(amount=CAPTURED_MINOR, currency="usd", id=payment_of(order_id))
        bring_to_version(world, order_id, VERSION)

        status, proposed = world.propose(order_id, request_id="r3", amount_minor=7_900)
        action_id = str(proposed["action_id"])
        assert (status, proposed["state"]) == (201, "AWAITING_APPROVAL")
        assert proposed["order_version"] == VERSION

        # Approved by both; the worker that should send it is dead and its message is lost.
        world.stack.kill("worker")
        assert FIRST_YES in alice.approve(action_id)
        assert world.action(action_id)["state"] == "AWAITING_APPROVAL"
        assert "needs somebody else as well" in alice.approve(action_id)
        assert ENOUGH in bob.approve(action_id)
        assert world.action(action_id)["state"] == "AUTHORIZED"
        assert world.action(action_id)["bound_version"] == VERSION
        with redis.Redis.from_url(world.stack.redis_url) as broker:
            broker.flushdb()
        world.stack.restart("worker")

        # Another agent's 30.00 goes through.
        status, other = world.propose(order_id, request_id="r4", amount_minor=3_000)
        assert (status, other["state"]) == (201, "AUTHORIZED")
        world.until(
            "the 30.00 to be refunded",
            lambda: world.action(other["action_id"])["state"] == "SUCCEEDED",
        )

        # The first resumes.
        world.publish("refunds.dispatch", action_id)
        world.until(
            "the 79.00 to be looked at again",
            lambda: world.action(action_id)["state"] != "AUTHORIZED",
        )
        assert world.action(action_id)["state"] == "AWAITING_APPROVAL"
        assert world.posts(action_id) == []
        assert world.refunds(action_id) == []
        assert (
            world.query(
                "SELECT 1 FROM refunds_refundattempt t JOIN refunds_refundaction a "
                "ON a.id = t.action_id WHERE a.action_id = %s",
                action_id,
            )
            == []
        )
        assert world.open_cases(action_id) == ["stale-approval"]
        (case,) = world.query(
            "SELECT * FROM effects_case WHERE action_id = %s AND closed_at IS NULL", action_id
        )
        version_now = world.call("GET", f"/api/v1/orders/{order_id}")[1]["version"]
        refunded_at = world.action(other["action_id"])["state_since"].astimezone(UTC)
        assert (
            f"order {order_id} is at version {version_now}, not {VERSION}: 30.00 USD refunded by "
            f"request r4 at {refunded_at:%H:%M} UTC"
        ) in case["reason"]
        assert "Nothing was sent" in case["reason"]
        status, told = world.call("GET", f"/api/v1/refunds/{action_id}")
        assert (told["state"], told["retry"]) == ("AWAITING_APPROVAL", "never")

        # Messages do not bring the old approval back.
        for _ in range(5):
            world.publish("refunds.dispatch", action_id)
        # Both look at it as it is now and say why, and it is sent, once.
        assert FIRST_YES in alice.approve(action_id, note="both are owed")
        world.publish("refunds.dispatch", action_id)
        assert world.open_cases(action_id) == ["stale-approval"]
        assert world.action(action_id)["state"] == "AWAITING_APPROVAL"
        assert world.posts(action_id) == []
        assert ENOUGH in bob.approve(action_id, note="both are owed")
        world.until(
            "the 79.00 to be refunded", lambda: world.action(action_id)["state"] == "SUCCEEDED"
        )
        assert len(world.posts(action_id)) == 1
        assert len(world.refunds(action_id)) == 1
        assert world.open_cases(action_id) == []
        approvals = world.query(
            "SELECT p.round, u.username, p.resource_version FROM approvals_approval p "
            "JOIN auth_user u ON u.id = p.decided_by_id WHERE p.action_id = %s ORDER BY p.number",
            action_id,
        )
        assert [tuple(row.values()) for row in approvals] == [
            (1, "alice", VERSION),
            (1, "bob", VERSION),
            (2, "alice", version_now),
            (2, "bob", version_now),
        ]
        assert world.problems() == []
