"""Hand-made horrors on every call: each a 4xx that names the field, no row, no 500."""

from __future__ import annotations

import json
from typing import Any

import pytest

from approvals.models import Approval
from effects.models import Case
from policies.models import DecisionRecord
from refunds.models import AgentNote, Order, RefundAction, RefundEvent
from tests import builders
from tests.agents.conftest import Caller, order_body, read, refund_body

pytestmark = pytest.mark.django_db

ORDER = json.dumps(order_body())


def rows() -> dict[str, int]:
    """How many rows there are of everything a request could write."""
    tables = (Order, RefundAction, RefundEvent, AgentNote, DecisionRecord, Approval, Case)
    return {table.__name__: table._default_manager.count() for table in tables}


def refund_text(amount: str) -> bytes:
    """A proposal for order 4821 whose amount is this text."""
    return json.dumps(refund_body("4821")).replace("7900", amount).encode()


# What stands where the amount should be.
AMOUNTS = [
    "79.0",
    "79.00",
    "1e3",
    "1E3",
    "7.9e3",
    "-0",
    "-0.0",
    "0",
    "-1",
    "true",
    "false",
    "null",
    '"7900"',
    "[7900]",
    '{"amount": 7900}',
    "NaN",
    "Infinity",
    "-Infinity",
    "9007199254740992",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "9" * 400,
    "9" * 5_000,
    "-" + "9" * 5_000,
    "1e400",
]


@pytest.mark.parametrize("amount", AMOUNTS, ids=lambda text: text[:24])
def test_an_amount_that_is_not_a_plain_positive_integer_names_the_field(
    caller: Caller, amount: str
) -> None:
    builders.order(order_id="4821")
    before = rows()
    answer = read(caller.call("POST", "/refunds", refund_text(amount)), 422)
    assert answer["field"].startswith("amount_minor")
    captured = ORDER.replace("20000", amount if amount != "0" else "-7").encode()
    answer = read(caller.call("PUT", "/orders/4822", captured), 422)
    assert answer["field"].startswith("captured_minor")
    assert rows() == before


# Texts that are not one well-formed JSON object.
MALFORMED = [
    b"{",
    b"}",
    b"nonsense",
    b"7900",
    b'"text"',
    b"[]",
    b"null",
    b"true",
    b"{} {}",
    b"{}x",
    b"{'order_id': 1}",
    b'{"order_id": 1,}',
    b'{"order_id": 01}',
    b'{"order_id": +1}',
    b'{"order_id": .5}',
    b'{"order_id": 0x10}',
    b'{"order_id": "a\nb"}',
    b'{"order_id": "\\x"}',
    b'{"order_id" 1}',
    b"{1: 2}",
    b"\xef\xbb\xbf{}",
    b'{"order_id": "\xff"}',
    b'{"order_id": "\xed\xa0\x80"}',
    b'{"order_id": "\xc0\x80"}',
    "{}".encode("utf-16"),
    b"\x00",
    b"{}\x00",
    b"[" * 60_000,
    b'{"a":' * 12_000,
    b"/* */ {}",
]


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: repr(body[:16]))
def test_a_body_that_is_not_one_json_object_is_400(caller: Caller, body: bytes) -> None:
    action_id = builders.action(builders.order()).action_id
    before = rows()
    for method, path in (
        ("POST", "/refunds"),
        ("PUT", "/orders/4821"),
        ("POST", f"/refunds/{action_id}/withdraw"),
    ):
        answer = read(caller.call(method, path, body), 400)
        assert answer["type"] == "urn:refund-once:problem:malformed-json"
    assert rows() == before
    assert RefundAction.objects.get().state == "AUTHORIZED"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"order_id": ""}, "order_id"),
        ({"order_id": "a" * 65}, "order_id"),
        ({"order_id": "a:b"}, "order_id"),
        ({"order_id": "a\n"}, "order_id"),
        ({"order_id": "a b"}, "order_id"),
        ({"order_id": "\u0664"}, "order_id"),
        ({"order_id": 4821}, "order_id"),
        ({"order_id": None}, "order_id"),
        ({"request_id": "3\x00"}, "request_id"),
        ({"request_id": "\ud800"}, "request_id"),
        ({"request_id": ["3"]}, "request_id"),
        ({"currency": "US"}, "currency"),
        ({"currency": "USDD"}, "currency"),
        ({"currency": "U\u017fD"}, "currency"),
        ({"currency": "USD\n"}, "currency"),
        ({"currency": 840}, "currency"),
        ({"reason": ""}, "reason"),
        ({"reason": "because I\u2019m upset"}, "reason"),
        ({"note": "a\x00b"}, "note"),
        ({"note": "half \udc00"}, "note"),
        ({"note": "x" * 10_001}, "note"),
        ({"note": None}, "note"),
        ({"note": 1}, "note"),
        ({"refunded_so_far_minor": -1}, "refunded_so_far_minor"),
        ({"refunded_so_far_minor": "0"}, "refunded_so_far_minor"),
        ({"refunded_so_far_minor": 2**53}, "refunded_so_far_minor"),
        ({"refunded_so_far_minor": False}, "refunded_so_far_minor"),
        ({"idempotency_key": "mine"}, "idempotency_key"),
        ({"action_id": "refund:order-1:request-1"}, "action_id"),
        ({"a\x00b": 1}, "a\x00b"),
        ({"\ud800": 1}, "\\ud800"),
        ({"x" * 5_000: 1}, "x" * 80),
    ],
)
def test_a_bad_field_of_a_proposal_is_named(
    caller: Caller, change: dict[str, Any], field: str
) -> None:
    builders.order(order_id="4821")
    before = rows()
    answer = read(caller.call("POST", "/refunds", refund_body("4821") | change), 422)
    assert answer["field"] == field
    assert "hould" not in answer["detail"]  # a sentence of ours, none of the parser's
    assert rows() == before


