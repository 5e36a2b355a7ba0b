"""What the straight way costs the database, statement by statement.

A number here goes up only with a reason: each statement is a round trip, and each COMMIT waits
for the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from effects.claim import Claimed, claim
from effects.send import send
from policies.parameters import Limit, Tier
from providers.sandbox import Sandbox
from refunds import hint
from refunds.kind import REFUND
from refunds.models import RefundAction
from refunds.propose import Replayed, propose_refund
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)


class Cost:
    """The statements of one step, in short, and how often it committed."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.commits = 0


@contextmanager
def counted() -> Iterator[Cost]:
    cost = Cost()
    with CaptureQueriesContext(connection) as captured:
        yield cost
    for query in captured.captured_queries:
        words = query["sql"].split()
        if words[0] == "COMMIT":
            cost.commits += 1
        elif words[0] not in ("BEGIN", "SAVEPOINT", "RELEASE"):
            table = next((word for word in words if word.startswith('"')), "")
            lock = " FOR UPDATE" if "FOR NO KEY UPDATE" in query["sql"] else ""
            named = table.partition(".")[0].strip('"(),')
            if words[0] == "SELECT" and "goodwill_total" in query["sql"]:
                named = "usage"
            elif "pg_advisory_xact_lock" in query["sql"]:
                named = "advisory locks"
            cost.statements.append(f"{words[0]} {named}{lock}")
        else:
            assert words[0] == "BEGIN", "a savepoint on the straight way"


@pytest.fixture(autouse=True)
def _quiet_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hint, "publish", lambda action_id: None)


@pytest.fixture
def action(sandbox: Sandbox) -> RefundAction:
    order = builders.order(sandbox=sandbox)
    builders.action(order, amount_minor=1)  # the process has read the policy once
    builders.allow_all()
    builders.action(order, amount_minor=1)
    return builders.action(order)


def test_a_proposal_costs_seven_statements_and_one_commit(action: RefundAction) -> None:
    proposal = builders.proposal(action.order)
    with counted() as cost:
        propose_refund(proposal=proposal)
    assert cost.statements == [
        "SELECT refunds_refundaction",  # identity first, without a lock
        "SELECT refunds_order FOR UPDATE",
        "SELECT now",  # the time and everything else beside it, in one
        "SELECT usage",  # what was used of every limit, in one
        "INSERT refunds_refundaction",
        "INSERT policies_decisionrecord",
        "INSERT refunds_refundevent",
    ]
    assert cost.commits == 1


def test_a_policy_with_limits_costs_a_proposal_one_statement_more(action: RefundAction) -> None:
    builders.policy(budgets=(Limit(scope="total", window="day", hold_base_minor=10**9),))
    builders.action(action.order, amount_minor=2)
    proposal = builders.proposal(action.order)
    with counted() as cost:
        propose_refund(proposal=proposal)
    assert cost.statements[2:5] == ["SELECT now", "SELECT advisory locks", "SELECT usage"]
    assert len(cost.statements) == 8
    assert cost.commits == 1


def test_a_replay_costs_one_statement_and_no_transaction(action: RefundAction) -> None:
    proposal = builders.proposal(action.order, request_id=action.request_id)
    with counted() as cost:
        assert isinstance(propose_refund(proposal=proposal), Replayed)
    assert cost.statements == ["SELECT refunds_refundaction"]
    assert cost.commits == 0


def test_a_claim_costs_seven_statements_and_one_commit(action: RefundAction) -> None:
    with counted() as cost:
        assert isinstance(claim(kind=REFUND, action_id=action.action_id, worker="w"), Claimed)
    assert cost.statements == [
        "SELECT refunds_refundaction FOR UPDATE",  # order and action together
        "SELECT now",  # everything beside them, in one
        "SELECT usage",  # the policy decides again
        "UPDATE refunds_order",
        "UPDATE refunds_refundaction",
        "INSERT refunds_refundevent",
        "INSERT refunds_refundattempt",
    ]
    assert cost.commits == 1


def test_a_claim_of_what_two_people_approved_costs_as_much(sandbox: Sandbox) -> None:
    builders.policy(ceiling_minor={}, tiers=(Tier(tier=1, up_to_base_minor=None, people=2),))
    action = builders.action(builders.order(sandbox=sandbox))
    builders.approved(action, builders.person(), builders.person())
    with counted() as cost:
        assert isinstance(claim(kind=REFUND, action_id=action.action_id, worker="w"), Claimed)
    assert cost.statements == [
        "SELECT refunds_refundaction FOR UPDATE",  # order and action together
        "SELECT now",  # everything beside them, in one
        "SELECT approvals_approval",  # every yes of the round, and what its giver may now
        "UPDATE refunds_order",
        "UPDATE refunds_refundaction",
        "INSERT refunds_refundevent",
        "INSERT refunds_refundattempt",
    ]
    assert cost.commits == 1


def test_a_send_costs_one_statement_of_its_own(action: RefundAction) -> None:
    claimed = builders.claimed(action)
    assert claimed.look_first
    with counted() as cost:
        send(kind=REFUND, claimed=claimed)
    # The fence, immediately before the bytes leave.
    assert cost.statements == ["SELECT refunds_refundattempt"]
    assert cost.commits == 0


def test_a_list_with_refunds_in_it_costs_two_more(sandbox: Sandbox, action: RefundAction) -> None:
    sandbox.refund_outside(action.order.payment_ref, amount=1)
    claimed = builders.claimed(action)
    with counted() as cost:
        send(kind=REFUND, claimed=claimed)
    # Whose are they? One stops the send, so the fence is not asked.
    assert cost.statements == ["SELECT refunds_refundaction", "SELECT refunds_externalrefund"]


def test_recording_a_success_costs_six_statements_and_one_commit(action: RefundAction) -> None:
    claimed = builders.claimed(action)
    sent = send(kind=REFUND, claimed=claimed)
    with counted() as cost:
        builders.answered(claimed.token, sent.outcome, reading=sent.reading)
    assert cost.statements == [
        "SELECT refunds_refundattempt FOR UPDATE",  # order, action and attempt together
        "SELECT now",  # everything beside them, in one
        "UPDATE refunds_refundattempt",
        "UPDATE refunds_order",
        "UPDATE refunds_refundaction",
        "INSERT refunds_refundevent",
    ]
    assert cost.commits == 1
