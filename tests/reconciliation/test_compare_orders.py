"""What a merchant stated beside what the provider shows: found without being asked, told once."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, transaction

from effects.models import Breaker, Case, SweepRun
from effects.states import State
from providers.port import PaymentTotals
from providers.registry import payment_provider
from providers.sandbox import Sandbox
from reconciliation.check_now import check_now
from reconciliation.compare_orders import NAME, compare_orders
from refunds.dispatch import dispatch
from refunds.models import Order, RefundEvent
from refunds.shown import write_shown
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


def test_less_captured_than_stated_is_a_case_in_a_sentence_and_policy_asks_a_person(
    sandbox: Sandbox,
) -> None:
    order = stated(sandbox, order_id="4821")
    compare_orders()
    case = the_case(order)
    assert "Order 4821: you say 200.00 USD captured, Stripe shows 150.00 USD." in case.reason
    assert case.evidence["captured_minor"] == 20_000
    assert case.evidence["shown_captured_minor"] == 15_000
    assert builders.action(order, amount_minor=1_000).state == State.AWAITING_APPROVAL


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


def test_another_currency_is_a_case(sandbox: Sandbox) -> None:
    order = stated(sandbox, captured=20_000, shown=20_000, shown_currency="jpy")
    compare_orders()
    reason = the_case(order).reason
    assert "you say 200.00 USD captured, Stripe shows 20000 JPY, in another currency" in reason


@pytest.mark.parametrize(("stated", "shown"), [(989_900, 9_899), (58, 5_800)])
def test_yen_in_the_wrong_scale_are_found_before_anything_is_refunded(
    sandbox: Sandbox, stated: int, shown: int
) -> None:
    sandbox.payment(amount=shown, currency="jpy", id="pi_yen")
    order = builders.order(captured_minor=stated, currency="JPY", payment_ref="pi_yen")
    compare_orders()
    assert f"you say {stated} JPY captured, Stripe shows {shown} JPY" in the_case(order).reason


def test_a_payment_that_the_provider_does_not_know_is_a_case_and_policy_asks_a_person(
    sandbox: Sandbox,
) -> None:
    order = builders.order(payment_ref="pi_mistyped")
    compare_orders()
    reason = the_case(order).reason
    assert "you say it was paid with pi_mistyped, Stripe knows no such payment" in reason
    assert builders.action(order).state == State.AWAITING_APPROVAL
    assert not Breaker.objects.filter(failures__gt=0).exists()


def test_what_is_stated_before_its_capture_denies_no_refund_after_it(sandbox: Sandbox) -> None:
    sandbox.payment(amount=20_000, id="pi_authorized", capture=False)
    order = builders.order(payment_ref="pi_authorized")
    compare_orders()
    assert "Stripe shows 0.00 USD" in the_case(order).reason
    stripe_client(sandbox).v1.payment_intents.capture("pi_authorized")
    assert builders.action(order, amount_minor=1_000).state == State.AWAITING_APPROVAL
    restate(order, captured_minor=20_000)
    assert compare_orders() == 1
    assert not Case.objects.filter(kind=Case.Kind.CONTRADICTION, closed_at__isnull=True).exists()


# -- refunds --------------------------------------------------------------------------------------


def test_more_refunded_than_is_known_here_is_a_case_until_the_look_has_found_it(
    sandbox: Sandbox,
) -> None:
    builders.allow_all()
    order = builders.order(sandbox=sandbox)
    sandbox.refund_outside(order.payment_ref, amount=5_000)
    compare_orders()
    assert (
        "Stripe shows 50.00 USD refunded, and no more than 0.00 USD is known here"
        in the_case(order).reason
    )
    assert (again(order).refunded_minor, again(order).provider_read_at) == (0, None)
    dispatch(action_id=builders.action(order, amount_minor=2_000).action_id)
    assert again(order).refunded_minor == 5_000
    compare_at(3_700)
    assert not Case.objects.filter(kind=Case.Kind.CONTRADICTION, closed_at__isnull=True).exists()


def test_our_own_refund_that_a_database_forgot_is_adopted_and_not_paid_again(
    sandbox: Sandbox,
) -> None:
    """The sweep must not count it as somebody else's, nor spare the look before the send."""
    builders.allow_all()
    order = builders.order(sandbox=sandbox)
    proposal = builders.proposal(order, amount_minor=7_900)
    action_id = f"refund:order-{order.order_id}:request-{proposal.request_id}"
    sandbox.refund_outside(
        order.payment_ref,
        amount=7_900,
        metadata={"action_id": action_id, "instance": settings.INSTANCE},
    )
    compare_orders()
    the_case(order)
    action = builders.action(order, amount_minor=7_900, request_id=proposal.request_id)
    assert action.action_id == action_id
    dispatch(action_id=action_id)
    assert builders.fresh(action).state == State.SUCCEEDED
    assert len(sandbox.refunds()) == 1


def test_our_own_refund_is_no_difference(sandbox: Sandbox) -> None:
    order = builders.order(sandbox=sandbox)
    action = builders.action(order, amount_minor=5_000)
    assert dispatch(action_id=action.action_id) == "succeeded"
    restate(order, captured_minor=20_000, payment_method="card")
    Order.objects.filter(pk=order.pk).update(compare_due_at=order.created_at)
    assert compare_orders() == 1
    assert again(order).refunded_minor == 5_000
    assert not Case.objects.exists()


