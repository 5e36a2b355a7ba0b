"""What changes between a decision and the money: each order of events ends with a person asked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from approvals.decide import Approved, Refused, Why, approve
from approvals.settle import Settled, settle_case
from console.approving import decide_panel
from effects.clock import database_now
from effects.models import Case, Switch
from effects.states import State
from effects.switches import turn_off, turn_on
from policies.parameters import Limit, Tier
from providers.sandbox import Sandbox
from reconciliation.decisions import decide_held
from refunds import hint
from refunds.dispatch import dispatch
from refunds.kind import REFUND
from refunds.models import Order, RefundAction
from refunds.orders import OrderFacts, mirror_order
from refunds.propose import ProposalLine
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)

TWO_PEOPLE = (Tier(tier=1, up_to_base_minor=None, people=2),)
NO_LIMITS: dict[str, Any] = {"velocity": (), "budgets": (), "goodwill_budgets": ()}


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests dispatch themselves."""
    monkeypatch.setattr(hint, "publish", lambda action_id: None)


def stated_again(order: Order, **changed: Any) -> None:
    """The merchant states the order again, with something changed."""
    order.refresh_from_db()
    values: dict[str, Any] = {
        "order_id": order.order_id,
        "currency": order.currency,
        "captured_minor": order.captured_minor,
        "provider": order.provider,
        "payment_ref": order.payment_ref,
        "customer_ref": order.customer_ref,
        "customer_email": order.customer_email,
        "source_version": order.source_version + 1,
        "details": order.details,
    }
    assert mirror_order(facts=OrderFacts(**(values | changed)), actor="test").changed


def sent(action: RefundAction) -> str:
    dispatch(action_id=action.action_id)
    return str(builders.fresh(action).state)


# -- the merchant's words -------------------------------------------------------------------------


def test_a_customer_who_became_a_risk_after_the_approval_is_not_paid(sandbox: Sandbox) -> None:
    builders.policy(risk_deny=("blocked",), risk_review=("high",))
    order = builders.order(sandbox=sandbox, details={"risk": "low"})
    action = builders.action(order, amount_minor=15_000)
    builders.approved(action)

    stated_again(order, details={"risk": "blocked"})

    assert sent(action) == State.AWAITING_APPROVAL
    assert sandbox.refunds() == []
    (case,) = Case.objects.filter(kind=Case.Kind.STALE_APPROVAL)
    assert "the customer's risk changed" in case.reason
    refused = approve(
        action_id=action.action_id, user=builders.person(), note="n", seen=builders.seen(action)
    )
    assert isinstance(refused, Refused)
    assert refused.why is Why.NOT_ALLOWED


def test_a_line_that_shrank_after_the_approval_is_not_paid(sandbox: Sandbox) -> None:
    builders.policy(component_caps=True, ceiling_minor={}, **NO_LIMITS)
    lines = [{"line_id": "l1", "amount_minor": 10_000}, {"line_id": "l2", "amount_minor": 40_000}]
    order = builders.order(captured_minor=50_000, sandbox=sandbox, details={"lines": lines})
    action = builders.action(
        order, amount_minor=10_000, lines=(ProposalLine(line_id="l1", amount_minor=10_000),)
    )
    builders.approved(action)
    stated_again(order, details={"lines": [{**lines[0], "amount_minor": 1_000}, lines[1]]})
    assert sent(action) == State.AWAITING_APPROVAL
    assert sandbox.refunds() == []


def test_two_yeses_on_different_facts_are_not_two(sandbox: Sandbox) -> None:
    builders.policy(ceiling_minor={}, tiers=TWO_PEOPLE, **NO_LIMITS)
    order = builders.order(captured_minor=50_000, sandbox=sandbox, details={"risk": "low"})
    action = builders.action(order, amount_minor=40_000)
    shown = builders.seen(action)
    builders.approved(action)
    stated_again(order, details={"risk": "high"})

    stale = approve(action_id=action.action_id, user=builders.person(), note="n", seen=shown)

    assert isinstance(stale, Refused)
    assert stale.why is Why.CHANGED_SINCE
    assert not isinstance(
        approve(
            action_id=action.action_id, user=builders.person(), note="n", seen=builders.seen(action)
        ),
        Approved,
    )
    assert sent(action) == State.AWAITING_APPROVAL
    assert sandbox.refunds() == []


# -- limits ---------------------------------------------------------------------------------------


