"""What must not be sent is refused before it is, by its name."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from refund_once_client import (
    Customer,
    OrderLine,
    Patience,
    Payment,
    Problem,
    RefundLine,
    RefundOnce,
)

# Nobody listens there: a call that reached the network would raise something else.
NOWHERE = "http://127.0.0.1:9"
KEY = "ro_live_0123456789ab_" + "0" * 64

GOOD: dict[str, Any] = {
    "order_id": "4821",
    "request_id": "3",
    "amount_minor": 7_900,
    "currency": "USD",
    "reason": "requested_by_customer",
}

AN_ORDER: dict[str, Any] = {
    "currency": "USD",
    "captured_minor": 20_000,
    "payment": Payment(payment_intent="pi_4821"),
    "customer": Customer(ref="cus_88", email="ada@example.com"),
    "placed_at": datetime.fromisoformat("2026-11-01T10:00:00Z"),
}


def refused(call: str, *args: Any, **kwargs: Any) -> str:
    """The field that a call is refused for."""
    with RefundOnce(NOWHERE, KEY) as refunds, pytest.raises(Problem) as caught:
        getattr(refunds, call)(*args, **kwargs)
    assert caught.value.kind == "invalid-field"
    assert "Nothing was sent" in str(caught.value)
    assert caught.value.instance == ""
    (field,) = caught.value.fields
    return field.field


@pytest.mark.parametrize(
    "amount", [79.0, 7_900.0, "7900", True, None, Decimal(7_900), 0, -1, 2**53, float("nan")]
)
def test_an_amount_that_is_not_a_positive_int_is_not_sent(amount: Any) -> None:
    assert refused("propose_refund", **GOOD | {"amount_minor": amount}) == "amount_minor"
    assert refused("explain", **explained(amount_minor=amount)) == "amount_minor"


def explained(**changes: Any) -> dict[str, Any]:
    """A refund to be explained."""
    return {name: value for name, value in GOOD.items() if name != "request_id"} | changes


@pytest.mark.parametrize("value", ["", "a b", "a:b", "a/b", "é", "x" * 65, 7, None, "a\n"])
@pytest.mark.parametrize("field", ["order_id", "request_id", "reason"])
def test_an_id_that_cannot_be_one_is_not_sent(field: str, value: Any) -> None:
    assert refused("propose_refund", **GOOD | {field: value}) == field


@pytest.mark.parametrize("value", ["", "US", "DOLLAR", "U$D", "u\u017fd", 840, None])
def test_a_currency_that_is_not_three_letters_is_not_sent(value: Any) -> None:
    assert refused("propose_refund", **GOOD | {"currency": value}) == "currency"


def test_wrong_lines_beliefs_and_notes_are_not_sent() -> None:
    line = RefundLine(line_id="a", amount_minor=1.5)  # type: ignore[arg-type]
    assert refused("propose_refund", **GOOD, lines=[line]) == "lines[0].amount_minor"
    assert refused("propose_refund", **GOOD, note=7) == "note"
    assert refused("propose_refund", **GOOD, refunded_so_far_minor=1.0) == "refunded_so_far_minor"


@pytest.mark.parametrize(
    "value",
    ["refund:order-1", "refund:order-1:request-2:g2", "refund:order-a/b:request-1", "", None],
)
@pytest.mark.parametrize("call", ["get_refund", "withdraw_refund", "wait_until_final"])
def test_an_action_id_that_cannot_be_one_is_not_sent(call: str, value: Any) -> None:
    assert refused(call, value) == "action_id"


def test_the_token_of_a_session_is_not_taken_for_its_id() -> None:
    """It would end up in the logs of every server on the way."""
    assert refused("revoke_session", "ro_session_0123456789ab_secret") == "session_id"
    assert refused("revoke_session", "../refunds") == "session_id"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"placed_at": datetime(2026, 11, 1)}, "placed_at"),  # noqa: DTZ001  # what is refused
        ({"placed_at": "2026-11-01T10:00:00Z"}, "placed_at"),
        ({"captured_minor": 200.0}, "captured_minor"),
        ({"shipping_minor": -1}, "shipping_minor"),
        ({"source_version": "7"}, "source_version"),
        ({"lines": [OrderLine(line_id="a", amount_minor=-1)]}, "lines[0].amount_minor"),
        ({"lines": [OrderLine(line_id="a", amount_minor=1, tax_minor=True)]}, "lines[0].tax_minor"),
    ],
)
def test_an_order_that_could_be_misread_is_not_sent(changes: dict[str, Any], field: str) -> None:
    assert refused("put_order", "4821", **AN_ORDER | changes) == field


@pytest.mark.parametrize(
    ("lines", "field"),
    [(None, "lines"), (7, "lines"), ([1], "lines[0]"), ("ab", "lines[0]"), ([None], "lines[0]")],
)
def test_lines_that_are_none_are_not_sent(lines: Any, field: str) -> None:
    explained = {name: value for name, value in GOOD.items() if name != "request_id"}
    assert refused("propose_refund", **GOOD, lines=lines) == field
    assert refused("explain", **explained, lines=lines) == field
    assert refused("put_order", "4821", **AN_ORDER | {"lines": lines}) == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"payment": None}, "payment"),
        ({"payment": {"payment_intent": "pi_4821"}}, "payment"),
        ({"payment": Payment(payment_intent=None)}, "payment.payment_intent"),  # type: ignore[arg-type]
        ({"customer": "ada@example.com"}, "customer"),
        ({"customer": Customer(ref="c", email=b"a@b")}, "customer.email"),  # type: ignore[arg-type]
        ({"customer": Customer(ref="c", email="a@b", risk=1)}, "customer.risk"),  # type: ignore[arg-type]
        ({"lines": [RefundLine(line_id="a", amount_minor=1)]}, "lines[0]"),
        (
            {"lines": [OrderLine(line_id="a", amount_minor=1, returned="no")]},  # type: ignore[arg-type]
            "lines[0].returned",
        ),
    ],
)
def test_a_part_of_an_order_that_is_something_else_is_not_sent(
    changes: dict[str, Any], field: str
) -> None:
    assert refused("put_order", "4821", **AN_ORDER | changes) == field


def test_text_that_is_not_unicode_is_not_sent() -> None:
    assert refused("propose_refund", **GOOD, note="\ud800") == "note"
    assert refused("page_of_refunds", order_id="1", cursor="\ud800") == "cursor"
    assert refused("page_of_refunds", order_id="1", cursor=7) == "cursor"


NOT_SECONDS = [0, -1, None, "5", True, float("nan"), float("inf")]


@pytest.mark.parametrize("value", NOT_SECONDS)
def test_a_bound_that_bounds_nothing_is_refused(value: Any) -> None:
    action_id = "refund:order-1:request-1"
    assert refused("wait_until_final", action_id, timeout_seconds=value) == "timeout_seconds"
    with pytest.raises(ValueError, match="timeout_seconds"):
        RefundOnce(NOWHERE, KEY, timeout_seconds=value)
    with pytest.raises(ValueError, match="total_seconds"):
        Patience(total_seconds=value)
    if value != 0:
        with pytest.raises(ValueError, match="tries_max"):
            Patience(tries_max=value)
        for name in ("pause_first_seconds", "pause_max_seconds"):
            with pytest.raises(ValueError, match=name):
                Patience(**{name: value})


@pytest.mark.parametrize(
    "base_url",
    [
        *(
            "",
            "http://",
            "http://[",
            "http://a b",
            "http://exa\x00mple",
            "http://a\nb",
            "http://\ud800",
        ),
        *("http://a..b", f"http://{'a' * 64}", "http://x:99999", "http://x:0", "http://x:y"),
        *("https://shop.test/#a", "https://shop.test/?a=b", "http://%zz", None, 7, b"http://x"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused_by_name(base_url: Any) -> None:
    with pytest.raises(ValueError, match="base_url must be like"):
        RefundOnce(base_url, KEY)


@pytest.mark.parametrize(
    "base_url",
    [
        "http://127.0.0.1:8000",
        "http://[::1]:80/",
        "https://refund_once:8000/v",
        "https://bücher.test",
    ],
)
def test_an_address_that_can_be_one_is_taken(base_url: str) -> None:
    RefundOnce(base_url, KEY).close()


@pytest.mark.parametrize("token", [None, 7, "", "sk_live_0123456789", f"{KEY}\n", f"{KEY}é"])
def test_a_token_that_cannot_be_one_is_refused(token: Any) -> None:
    with pytest.raises(ValueError, match="an agent key begins with ro_live_"):
        RefundOnce(NOWHERE, token)