def test_a_refund_of_another_order_of_the_payment_is_no_difference(sandbox: Sandbox) -> None:
    sandbox.payment(amount=15_000, id="pi_two")
    one = builders.order(captured_minor=10_000, payment_ref="pi_two")
    action = builders.action(one, amount_minor=5_000)
    assert dispatch(action_id=action.action_id) == "succeeded"
    other = builders.order(captured_minor=5_000, payment_ref="pi_two")
    compare_orders()
    assert again(other).refundable_minor == 5_000
    assert not Case.objects.exists()


def test_a_total_says_nothing_while_a_refund_is_on_its_way(sandbox: Sandbox) -> None:
    order = builders.order(sandbox=sandbox)
    action = builders.action(order, amount_minor=5_000)
    sandbox.fault("reset-after-execution", match={"method": "POST"})
    dispatch(action_id=action.action_id)
    assert builders.fresh(action).state == State.UNKNOWN
    Order.objects.filter(pk=order.pk).update(compare_due_at=order.created_at)
    compare_orders()
    assert not Case.objects.filter(kind=Case.Kind.CONTRADICTION).exists()


@pytest.mark.parametrize("drops", [True, False])
def test_a_refund_of_ours_that_failed_late_is_no_difference_whatever_the_total_says(
    sandbox: Sandbox, drops: bool
) -> None:
    sandbox.settings(amount_refunded_drops_on_failure=drops)
    order = builders.order(sandbox=sandbox)
    action = builders.action(order, amount_minor=5_000)
    dispatch(action_id=action.action_id)
    sandbox.fail_refund(builders.fresh(action).provider_ref)
    check_now(action_id=action.action_id, actor="person:ada")
    assert builders.fresh(action).state == State.FAILED_FINAL
    Order.objects.filter(pk=order.pk).update(compare_due_at=order.created_at)
    compare_orders()
    assert not Case.objects.filter(kind=Case.Kind.CONTRADICTION).exists()


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
            totals=replace(read, captured_minor=1),
            read_at=known.shown_at - timedelta(seconds=1),
            now=known.shown_at,
        )
    assert again(order).shown_captured_minor == 20_000
    assert not Case.objects.exists()


def test_an_order_that_is_stated_while_its_payment_is_read_is_read_again(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = stated(sandbox, captured=15_000, shown=15_000)
    provider = payment_provider()
    read = provider.read_payment

    def slow(**arguments: Any) -> Any:
        shown = read(**arguments)
        monkeypatch.undo()
        restate(order, captured_minor=30_000)
        return shown

    monkeypatch.setattr(type(provider), "read_payment", lambda self, **a: slow(**a))
    assert compare_orders() == 1
    assert not Case.objects.exists()
    assert compare_orders() == 1
    assert "you say 300.00 USD captured, Stripe shows 150.00 USD" in the_case(order).reason


# -- ended ----------------------------------------------------------------------------------------


def test_a_new_statement_that_agrees_closes_the_case_without_a_person(sandbox: Sandbox) -> None:
    order = stated(sandbox)
    compare_orders()
    restate(order, captured_minor=15_000)
    assert compare_orders() == 1
    case = Case.objects.get(kind=Case.Kind.CONTRADICTION)
    assert (case.closed_by, case.closed_at is None) == ("provider", False)
    assert again(order).compare_due_at is None
    kinds = list(RefundEvent.objects.filter(order=order).values_list("kind", flat=True))
    assert kinds.count("order.differs") == kinds.count("order.agrees") == 1


def test_a_later_capture_closes_the_case_within_the_hour(sandbox: Sandbox) -> None:
    sandbox.payment(amount=20_000, id="pi_later", capture=False)
    builders.order(payment_ref="pi_later")
    compare_orders()
    assert compare_at(60) == 0
    stripe_client(sandbox).v1.payment_intents.capture("pi_later")
    assert compare_at(3_700) == 1
    assert not Case.objects.filter(closed_at__isnull=True).exists()


def test_a_statement_that_changes_nothing_is_compared_at_once_while_they_differ(
    sandbox: Sandbox,
) -> None:
    order = stated(sandbox)
    compare_orders()
    assert compare_orders() == 0
    builders.order(order_id=order.order_id, payment_ref=order.payment_ref, captured_minor=20_000)
    assert compare_orders() == 1


def test_they_are_compared_daily_after_the_first_day_and_for_ever(sandbox: Sandbox) -> None:
    order = stated(sandbox)
    compare_orders()
    assert compare_at(3_700) == 1
    assert compare_at(90_000) == 1
    assert compare_at(97_000) == 0
    assert compare_at(180_000) == 1
    the_case(order)


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
    assert again(order).compare_due_at is not None  # nobody forgets that they differ
    restate(order, captured_minor=30_000)
    compare_orders()
    assert "you say 300.00 USD captured" in the_case(order).reason


# -- weather --------------------------------------------------------------------------------------


def test_an_outage_costs_no_order_its_comparison(sandbox: Sandbox) -> None:
    order = stated(sandbox)
    sandbox.fault("error-500-not-executed", match={"method": "GET"})
    assert compare_orders() == 1
    assert again(order).shown_at is None
    assert not Breaker.objects.exists()  # what cannot be compared keeps no unknown outcome waiting
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


def test_a_key_that_may_not_read_payments_pauses_nothing(sandbox: Sandbox) -> None:
    order = builders.order(sandbox=sandbox)
    sandbox.fault(
        "forbidden-403", match={"path": f"/v1/payment_intents/{order.payment_ref}"}, times=9
    )
    assert compare_orders() == 1
    assert not Case.objects.exists()
    action = builders.action(order, amount_minor=1_000)
    assert dispatch(action_id=action.action_id) == "succeeded"
    assert compare_at(3_700) == 0
    assert compare_at(90_000) == 1
