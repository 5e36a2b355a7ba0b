"""A payment read as a whole: the second way to see whether money went back."""

from __future__ import annotations

from typing import Any

import pytest

from effects.outcomes import Evidence, Listing, Succeeded, Unreadable
from kernel.errors import Bug
from providers.matching import unlisted_minor
from providers.port import PaymentTotals
from providers.sandbox import Sandbox
from providers.stripe.adapter import StripeProvider
from tests.providers.loopback import Handler, answers, drips, loopback, resets, silent
from tests.providers.requests_made import a_provider, a_request, provider_of


def an_intent(**charge: Any) -> dict[str, Any]:
    return {
        "id": "pi_1",
        "object": "payment_intent",
        "currency": "usd",
        "customer": "cus_1",
        "latest_charge": {
            "id": "ch_1",
            "object": "charge",
            "amount": 7900,
            "amount_captured": 7900,
            "amount_refunded": 2500,
            "currency": "usd",
            "disputed": False,
            "payment_intent": "pi_1",
        }
        | charge,
    }


def read_from(handler: Handler, **provider: Any) -> PaymentTotals | Unreadable:
    with loopback(handler) as server:
        return a_provider(server.base, **provider).read_payment(payment_ref="pi_1")


def totals_of(provider: StripeProvider, payment: str) -> PaymentTotals:
    read = provider.read_payment(payment_ref=payment)
    assert isinstance(read, PaymentTotals)
    return read


def unlisted(provider: StripeProvider, payment: str) -> int:
    listing = provider.list_refunds(payment_ref=payment)
    assert isinstance(listing, Listing)
    return unlisted_minor(totals=totals_of(provider, payment), listing=listing)


def test_a_payment_is_one_read_of_it_with_its_charge() -> None:
    with loopback(answers(200, an_intent(), {"Request-Id": "req_1"})) as server:
        totals = totals_of(a_provider(server.base), "pi_1")
        (request,) = server.requests
    assert (request.method, request.body) == ("GET", b"")
    assert request.target.startswith("/v1/payment_intents/pi_1?")
    assert request.query == {"expand[0]": "latest_charge"}
    assert (totals.payment_ref, totals.charge_ref, totals.customer_ref) == ("pi_1", "ch_1", "cus_1")
    assert (totals.captured_minor, totals.refunded_minor, totals.currency) == (7900, 2500, "USD")
    assert not totals.disputed
    assert totals.evidence.request_id == "req_1"


def test_a_guest_has_no_customer_and_an_unpaid_payment_no_charge() -> None:
    body = an_intent() | {"customer": None, "latest_charge": None}
    totals = read_from(answers(200, body))
    assert isinstance(totals, PaymentTotals)
    assert (totals.customer_ref, totals.charge_ref) == ("", "")
    assert (totals.captured_minor, totals.refunded_minor) == (0, 0)


@pytest.mark.parametrize(
    ("handler", "reason", "misconfigured"),
    [
        (answers(401, {"error": {"type": "invalid_request_error"}}), "unauthorized", True),
        (answers(403, {"error": {"type": "invalid_request_error"}}), "forbidden", True),
        (answers(404, {"error": {"type": "invalid_request_error"}}), "not_found", True),
        (answers(429, {"error": {"type": "invalid_request_error"}}), "rate_limited", False),
        (answers(500, b""), "server_error", False),
        (answers(200, b"<html>"), "unreadable_answer", False),
        (answers(200, {}), "unreadable_answer", False),
        (answers(200, an_intent() | {"latest_charge": "ch_1"}), "unreadable_answer", False),
        (answers(200, an_intent(amount_refunded=None)), "unreadable_answer", False),
        (answers(200, an_intent(amount_refunded=True)), "unreadable_answer", False),
        (answers(200, an_intent(amount_captured="7900")), "unreadable_answer", False),
        (answers(200, an_intent(disputed=None)), "unreadable_answer", False),
        (answers(200, an_intent(currency="eur")), "unreadable_answer", False),
        (answers(200, an_intent(payment_intent="pi_2")), "unreadable_answer", False),
        (
            answers(200, an_intent(payment_intent="pi_2") | {"id": "pi_2"}),
            "answer_mismatch",
            False,
        ),
        (silent(2), "read_timeout", False),
        (resets(), "connection_reset", False),
        (drips(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 400, every_seconds=0.02), "deadline", False),
    ],
)
def test_a_payment_that_cannot_be_used_is_unreadable(
    handler: Handler, reason: str, misconfigured: bool
) -> None:
    read = read_from(handler)
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == (reason, misconfigured)


def test_an_account_without_a_key_is_not_asked() -> None:
    read = a_provider("http://127.0.0.1:1").read_payment(payment_ref="pi_1", account="alias:asia")
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == ("unknown_account", True)


