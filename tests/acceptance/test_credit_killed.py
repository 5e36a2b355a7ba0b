"""A real worker, killed while it gives a store credit. Nobody is ever given it twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from effects import crashpoints
from tests.acceptance.test_crash_points import arm, wait_for_the_kill
from tests.acceptance.world import World, payment_of, running_world

pytestmark = pytest.mark.timeout(300)

# A person, at the terminal: the refund is read as failed, and store credit is proposed for it.
PROPOSE = """
from django.contrib.auth.models import Permission, User
from reconciliation.check_now import check_now
from refunds.remedies import RemedyDone, history_version, propose_remedy
action_id = {action_id!r}
print(check_now(action_id=action_id, actor="person:test").sentence)
user, made = User.objects.get_or_create(username="grace", is_staff=True)
user.user_permissions.add(*Permission.objects.filter(codename="propose_remedy"))
done = propose_remedy(
    action_id=action_id, kind="store_credit", user=User.objects.get(pk=user.pk),
    reason="cannot_receive", note="the bank says that the card is closed",
    seen_version=history_version(action_id=action_id),
)
assert isinstance(done, RemedyDone), done
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running_world() as running:
        yield running


def debt(world: World, name: str) -> str:
    """A refund that was made and failed late, of an order whose customer the provider knows."""
    order_id, customer = world.order(order_id=name), customer_of(name)
    world.provider.customer(id=customer)
    status, body = world.call(
        "PUT",
        f"/api/v1/orders/{order_id}",
        {
            "currency": "USD",
            "captured_minor": 20_000,
            "payment": {"provider": "stripe", "payment_intent": payment_of(order_id)},
            "customer": {"ref": customer, "email": "customer@example.com"},
            "placed_at": "2026-01-15T10:00:00Z",
            "source_version": 2,
        },
    )
    assert status == 200, body
    status, body = world.propose(order_id)
    assert status == 201, body
    action_id = str(body["action_id"])
    world.until("the refund to succeed", lambda: world.action(action_id)["state"] == "SUCCEEDED")
    world.provider.fail_refund(world.action(action_id)["provider_ref"])
    return action_id


def customer_of(name: str) -> str:
    return f"cus_{name.replace('-', '')}"


def propose_credit(world: World, action_id: str) -> str:
    """The credit's id; it is sent by the worker."""
    world.manage("shell", "-c", PROPOSE.format(action_id=action_id))
    return action_id.replace("refund:", "credit:") + ":r1"


def credit(world: World, credit_id: str) -> dict[str, Any]:
    (row,) = world.query(
        "SELECT c.state, c.due_at, r.state AS remedy, o.settled_otherwise_minor AS settled "
        "FROM refunds_creditaction c JOIN refunds_remedy r ON r.id = c.remedy_id "
        "JOIN refunds_order o ON o.id = c.order_id WHERE c.action_id = %s",
        credit_id,
    )
    return row


def given(world: World, name: str) -> list[int]:
    return [-line["amount"] for line in world.provider.credits(customer_of(name))]


def at_rest(world: World, credit_id: str) -> bool:
    """Over, or in front of a person."""
    state = credit(world, credit_id)["state"]
    return state == "SUCCEEDED" or (
        state == "UNKNOWN" and world.open_cases(credit_id) == ["unknown-outcome"]
    )


def test_a_worker_killed_after_the_provider_committed_gives_one_credit(world: World) -> None:
    name = "hang-after"
    action_id = debt(world, name)
    path = f"/v1/customers/{customer_of(name)}/balance_transactions"
    world.provider.fault("hang-after-execution", match={"method": "POST", "path": path}, seconds=30)

    credit_id = propose_credit(world, action_id)
    world.until("the credit to be at the provider", lambda: given(world, name))
    world.stack.kill("worker")
    world.stack.restart("worker")

    world.until("rest", lambda: at_rest(world, credit_id))
    assert credit(world, credit_id)["state"] == "SUCCEEDED", json.dumps(credit(world, credit_id))
    assert credit(world, credit_id)["remedy"] == "ISSUED"
    assert credit(world, credit_id)["settled"] == 7_900
    assert given(world, name) == [7_900]
    assert world.open_cases(action_id) == []
    assert world.problems() == []


@pytest.mark.parametrize(
    "point",
    [
        crashpoints.BEFORE_CLAIM_COMMITS,
        crashpoints.AFTER_CLAIM,
        crashpoints.BEFORE_BYTES_LEAVE,
        crashpoints.AFTER_ANSWER,
        crashpoints.DURING_RECORD,
        crashpoints.AFTER_RECORD,
    ],
)
def test_a_worker_killed_at_a_crash_point_gives_one(world: World, point: str) -> None:
    name = f"at-{point}"
    action_id = debt(world, name)
    armed = arm(world, point)

    credit_id = propose_credit(world, action_id)
    wait_for_the_kill(world, armed)

    world.until("rest", lambda: at_rest(world, credit_id))
    assert given(world, name) == [7_900]
    assert credit(world, credit_id)["remedy"] == "ISSUED"
    assert world.problems() == []
