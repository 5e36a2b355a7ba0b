"""Abuse, by agents and by people: each ends as the policy and four eyes say it must."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from django.contrib.auth.models import Permission, User
from django.db import DatabaseError, connection, transaction

from approvals.decide import Approved, Refused, Why, approve
from effects.models import Case
from effects.states import State
from policies.drafts import Content, Published, Saved, publish_draft, save_draft
from policies.models import DecisionRecord
from policies.parameters import Limit
from policies.versions import DEFAULT_PARAMETERS, publish
from providers.sandbox import Sandbox
from refunds import hint
from refunds.dispatch import dispatch
from refunds.models import RefundAction
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests dispatch themselves."""
    monkeypatch.setattr(hint, "publish", lambda action_id: None)


def why(action: RefundAction) -> str:
    """What the last decision of an action says about the rules that stopped it."""
    record = DecisionRecord.objects.filter(action_id=action.action_id).order_by("-number").first()
    assert record is not None
    return "; ".join(r["why"] for r in record.rules if r["verdict"] == record.verdict)


def paid_minor(sandbox: Sandbox) -> int:
    return sum(refund["amount"] for refund in sandbox.refunds() if refund["status"] != "failed")


# -- an agent that was talked into it -------------------------------------------------------------


@pytest.mark.parametrize("scope", ["order", "customer"])
def test_smurfing_ten_times_just_below_the_ceiling_ends_with_a_person(
    sandbox: Sandbox, scope: str
) -> None:
    """Ten refunds of 9.99 under a ceiling of 10.00 are one refund of 99.90."""
    window = {"order": "ever", "customer": "30_days"}[scope]
    limits = (Limit(scope=scope, window=window, review_base_minor=3_000),)
    builders.policy(
        ceiling_minor={"USD": 1_000},
        velocity=limits,
        same_amount_window_seconds=0,
        review_beside_open=False,
    )
    one = builders.order(sandbox=sandbox, customer_ref="cus_1")
    actions = []
    for _ in range(10):
        order = one
        if scope == "customer":
            order = builders.order(sandbox=sandbox, customer_ref="cus_1")
        action = builders.action(order, amount_minor=999)
        dispatch(action_id=action.action_id)
        actions.append(builders.fresh(action))

    assert [action.state for action in actions] == [State.SUCCEEDED] * 3 + [
        State.AWAITING_APPROVAL
    ] * 7
    assert paid_minor(sandbox) == 3 * 999
    assert "30.00 USD" in why(actions[3])


def test_refund_all_orders_of_the_last_month_stops_at_the_limit_and_calls_once(
    sandbox: Sandbox,
) -> None:
    builders.policy(velocity=(Limit(scope="agent", window="hour", hold_count=10),))
    actions = [builders.action(builders.order(sandbox=sandbox)) for _ in range(30)]
    for action in actions:
        dispatch(action_id=action.action_id)

    states = [builders.fresh(action).state for action in actions]
    assert states == [State.SUCCEEDED] * 10 + [State.HELD] * 20
    assert len(sandbox.refunds()) == 10
    (case,) = Case.objects.all()
    assert (case.kind, case.resource) == (Case.Kind.LIMIT, "agent:agent-1")


def test_two_agents_and_a_person_on_one_order_pay_no_more_than_was_captured(
    sandbox: Sandbox,
) -> None:
    """Two agents ask for 60.00 each of 100.00 while a person refunds 30.00 in the dashboard."""
    builders.allow_all()
    order = builders.order(sandbox=sandbox, captured_minor=10_000)
    first = builders.action(order, amount_minor=6_000, proposer="agent-a")
    second = builders.action(order, amount_minor=6_000, proposer="agent-b")
    assert [first.state, second.state] == [State.AUTHORIZED] * 2
    sandbox.refund_outside(order.payment_ref, amount=3_000)

    for action in (first, second, first, second):
        dispatch(action_id=action.action_id)
    # Found before anything was sent. No policy goes past it: a person decides.
    assert paid_minor(sandbox) == 3_000
    assert {builders.fresh(a).state for a in (first, second)} <= {
        State.AWAITING_APPROVAL,
        State.AUTHORIZED,
        State.REJECTED,
    }
    assert Case.objects.filter(kind=Case.Kind.FOUND_ELSEWHERE, closed_at=None).exists()

    assert builders.fresh(first).state == State.AWAITING_APPROVAL
    builders.approved(first)
    dispatch(action_id=first.action_id)
    assert builders.fresh(first).state == State.SUCCEEDED
    # 60.00 of one agent and 30.00 of the person leave 10.00: the other's 60.00 no yes can allow.
    dispatch(action_id=second.action_id)
    left = builders.fresh(second)
    if left.state == State.AWAITING_APPROVAL:
        refused = approve(
            action_id=second.action_id, user=builders.person(), note="n", seen=builders.seen(second)
        )
        assert isinstance(refused, Refused)
        assert "10.00 USD left" in refused.sentence
    else:
        assert left.state == State.REJECTED
    assert paid_minor(sandbox) == 9_000
    order.refresh_from_db()
    assert (order.refunded_minor, order.reserved_minor) == (9_000, 0)


