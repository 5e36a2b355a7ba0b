"""The adapter against the sandbox: every fault it knows, and what reading finds afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from effects.outcomes import (
    Listing,
    LookUp,
    Misconfigured,
    NotSent,
    Outcome,
    Pending,
    ProviderEffect,
    RateLimited,
    Refused,
    Succeeded,
    Unknown,
    Unreadable,
)
from providers.matching import Absent, Found, Judgement, judge
from providers.sandbox import FAULTS, Sandbox
from providers.stripe.adapter import StripeProvider
from tests.providers.requests_made import (
    ACTION,
    CREDIT_ACTION,
    a_credit_request,
    a_provider,
    a_request,
    provider_of,
)


def a_payment(sandbox: Sandbox, **more: Any) -> str:
    payment: str = sandbox.payment(amount=7900, **more)["payment_intent"]["id"]
    return payment


def a_customer(sandbox: Sandbox) -> str:
    return str(sandbox.customer()["id"])


@dataclass(frozen=True)
class Way:
    """A refund of a payment, or a store credit to a customer: sent and read in the same words."""

    action: str
    path: str
    new_owner: Callable[[Sandbox], str]
    send: Callable[[StripeProvider, str], Outcome]
    look: Callable[[StripeProvider, str], LookUp]
    existing: Callable[[Sandbox, str], list[Any]]

    def judged(self, provider: StripeProvider, owner: str) -> Judgement:
        listing = self.look(provider, owner)
        assert isinstance(listing, Listing)
        return judge(
            listing=listing,
            action_id=self.action,
            instance="shop-1",
            amount_minor=7900,
            currency="USD",
            payment_ref=owner,
            known_refs=set(),
        )

    def wait_until_readable(self, provider: StripeProvider, owner: str) -> None:
        """Some faults close the sandbox's port for a while."""
        until = time.monotonic() + 10
        while isinstance(self.look(provider, owner), Unreadable):
            assert time.monotonic() < until
            time.sleep(0.05)


REFUND = Way(
    action=ACTION,
    path="/v1/refunds",
    new_owner=a_payment,
    send=lambda provider, payment: provider.send_refund(request=a_request(payment_intent=payment)),
    look=lambda provider, payment: provider.list_refunds(payment_ref=payment),
    existing=lambda sandbox, payment: sandbox.refunds(payment),
)
CREDIT = Way(
    action=CREDIT_ACTION,
    path="/v1/customers/*",
    new_owner=a_customer,
    send=lambda provider, customer: provider.send_credit(
        request=a_credit_request(customer=customer)
    ),
    look=lambda provider, customer: provider.list_credits(customer_ref=customer),
    existing=lambda sandbox, customer: sandbox.credits(customer),
)
WAYS = pytest.mark.parametrize("way", [REFUND, CREDIT], ids=["refund", "credit"])


def judged(provider: StripeProvider, payment: str) -> Judgement:
    return REFUND.judged(provider, payment)


# fault, its parameters, what the adapter says, in which word
FAULT_CASES: list[tuple[str, dict[str, Any], type, str]] = [
    ("refuse-connection", {"seconds": 1.0}, NotSent, "connection_refused"),
    ("connect-timeout", {"seconds": 3.0}, NotSent, "connect_timeout"),
    ("reset-before-execution", {}, Unknown, "connection_reset"),
    ("close-before-execution", {}, Unknown, "connection_reset"),
    ("hang-before-execution", {}, Unknown, "read_timeout"),
    ("slow", {"seconds": 0.1}, Succeeded, ""),
    ("html-502", {}, Unknown, "server_error"),
    ("redirect-307", {}, Unknown, "redirect"),
    ("unauthorized-401", {}, Misconfigured, "unauthorized"),
    ("forbidden-403", {}, Misconfigured, "forbidden"),
    ("rate-limit-429", {}, RateLimited, ""),
    ("rate-limit-429", {"should_retry": True, "with_code": False}, RateLimited, ""),
    ("error-409-in-flight", {}, Unknown, "conflict"),
    ("lock-timeout-429", {"should_retry": True}, RateLimited, ""),
    ("insufficient-balance-400", {}, Refused, "insufficient_funds"),
    ("disputed-400", {}, Refused, "disputed"),
    ("already-refunded-400", {}, Refused, "already_refunded"),
    ("not-found-404", {}, Misconfigured, "not_found"),
    ("error-424", {}, Unknown, "external_dependency"),
    ("error-424", {"executed": True}, Unknown, "external_dependency"),
    ("error-500-not-executed", {}, Unknown, "server_error"),
    ("error-500-executed", {}, Unknown, "server_error"),
    ("executed-late", {"seconds": 3600}, Unknown, "connection_reset"),
    ("reset-after-execution", {}, Unknown, "connection_reset"),
    ("close-after-execution", {}, Unknown, "connection_reset"),
    ("hang-after-execution", {}, Unknown, "read_timeout"),
    ("drip", {"interval_seconds": 0.05}, Unknown, "deadline"),
    ("truncated-content-length", {}, Unknown, "truncated"),
    ("truncated-chunked", {}, Unknown, "truncated"),
    ("truncated-close-delimited-200", {}, Unknown, "unreadable_answer"),
    ("html-200", {}, Unknown, "unreadable_answer"),
    ("html-502-executed", {}, Unknown, "server_error"),
    ("empty-500", {}, Unknown, "server_error"),
    ("json-without-error", {}, Unknown, "server_error"),
    ("json-without-error", {"status": 200}, Unknown, "unreadable_answer"),
    ("swapped-response", {}, Unknown, "answer_mismatch"),
    ("mismatched-amount", {}, Unknown, "answer_mismatch"),
    ("mismatched-currency", {}, Unknown, "answer_mismatch"),
    ("mismatched-metadata", {}, Unknown, "answer_mismatch"),
    ("mismatched-payment", {}, Unknown, "answer_mismatch"),
    ("unknown-status", {}, Pending, ""),
]
READING_FAULTS = {"list-unreadable", "list-lags"}


