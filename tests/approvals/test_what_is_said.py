"""What a person reads who must decide again: what differs, of how much, whose, and when."""

from __future__ import annotations

from datetime import timedelta

import pytest

from effects.claim import NotClaimed, claim
from effects.clock import database_now
from effects.models import Case
from effects.outcomes import Evidence, NotSent, Unknown
from effects.states import State
from refunds.kind import REFUND
from refunds.models import ExternalRefund, Order, RefundAction
from tests import builders
from tests.approvals.ways import awaiting, tiered_policy

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _tiers() -> None:
    tiered_policy(ceiling_minor={"USD": 5_000})


def reason(action: RefundAction) -> str:
    result = claim(kind=REFUND, action_id=action.action_id, worker="worker:test")
    assert isinstance(result, NotClaimed)
    assert builders.fresh(action).state == State.AWAITING_APPROVAL
    return result.reason


@pytest.fixture
def order() -> Order:
    """An order of 500.00, at version 1."""
    return builders.order(order_id="4821", captured_minor=50_000)


def approved(order: Order) -> RefundAction:
    """200.00 of it, approved as it stands."""
    action = awaiting(20_000, order=order)
    return builders.approved(action, builders.person("alice", tier=3))


def succeed(other: RefundAction) -> None:
    builders.claimed(other)
    builders.stand_at(other, State.SUCCEEDED, provider_ref="re_1")


def test_whose_refund_it_was_and_when(order):
    other = builders.action(order, request_id="2", amount_minor=3_000)
    action = approved(order)
    succeed(other)
    at = f"{builders.fresh(other).state_since:%H:%M} UTC"
    version = builders.fresh(action).order.version
    assert reason(action) == (
        f"order 4821 is at version {version}, not 1: 30.00 USD refunded by request 2 at {at}"
    )
    (case,) = Case.objects.filter(action_id=action.action_id)
    assert case.reason == (
        f"Nothing was sent. It was approved, but order 4821 is at version {version}, not 1: "
        f"30.00 USD refunded by request 2 at {at}. Decide again."
    )


def test_one_that_is_still_in_flight(order):
    other = builders.action(order, request_id="2", amount_minor=3_000)
    action = approved(order)
    token = builders.claimed(other).token
    builders.answered(token, Unknown(reason="read_timeout", evidence=Evidence()))
    assert "not 1: 30.00 USD in flight for request 2 since" in reason(action)


def test_one_that_failed_since(order):
    other = builders.action(order, request_id="2", amount_minor=3_000)
    token = builders.claimed(other).token
    builders.answered(token, Unknown(reason="read_timeout", evidence=Evidence()))
    action = approved(order)
    builders.not_executed(other)
    builders.stand_at(other, State.FAILED_FINAL)
    assert "30.00 USD of request 2 failed at" in reason(action)


def test_what_happened_on_another_day_has_its_date(order):
    other = builders.action(order, request_id="2", amount_minor=3_000)
    action = approved(order)
    succeed(other)
    day = builders.fresh(other).state_since
    builders.skew_clock(24 * 3600 + 5)
    assert f"request 2 at {day:%H:%M} UTC of {day:%Y-%m-%d}" in reason(action)


def test_a_refund_made_elsewhere_is_named_as_such(order):
    action = approved(order)
    now = database_now()
    ExternalRefund.objects.create(
        order=order, provider_ref="re_dashboard", amount_minor=3_000, currency="USD",
        status="succeeded", seen_at=now, made_at=now - timedelta(days=3),
    )  # fmt: skip
    Order.objects.filter(pk=order.pk).update(refunded_minor=3_000, version=2)
    said = reason(action)
    assert "not 1: 30.00 USD refunded elsewhere (re_dashboard) at" in said
    assert f"UTC of {now - timedelta(days=3):%Y-%m-%d}" in said


def test_a_refund_made_elsewhere_that_was_known_is_not_told_again(order):
    now = database_now()
    ExternalRefund.objects.create(
        order=order, provider_ref="re_known", amount_minor=3_000, currency="USD",
        status="succeeded", seen_at=now, made_at=now,
    )  # fmt: skip
    Order.objects.filter(pk=order.pk).update(refunded_minor=3_000, version=2)
    action = approved(order)
    Order.objects.filter(pk=order.pk).update(version=3)
    assert reason(action) == "order 4821 is at version 3, not 2: a fact of the order changed"


def test_what_no_other_refund_explains_is_said_as_a_sum(order):
    other = builders.action(order, request_id="2", amount_minor=3_000)
    action = approved(order)
    succeed(other)
    Order.objects.filter(pk=order.pk).update(
        refunded_minor=4_000, captured_minor=48_000, settled_otherwise_minor=500,
        disputed_minor=100, dispute_state="inquiry",
    )  # fmt: skip
    said = reason(action)
    for words in (
        "30.00 USD refunded by request 2",
        "refunded since: 10.00 USD",
        "no longer captured: 20.00 USD",
        "settled otherwise since: 5.00 USD",
        "disputed since: 1.00 USD",
        "the dispute is now inquiry",
    ):
        assert words in said


def test_of_very_many_a_few_are_named_and_the_rest_counted(order):
    builders.allow_all()
    others = [builders.action(order, amount_minor=100 + n) for n in range(8)]
    tiered_policy(ceiling_minor={"USD": 5_000})
    action = approved(order)
    builders.allow_all()
    for number, other in enumerate(others):
        builders.claimed(other)
        builders.stand_at(other, State.SUCCEEDED, provider_ref=f"re_{number}")
    said = reason(action)
    assert said.count("refunded by request") == 5
    assert "and 3 more" in said
    assert "refunded since" not in said


def test_our_own_reservation_and_a_try_that_did_nothing_change_nothing(order):
    action = approved(order)
    for _ in range(2):
        token = builders.claimed(action).token
        builders.answered(token, NotSent(reason="refused", evidence=Evidence()))
    assert builders.fresh(action).order.version == 2  # reserved once
    Order.objects.filter(pk=order.pk).update(version=3)
    assert "is at version 3, not 2" in reason(action)


def test_a_yes_that_was_given_beside_our_own_reservation_expects_no_other_version(order):
    action = approved(order)
    builders.answered(
        builders.claimed(action).token, NotSent(reason="refused", evidence=Evidence())
    )
    Order.objects.filter(pk=order.pk).update(version=3)
    reason(action)
    assert builders.fresh(action).reserved_minor == 20_000
    builders.approved(action, builders.person(tier=3))
    builders.claimed(action)
    assert builders.fresh(action).order.version == 3  # nothing was reserved anew


def test_a_balance_that_moved_without_the_version_is_found(order):
    action = approved(order)
    Order.objects.filter(pk=order.pk).update(settled_otherwise_minor=1_000)
    assert reason(action) == ("order 4821 has another balance: settled otherwise since: 10.00 USD")


def test_what_no_longer_fits_is_said_beside_what_changed(order):
    action = approved(order)
    Order.objects.filter(pk=order.pk).update(captured_minor=10_000, version=2)
    said = reason(action)
    assert "no longer captured: 400.00 USD" in said
    assert "only 100.00 USD is left of order 4821" in said