# -- people ---------------------------------------------------------------------------------------


def policy_person(*, tier: int = 3) -> User:
    """Somebody who edits and publishes policies, and approves refunds."""
    user = builders.person(tier=tier)
    user.user_permissions.add(
        *Permission.objects.filter(
            codename__in=["add_policydraft", "change_policydraft", "publish_policy"]
        )
    )
    return User.objects.get(pk=user.pk)


def published_by_two(editor: User, publisher: User) -> None:
    """The editor drafts a policy under which fewer refunds need a person; another publishes it."""
    parameters = replace(DEFAULT_PARAMETERS, ceiling_minor={"USD": 20_000})
    saved = save_draft(
        user=editor,
        content=Content(
            name="more by itself",
            parameters=json.loads(json.dumps(parameters.as_json())),
            note="why not",
            based_on=1,
        ),
    )
    assert isinstance(saved, Saved), saved
    own = publish_draft(user=editor, draft_id=saved.draft_id, seen_hash=saved.seen_hash)
    assert not isinstance(own, Published)
    done = publish_draft(user=publisher, draft_id=saved.draft_id, seen_hash=saved.seen_hash)
    assert isinstance(done, Published), done


def test_whoever_edited_the_policy_in_force_cannot_approve_under_it(sandbox: Sandbox) -> None:
    editor, publisher = policy_person(), policy_person()
    order = builders.order(sandbox=sandbox, captured_minor=100_000)
    action = builders.action(order, amount_minor=30_000)
    assert action.state == State.AWAITING_APPROVAL
    published_by_two(editor, publisher)

    refused = approve(
        action_id=action.action_id, user=editor, note="fine", seen=builders.seen(action)
    )

    assert isinstance(refused, Refused)
    assert refused.why is Why.IS_POLICY_EDITOR
    dispatch(action_id=action.action_id)
    assert sandbox.refunds() == []
    # In the database, too: whoever writes rows past the service meets the trigger.
    with (
        pytest.raises(DatabaseError, match="editor"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(
            "INSERT INTO approvals_approval (effect, action_id, number, approved, decided_by_id,"
            " decided_at, payload_hash, resource_version, facts, expires_at, note, round,"
            " policy_version, tier) VALUES ('refund', %s, 1, true, %s, now(), %s, 1, '{}',"
            " now() + interval '1 day', '', 1, 2, 3)",
            [action.action_id, editor.pk, action.payload_hash],
        )
    # Somebody else may.
    approved = approve(
        action_id=action.action_id,
        user=builders.person(),
        note="fine",
        seen=builders.seen(action),
    )
    assert isinstance(approved, Approved)


def test_an_approval_given_before_the_policy_changed_sends_nothing(sandbox: Sandbox) -> None:
    order = builders.order(sandbox=sandbox, captured_minor=100_000)
    action = builders.action(order, amount_minor=30_000)
    builders.approved(action)
    publish(parameters=DEFAULT_PARAMETERS, published_by="test")

    dispatch(action_id=action.action_id)

    assert builders.fresh(action).state == State.AWAITING_APPROVAL
    assert sandbox.refunds() == []
    case = Case.objects.get(kind=Case.Kind.STALE_APPROVAL)
    assert "policy" in case.reason


def test_an_approver_with_an_agent_of_their_own_cannot_approve_what_it_proposes() -> None:
    owner = builders.person()
    action = builders.action(
        builders.order(captured_minor=100_000),
        amount_minor=30_000,
        proposer="agent-x",
        proposer_owner_id=owner.pk,
    )
    refused = approve(
        action_id=action.action_id, user=owner, note="fine", seen=builders.seen(action)
    )
    assert isinstance(refused, Refused)
    assert refused.why is Why.IS_OWNER
    assert builders.fresh(action).state == State.AWAITING_APPROVAL
