"""The payments of an account, page by page: what an import of orders reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from effects.outcomes import Unreadable
from kernel.errors import Bug
from providers.port import ListedPayment, PaymentPage
from providers.sandbox import Sandbox
from providers.stripe.adapter import PAGE_SIZE, StripeProvider
from tests.providers.loopback import Handler, answers, loopback, resets, silent
from tests.providers.requests_made import a_provider, provider_of
from tests.sandbox.calls import stripe_client

SINCE = datetime(2026, 11, 1, tzinfo=UTC)
UNTIL = datetime(2026, 11, 2, tzinfo=UTC)


def an_intent(**changes: Any) -> dict[str, Any]:
    return {
        "id": "pi_1",
        "object": "payment_intent",
        "created": 1_793_500_000,
        "currency": "usd",
        "customer": {"id": "cus_1", "object": "customer", "email": "third@example.com"},
        "metadata": {"order_id": "4821"},
        "receipt_email": "first@example.com",
        "status": "succeeded",
        "latest_charge": {
            "id": "ch_1",
            "object": "charge",
            "amount_captured": 7900,
            "amount_refunded": 2500,
            "billing_details": {"email": "second@example.com"},
            "currency": "usd",
            "disputed": False,
            "payment_intent": "pi_1",
            "payment_method_details": {"type": "card", "card": {}},
        },
        **changes,
    }


def a_list(*intents: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"object": "list", "data": list(intents), "has_more": False, "url": "/", **changes}


def read_from(handler: Handler) -> PaymentPage | Unreadable:
    with loopback(handler) as server:
        return a_provider(server.base).list_payments(since=SINCE, until=UNTIL)


def the_payment(**changes: Any) -> ListedPayment:
    page = read_from(answers(200, a_list(an_intent(**changes))))
    assert isinstance(page, PaymentPage), page
    (payment,) = page.payments
    return payment


def page_of(provider: StripeProvider, **more: Any) -> PaymentPage:
    window = {"since": datetime(2000, 1, 1, tzinfo=UTC), "until": datetime(2100, 1, 1, tzinfo=UTC)}
    page = provider.list_payments(**(window | more))
    assert isinstance(page, PaymentPage), page
    return page


def test_a_page_is_one_request_for_a_time_with_charge_and_customer() -> None:
    with loopback(answers(200, a_list())) as server:
        page = a_provider(server.base).list_payments(
            since=SINCE, until=UNTIL, account="acct_1", cursor="pi_9"
        )
        (request,) = server.requests
    assert isinstance(page, PaymentPage)
    assert request.target.startswith("/v1/payment_intents?")
    assert request.query == {
        "created[gte]": str(int(SINCE.timestamp())),
        "created[lt]": str(int(UNTIL.timestamp())),
        "limit": str(PAGE_SIZE),
        "expand[0]": "data.latest_charge",
        "expand[1]": "data.customer",
        "starting_after": "pi_9",
    }
    assert request.headers["stripe-account"] == "acct_1"


def test_a_payment_shows_its_totals_whom_and_what_for() -> None:
    payment = the_payment()
    assert payment.is_paid
    assert (payment.totals.captured_minor, payment.totals.refunded_minor) == (7900, 2500)
    assert (payment.totals.currency, payment.totals.customer_ref) == ("USD", "cus_1")
    assert (payment.customer_email, payment.method) == ("first@example.com", "card")
    assert payment.metadata == {"order_id": "4821"}
    assert payment.created_at == datetime.fromtimestamp(1_793_500_000, tz=UTC)


def test_the_address_is_the_first_that_is_there() -> None:
    assert the_payment(receipt_email=None).customer_email == "second@example.com"
    charge = an_intent()["latest_charge"] | {"billing_details": {"email": None}}
    without = {"receipt_email": None, "latest_charge": charge}
    assert the_payment(**without).customer_email == "third@example.com"
    deleted = {"id": "cus_1", "object": "customer", "deleted": True}
    assert the_payment(**without, customer=deleted).customer_email == ""
    assert the_payment(**without, customer=None).totals.customer_ref == ""


@pytest.mark.parametrize("status", ["requires_capture", "canceled", "processing"])
def test_what_has_not_succeeded_is_not_paid(status: str) -> None:
    assert not the_payment(status=status).is_paid
    assert not the_payment(status=status, latest_charge=None).is_paid


@pytest.mark.parametrize(
    ("handler", "reason", "misconfigured"),
    [
        (answers(401, {"error": {"type": "invalid_request_error"}}), "unauthorized", True),
        (answers(429, {"error": {"type": "invalid_request_error"}}), "rate_limited", False),
        (answers(500, b""), "server_error", False),
        (answers(200, b"<html>"), "unreadable_answer", False),
        (answers(200, {}), "unreadable_answer", False),
        (answers(200, a_list(has_more=True)), "unreadable_answer", False),
        (answers(200, a_list(has_more=None)), "unreadable_answer", False),
        (answers(200, a_list(an_intent(created=None))), "unreadable_answer", False),
        (answers(200, a_list(an_intent(status=None))), "unreadable_answer", False),
        (answers(200, a_list(an_intent(metadata=[]) | {"id": 1})), "unreadable_answer", False),
        (answers(200, a_list(an_intent(latest_charge="ch_1"))), "unreadable_answer", False),
        (silent(2), "read_timeout", False),
        (resets(), "connection_reset", False),
    ],
)
def test_a_page_that_cannot_be_used_is_unreadable_as_a_whole(
    handler: Handler, reason: str, misconfigured: bool
) -> None:
    read = read_from(handler)
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == (reason, misconfigured)


def test_a_cursor_that_is_none_is_a_bug_and_an_unknown_account_is_not_asked() -> None:
    provider = a_provider("http://127.0.0.1:1")
    with pytest.raises(Bug, match="not a Stripe id"):
        provider.list_payments(since=SINCE, until=UNTIL, cursor="pi_1/x")
    read = provider.list_payments(since=SINCE, until=UNTIL, account="alias:asia")
    assert isinstance(read, Unreadable)
    assert read.misconfigured


# -- against the sandbox --------------------------------------------------------------------------


def test_every_payment_is_on_one_page_and_newest_first(sandbox: Sandbox) -> None:
    made = [sandbox.payment(amount=100)["payment_intent"]["id"] for _ in range(PAGE_SIZE + 30)]
    provider = provider_of(sandbox)
    first = page_of(provider)
    second = page_of(provider, cursor=first.next_cursor)
    read = [payment.totals.payment_ref for page in (first, second) for payment in page.payments]
    assert read == made[::-1]
    assert second.next_cursor == ""


def test_a_window_begins_with_its_first_second_and_ends_before_its_last(sandbox: Sandbox) -> None:
    intent = sandbox.payment(amount=100)["payment_intent"]
    at = datetime.fromtimestamp(intent["created"], tz=UTC)
    provider, second = provider_of(sandbox), timedelta(seconds=1)
    assert len(page_of(provider, since=at, until=at + second).payments) == 1
    assert page_of(provider, since=at - second, until=at).payments == ()
    assert page_of(provider, since=at + second).payments == ()


def test_what_the_sandbox_shows_is_what_was_paid_captured_and_refunded(sandbox: Sandbox) -> None:
    customer = stripe_client(sandbox).v1.customers.create({"email": "ada@example.com"})
    paid = sandbox.payment(amount=7900, customer=customer.id, metadata={"order_id": "4821"})
    sandbox.refund_outside(paid["payment_intent"]["id"], amount=2500)
    authorized = sandbox.payment(amount=500, capture=False)
    stripe_client(sandbox).v1.payment_intents.create({"amount": 300, "currency": "usd"})
    unpaid, held, shown = page_of(provider_of(sandbox)).payments
    assert (unpaid.is_paid, unpaid.totals.charge_ref) == (False, "")
    assert (held.totals.payment_ref, held.is_paid) == (authorized["payment_intent"]["id"], False)
    assert shown.is_paid
    assert (shown.totals.captured_minor, shown.totals.refunded_minor) == (7900, 2500)
    assert (shown.customer_email, shown.metadata) == ("ada@example.com", {"order_id": "4821"})
