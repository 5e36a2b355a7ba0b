"""Approved by two people, then one thing is changed before a worker gets to it: nothing is sent.

One running world. Each test proposes, turns a kill switch on so that workers wait, lets two people
approve at the staff site, changes one thing, turns the switch off and wakes the workers. Changes
that triggers forbid are made by the database's superuser, who went round them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.acceptance.people import ENOUGH, FIRST_YES, Reviewer, people_of_tier_2
from tests.acceptance.world import World, payment_of, running_world

pytestmark = pytest.mark.timeout(240)

AMOUNT_MINOR = 7_900
SWITCH_OFF = (
    "UPDATE effects_switch SET ended_at = now(), ended_by = 'person:operator' "
    "WHERE ended_at IS NULL"
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A running world and two people who may approve in it."""

    world: World
    alice: Reviewer
    bob: Reviewer


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running_world(workers=1) as world:
        alice, bob = people_of_tier_2(world, "alice", "bob")
        yield Place(world=world, alice=alice, bob=bob)
        assert world.problems() == []


@pytest.fixture(autouse=True)
def _no_switch_is_left_on(place: Place) -> Iterator[None]:
    """So that one test that fails is one test that fails."""
    yield
    with place.world.rows() as connection:
        connection.execute(SWITCH_OFF)


def write(world: World, sql: str, *values: Any, round_triggers: bool = False) -> None:
    """One statement; `round_triggers`: as somebody whom no trigger stops."""
    with world.rows() as connection:
        if round_triggers:
            connection.execute("SET session_replication_role = replica")
        assert connection.execute(sql, values).rowcount == 1, sql


def switch(world: World, *, on: bool) -> None:
    if on:
        write(
            world,
            "INSERT INTO effects_switch (scope, reason, set_by, set_at, ended_by) "
            "VALUES ('global', 'drill', 'person:operator', now(), '')",
        )
    else:
        write(world, SWITCH_OFF)


def approved(place: Place) -> str:
    """An action that both approved and that waits behind a kill switch; its id."""
    world = place.world
    status, proposed = world.propose(world.order(), amount_minor=AMOUNT_MINOR)
    assert (status, proposed.get("state")) == (201, "AWAITING_APPROVAL"), proposed
    action_id = str(proposed["action_id"])
    switch(world, on=True)
    assert FIRST_YES in place.alice.approve(action_id)
    assert ENOUGH in place.bob.approve(action_id)
    assert world.action(action_id)["state"] == "AUTHORIZED"
    return action_id


def wake(world: World, action_id: str) -> None:
    """More messages than any broker would deliver."""
    for _ in range(5):
        world.publish("refunds.dispatch", action_id)


def resumed(world: World, action_id: str) -> None:
    switch(world, on=False)
    wake(world, action_id)


def nothing_was_sent(world: World, action_id: str) -> None:
    """And nothing is, however often workers are told to."""
    wake(world, action_id)
    time.sleep(1.0)
    assert world.posts(action_id) == []
    assert world.refunds(action_id) == []
    (row,) = world.query(
        "SELECT count(*) AS n FROM refunds_refundattempt t JOIN refunds_refundaction a "
        "ON a.id = t.action_id WHERE a.action_id = %s",
        action_id,
    )
    assert row["n"] == 0


def case_of(world: World, action_id: str, kind: str) -> str:
    """The reason of the one case that this opened."""
    world.until(f"a case: {kind}", lambda: kind in world.open_cases(action_id))
    assert world.open_cases(action_id) == [kind]
    (case,) = world.query(
        "SELECT reason FROM effects_case WHERE action_id = %s AND kind = %s", action_id, kind
    )
    assert "Nothing was sent" in case["reason"]
    return str(case["reason"])


def went_stale(place: Place, action_id: str, *words: str) -> None:
    """It went back to people, who read what changed."""
    world = place.world
    resumed(world, action_id)
    reason = case_of(world, action_id, "stale-approval")
    for word in words:
        assert word in reason
    action = world.action(action_id)
    assert (action["state"], action["approval_round"]) == ("AWAITING_APPROVAL", 2)
    assert "refund.approval_stale" in [event["kind"] for event in world.events(action_id)]
    nothing_was_sent(world, action_id)


def was_tampered_with(place: Place, action_id: str, words: str) -> None:
    """It stands where it stood, its order is paused, and somebody is called."""
    world = place.world
    resumed(world, action_id)
    assert words in case_of(world, action_id, "incident")
    assert world.action(action_id)["state"] == "AUTHORIZED"
    nothing_was_sent(world, action_id)


def test_another_amount_is_never_sent(place: Place) -> None:
    action_id = approved(place)
    write(
        place.world,
        "UPDATE refunds_refundaction SET amount_minor = 15000 WHERE action_id = %s",
        action_id,
        round_triggers=True,
    )
    was_tampered_with(place, action_id, "amount_minor is 15000, not 7900")
    # As it was, so that the books of this world are right again.
    write(
        place.world,
        "UPDATE refunds_refundaction SET amount_minor = 7900 WHERE action_id = %s",
        action_id,
        round_triggers=True,
    )


