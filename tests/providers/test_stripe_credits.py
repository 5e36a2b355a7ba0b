"""Store credit: what is sent, what is believed, and what else is on a customer's balance."""

from __future__ import annotations

import json
from typing import Any

import pytest

from effects.outcomes import (
    Listing,
    Misconfigured,
    NotSent,
    Outcome,
    ProviderEffect,
    Refused,
    Succeeded,
    Unknown,
    Unreadable,
)
from kernel.errors import Bug
from providers.matching import Absent, Found, Judgement, judge
from providers.port import SendRequest
from providers.sandbox import Sandbox
from providers.stripe.adapter import StripeProvider
from providers.stripe.objects import CREDIT
from providers.stripe.payload import parse_payload
from tests.providers.loopback import Request, answer_bytes, answers, loopback
from tests.providers.requests_made import (
    CREDIT_ACTION,
    a_credit_payload,
    a_credit_request,
    a_provider,
    a_request,
    provider_of,
)


def credit_body(**changes: Any) -> dict[str, Any]:
    return {
        "id": "cbtxn_1",
        "object": "customer_balance_transaction",
        "amount": -7900,
        "created": 1_800_000_000,
        "currency": "usd",
        "customer": "cus_1",
        "description": "Store credit for order 4821",
        "ending_balance": -7900,
        "metadata": a_credit_payload()["metadata"],
        "type": "adjustment",
    } | changes


def credits_everything(connection: Any, request: Request) -> None:
    key = request.headers.get("idempotency-key", "")
    connection.sendall(answer_bytes(200, credit_body(), {"Idempotency-Key": key}))


def sent_to(handler: Any) -> Outcome:
    with loopback(handler) as server:
        return a_provider(server.base).send_credit(request=a_credit_request())


def judged(provider: StripeProvider, customer: str, **changes: Any) -> Judgement:
    listing = provider.list_credits(customer_ref=customer)
    assert isinstance(listing, Listing)
    asked: dict[str, Any] = {
        "listing": listing,
        "action_id": CREDIT_ACTION,
        "instance": "shop-1",
        "amount_minor": 7900,
        "currency": "USD",
        "payment_ref": customer,
        "known_refs": set(),
        "shared": True,
    }
    return judge(**(asked | changes))


# What leaves


def test_a_credit_is_a_negative_amount_on_the_customers_balance() -> None:
    with loopback(credits_everything) as server:
        outcome = a_provider(server.base).send_credit(request=a_credit_request())
        (request,) = server.requests
    assert (request.method, request.target) == ("POST", "/v1/customers/cus_1/balance_transactions")
    assert request.form == {
        "amount": "-7900",
        "currency": "USD",
        "description": "Store credit for order 4821",
        "metadata[action_id]": CREDIT_ACTION,
        "metadata[instance]": "shop-1",
        "metadata[order_id]": "4821",
        "metadata[request_id]": "3",
    }
    assert request.headers["idempotency-key"] == CREDIT_ACTION
    assert isinstance(outcome, Succeeded)
    assert (outcome.effect.ref, outcome.effect.payment_ref) == ("cbtxn_1", "cus_1")
    assert (outcome.effect.amount_minor, outcome.effect.currency) == (7900, "USD")


@pytest.mark.parametrize("amount_minor", [0, -7900, None, 7900.0, "7900", True])
def test_a_credit_that_would_take_money_from_the_customer_is_a_bug(amount_minor: Any) -> None:
    with pytest.raises(Bug, match="negative integer"):
        a_credit_payload(amount_minor=amount_minor)


@pytest.mark.parametrize(
    "changes",
    [
        {"extra": 1},
        {"amount": 7900},
        {"customer": ""},
        {"customer": "cus_1/../x"},
        {"customer": None},
        {"currency": "us"},
        {"description": ""},
        {"description": "a line\nand another"},
        {"description": "x" * 351},
        {"metadata": a_credit_payload()["metadata"] | {"reason": "damaged"}},
        {"metadata": {}},
    ],
    ids=str,
)
def test_a_payload_that_was_not_built_here_is_a_bug(changes: dict[str, Any]) -> None:
    with pytest.raises(Bug):
        parse_payload(CREDIT, json.dumps(a_credit_payload() | changes))


def test_one_kind_is_never_sent_as_the_other() -> None:
    with loopback(credits_everything) as server:
        provider = a_provider(server.base)
        with pytest.raises(Bug, match="exactly the fields"):
            provider.send_credit(request=a_request())
        with pytest.raises(Bug, match="exactly the fields"):
            provider.send_refund(request=a_credit_request())
        assert server.requests == []


def test_the_fence_holds_a_credit_back() -> None:
    with loopback(credits_everything) as server:
        outcome = a_provider(server.base).send_credit(
            request=a_credit_request(), before_bytes_leave=lambda: False
        )
        assert isinstance(outcome, NotSent)
        assert outcome.reason == "fenced"
        assert server.requests == []