def test_no_yes_goes_past_a_limit_that_holds_and_somebody_is_called(sandbox: Sandbox) -> None:
    builders.policy(
        budgets=(Limit(scope="agent", window="day", hold_base_minor=40_000),),
        velocity=(),
        goodwill_budgets=(),
    )
    actions = [
        builders.action(builders.order(sandbox=sandbox), amount_minor=15_000) for _ in range(4)
    ]
    assert {action.state for action in actions} == {State.AWAITING_APPROVAL}
    answers = [
        approve(
            action_id=action.action_id, user=builders.person(), note="n", seen=builders.seen(action)
        )
        for action in actions
    ]
    assert [isinstance(answer, Approved) for answer in answers] == [True, True, False, False]
    assert Case.objects.get().kind == Case.Kind.LIMIT
    assert sum(sent(action) == State.SUCCEEDED for action in actions) == 2


def test_the_parts_of_an_order_need_who_the_sum_would_need(sandbox: Sandbox) -> None:
    order = builders.order(sandbox=sandbox, captured_minor=900_000)
    builders.policy(same_amount_window_seconds=0, budgets=(), review_beside_open=False)
    tiers = []
    for part in range(6):
        action = builders.action(order, amount_minor=45_000 + part)
        tiers.append((action.review_tier, action.review_people))
        builders.approved(action, *(builders.person(tier=3) for _ in range(action.review_people)))
        assert sent(action) == State.SUCCEEDED
    # 450.00, then 900.00, … of one order: from 2,000.00 on it takes two people of the last tier.
    assert tiers == [(1, 1), (2, 1), (2, 1), (2, 1), (3, 2), (3, 2)]


def test_what_was_allowed_and_a_stricter_limit_holds_is_told_to_people(sandbox: Sandbox) -> None:
    action = builders.action(builders.order(sandbox=sandbox), amount_minor=5_000)
    assert action.state == State.AUTHORIZED
    builders.policy(
        velocity=(Limit(scope="order", window="ever", hold_base_minor=4_000),),
        budgets=(),
        goodwill_budgets=(),
    )
    assert sent(action) == State.AWAITING_APPROVAL
    assert Case.objects.get().kind == Case.Kind.LIMIT
    assert sandbox.refunds() == []


def test_what_a_switch_held_and_a_limit_holds_then_is_told_again_and_again(
    sandbox: Sandbox,
) -> None:
    turn_on(scope="global", reason="look", actor="test")
    action = builders.action(builders.order(sandbox=sandbox), amount_minor=5_000)
    builders.policy(
        budgets=(Limit(scope="agent", window="day", hold_base_minor=4_000),),
        velocity=(),
        goodwill_budgets=(),
    )
    turn_off(switch_id=Switch.objects.get().pk, actor="test")
    person = User.objects.get(pk=builders.person().pk)
    person.user_permissions.add(Permission.objects.get(codename="settle_case"))
    person = User.objects.get(pk=person.pk)
    for hours in (1, 7, 13):
        builders.skew_clock(timedelta(hours=hours).total_seconds())
        assert decide_held(kind=REFUND, now=database_now(), seen=[])
        assert builders.fresh(action).state == State.HELD
        case = Case.objects.get(kind=Case.Kind.LIMIT, closed_at=None)
        assert isinstance(
            settle_case(case_id=case.case_id, user=person, note="seen it, thanks"), Settled
        )
        # A word closes it for as long as a case has, not for ever.
        builders.skew_clock(timedelta(hours=hours, minutes=1).total_seconds())
        decide_held(kind=REFUND, now=database_now(), seen=[])
        assert not Case.objects.filter(kind=Case.Kind.LIMIT, closed_at=None).exists()


# -- beside what awaits a person ------------------------------------------------------------------


def test_beside_a_refund_that_awaits_a_person_policy_allows_none(sandbox: Sandbox) -> None:
    order = builders.order(captured_minor=50_000, sandbox=sandbox)
    first = builders.action(order, amount_minor=12_000)
    assert first.state == State.AWAITING_APPROVAL
    parts = [builders.action(order, amount_minor=amount) for amount in (7_000, 5_000)]
    assert [sent(part) for part in parts] == [State.AWAITING_APPROVAL] * 2
    assert sandbox.refunds() == []


def test_what_came_first_is_not_stopped_by_what_awaits_a_person_after_it(
    sandbox: Sandbox,
) -> None:
    order = builders.order(captured_minor=50_000, sandbox=sandbox)
    first = builders.action(order, amount_minor=7_000)
    second = builders.action(order, amount_minor=12_000)
    assert [first.state, second.state] == [State.AUTHORIZED, State.AWAITING_APPROVAL]
    assert sent(first) == State.SUCCEEDED


def test_of_two_equal_ones_that_await_a_person_each_is_shown_beside_the_other(
    sandbox: Sandbox,
) -> None:
    order = builders.order(captured_minor=50_000, sandbox=sandbox)
    first, second = (builders.action(order, amount_minor=15_000) for _ in range(2))
    for mine, other in ((first, second), (second, first)):
        panel = decide_panel(action=builders.fresh(mine), user=builders.person())
        assert [row["name"] for row in panel["related"]] == [mine.action_id, other.action_id]
