"""A customer's balance read as a whole: whether the list of its changes was complete."""

from __future__ import annotations

from typing import Any

import pytest

from effects.outcomes import Listing, Succeeded, Unreadable
from kernel.errors import Bug
from providers.matching import unlisted_credit_minor
from providers.port import CustomerTotals
from providers.sandbox import Sandbox
from providers.stripe.adapter import StripeProvider
from tests.providers.loopback import Handler, answers, drips, loopback, resets, silent
from tests.providers.requests_made import a_credit_request, a_provider, provider_of


def a_customer(**fields: Any) -> dict[str, Any]:
    balances = {"invoice_credit_balance": {"usd": 7900, "jpy": -5}}
    return {"id": "cus_1", "object": "customer", "balance": -7900} | balances | fields


def read_from(handler: Handler, **provider: Any) -> CustomerTotals | Unreadable:
    with loopback(handler) as server:
        return a_provider(server.base, **provider).read_customer(customer_ref="cus_1")


def unlisted(provider: StripeProvider, currency: str) -> int:
    listing = provider.list_credits(customer_ref="cus_1")
    totals = provider.read_customer(customer_ref="cus_1")
    assert isinstance(listing, Listing)
    assert isinstance(totals, CustomerTotals)
    return unlisted_credit_minor(totals=totals, listing=listing, currency=currency)


def test_a_customer_is_one_read_with_all_balances() -> None:
    with loopback(answers(200, a_customer(), {"Request-Id": "req_1"})) as server:
        totals = a_provider(server.base).read_customer(customer_ref="cus_1")
        (request,) = server.requests
    assert isinstance(totals, CustomerTotals)
    assert (request.method, request.body) == ("GET", b"")
    assert request.target.startswith("/v1/customers/cus_1?")
    assert request.query == {"expand[0]": "invoice_credit_balance"}
    assert totals.credit_minor == {"USD": 7900, "JPY": -5}
    assert totals.evidence.request_id == "req_1"


@pytest.mark.parametrize(
    ("handler", "reason", "misconfigured"),
    [
        (answers(401, {"error": {"type": "invalid_request_error"}}), "unauthorized", True),
        (answers(404, {"error": {"code": "resource_missing"}}), "not_found", True),
        (answers(500, {"error": {"type": "api_error"}}), "server_error", False),
        (answers(200, a_customer(id="cus_2")), "answer_mismatch", False),
        (resets(), "connection_reset", False),
    ],
)
def test_what_is_no_answer_about_this_customer_is_unreadable(
    handler: Handler, reason: str, misconfigured: bool
) -> None:
    read = read_from(handler)
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == (reason, misconfigured)


@pytest.mark.parametrize(
    "body",
    [
        {"id": "cus_1", "object": "customer", "deleted": True},
        a_customer(invoice_credit_balance=None),
        a_customer(invoice_credit_balance=[]),
        a_customer(invoice_credit_balance={"usd": "7900"}),
        a_customer(invoice_credit_balance={"usd": True}),
        a_customer(invoice_credit_balance={"usd": 79.0}),
        a_customer(object="account"),
        a_customer(id=""),
        [],
    ],
)
def test_a_customer_without_plain_balances_is_unreadable(body: Any) -> None:
    assert isinstance(read_from(answers(200, body)), Unreadable)


@pytest.mark.parametrize(
    "handler", [silent(2), drips(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 400, every_seconds=0.02)]
)
def test_a_slow_answer_is_cut(handler: Handler) -> None:
    read = read_from(handler, read_timeout_seconds=0.3, total_timeout_seconds=0.6)
    assert isinstance(read, Unreadable)
    assert not read.misconfigured


@pytest.mark.parametrize("reference", ["", "cus_1/balance_transactions", "cus 1", "x" * 256])
def test_only_an_id_is_asked_for(reference: str) -> None:
    with pytest.raises(Bug):
        a_provider("http://127.0.0.1:1").read_customer(customer_ref=reference)


def test_an_account_without_a_key_is_not_asked() -> None:
    read = a_provider("http://127.0.0.1:1").read_customer(
        customer_ref="cus_1", account="alias:asia"
    )
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == ("unknown_account", True)


def test_the_changes_listed_add_up_to_the_balance(sandbox: Sandbox) -> None:
    sandbox.customer("cus_1")
    provider = provider_of(sandbox)
    assert unlisted(provider, "USD") == 0
    assert isinstance(provider.send_credit(request=a_credit_request()), Succeeded)
    sandbox.credit_outside("cus_1", amount=500, currency="eur")
    sandbox.credit_outside("cus_1", amount=-200, currency="usd")
    assert (unlisted(provider, "USD"), unlisted(provider, "EUR"), unlisted(provider, "JPY")) == (
        0,
        0,
        0,
    )


def test_a_list_that_lags_does_not_add_up(sandbox: Sandbox) -> None:
    sandbox.customer("cus_1")
    provider = provider_of(sandbox)
    sandbox.credit_outside("cus_1", amount=500)
    path = "/v1/customers/cus_1/balance_transactions"
    sandbox.fault("list-lags", match={"method": "GET", "path": path}, seconds=60)
    assert unlisted(provider, "USD") == 500
    assert unlisted(provider, "USD") == 0