def word_of(outcome: Outcome) -> str:
    return str(getattr(outcome, "reason", getattr(outcome, "code", "")))


@WAYS
@pytest.mark.parametrize(
    ("fault", "params", "kind", "word"),
    FAULT_CASES,
    ids=[f"{fault}{params or ''}" for fault, params, _, _ in FAULT_CASES],
)
def test_each_fault_has_its_outcome_and_reading_tells_what_is_true(
    sandbox: Sandbox, fault: str, params: dict[str, Any], kind: type, word: str, way: Way
) -> None:
    if way is CREDIT and fault == "unknown-status":
        kind = Succeeded  # a store credit has no status
    owner, provider = way.new_owner(sandbox), provider_of(sandbox)
    sandbox.fault(fault, match={"method": "POST", "path": way.path}, **params)
    outcome = way.send(provider, owner)
    assert (type(outcome), word_of(outcome)) == (kind, word)

    sandbox.clear_faults()
    way.wait_until_readable(provider, owner)
    exists = len(way.existing(sandbox, owner))
    expected = FAULTS[fault].executed
    assert exists <= 1
    if expected != "as usual" and "executed" not in params:
        assert exists == (1 if expected == "yes" else 0)
    if kind in (NotSent, RateLimited, Misconfigured, Refused):
        assert exists == 0
    else:
        judgement = way.judged(provider, owner)
        assert isinstance(judgement, Found if exists else Absent)
        assert judgement.strangers == ()


def test_every_fault_of_the_sandbox_has_a_case() -> None:
    assert {case[0] for case in FAULT_CASES} | READING_FAULTS == set(FAULTS)


@pytest.mark.parametrize("should_retry", ["true", "false", "absent"])
def test_one_call_is_one_request_whatever_stripe_advises(
    sandbox: Sandbox, should_retry: str
) -> None:
    sandbox.settings(should_retry_on_500=should_retry)
    payment = a_payment(sandbox)
    sandbox.fault("error-500-not-executed", times=None)
    provider_of(sandbox).send_refund(request=a_request(payment_intent=payment))
    assert len(sandbox.requests("POST", "/v1/refunds")) == 1


@WAYS
def test_the_same_key_again_gives_the_same_effect_marked_as_replayed(
    sandbox: Sandbox, way: Way
) -> None:
    owner, provider = way.new_owner(sandbox), provider_of(sandbox)
    first, second = way.send(provider, owner), way.send(provider, owner)
    assert isinstance(first, Succeeded)
    assert isinstance(second, Succeeded)
    assert (first.effect.ref, first.evidence.replayed) == (second.effect.ref, False)
    assert second.evidence.replayed
    assert len(way.existing(sandbox, owner)) == 1


@WAYS
def test_a_stored_server_error_is_replayed_and_reading_finds_the_effect(
    sandbox: Sandbox, way: Way
) -> None:
    owner, provider = way.new_owner(sandbox), provider_of(sandbox)
    sandbox.fault("error-500-executed", match={"method": "POST", "path": way.path})
    for replayed in (False, True):
        outcome = way.send(provider, owner)
        assert isinstance(outcome, Unknown)
        assert outcome.evidence.replayed == replayed
    assert isinstance(way.judged(provider, owner), Found)
    assert len(way.existing(sandbox, owner)) == 1


