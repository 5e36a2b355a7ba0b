"""Postgres refuses what the service refuses, asked in raw SQL as the application's own role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, transaction

from approvals.models import Approval
from config.development import CHECKOUT
from effects.states import State
from effects.switches import turn_on
from refunds.models import RefundAction
from tests import builders
from tests.approvals.ways import awaiting, edited_policy, say_yes, tiered_policy
from tests.database import sql

pytestmark = pytest.mark.django_db

INSERT = """
    INSERT INTO approvals_approval (effect, action_id, number, round, tier, approved,
        decided_by_id, decided_at, payload_hash, resource_version, policy_version, facts,
        expires_at, note)
    SELECT 'refund', a.action_id, %s, %s, %s, %s, %s, now(), a.payload_hash, 1, 1, '{}',
        now() + interval '1 day', ''
    FROM refunds_refundaction a WHERE a.id = %s
"""


@pytest.fixture(autouse=True)
def _application_role() -> None:
    """The role that docs/running.md makes for web and workers."""
    page = (CHECKOUT / "docs" / "running.md").read_text()
    (statements,) = re.findall(r"```sql\n(CREATE ROLE refund_once_app.*?)```", page, re.DOTALL)
    sql(statements)


@contextmanager
def as_the_application() -> Iterator[None]:
    sql("SET LOCAL ROLE refund_once_app")
    yield
    sql("RESET ROLE")


@contextmanager
def refused(words: str) -> Iterator[None]:
    with (
        as_the_application(),
        pytest.raises(DatabaseError, match=words),
        transaction.atomic(),
    ):
        yield


def insert(
    action: RefundAction,
    user: User,
    *,
    number: int = 9,
    approval_round: int = 1,
    tier: int = 3,
    approved: bool = True,
) -> int:
    return sql(INSERT, number, approval_round, tier, approved, user.pk, action.pk)


def authorize(action: RefundAction, **columns: Any) -> int:
    """The row moved by hand, as if enough people had said yes."""
    values = {"state": "AUTHORIZED", "decided_by": "person", **columns}
    assignments = ", ".join(f"{name} = %s" for name in values)
    return sql(
        f"UPDATE refunds_refundaction SET {assignments}, due_at = now(), bound_until = now() "
        "WHERE id = %s",
        *values.values(),
        action.pk,
    )


@pytest.fixture(autouse=True)
def _tiers() -> None:
    tiered_policy()


@pytest.fixture
def alice() -> User:
    return builders.person("alice", tier=3)


@pytest.fixture
def bob() -> User:
    return builders.person("bob", tier=3)


# -- approvals ------------------------------------------------------------------------------------


def test_a_yes_that_nobody_forbids_can_be_written(alice):
    """So that what follows is refused for the reason it names."""
    action = awaiting()
    with as_the_application():
        assert insert(action, alice) == 1


def test_a_second_yes_of_one_person_is_refused(alice):
    action = awaiting()
    say_yes(action, alice)
    with refused("approval_one_yes_per_person_and_round"):
        insert(action, alice)


@pytest.mark.parametrize("proposer", ["alice", "person:alice"])
@pytest.mark.parametrize("approved", [True, False])
def test_a_decision_of_the_proposer_is_refused(alice, proposer, approved):
    action = awaiting(proposer=proposer)
    with refused("whoever proposed"):
        insert(action, alice, approved=approved)


def test_a_yes_of_the_agent_s_owner_is_refused_and_a_no_is_not(alice):
    action = awaiting(proposer_owner_id=alice.pk)
    with refused("the owner of what proposed"):
        insert(action, alice)
    with as_the_application():
        assert insert(action, alice, approved=False) == 1


def test_a_yes_of_the_policy_s_last_editor_is_refused_and_a_no_is_not(alice):
    edited_policy(editor=alice)
    action = awaiting()
    with refused("the last editor of the policy in force"):
        insert(action, alice)
    with as_the_application():
        assert insert(action, alice, approved=False) == 1


@pytest.mark.parametrize("approval_round", [0, 2])
def test_a_yes_of_another_round_is_refused(alice, approval_round):
    action = awaiting()
    with refused("in its round"):
        insert(action, alice, approval_round=approval_round)


def test_a_yes_to_what_awaits_none_is_refused(alice):
    builders.allow_all()
    action = builders.action(builders.order())
    assert action.state == State.AUTHORIZED
    with refused("an action that awaits it"):
        insert(action, alice)


def test_a_yes_to_an_action_of_no_kind_is_refused(alice):
    action = awaiting()
    text = INSERT.replace("'refund', a.action_id", "'fund', a.action_id")
    with refused("an action that awaits it"):
        sql(text, 9, 1, 3, True, alice.pk, action.pk)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE approvals_approval SET approved = true",
        "UPDATE approvals_approval SET decided_by_id = decided_by_id",
        "UPDATE approvals_approval SET expires_at = expires_at + interval '9 days'",
        "DELETE FROM approvals_approval",
        "TRUNCATE approvals_approval",
    ],
)
def test_what_was_decided_stays(alice, statement):
    say_yes(awaiting(), alice)
    with refused(r"Cannot (update|delete)|permission denied"):
        sql(statement)
    assert Approval.objects.count() == 1


# -- the action -----------------------------------------------------------------------------------


def test_authorized_without_any_approval_is_refused():
    action = awaiting()
    with refused("needs the approval of 2 people of tier 3"):
        authorize(action)


def test_authorized_with_one_approval_of_two_is_refused(alice):
    action = awaiting()
    say_yes(action, alice)
    with refused("needs the approval of 2 people of tier 3"):
        authorize(action)


def test_people_of_a_lower_tier_do_not_make_it_authorized(alice, bob):
    action = awaiting()
    with as_the_application():
        insert(action, alice, number=1, tier=2)
        insert(action, bob, number=2, tier=2)
    with refused("needs the approval of 2 people of tier 3"):
        authorize(action)


def test_a_no_is_no_approval(alice, bob):
    action = awaiting()
    with as_the_application():
        insert(action, alice, number=1, approved=False)
        insert(action, bob, number=2)
    with refused("needs the approval of 2 people of tier 3"):
        authorize(action)


def test_approvals_of_an_earlier_round_do_not_count(alice, bob):
    action = awaiting()
    with as_the_application():
        insert(action, alice, number=1)
        insert(action, bob, number=2)
    with refused("needs the approval of 2 people of tier 3"):
        authorize(action, approval_round=2)


def test_what_awaits_people_is_not_authorized_by_policy(alice):
    action = awaiting()
    with refused("awaits people, and only they authorize it"):
        authorize(action, decided_by="policy")


@pytest.mark.parametrize("column", ["review_people", "review_tier"])
@pytest.mark.parametrize("approval_round", [1, 2])
def test_who_must_approve_is_never_lowered(column, approval_round):
    action = awaiting()
    with refused("is never lowered"):
        sql(
            f"UPDATE refunds_refundaction SET {column} = 1, approval_round = %s WHERE id = %s",
            approval_round,
            action.pk,
        )


def test_who_must_approve_is_not_lowered_on_the_way_to_authorized(alice):
    action = awaiting()
    say_yes(action, alice)
    with refused("is never lowered"):
        authorize(action, review_people=1)


def test_rounds_never_go_back(alice):
    action = awaiting()
    sql("UPDATE refunds_refundaction SET approval_round = 3 WHERE id = %s", action.pk)
    with refused("never go back"):
        sql("UPDATE refunds_refundaction SET approval_round = 1 WHERE id = %s", action.pk)


def test_a_policy_s_decision_is_not_made_a_person_s_by_hand():
    builders.allow_all()
    action = builders.action(builders.order())
    with refused("becomes that of people when they take it"):
        sql("UPDATE refunds_refundaction SET decided_by = 'person' WHERE id = %s", action.pk)


@pytest.mark.parametrize("people", [0, 1])
@pytest.mark.parametrize("state", [State.HELD, State.AUTHORIZED])
def test_what_nobody_was_asked_about_is_not_authorized_as_if_people_had(state, people):
    """The claim does not make a decision of people again, so it must be one of people."""
    builders.allow_all()
    if state is State.HELD:
        turn_on(scope="global", reason="look", actor="test")
    action = builders.action(builders.order())
    assert action.state == state
    with refused("becomes that of people when they take it"):
        authorize(action, review_people=people, review_tier=people)
    with refused("becomes that of people when they take it"):
        sql(
            "UPDATE refunds_refundaction SET decided_by = 'person', review_people = %s "
            "WHERE id = %s",
            people,
            action.pk,
        )


def test_what_people_decided_is_not_made_the_policy_s(alice, bob):
    action = awaiting()
    say_yes(action, alice)
    say_yes(action, bob)
    assert builders.fresh(action).state == State.AUTHORIZED
    with refused("becomes that of people when they take it"):
        sql("UPDATE refunds_refundaction SET decided_by = 'policy' WHERE id = %s", action.pk)


@pytest.mark.parametrize("column", ["review_people", "review_tier"])
def test_an_action_always_asks_somebody(column):
    """At the beginning, and as long as the policy may still say whom."""
    builders.allow_all()
    action = builders.action(builders.order())
    with refused("refund_asks_somebody"):
        sql(f"UPDATE refunds_refundaction SET {column} = 0 WHERE id = %s", action.pk)
    names = [
        str(f.column) for f in RefundAction._meta.concrete_fields
        if f.column not in ("id", "action_id", "state", column)
    ]  # fmt: skip
    copied = ", ".join(names)
    with refused("refund_asks_somebody"):
        sql(
            f"INSERT INTO refunds_refundaction (action_id, state, {column}, {copied}) "
            f"SELECT 'refund:order-x:request-y', 'HELD', 0, {copied} "
            "FROM refunds_refundaction WHERE id = %s",
            action.pk,
        )


@pytest.mark.parametrize("target", ["SUBMITTING", "SUCCEEDED", "UNKNOWN", "HELD"])
def test_a_move_past_the_people_is_refused(target):
    action = awaiting()
    with refused("Invalid transition|refund_|check constraint"):
        sql(
            "UPDATE refunds_refundaction SET state = %s, due_at = now(), unknown_since = now() "
            "WHERE id = %s",
            target,
            action.pk,
        )


def test_an_action_that_begins_as_if_people_had_decided_is_refused():
    action = awaiting()
    names = [
        str(f.column) for f in RefundAction._meta.concrete_fields
        if f.column not in ("id", "action_id", "state", "decided_by", "approval_round")
    ]  # fmt: skip
    copied = ", ".join(names)
    for decided_by, approval_round in (("person", 1), ("policy", 2)):
        with refused("begins by policy, in its first round"):
            sql(
                "INSERT INTO refunds_refundaction "
                f"(action_id, state, decided_by, approval_round, {copied}) "
                f"SELECT 'refund:order-x:request-y', 'AUTHORIZED', %s, %s, {copied} "
                "FROM refunds_refundaction WHERE id = %s",
                decided_by,
                approval_round,
                action.pk,
            )