@pytest.mark.parametrize("reference", ["", "pi_1/x", "../charges", "pi_1\n"])
def test_a_reference_that_would_read_something_else_is_a_bug(reference: str) -> None:
    with pytest.raises(Bug, match="not a Stripe id"):
        a_provider("http://127.0.0.1:1").read_payment(payment_ref=reference)


# Against the sandbox


def test_the_total_shows_a_refund_whose_answer_was_lost(sandbox: Sandbox) -> None:
    sandbox.payment(amount=7900, id="pi_1", customer="cus_1")
    provider = provider_of(sandbox)
    assert totals_of(provider, "pi_1").refunded_minor == 0
    sandbox.fault("reset-after-execution")
    provider.send_refund(request=a_request(amount_minor=2500))
    totals = totals_of(provider, "pi_1")
    assert (totals.captured_minor, totals.refunded_minor) == (7900, 2500)
    assert totals.customer_ref == "cus_1"


def test_the_total_gives_away_a_refund_that_the_list_does_not_show(sandbox: Sandbox) -> None:
    sandbox.payment(amount=7900, id="pi_1")
    provider = provider_of(sandbox)
    sandbox.refund_outside("pi_1", amount=400)
    assert unlisted(provider, "pi_1") == 0
    sandbox.fault("list-lags")
    assert unlisted(provider, "pi_1") == 400


@pytest.mark.parametrize("counts_pending", [True, False])
@pytest.mark.parametrize("drops_on_failure", [True, False])
def test_what_stripe_does_not_say_of_totals_never_hides_a_refund(
    sandbox: Sandbox, counts_pending: bool, drops_on_failure: bool
) -> None:
    """Nothing is unlisted while all is listed, but for a failure that the total still counts."""
    sandbox.settings(
        amount_refunded_counts_pending=counts_pending,
        amount_refunded_drops_on_failure=drops_on_failure,
        pending_settles_after_seconds=None,
    )
    sandbox.payment(amount=7900, id="pi_1", behaviour="pending")
    provider = provider_of(sandbox)
    assert not isinstance(provider.send_refund(request=a_request(amount_minor=100)), Succeeded)
    made = sandbox.refund_outside("pi_1", amount=200)
    assert totals_of(provider, "pi_1").refunded_minor == (300 if counts_pending else 0)
    assert unlisted(provider, "pi_1") == 0
    sandbox.settle_refund(made["id"])
    assert unlisted(provider, "pi_1") == 0
    sandbox.fail_refund(made["id"])
    still_counted_minor = 200 if counts_pending else 100
    assert unlisted(provider, "pi_1") == (0 if drops_on_failure else still_counted_minor)


def test_a_dispute_shows_and_stays_when_it_was_won(sandbox: Sandbox) -> None:
    sandbox.payment(amount=7900, id="pi_1")
    provider = provider_of(sandbox)
    assert not totals_of(provider, "pi_1").disputed
    dispute = sandbox.dispute("pi_1")
    assert totals_of(provider, "pi_1").disputed
    sandbox.close_dispute(dispute["id"], status="won")
    assert totals_of(provider, "pi_1").disputed


def test_a_payment_that_was_only_authorized_has_captured_nothing(sandbox: Sandbox) -> None:
    sandbox.payment(amount=7900, id="pi_1", capture=False)
    totals = totals_of(provider_of(sandbox), "pi_1")
    assert (totals.captured_minor, totals.refunded_minor) == (0, 0)


def test_a_payment_of_another_account_is_a_matter_of_configuration(sandbox: Sandbox) -> None:
    sandbox.payment(amount=7900, id="pi_1", account="acct_connected")
    provider = provider_of(sandbox)
    read = provider.read_payment(payment_ref="pi_1")
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == ("not_found", True)
    there = provider.read_payment(payment_ref="pi_1", account="acct_connected")
    assert isinstance(there, PaymentTotals)


@pytest.mark.parametrize(
    ("refunded_minor", "unlisted"), [(0, 0), (399, 0), (400, 0), (401, 1), (7900, 7500)]
)
def test_what_no_listed_refund_explains_is_never_negative(
    refunded_minor: int, unlisted: int
) -> None:
    listed = [
        {"id": "re_1", "amount": 100, "status": "succeeded"},
        {"id": "re_2", "amount": 300, "status": "pending"},
        {"id": "re_3", "amount": 5000, "status": "failed"},
    ]
    body = {
        "has_more": False,
        "data": [
            {"object": "refund", "currency": "usd", "payment_intent": "pi_1"} | refund
            for refund in listed
        ],
    }
    with loopback(answers(200, body)) as server:
        listing = a_provider(server.base).list_refunds(payment_ref="pi_1")
    assert isinstance(listing, Listing)
    totals = PaymentTotals(
        payment_ref="pi_1",
        charge_ref="ch_1",
        customer_ref="",
        currency="USD",
        captured_minor=7900,
        refunded_minor=refunded_minor,
        disputed=False,
        evidence=Evidence(),
    )
    assert unlisted_minor(totals=totals, listing=listing) == unlisted