def test_a_key_or_an_account_that_does_not_fit_is_a_bug() -> None:
    provider = a_provider("http://127.0.0.1:1")
    with pytest.raises(Bug, match="idempotency key"):
        provider.send_credit(request=a_credit_request(key="a b"))
    request = SendRequest(
        payload=a_credit_request().payload, idempotency_key=CREDIT_ACTION, account="acct_1"
    )
    with pytest.raises(Bug, match="another account"):
        provider.send_credit(request=request)


def test_an_account_without_a_key_sends_and_reads_nothing() -> None:
    with loopback(credits_everything) as server:
        provider = a_provider(server.base)
        outcome = provider.send_credit(request=a_credit_request(account="alias:asia"))
        assert isinstance(outcome, Misconfigured)
        for read in (
            provider.list_credits(customer_ref="cus_1", account="alias:asia"),
            provider.retrieve_credit(
                credit_ref="cbtxn_1", customer_ref="cus_1", account="alias:asia"
            ),
        ):
            assert isinstance(read, Unreadable)
            assert (read.reason, read.misconfigured) == ("unknown_account", True)
        assert server.requests == []


# What is believed


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"amount": 7900}, "amount"),
        ({"amount": -7901}, "amount"),
        ({"currency": "eur"}, "currency"),
        ({"customer": "cus_2"}, "customer"),
        ({"metadata": {}}, "metadata.action_id"),
        (
            {"metadata": a_credit_payload()["metadata"] | {"instance": "shop-2"}},
            "metadata.instance",
        ),
    ],
    ids=str,
)
def test_an_answer_that_is_not_what_was_sent_is_an_incident(
    changes: dict[str, Any], differs: str
) -> None:
    outcome = sent_to(answers(200, credit_body(**changes)))
    assert isinstance(outcome, Unknown)
    assert (outcome.reason, outcome.incident) == ("answer_mismatch", True)
    assert outcome.evidence.extra["differs"] == differs


def test_the_answer_to_another_key_is_an_incident() -> None:
    outcome = sent_to(answers(200, credit_body(), {"Idempotency-Key": "another"}))
    assert isinstance(outcome, Unknown)
    assert outcome.evidence.extra["differs"] == "idempotency_key"


@pytest.mark.parametrize(
    "changes",
    [
        {"object": "refund"},
        {"id": None},
        {"amount": None},
        {"amount": True},
        {"amount": "-7900"},
        {"currency": None},
        {"customer": None},
        {"customer": {"id": "cus_1"}},
        {"metadata": "none"},
    ],
    ids=str,
)
def test_an_answer_that_is_no_credit_proves_nothing(changes: dict[str, Any]) -> None:
    outcome = sent_to(answers(200, credit_body(**changes)))
    assert isinstance(outcome, Unknown)
    assert outcome.reason == "unreadable_answer"


# Reading


def test_a_credit_is_retrieved_with_its_customer() -> None:
    with loopback(answers(200, credit_body())) as server:
        provider = a_provider(server.base)
        effect = provider.retrieve_credit(credit_ref="cbtxn_1", customer_ref="cus_1")
        assert server.requests[0].target == "/v1/customers/cus_1/balance_transactions/cbtxn_1"
        assert isinstance(effect, ProviderEffect)
        assert (effect.amount_minor, effect.settlement) == (7900, "succeeded")
        for ref, customer in (("cbtxn_2", "cus_1"), ("cbtxn_1", "cus_2")):
            read = provider.retrieve_credit(credit_ref=ref, customer_ref=customer)
            assert isinstance(read, Unreadable)
            assert read.reason == "answer_mismatch"


def test_a_list_with_a_credit_of_another_customer_is_unreadable() -> None:
    body = {"object": "list", "data": [credit_body(customer="cus_2")], "has_more": False}
    with loopback(answers(200, body)) as server:
        read = a_provider(server.base).list_credits(customer_ref="cus_1")
    assert isinstance(read, Unreadable)
    assert read.reason == "unreadable_answer"


@pytest.mark.parametrize("reference", ["", "cus_1/x", "../charges", "cus 1", "cus_1\n"])
def test_a_reference_that_would_read_something_else_is_a_bug(reference: str) -> None:
    provider = a_provider("http://127.0.0.1:1")
    for read in (
        lambda: provider.list_credits(customer_ref=reference),
        lambda: provider.retrieve_credit(credit_ref="cbtxn_1", customer_ref=reference),
        lambda: provider.retrieve_credit(credit_ref=reference, customer_ref="cus_1"),
    ):
        with pytest.raises(Bug, match="not a Stripe id"):
            read()


# Against the sandbox


def test_a_credit_is_made_once_and_found_by_its_metadata(sandbox: Sandbox) -> None:
    sandbox.customer("cus_1")
    provider = provider_of(sandbox)
    outcome = provider.send_credit(request=a_credit_request())
    assert isinstance(outcome, Succeeded)
    (line,) = sandbox.credits("cus_1")
    assert (line["id"], line["amount"], line["currency"]) == (outcome.effect.ref, -7900, "usd")
    assert judged(provider, "cus_1") == Found(effect=outcome.effect)
    assert (
        provider.retrieve_credit(credit_ref=outcome.effect.ref, customer_ref="cus_1")
        == outcome.effect
    )


