"""The mirror of an order: idempotent, ordered by its source, careful with what refunds stand on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from effects.models import Case
from kernel.errors import InvalidInput
from refunds.models import Order, RefundEvent
from refunds.orders import Mirrored, OrderFacts, mirror_order
from tests import builders

pytestmark = pytest.mark.django_db

FACTS = OrderFacts(
    order_id="4821",
    currency="USD",
    captured_minor=20_000,
    provider="stripe",
    payment_ref="pi_1",
    customer_ref="customer-1",
    customer_email="ada@example.com",
    placed_at=datetime(2026, 1, 2, tzinfo=UTC),
    source_version=3,
    details={"shipping_minor": 500},
)


def mirror(**changes: Any) -> Mirrored:
    return mirror_order(facts=replace(FACTS, **changes), actor="agent:shop")


def test_a_new_order_begins_at_version_one_with_empty_balances() -> None:
    result = mirror()
    assert (result.created, result.changed) == (True, True)
    order = Order.objects.get(order_id="4821")
    assert (order.version, order.refundable_minor) == (1, 20_000)
    assert (order.refunded_minor, order.reserved_minor, order.disputed_minor) == (0, 0, 0)


def test_the_same_statement_again_changes_nothing() -> None:
    mirror()
    before, events = dict(Order.objects.values().get()), RefundEvent.objects.count()
    result = mirror()
    assert (result.created, result.changed) == (False, False)
    after = dict(Order.objects.values().get())
    # But for when it was last stated: the facts are as fresh as that, and not compared yet.
    assert after.pop("stated_at") != before.pop("stated_at")
    assert after.pop("compare_due_at") != before.pop("compare_due_at")
    assert (after, RefundEvent.objects.count()) == (before, events)


def test_an_older_statement_never_overwrites_a_newer() -> None:
    mirror()
    result = mirror(source_version=2, captured_minor=1)
    assert not result.changed
    assert Order.objects.get().captured_minor == 20_000


def test_a_changed_money_fact_increases_the_version() -> None:
    mirror()
    result = mirror(captured_minor=25_000, source_version=4)
    assert result.changed
    order = Order.objects.get()
    assert (order.version, order.captured_minor, order.source_version) == (2, 25_000, 4)


@pytest.mark.parametrize(
    "changes",
    [
        {"details": {"shipping_minor": 0}},
        {"details": {"risk": "blocked"}},
        {"payment_method": "card"},
        {"customer_ref": "customer-2"},
        {"placed_at": datetime(2026, 1, 15, tzinfo=UTC)},
    ],
)
def test_a_change_of_what_decisions_are_made_on_makes_approvals_stale(
    changes: dict[str, Any],
) -> None:
    mirror()
    assert mirror(**changes).changed
    assert Order.objects.get().version == 2


@pytest.mark.parametrize(
    "changes", [{"customer_email": "grace@example.com"}, {"source_version": 9}]
)
def test_a_change_that_nothing_is_decided_on_makes_no_approval_stale(
    changes: dict[str, Any],
) -> None:
    mirror()
    assert mirror(**changes).changed
    assert Order.objects.get().version == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"payment_ref": "pi_2"}, "payment.payment_intent"),
        ({"account": "acct_2"}, "payment.account"),
        ({"currency": "EUR"}, "currency"),
    ],
)
def test_what_a_refund_was_frozen_with_stays(changes: dict[str, Any], field: str) -> None:
    order = mirror().order
    assert mirror(**changes, source_version=4).changed
    mirror(source_version=5)
    assert Order.objects.get().version == 3  # another payment is a new fact each time
    builders.action(order)
    with pytest.raises(InvalidInput) as error:
        mirror(**changes, source_version=6)
    assert error.value.field == field
    assert Order.objects.get().source_version == 5


def test_captured_below_what_was_refunded_is_written_with_an_incident() -> None:
    order = mirror().order
    Order.objects.filter(pk=order.pk).update(refunded_minor=15_000, version=2)
    mirror(captured_minor=10_000, source_version=4)
    order.refresh_from_db()
    assert (order.captured_minor, order.refundable_minor, order.version) == (10_000, -5_000, 3)
    (case,) = Case.objects.filter(resource="order:4821")
    assert case.kind == Case.Kind.INCIDENT
    assert "overdrawn by 50.00 USD" in case.reason


def test_no_personal_data_stands_in_the_history() -> None:
    mirror()
    mirror(customer_email="grace@example.com", customer_ref="customer-2", source_version=4)
    told = str(list(RefundEvent.objects.values_list("data", flat=True)))
    assert "example.com" not in told
    assert "customer-" not in told
    assert "shipping" not in told


def test_a_currency_is_kept_in_upper_case() -> None:
    mirror(currency="usd")
    assert Order.objects.get().currency == "USD"
    assert not mirror(currency="USD").changed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("order_id", "a:b"),
        ("currency", "DOLLAR"),
        ("captured_minor", -1),
        ("captured_minor", 1.0),
        ("captured_minor", True),
        ("captured_minor", 2**53),
    ],
)
def test_bad_facts_name_their_field_and_leave_no_row(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as error:
        mirror(**{field: value})
    assert error.value.field == field
    assert not Order.objects.exists()


def test_a_free_order_can_be_mirrored() -> None:
    assert mirror(captured_minor=0).order.refundable_minor == 0