def test_another_payment_is_never_refunded(place: Place) -> None:
    action_id = approved(place)
    order_id = place.world.action(action_id)["order_id"]
    write(
        place.world,
        "UPDATE refunds_order SET payment_ref = 'pi_of_somebody_else' WHERE id = %s",
        order_id,
        round_triggers=True,
    )
    was_tampered_with(place, action_id, "payment_ref is 'pi_of_somebody_else', not 'pi_o")


def test_another_currency_is_never_sent(place: Place) -> None:
    action_id = approved(place)
    write(
        place.world,
        "UPDATE refunds_refundaction SET currency = 'KWD' WHERE action_id = %s",
        action_id,
        round_triggers=True,
    )
    was_tampered_with(place, action_id, "currency is 'KWD', not 'USD'")


def test_another_reason_is_never_sent(place: Place) -> None:
    action_id = approved(place)
    write(
        place.world,
        "UPDATE refunds_refundaction SET reason = 'goodwill' WHERE action_id = %s",
        action_id,
        round_triggers=True,
    )
    was_tampered_with(place, action_id, "reason is 'goodwill', not 'requested_by_customer'")


def test_another_version_of_the_order_goes_back_to_people(place: Place) -> None:
    action_id = approved(place)
    order_id = action_id.split(":")[1].removeprefix("order-")
    status, _ = place.world.call(
        "PUT",
        f"/api/v1/orders/{order_id}",
        {
            "currency": "USD",
            "captured_minor": 21_000,
            "payment": {"provider": "stripe", "payment_intent": payment_of(order_id)},
            "customer": {"ref": "c1", "email": "customer@example.com"},
            "placed_at": "2026-01-15T10:00:00Z",
            "source_version": 2,
        },
    )
    assert status == 200
    went_stale(place, action_id, "is at version 2, not 1: captured since: 10.00 USD")


def test_a_dispute_goes_back_to_people(place: Place) -> None:
    action_id = approved(place)
    write(
        place.world,
        "UPDATE refunds_order SET dispute_state = 'open', version = version + 1 WHERE id = %s",
        place.world.action(action_id)["order_id"],
    )
    went_stale(place, action_id, "the dispute is now open")


def test_another_policy_goes_back_to_people(place: Place) -> None:
    action_id = approved(place)
    write(
        place.world,
        "INSERT INTO policies_policyversion "
        "(number, parameters, parameters_hash, published_by, published_at, note) "
        "SELECT number + 1, parameters, parameters_hash, 'operator', now(), 'the same again' "
        "FROM policies_policyversion ORDER BY number DESC LIMIT 1",
    )
    (policy,) = place.world.query("SELECT max(number) AS number FROM policies_policyversion")
    number = policy["number"]
    went_stale(place, action_id, f"policy {number} is in force, not {number - 1}")


def test_an_approval_whose_time_is_over_goes_back_to_people(place: Place) -> None:
    action_id = approved(place)
    write(
        place.world,
        "UPDATE approvals_approval SET expires_at = now() "
        "WHERE action_id = %s AND number = 1",  # alice's, which the action does not show
        action_id,
        round_triggers=True,
    )
    went_stale(place, action_id, "the approval of alice has expired")


def test_an_approver_who_lost_the_permission_is_none(place: Place) -> None:
    action_id = approved(place)
    permission = (
        "SELECT up.id FROM auth_user_user_permissions up JOIN auth_user u ON u.id = up.user_id "
        "JOIN auth_permission p ON p.id = up.permission_id "
        "WHERE u.username = 'alice' AND p.codename = 'approve_tier_2'"
    )
    (row,) = place.world.query(
        f"SELECT user_id, permission_id FROM auth_user_user_permissions WHERE id = ({permission})"
    )
    write(place.world, f"DELETE FROM auth_user_user_permissions WHERE id = ({permission})")
    try:
        went_stale(place, action_id, "approver alice may no longer approve")
    finally:
        write(
            place.world,
            "INSERT INTO auth_user_user_permissions (user_id, permission_id) VALUES (%s, %s)",
            row["user_id"],
            row["permission_id"],
        )


def test_a_kill_switch_keeps_it_until_it_is_turned_off(place: Place) -> None:
    action_id = approved(place)
    nothing_was_sent(place.world, action_id)
    assert place.world.action(action_id)["state"] == "AUTHORIZED"
    assert place.world.open_cases(action_id) == []

    resumed(place.world, action_id)
    place.world.until(
        "it to go through",
        lambda: place.world.action(action_id)["state"] == "SUCCEEDED",
    )
    assert len(place.world.posts(action_id)) == 1
    assert len(place.world.refunds(action_id)) == 1
