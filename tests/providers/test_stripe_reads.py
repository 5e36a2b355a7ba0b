"""Reading: all pages or nothing, and an answer about something else is no answer."""

from __future__ import annotations

import time
from typing import Any

import pytest

from effects.outcomes import Listing, ProviderEffect, Unreadable
from kernel.errors import Bug
from providers.stripe.adapter import PAGE_SIZE, PAGES_MAX
from tests.providers.loopback import (
    Handler,
    Request,
    answer_bytes,
    answers,
    drips,
    loopback,
    refund_body,
    resets,
    silent,
)
from tests.providers.requests_made import a_provider


def a_refund(number: int, **changes: Any) -> dict[str, Any]:
    body = refund_body({"amount": "100", "payment_intent": "pi_1"}, id=f"re_{number}")
    return body | changes


def pages_of(refunds: list[dict[str, Any]], *, wait_seconds: float = 0) -> Handler:
    """Serve a list as Stripe does, by `limit` and `starting_after`."""

    def handler(connection: Any, request: Request) -> None:
        time.sleep(wait_seconds)
        assert request.query["payment_intent"] == "pi_1"
        ids = [refund["id"] for refund in refunds]
        after = request.query.get("starting_after")
        start = ids.index(after) + 1 if after else 0
        end = start + int(request.query["limit"])
        body = {
            "object": "list",
            "url": "/v1/refunds",
            "has_more": end < len(refunds),
            "data": refunds[start:end],
        }
        connection.sendall(answer_bytes(200, body, {"Request-Id": "req_1"}))

    return handler


def read_from(handler: Handler, **provider: Any) -> Listing | Unreadable:
    with loopback(handler) as server:
        return a_provider(server.base, **provider).list_refunds(payment_ref="pi_1")


@pytest.mark.parametrize(("count", "pages"), [(0, 1), (1, 1), (100, 1), (101, 2), (250, 3)])
def test_all_pages_are_read_in_order(count: int, pages: int) -> None:
    listing = read_from(pages_of([a_refund(number) for number in range(count)]))
    assert isinstance(listing, Listing)
    assert [effect.ref for effect in listing.effects] == [f"re_{n}" for n in range(count)]
    assert listing.pages == pages
    assert (listing.evidence.http_status, listing.evidence.request_id) == (200, "req_1")


def test_a_list_without_end_is_given_up() -> None:
    refunds = [a_refund(number) for number in range(PAGE_SIZE * PAGES_MAX + 1)]
    read = read_from(pages_of(refunds), total_timeout_seconds=20, read_timeout_seconds=5)
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == ("too_many_pages", False)


def test_the_deadline_is_over_all_pages_together() -> None:
    refunds = [a_refund(number) for number in range(1500)]
    started = time.monotonic()
    read = read_from(pages_of(refunds, wait_seconds=0.3))
    assert isinstance(read, Unreadable)
    assert read.reason == "deadline"
    assert time.monotonic() - started < 4.4


@pytest.mark.parametrize(
    ("handler", "reason", "misconfigured"),
    [
        (answers(401, {"error": {"type": "invalid_request_error"}}), "unauthorized", True),
        (answers(403, {"error": {"type": "invalid_request_error"}}), "forbidden", True),
        (answers(404, {"error": {"type": "invalid_request_error"}}), "not_found", True),
        (answers(429, {"error": {"type": "invalid_request_error"}}), "rate_limited", False),
        (answers(500, b""), "server_error", False),
        (answers(502, b"<html>"), "server_error", False),
        (answers(404, b"<html>"), "unreadable_answer", False),
        (answers(200, b"<html>"), "unreadable_answer", False),
        (answers(200, {}), "unreadable_answer", False),
        (answers(200, {"object": "list", "data": []}), "unreadable_answer", False),
        (
            answers(200, {"object": "list", "data": [], "has_more": True}),
            "unreadable_answer",
            False,
        ),
        (answers(200, {"data": [{}], "has_more": False}), "unreadable_answer", False),
        (
            answers(200, {"data": [a_refund(1, payment_intent="pi_2")], "has_more": False}),
            "unreadable_answer",
            False,
        ),
        (silent(2), "read_timeout", False),
        (resets(), "connection_reset", False),
        (drips(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 400, every_seconds=0.02), "deadline", False),
    ],
)
def test_a_list_that_cannot_be_used_is_unreadable(
    handler: Handler, reason: str, misconfigured: bool
) -> None:
    read = read_from(handler)
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == (reason, misconfigured)


def test_a_closed_port_is_unreadable() -> None:
    read = a_provider("http://127.0.0.1:1").list_refunds(payment_ref="pi_1")
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == ("connection_refused", False)


@pytest.mark.parametrize(
    ("status", "settlement"),
    [
        ("succeeded", "succeeded"),
        ("pending", "pending"),
        ("requires_action", "requires_action"),
        ("failed", "failed"),
        ("canceled", "failed"),
        ("a_new_word", "pending"),
    ],
)
def test_a_refund_is_read_in_our_words(status: str, settlement: str) -> None:
    body = a_refund(1, status=status, failure_reason="declined", charge=None, metadata=None)
    with loopback(answers(200, body)) as server:
        effect = a_provider(server.base).retrieve_refund(refund_ref="re_1")
        assert server.requests[0].target == "/v1/refunds/re_1"
    assert isinstance(effect, ProviderEffect)
    assert (effect.status, effect.settlement) == (status, settlement)
    assert (effect.failure_reason, effect.metadata) == ("declined", {})
    assert effect.created_at is not None
    assert effect.created_at.tzinfo is not None


@pytest.mark.parametrize(
    ("handler", "reason", "misconfigured"),
    [
        (answers(404, {"error": {"type": "invalid_request_error"}}), "not_found", True),
        (answers(200, a_refund(2)), "answer_mismatch", False),
        (answers(200, {"id": "re_1"}), "unreadable_answer", False),
        (answers(500, b""), "server_error", False),
    ],
)
def test_a_refund_that_cannot_be_read_is_unreadable(
    handler: Handler, reason: str, misconfigured: bool
) -> None:
    with loopback(handler) as server:
        read = a_provider(server.base).retrieve_refund(refund_ref="re_1")
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == (reason, misconfigured)


@pytest.mark.parametrize("reference", ["", "pi_1/x", "../charges", "pi 1", "pi_1\n"])
def test_a_reference_that_would_read_something_else_is_a_bug(reference: str) -> None:
    provider = a_provider("http://127.0.0.1:1")
    with pytest.raises(Bug, match="not a Stripe id"):
        provider.list_refunds(payment_ref=reference)
    with pytest.raises(Bug, match="not a Stripe id"):
        provider.retrieve_refund(refund_ref=reference)
