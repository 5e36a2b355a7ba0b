"""Budgets and velocity under fire: the sum never passes what the policy set."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from effects.claim import Claimed, claim
from effects.models import Case
from effects.states import State
from policies.models import DecisionRecord
from policies.parameters import Limit
from policies.versions import publish
from refunds import hint
from refunds.kind import REFUND
from refunds.models import RefundAction
from refunds.propose import Recorded, propose_refund
from tests import builders
from tests.concurrency.test_races import at_once, insisting

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]

BUDGET_MINOR = 100_000
EACH_MINOR = 1_000


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hint, "publish", lambda action_id: None)


def _only(**limits: object) -> None:
    """A policy with these limits and no other."""
    publish(parameters=replace(builders.ALLOW_ALL, **limits), published_by="test")  # type: ignore[arg-type]


def _allowed_minor() -> int:
    rows = RefundAction.objects.filter(authorized_at__isnull=False)
    return sum(row.amount_minor for row in rows if row.state == State.AUTHORIZED)


def _a_hundred_at_once(*, used_minor: int, proposers: int, **scope: object) -> list[RefundAction]:
    """90 % of the budget is used; then a hundred proposals of other orders come at once."""
    used = builders.action(
        builders.order(captured_minor=used_minor, **scope),  # type: ignore[arg-type]
        amount_minor=used_minor,
        proposer="agent-0",
    )
    assert used.state == State.AUTHORIZED
    orders = [builders.order(**scope) for _ in range(100)]  # type: ignore[arg-type]
    proposals = [
        builders.proposal(order, amount_minor=EACH_MINOR, proposer=f"agent-{number % proposers}")
        for number, order in enumerate(orders)
    ]
    results = at_once(*[insisting(partial(propose_refund, proposal=each)) for each in proposals])
    assert all(isinstance(result, Recorded) for result in results)
    return [result.action for result in results]


@pytest.mark.parametrize(
    ("limit", "proposers"),
    [
        (Limit(scope="total", window="day", review_base_minor=BUDGET_MINOR), 7),
        (Limit(scope="agent", window="day", review_base_minor=BUDGET_MINOR), 1),
        (Limit(scope="customer", window="30_days", review_base_minor=BUDGET_MINOR), 7),
    ],
    ids=lambda value: getattr(value, "scope", ""),
)
def test_a_hundred_proposals_at_once_at_ninety_percent_never_pass_a_budget(
    limit: Limit, proposers: int
) -> None:
    _only(**{"velocity" if limit.scope == "customer" else "budgets": (limit,)})
    actions = _a_hundred_at_once(used_minor=90_000, proposers=proposers, customer_ref="cus_1")

    assert _allowed_minor() == BUDGET_MINOR
    states = [action.state for action in actions]
    assert states.count(State.AUTHORIZED) == 10
    assert states.count(State.AWAITING_APPROVAL) == 90
    # And each of the ten is claimed: it is measured as it was when it was admitted, in the order in
    # which they were, however long one waited for the other.
    for action in actions:
        if action.state == State.AUTHORIZED:
            assert isinstance(claim(kind=REFUND, action_id=action.action_id, worker="w"), Claimed)
    # What was let through says so, and what was not says why; nobody is silently dropped.
    assert DecisionRecord.objects.count() == 101


def test_above_a_limit_that_holds_nothing_is_decided_and_somebody_is_called_once() -> None:
    _only(velocity=(Limit(scope="agent", window="hour", hold_base_minor=BUDGET_MINOR),))
    actions = _a_hundred_at_once(used_minor=90_000, proposers=1)

    assert _allowed_minor() == BUDGET_MINOR
    assert [action.state for action in actions].count(State.HELD) == 90
    (case,) = Case.objects.all()
    assert (case.kind, case.resource) == (Case.Kind.LIMIT, "agent:agent-0")
    assert "Nothing was sent" in case.reason


def test_a_count_is_a_limit_too() -> None:
    _only(velocity=(Limit(scope="agent", window="hour", review_count=11),))
    actions = _a_hundred_at_once(used_minor=1_000, proposers=1)
    assert [action.state for action in actions].count(State.AUTHORIZED) == 10
