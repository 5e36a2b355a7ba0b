"""What a merchant stated beside what the provider shows: found without being asked, told once."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from effects.models import Breaker, Case, SweepRun
from effects.states import State
from providers.port import PaymentTotals
from providers.registry import payment_provider
from providers.sandbox import Sandbox
from reconciliation.compare_orders import NAME, compare_orders
from refunds.dispatch import dispatch
from refunds.models import ExternalRefund, Order, RefundEvent
from refunds.shown import Shown, write_shown
from tests import builders
from tests.sandbox.calls import stripe_client

pytestmark = pytest.mark.django_db(transaction=True)


def stated(sandbox: Sandbox, *, captured: int = 20_000, shown: int = 15_000, **facts: Any) -> Order:
    """An order of which the merchant says another amount than the provider shows."""
    order_id = facts.pop("order_id", None) or builders.next_id("order-")
    payment = f"pi_{order_id.replace('-', '')}"
    sandbox.payment(amount=shown, id=payment, currency=facts.pop("shown_currency", "usd"))
    return builders.order(order_id=order_id, captured_minor=captured, payment_ref=payment, **facts)


def again(order: Order) -> Order:
    return Order.objects.get(pk=order.pk)


def the_case(order: Order) -> Case:
    """The one open case of the order that says what differs."""
    return Case.objects.get(
        kind=Case.Kind.CONTRADICTION, resource=str(order), closed_at__isnull=True
    )


def restate(order: Order, **changes: Any) -> Order:
    return builders.order(
        order_id=order.order_id, payment_ref=order.payment_ref, **({"source_version": 9} | changes)
    )


def compare_at(seconds: float) -> int:
    builders.skew_clock(seconds)
    return compare_orders()


# -- found ----------------------------------------------------------------------------------------


def test_an_order_that_is_as_shown_is_read_once_and_is_not_due_any_more(sandbox: Sandbox) -> None:
    order = builders.order(sandbox=sandbox)
    assert compare_orders() == 1
    assert compare_orders() == 0
    now = again(order)
    assert (now.shown_captured_minor, now.shown_currency, now.compare_due_at) == (
        20_000,
        "USD",
        None,
    )
    assert (now.version, now.refundable_minor) == (1, 20_000)
    assert not Case.objects.exists()
    assert [line["method"] for line in sandbox.requests()] == ["GET"]
    assert SweepRun.objects.get(name=NAME).handled == 0


def test_less_captured_than_stated_is_a_case_in_a_sentence_and_counts_as_the_smaller(
    sandbox: Sandbox,
) -> None:
    order = stated(sandbox, order_id="4821")
    compare_orders()
    case = the_case(order)
    assert "Order 4821: you say 200.00 USD captured, Stripe shows 150.00 USD." in case.reason
    assert case.evidence["stated_captured_minor"] == 20_000
    assert case.evidence["shown_captured_minor"] == 15_000
    now = again(order)
    assert (now.stated_minor, now.captured_minor, now.refundable_minor) == (20_000, 15_000, 15_000)
    assert now.version == 2


def test_more_captured_than_stated_is_a_case_and_changes_no_balance(sandbox: Sandbox) -> None:
    order = stated(sandbox, captured=10_000, shown=15_000)
    compare_orders()
    assert "you say 100.00 USD captured, Stripe shows 150.00 USD" in the_case(order).reason
    assert (again(order).captured_minor, again(order).version) == (10_000, 1)


def test_orders_that_share_a_payment_and_add_up_to_it_are_no_case(sandbox: Sandbox) -> None:
    sandbox.payment(amount=15_000, id="pi_shared")
    for captured in (10_000, 5_000):
        builders.order(captured_minor=captured, payment_ref="pi_shared")
    compare_orders()
    assert not Case.objects.exists()


def test_another_currency_is_a_case_and_nothing_can_be_sent(sandbox: Sandbox) -> None:
    order = stated(sandbox, captured=20_000, shown=20_000, shown_currency="jpy")
    compare_orders()
    reason = the_case(order).reason
    assert "you say 200.00 USD captured, Stripe shows 20000 JPY, in another currency" in reason
    assert again(order).refundable_minor == 0


@pytest.mark.parametrize(("stated", "shown"), [(989_900, 9_899), (58, 5_800)])
def test_yen_in_the_wrong_scale_are_found_before_anything_is_refunded(
    sandbox: Sandbox, stated: int, shown: int
) -> None:
    sandbox.payment(amount=shown, currency="jpy", id="pi_yen")
    order = builders.order(captured_minor=stated, currency="JPY", payment_ref="pi_yen")
    compare_orders()
    assert f"you say {stated} JPY captured, Stripe shows {shown} JPY" in the_case(order).reason
    assert again(order).refundable_minor == min(stated, shown)


def test_a_payment_that_the_provider_does_not_know_is_a_case_and_policy_asks_a_person(
    sandbox: Sandbox,
) -> None:
    order = builders.order(payment_ref="pi_mistyped")
    compare_orders()
    reason = the_case(order).reason
    assert "you say it was paid with pi_mistyped, Stripe knows no such payment" in reason
    assert builders.action(order).state == State.AWAITING_APPROVAL
    assert not Breaker.objects.filter(failures__gt=0).exists()


def test_an_uncaptured_payment_shows_nothing_until_it_is_captured(sandbox: Sandbox) -> None:
    sandbox.payment(amount=20_000, id="pi_authorized", capture=False)
    order = builders.order(payment_ref="pi_authorized")
    compare_orders()
    assert "Stripe shows 0.00 USD" in the_case(order).reason
    assert again(order).refundable_minor == 0


# -- refunds --------------------------------------------------------------------------------------


def test_what_was_refunded_before_the_order_was_known_is_counted_and_no_case(
    sandbox: Sandbox,
) -> None:
    sandbox.payment(amount=20_000, id="pi_past")
    sandbox.refund_outside("pi_past", amount=5_000)
    sandbox.advance(60)
    builders.skew_clock(60)
    order = builders.order(payment_ref="pi_past")
    compare_orders()
    now = again(order)
    assert (now.refunded_minor, now.unlisted_minor, now.refundable_minor) == (5_000, 0, 15_000)
    assert now.version == 2
    assert ExternalRefund.objects.get(order=order).amount_minor == 5_000
    assert not Case.objects.exists()


def test_a_refund_made_elsewhere_beside_an_open_action_is_a_case(sandbox: Sandbox) -> None:
    builders.policy(ceiling_minor={})  # everything awaits a person
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)
    assert action.state == State.AWAITING_APPROVAL
    sandbox.refund_outside(order.payment_ref, amount=5_000)
    compare_orders()
    case = Case.objects.get(kind=Case.Kind.FOUND_ELSEWHERE, resource=str(order))
    assert f"Order {order.order_id}: Stripe shows refunds that were not made by" in case.reason
    assert "50.00 USD (re_" in case.reason
    assert again(order).refundable_minor == 15_000


def test_our_own_refund_is_neither_counted_twice_nor_a_case(sandbox: Sandbox) -> None:
    order = builders.order(sandbox=sandbox)
    action = builders.action(order, amount_minor=5_000)
    assert dispatch(action_id=action.action_id) == "succeeded"
    Order.objects.filter(pk=order.pk).update(compare_due_at=order.created_at)
    assert compare_orders() == 1
    now = again(order)
    assert (now.refunded_minor, now.unlisted_minor) == (5_000, 0)
    assert not Case.objects.exists()


def test_a_total_that_no_listed_refund_explains_counts_as_refunded_and_is_a_case(
    sandbox: Sandbox,
) -> None:
    order = builders.order(sandbox=sandbox)
    sandbox.refund_outside(order.payment_ref, amount=5_000)
    sandbox.fault("list-lags", match={"path": "/v1/refunds"}, seconds=3_600)
    compare_orders()
    now = again(order)
    assert (now.unlisted_minor, now.refunded_minor, now.refundable_minor) == (5_000, 5_000, 15_000)
    assert "Stripe shows 50.00 USD refunded, and 50.00 USD of it is in no refund that is known" in (
        the_case(order).reason
    )
    # An hour later the list has it: it is known by its id, and counted once.
    compare_at(3_700)
    now = again(order)
    assert (now.unlisted_minor, now.refunded_minor) == (0, 5_000)
    assert ExternalRefund.objects.filter(order=order).count() == 1
    assert not Case.objects.filter(kind=Case.Kind.CONTRADICTION, closed_at__isnull=True).exists()


def test_what_only_a_total_showed_is_not_counted_again_when_the_look_lists_it(
    sandbox: Sandbox,
) -> None:
    order = builders.order(sandbox=sandbox)
    sandbox.refund_outside(order.payment_ref, amount=5_000)
    sandbox.fault("list-lags", match={"path": "/v1/refunds"}, seconds=3_600)
    builders.skew_clock(5)  # the refund was made before the payment was read
    compare_orders()
    assert again(order).unlisted_minor == 5_000
    action = builders.approved(builders.action(order, amount_minor=2_000))
    dispatch(action_id=action.action_id)
    now = again(order)
    assert (now.unlisted_minor, now.refunded_minor) == (0, 5_000)


@pytest.mark.parametrize("drops", [True, False])
def test_a_refund_that_failed_late_counts_as_nothing_whatever_the_total_says(
    sandbox: Sandbox, drops: bool
) -> None:
    sandbox.settings(amount_refunded_drops_on_failure=drops)
    order = builders.order(sandbox=sandbox)
    refund = sandbox.refund_outside(order.payment_ref, amount=5_000)
    sandbox.fail_refund(refund["id"])
    compare_orders()
    assert (again(order).refunded_minor, again(order).refundable_minor) == (0, 20_000)
    assert not Case.objects.exists()


def test_a_reading_from_before_what_is_known_changes_nothing(sandbox: Sandbox) -> None:
    order = builders.order(sandbox=sandbox)
    compare_orders()
    known = again(order)
    assert known.shown_at is not None
    read = payment_provider().read_payment(payment_ref=order.payment_ref)
    assert isinstance(read, PaymentTotals)
    with transaction.atomic():
        write_shown(
            order=known,
            shown=Shown(
                totals=replace(read, captured_minor=1),
                read_at=known.shown_at - timedelta(seconds=1),
            ),
            now=known.shown_at,
        )
    assert again(order).captured_minor == 20_000


# -- ended ----------------------------------------------------------------------------------------


def test_a_new_statement_that_agrees_closes_the_case_without_a_person(sandbox: Sandbox) -> None:
    order = stated(sandbox)
    compare_orders()
    restate(order, captured_minor=15_000)
    assert compare_orders() == 1
    case = Case.objects.get(kind=Case.Kind.CONTRADICTION)
    assert (case.closed_by, case.closed_at is None) == ("provider", False)
    now = again(order)
    assert (now.captured_minor, now.stated_captured_minor, now.compare_due_at) == (
        15_000,
        None,
        None,
    )
    kinds = list(RefundEvent.objects.filter(order=order).values_list("kind", flat=True))
    assert kinds.count("order.differs") == kinds.count("order.agrees") == 1


def test_a_later_capture_closes_the_case_within_the_hour(sandbox: Sandbox) -> None:
    sandbox.payment(amount=20_000, id="pi_later", capture=False)
    order = builders.order(payment_ref="pi_later")
    compare_orders()
    assert compare_at(60) == 0
    stripe_client(sandbox).v1.payment_intents.capture("pi_later")
    assert compare_at(3_700) == 1
    assert again(order).refundable_minor == 20_000
    assert not Case.objects.filter(closed_at__isnull=True).exists()


def test_a_raised_statement_is_believed_until_its_payment_is_read_and_nothing_goes_out_on_it(
    sandbox: Sandbox,
) -> None:
    builders.allow_all()
    order = stated(sandbox, captured=15_000, shown=15_000)
    compare_orders()
    raised = restate(order, captured_minor=30_000)
    assert (raised.captured_minor, raised.refundable_minor) == (30_000, 30_000)
    assert not Case.objects.exists()  # nobody is told of what the next reading may end
    # Denied for an old reading, a refund after a later capture would be over for ever.
    action = builders.action(raised, amount_minor=18_000)
    assert action.state == State.AUTHORIZED
    assert dispatch(action_id=action.action_id) == "notsent"
    assert builders.refunds_on_the_wire(sandbox) == []
    assert "you say 300.00 USD captured, Stripe shows 150.00 USD" in the_case(order).reason


def test_another_payment_of_an_unused_order_begins_anew(sandbox: Sandbox) -> None:
    order = stated(sandbox)
    compare_orders()
    sandbox.payment(amount=20_000, id="pi_right")
    builders.order(order_id=order.order_id, payment_ref="pi_right", source_version=2)
    assert again(order).shown_captured_minor is None
    assert again(order).captured_minor == 20_000
    compare_orders()
    assert not Case.objects.filter(closed_at__isnull=True).exists()


def test_figures_that_change_change_the_case_and_open_no_second(sandbox: Sandbox) -> None:
    order = stated(sandbox)
    compare_orders()
    before = the_case(order)
    restate(order, captured_minor=30_000)
    compare_orders()
    after = the_case(order)
    assert after.pk == before.pk
    assert "you say 300.00 USD captured" in after.reason
    assert after.version == before.version + 1


def test_what_a_person_has_closed_is_not_opened_again_for_the_same_figures(
    sandbox: Sandbox,
) -> None:
    order = stated(sandbox)
    compare_orders()
    Case.objects.filter(pk=the_case(order).pk).update(
        closed_at=order.created_at, closed_by="user:ada", resolution="the shop is wrong"
    )
    assert compare_at(3_700) == 1
    assert not Case.objects.filter(closed_at__isnull=True).exists()
    assert again(order).captured_minor == 15_000  # nothing above it is sent all the same
    assert again(order).compare_due_at is None
    restate(order, captured_minor=30_000)
    compare_orders()
    assert "you say 300.00 USD captured" in the_case(order).reason


# -- what is sent ---------------------------------------------------------------------------------


def test_nothing_above_what_is_shown_can_be_claimed(sandbox: Sandbox) -> None:
    builders.allow_all()
    order = stated(sandbox)
    action = builders.action(order, amount_minor=18_000)
    assert action.state == State.AUTHORIZED
    compare_orders()
    dispatch(action_id=action.action_id)
    assert builders.fresh(action).state != State.SUCCEEDED
    assert builders.refunds_on_the_wire(sandbox) == []


def test_an_approval_from_before_does_not_hold(sandbox: Sandbox) -> None:
    builders.policy(ceiling_minor={})
    order = stated(sandbox)
    action = builders.approved(builders.action(order, amount_minor=10_000))
    compare_orders()
    dispatch(action_id=action.action_id)
    now = builders.fresh(action)
    assert now.state == State.AWAITING_APPROVAL
    case = Case.objects.get(kind=Case.Kind.STALE_APPROVAL)
    assert "no longer captured: 50.00 USD" in case.reason


@pytest.mark.parametrize("shown", [{"shown": 15_000}, {"shown": 20_000, "shown_currency": "jpy"}])
def test_a_send_that_comes_before_the_sweep_finds_it_out_itself(
    sandbox: Sandbox, shown: dict[str, Any]
) -> None:
    builders.allow_all()
    order = stated(sandbox, **shown)
    action = builders.action(order, amount_minor=18_000)
    assert dispatch(action_id=action.action_id) == "notsent"
    assert builders.refunds_on_the_wire(sandbox) == []
    the_case(order)
    assert builders.fresh(action).attempts.get().outcome == "not_sent:less_is_left"
    builders.skew_clock(60)
    dispatch(action_id=action.action_id)
    assert builders.refunds_on_the_wire(sandbox) == []
    assert not Case.objects.filter(kind=Case.Kind.INCIDENT).exists()


def test_a_smaller_refund_goes_out_though_more_was_stated(sandbox: Sandbox) -> None:
    builders.allow_all()
    order = stated(sandbox)
    compare_orders()
    action = builders.action(order, amount_minor=15_000)
    assert dispatch(action_id=action.action_id) == "succeeded"
    assert again(order).refundable_minor == 0


# -- weather --------------------------------------------------------------------------------------


def test_an_outage_costs_no_order_its_comparison(sandbox: Sandbox) -> None:
    order = stated(sandbox)
    sandbox.fault("error-500-not-executed", match={"method": "GET"})
    assert compare_orders() == 1
    assert again(order).shown_at is None
    assert Breaker.objects.get().failures == 1
    assert compare_orders() == 0
    assert compare_at(400) == 1
    the_case(order)


def test_nothing_is_read_while_the_account_is_out_of_reach(sandbox: Sandbox) -> None:
    order = stated(sandbox)
    Breaker.objects.create(
        account="stripe:", failures=5, open_until=order.created_at.replace(year=2100)
    )
    assert compare_orders() == 1
    assert sandbox.requests() == []


def test_one_that_somebody_holds_is_left_to_them(sandbox: Sandbox) -> None:
    order, other = stated(sandbox), stated(sandbox)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Order.objects.select_for_update().get(pk=order.pk)
            held.set()
            done.wait(30)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(30)
        assert compare_orders() == 1
    finally:
        done.set()
        holder.join(30)
    the_case(other)
    assert again(order).shown_at is None
