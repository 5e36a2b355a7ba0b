"""PUT and GET /orders/{order_id}."""

from __future__ import annotations

from typing import Any

import pytest

from refunds.models import Order, RefundEvent
from tests import builders
from tests.agents.conftest import Caller, order_body, read

pytestmark = pytest.mark.django_db


def test_a_new_order_is_created_and_read_back(caller: Caller) -> None:
    created = read(caller.call("PUT", "/orders/4821", order_body()), 201)
    found = read(caller.call("GET", "/orders/4821"), 200)
    assert created == found
    assert found["order_id"] == "4821"
    assert found["version"] == 1
    assert {name: found[name] for name in found if name.endswith("_minor")} == {
        "captured_minor": 20_000,
        "refunded_minor": 0,
        "reserved_minor": 0,
        "disputed_minor": 0,
        "settled_otherwise_minor": 0,
        "refundable_minor": 20_000,
    }
    assert "ada@example.com" not in str(found)


def test_every_documented_field_of_an_order_is_kept(caller: Caller) -> None:
    body = order_body(
        payment={
            "provider": "stripe",
            "payment_intent": "pi_4821",
            "account": "acct_1x",
            "method": "card",
        },
        customer={"ref": "cus_88", "email": "ada@example.com", "risk": "low"},
        delivered_at="2026-11-05T09:30:00+02:00",
        shipping_minor=500,
        lines=[{"line_id": "gid://a/1", "amount_minor": 19_500, "final_sale": False}],
        source_version=7,
    )
    read(caller.call("PUT", "/orders/4821", body), 201)
    order = Order.objects.get(order_id="4821")
    assert (order.account, order.payment_method, order.customer_ref) == (
        "acct_1x",
        "card",
        "cus_88",
    )
    assert order.placed_at is not None
    assert order.details == {
        "delivered_at": "2026-11-05T09:30:00+02:00",
        "shipping_minor": 500,
        "lines": [{"line_id": "gid://a/1", "amount_minor": 19_500, "final_sale": False}],
        "risk": "low",
    }


def test_the_same_order_again_changes_nothing(caller: Caller) -> None:
    read(caller.call("PUT", "/orders/4821", order_body()), 201)
    again = read(caller.call("PUT", "/orders/4821", order_body()), 200)
    assert again["version"] == 1
    assert RefundEvent.objects.count() == 1


def test_a_changed_capture_raises_the_version(caller: Caller) -> None:
    read(caller.call("PUT", "/orders/4821", order_body()), 201)
    changed = read(caller.call("PUT", "/orders/4821", order_body(captured_minor=15_000)), 200)
    assert (changed["version"], changed["captured_minor"]) == (2, 15_000)


def test_an_older_statement_never_overwrites_a_newer_one(caller: Caller) -> None:
    read(caller.call("PUT", "/orders/4821", order_body(source_version=9)), 201)
    older = order_body(source_version=8, captured_minor=1)
    assert read(caller.call("PUT", "/orders/4821", older), 200)["captured_minor"] == 20_000


def test_the_payment_stays_once_a_refund_exists(caller: Caller) -> None:
    read(caller.call("PUT", "/orders/4821", order_body()), 201)
    builders.action(Order.objects.get(order_id="4821"))
    other = order_body(payment={"provider": "stripe", "payment_intent": "pi_other"})
    answer = read(caller.call("PUT", "/orders/4821", other), 422)
    assert answer["field"] == "payment.payment_intent"
    assert Order.objects.get(order_id="4821").payment_ref == "pi_4821"


def test_an_unknown_order_is_404(caller: Caller) -> None:
    answer = read(caller.call("GET", "/orders/nobody"), 404)
    assert answer["type"] == "urn:refund-once:problem:order-unknown"


def test_an_order_is_read_with_one_query_beside_the_key(
    caller: Caller, django_assert_num_queries: Any
) -> None:
    read(caller.call("PUT", "/orders/4821", order_body()), 201)
    with django_assert_num_queries(2):
        read(caller.call("GET", "/orders/4821"), 200)