def test_what_else_happens_on_a_balance_is_no_stranger(sandbox: Sandbox) -> None:
    sandbox.customer("cus_1")
    provider = provider_of(sandbox)
    sandbox.credit_outside("cus_1", amount=500)
    sandbox.credit_outside("cus_1", amount=-200, type="applied_to_invoice")
    ours = sandbox.credit_outside(
        "cus_1", amount=300, metadata={"action_id": "credit:forgotten", "instance": "shop-1"}
    )
    listing = provider.list_credits(customer_ref="cus_1")
    assert isinstance(listing, Listing)
    assert [effect.amount_minor for effect in listing.effects] == [300, -200, 500]
    judgement = judged(provider, "cus_1")
    assert isinstance(judgement, Absent)
    assert [stranger.ref for stranger in judgement.strangers] == [ours["id"]]
    assert judged(provider, "cus_1", known_refs={ours["id"]}) == Absent()


def test_all_pages_of_a_balance_are_read(sandbox: Sandbox) -> None:
    sandbox.customer("cus_1")
    provider = provider_of(sandbox, total_timeout_seconds=20)
    provider.send_credit(request=a_credit_request())
    for _ in range(204):
        sandbox.credit_outside("cus_1", amount=1)
    listing = provider.list_credits(customer_ref="cus_1")
    assert isinstance(listing, Listing)
    assert (len({effect.ref for effect in listing.effects}), listing.pages) == (205, 3)
    assert isinstance(judged(provider, "cus_1"), Found)


def test_a_customer_nobody_knows_is_a_matter_of_configuration(sandbox: Sandbox) -> None:
    provider = provider_of(sandbox)
    outcome = provider.send_credit(request=a_credit_request())
    assert isinstance(outcome, Misconfigured)
    assert outcome.reason == "not_found"
    read = provider.list_credits(customer_ref="cus_1")
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == ("not_found", True)


def test_a_balance_in_another_currency_is_refused_or_kept_apart(sandbox: Sandbox) -> None:
    provider = provider_of(sandbox)
    for customer in ("cus_1", "cus_2"):
        sandbox.customer(customer)
        sandbox.credit_outside(customer, amount=500, currency="eur")
    sandbox.settings(customer_currencies="one")
    outcome = provider.send_credit(request=a_credit_request())
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.read_first) == ("currency_mismatch", False)
    assert judged(provider, "cus_1") == Absent()
    sandbox.settings(customer_currencies="many")
    request = a_credit_request(key="second", customer="cus_2")
    assert isinstance(provider.send_credit(request=request), Succeeded)
    assert sandbox.call("credits")["customers"]["cus_2"]["credit"] == {"eur": 500, "usd": 7900}


def test_other_content_under_a_used_key_is_an_incident(sandbox: Sandbox) -> None:
    sandbox.customer("cus_1")
    provider = provider_of(sandbox)
    provider.send_credit(request=a_credit_request(amount_minor=100))
    outcome = provider.send_credit(request=a_credit_request(amount_minor=200))
    assert isinstance(outcome, Unknown)
    assert (outcome.reason, outcome.incident) == ("key_reused_with_other_content", True)


def test_a_list_of_credits_can_fail_and_lag(sandbox: Sandbox) -> None:
    sandbox.customer("cus_1")
    provider, match = provider_of(sandbox), {"method": "GET", "path": "/v1/customers/*"}
    provider.send_credit(request=a_credit_request())
    sandbox.fault("list-unreadable", match=match)
    read = provider.list_credits(customer_ref="cus_1")
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == ("server_error", False)
    sandbox.fault("list-lags", match=match)
    assert judged(provider, "cus_1") == Absent()
    assert isinstance(judged(provider, "cus_1"), Found)


def test_credits_of_two_accounts_do_not_meet(sandbox: Sandbox) -> None:
    sandbox.customer("cus_1")
    sandbox.customer("cus_1", account="acct_connected")
    provider = provider_of(sandbox)
    outcome = provider.send_credit(request=a_credit_request(account="acct_connected"))
    assert isinstance(outcome, Succeeded)
    (line,) = sandbox.credits()
    assert line["account"] == "acct_connected"
    assert judged(provider, "cus_1") == Absent()


def test_absence_from_a_customers_list_proves_nothing_by_declaration() -> None:
    provider = a_provider(None)
    assert provider.capabilities.list_is_immediately_consistent
    assert not provider.credit_capabilities.list_is_immediately_consistent
    assert provider.credit_capabilities.searchable
    assert provider.credit_capabilities.key_life_seconds == provider.capabilities.key_life_seconds
    assert provider.credit_capabilities.success_can_be_undone_seconds == 0