@pytest.mark.parametrize("name", ["order_id", "request_id", "amount_minor", "currency", "reason"])
def test_a_missing_field_of_a_proposal_is_named(caller: Caller, name: str) -> None:
    builders.order(order_id="4821")
    body = refund_body("4821")
    del body[name]
    answer = read(caller.call("POST", "/refunds", body), 422)
    assert answer["fields"] == [{"field": name, "reason": "is required"}]
    assert RefundAction.objects.count() == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"captured_minor": -1}, "captured_minor"),
        ({"captured_minor": 2**63}, "captured_minor"),
        ({"payment": {}}, "payment.provider"),
        ({"payment": "pi_1"}, "payment"),
        ({"payment": {"provider": "paypal", "payment_intent": "pi_1"}}, "payment.provider"),
        ({"payment": {"provider": "stripe", "payment_intent": "ch_1"}}, "payment.payment_intent"),
        (
            {"payment": {"provider": "stripe", "payment_intent": "pi_1", "account": "x"}},
            "payment.account",
        ),
        ({"payment": {"provider": "stripe", "payment_intent": "pi_1", "x": 1}}, "payment.x"),
        ({"customer": {"ref": "", "email": "a@b"}}, "customer.ref"),
        ({"customer": {"ref": "a\u0007", "email": "a@b"}}, "customer.ref"),
        ({"customer": {"ref": "a\x00", "email": "a@b"}}, "customer.ref"),
        ({"customer": {"ref": "a", "email": "nobody"}}, "customer.email"),
        ({"customer": {"ref": "a", "email": "a@b\r\nBcc: c@d"}}, "customer.email"),
        ({"customer": {"ref": "a", "email": "a" * 250 + "@b.com"}}, "customer.email"),
        ({"placed_at": "yesterday"}, "placed_at"),
        ({"placed_at": "2026-11-30"}, "placed_at"),
        ({"placed_at": "2026-11-30T10:00:00"}, "placed_at"),
        ({"placed_at": "2026-02-30T10:00:00Z"}, "placed_at"),
        ({"placed_at": "0001-01-01T00:00:00+14:00"}, "placed_at"),
        ({"placed_at": "9999-12-31T23:59:59-14:00"}, "placed_at"),
        ({"placed_at": "2026-11-30T10:00:00+99:99"}, "placed_at"),
        ({"placed_at": 1_764_500_000}, "placed_at"),
        ({"placed_at": None}, "placed_at"),
        ({"source_version": -1}, "source_version"),
        ({"source_version": 1.5}, "source_version"),
        ({"lines": {}}, "lines"),
        ({"lines": [{"line_id": "1"}]}, "lines[0].amount_minor"),
        ({"lines": [{"line_id": "1", "amount_minor": 1, "qty": 2}]}, "lines[0].qty"),
        ({"lines": [{"line_id": "1", "amount_minor": 1.5}]}, "lines[0].amount_minor"),
        ({"lines": [{"line_id": "1", "amount_minor": 1}] * 2}, "lines"),
        ({"lines": [{"line_id": str(n), "amount_minor": 1} for n in range(201)]}, "lines"),
        ({"refunded_minor": 0}, "refunded_minor"),
        ({"order_id": "4821"}, "order_id"),
    ],
)
def test_a_bad_field_of_an_order_is_named(
    caller: Caller, change: dict[str, Any], field: str
) -> None:
    before = rows()
    answer = read(caller.call("PUT", "/orders/4821", order_body() | change), 422)
    assert answer["field"] == field
    assert "hould" not in answer["detail"]
    assert rows() == before