def test_other_content_under_a_used_key_is_an_incident(sandbox: Sandbox) -> None:
    payment, provider = a_payment(sandbox), provider_of(sandbox)
    provider.send_refund(request=a_request(payment_intent=payment, amount_minor=100))
    outcome = provider.send_refund(request=a_request(payment_intent=payment, amount_minor=200))
    assert isinstance(outcome, Unknown)
    assert (outcome.reason, outcome.incident) == ("key_reused_with_other_content", True)


def test_a_payment_refunded_elsewhere_is_refused_and_must_be_read(sandbox: Sandbox) -> None:
    payment, provider = a_payment(sandbox), provider_of(sandbox)
    sandbox.refund_outside(payment)
    outcome = provider.send_refund(request=a_request(payment_intent=payment))
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.read_first) == ("already_refunded", True)
    judgement = judged(provider, payment)
    assert isinstance(judgement, Absent)
    assert len(judgement.strangers) == 1


def test_more_than_is_left_is_refused_and_must_be_read(sandbox: Sandbox) -> None:
    payment, provider = a_payment(sandbox), provider_of(sandbox)
    sandbox.refund_outside(payment, amount=100)
    outcome = provider.send_refund(request=a_request(payment_intent=payment))
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.read_first) == ("amount_over_remaining", True)


def test_a_disputed_payment_is_refused(sandbox: Sandbox) -> None:
    payment, provider = a_payment(sandbox), provider_of(sandbox)
    sandbox.dispute(payment)
    outcome = provider.send_refund(request=a_request(payment_intent=payment))
    assert isinstance(outcome, Refused)
    assert outcome.code == "disputed"


def test_a_payment_of_another_account_is_a_matter_of_configuration(sandbox: Sandbox) -> None:
    payment = a_payment(sandbox)
    provider = provider_of(sandbox, more_api_keys={"second": "sk_test_second"})
    request = a_request(payment_intent=payment, account="alias:second")
    assert isinstance(provider.send_refund(request=request), Misconfigured)
    assert isinstance(provider.send_refund(request=a_request(payment_intent=payment)), Succeeded)


def test_a_wrong_key_is_a_matter_of_configuration(sandbox: Sandbox) -> None:
    payment = a_payment(sandbox)
    provider = a_provider(sandbox.url, api_key="sk_test_nobody")
    outcome = provider.send_refund(request=a_request(payment_intent=payment))
    assert isinstance(outcome, Misconfigured)
    assert "sk_test_nobody" not in repr(outcome)
    read = provider.list_refunds(payment_ref=payment)
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == ("unauthorized", True)


def test_a_list_that_fails_is_unreadable_and_one_that_lags_is_empty(sandbox: Sandbox) -> None:
    payment, provider = a_payment(sandbox), provider_of(sandbox)
    provider.send_refund(request=a_request(payment_intent=payment))
    sandbox.fault("list-unreadable")
    read = provider.list_refunds(payment_ref=payment)
    assert isinstance(read, Unreadable)
    assert (read.reason, read.misconfigured) == ("server_error", False)
    sandbox.fault("list-lags")
    assert isinstance(judged(provider, payment), Absent)
    assert isinstance(judged(provider, payment), Found)


def test_many_refunds_of_one_payment_are_read_on_all_pages(sandbox: Sandbox) -> None:
    payment, provider = a_payment(sandbox), provider_of(sandbox, total_timeout_seconds=20)
    for _ in range(205):
        sandbox.refund_outside(payment, amount=1)
    listing = provider.list_refunds(payment_ref=payment)
    assert isinstance(listing, Listing)
    assert (len({effect.ref for effect in listing.effects}), listing.pages) == (205, 3)


def test_a_refund_that_fails_later_is_read_as_failed(sandbox: Sandbox) -> None:
    payment, provider = a_payment(sandbox), provider_of(sandbox)
    outcome = provider.send_refund(request=a_request(payment_intent=payment))
    assert isinstance(outcome, Succeeded)
    sandbox.fail_refund(outcome.effect.ref)
    effect = provider.retrieve_refund(refund_ref=outcome.effect.ref)
    assert isinstance(effect, ProviderEffect)
    assert (effect.status, effect.settlement) == ("failed", "failed")
    assert effect.failure_reason == "expired_or_canceled_card"