def test_a_field_that_is_given_twice_is_refused_however_it_is_spelled(caller: Caller) -> None:
    builders.order(order_id="4821")
    body = json.dumps(refund_body("4821"))
    for again in ('"amount_minor": 7900', '"amount_mino\\u0072": 1'):
        twice = (body[:-1] + f", {again}}}").encode()
        answer = read(caller.call("POST", "/refunds", twice), 422)
        assert answer["fields"] == [{"field": "amount_minor", "reason": "is given twice"}]
    deep = ORDER.replace('"ref":', '"ref": "other", "ref":').encode()
    answer = read(caller.call("PUT", "/orders/4822", deep), 422)
    assert answer["field"] == "customer.ref"
    assert RefundAction.objects.count() == 0


def test_a_pattern_is_told_in_words(caller: Caller) -> None:
    body = order_body(payment={"provider": "stripe", "payment_intent": "ch_1", "account": "x"})
    answer = read(caller.call("PUT", "/orders/a:b", body | {"currency": "$"}), 422)
    reasons = {found["field"]: found["reason"] for found in answer["fields"]}
    assert reasons == {
        "order_id": "must be 1 to 64 characters of A-Z a-z 0-9 _ . -",
        "currency": "must be an ISO 4217 code of three letters, like USD",
        "payment.payment_intent": "must be a PaymentIntent's id, like pi_3PxT0kL2eZvKYlo2",
        "payment.account": "must be empty, acct_…, alias:NAME or alias:NAME/acct_…",
    }


def test_a_line_is_named_in_the_same_way_whoever_refuses_it(caller: Caller) -> None:
    builders.order(order_id="4821", currency="ISK")
    lines = [{"line_id": "1", "amount_minor": 101}]
    body = refund_body("4821", currency="ISK", amount_minor=100, lines=lines)
    assert read(caller.call("POST", "/refunds", body), 422)["field"] == "lines[0].amount_minor"


def test_every_bad_field_is_named_at_once(caller: Caller) -> None:
    body = refund_body("a b", amount_minor=0, extra=1)
    answer = read(caller.call("POST", "/refunds", body), 422)
    assert {found["field"] for found in answer["fields"]} == {"order_id", "amount_minor", "extra"}


def test_nesting_that_python_survives_is_refused_too(caller: Caller) -> None:
    body = order_body(lines=json.loads("[" * 20 + "]" * 20))
    answer = read(caller.call("PUT", "/orders/4821", body), 422)
    assert answer["field"].startswith("lines[0][0]")


@pytest.mark.parametrize("size", [64 * 1024 + 1, 300_000, 1_048_576])
def test_a_body_that_is_too_large_is_413(caller: Caller, size: int) -> None:
    action_id = builders.action(builders.order(order_id="4821")).action_id
    body = refund_text("7900").ljust(size)
    before = rows()
    for method, path in (
        ("POST", "/refunds"),
        ("PUT", "/orders/4821"),
        ("POST", f"/refunds/{action_id}/withdraw"),
    ):
        answer = read(caller.call(method, path, body), 413)
        assert answer["type"] == "urn:refund-once:problem:body-too-large"
    assert rows() == before


@pytest.mark.parametrize(
    ("content_type", "headers"),
    [
        ("text/plain", {}),
        ("application/x-www-form-urlencoded", {}),
        ("multipart/form-data; boundary=x", {}),
        ("application/json; charset=utf-16", {}),
        ("application/jsonp", {}),
        ("application/xml", {}),
        ("", {}),
        ("application/json", {"Content-Encoding": "gzip"}),
    ],
)
def test_another_content_type_is_415(
    caller: Caller, content_type: str, headers: dict[str, str]
) -> None:
    builders.order(order_id="4821")
    before = rows()
    for method, path, body in (
        ("POST", "/refunds", refund_text("7900")),
        ("PUT", "/orders/1", ORDER.encode()),
    ):
        response = caller.call(method, path, body, content_type=content_type, **headers)
        assert read(response, 415)["type"] == "urn:refund-once:problem:unsupported-media-type"
    assert rows() == before


def test_json_may_name_its_charset(caller: Caller) -> None:
    builders.order(order_id="4821")
    response = caller.call(
        "POST", "/refunds", refund_text("7900"), content_type="application/json; charset=UTF-8"
    )
    read(response, 201)


def test_no_body_at_all_is_422(caller: Caller) -> None:
    for method, path in (("POST", "/refunds"), ("PUT", "/orders/4821")):
        assert read(caller.call(method, path), 422)["field"] == "body"


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/orders/a%00b", "order_id"),
        ("GET", "/orders/a%20b", "order_id"),
        ("GET", "/orders/a%FFb", "order_id"),
        ("GET", "/orders/a%ED%A0%80b", "order_id"),
        ("GET", "/orders/" + "a" * 65, "order_id"),
        ("GET", "/orders/4821%0A", "order_id"),
        ("PUT", "/orders/a%00b", "order_id"),
        ("GET", "/refunds/a%00b", "action_id"),
        ("GET", "/refunds/refund:order-1:request-", "action_id"),
        ("GET", "/refunds/refund:order-1:request-1:g2", "action_id"),
        ("POST", "/refunds/a%00b/withdraw", "action_id"),
        ("GET", "/refunds", "order_id"),
        ("GET", "/refunds?order_id=", "order_id"),
        ("GET", "/refunds?order_id=a%00b", "order_id"),
        ("GET", "/refunds?order_id=%FF", "order_id"),
        ("GET", "/refunds?order_id=1&order_id=2", "order_id"),
        ("GET", "/refunds?order_id=1&cursor=", "cursor"),
        ("GET", "/refunds?order_id=1&cursor=-1", "cursor"),
        ("GET", "/refunds?order_id=1&cursor=1e3", "cursor"),
        ("GET", "/refunds?order_id=1&cursor=%D9%A1", "cursor"),
        ("GET", "/refunds?order_id=1&cursor=" + "9" * 19, "cursor"),
        ("GET", "/refunds?order_id=1&cursor=" + "9" * 5_000, "cursor"),
        ("GET", "/refunds?order_id=1&limit=", "limit"),
        ("GET", "/refunds?order_id=1&limit=0", "limit"),
        ("GET", "/refunds?order_id=1&limit=51", "limit"),
        ("GET", "/refunds?order_id=1&limit=-1", "limit"),
        ("GET", "/refunds?order_id=1&limit=1.0", "limit"),
        ("GET", "/refunds?order_id=1&limit=1_0", "limit"),
        ("GET", "/refunds?order_id=1&limit=%201", "limit"),
        ("GET", "/refunds?order_id=1&limit=%D9%A1", "limit"),
        ("GET", "/refunds?order_id=1&limit=2&limit=2", "limit"),
        ("GET", "/refunds?order_id=1&offset=5", "offset"),
        ("GET", "/refunds?order_id=1&a%00b=5", "a\x00b"),
        ("GET", "/orders/4821?expand=all", "expand"),
        ("PUT", "/orders/4821?force=1", "force"),
        ("GET", "/refunds/refund:order-1:request-1?x", "x"),
        ("POST", "/refunds/refund:order-1:request-1/withdraw?x=1", "x"),
        ("GET", "/orders/4821?" + "&".join(f"a{n}=1" for n in range(2_000)), "query"),
    ],
    ids=lambda value: value[:40],
)
def test_a_bad_address_names_its_part(caller: Caller, method: str, path: str, field: str) -> None:
    before = rows()
    body = order_body() if method == "PUT" else None
    answer = read(caller.call(method, path, body), 422)
    assert answer["field"] == field
    assert rows() == before


def test_an_unknown_parameter_beside_a_good_proposal_leaves_no_row(caller: Caller) -> None:
    builders.order(order_id="4821")
    before = rows()
    answer = read(caller.call("POST", "/refunds?dry_run=1", refund_body("4821")), 422)
    assert answer["field"] == "dry_run"
    assert rows() == before


def test_a_withdrawal_takes_no_fields(caller: Caller) -> None:
    action_id = builders.action(builders.order()).action_id
    answer = read(caller.call("POST", f"/refunds/{action_id}/withdraw", {"reason": "x"}), 422)
    assert answer["field"] == "reason"
    assert RefundAction.objects.get().state == "AUTHORIZED"
