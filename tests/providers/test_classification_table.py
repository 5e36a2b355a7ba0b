"""The table from answer to outcome, row by row."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import requests.exceptions as http
import urllib3.exceptions as transport

from effects.outcomes import (
    Misconfigured,
    NotSent,
    Outcome,
    Pending,
    RateLimited,
    Refused,
    Succeeded,
    Unknown,
)
from kernel.canonical import canonical_json
from providers.stripe.classify import Seen, _first_row, _read, classify, render_table
from providers.stripe.objects import REFUND as REFUND_KIND
from providers.stripe.payload import parse_payload
from providers.stripe.table import TABLE
from providers.stripe.wire import (
    Answer,
    AnswerTooLong,
    DeadlineBeforeSend,
    DeadlineCut,
    Fenced,
    FenceFailed,
)
from tests.providers.loopback import refund_body
from tests.providers.requests_made import ACTION, a_payload

PAYLOAD = parse_payload(REFUND_KIND, canonical_json(a_payload()))
REFUND = refund_body(
    {
        "amount": "7900",
        "payment_intent": "pi_1",
        **{f"metadata[{key}]": text for key, text in PAYLOAD.metadata.items()},
    }
)


def before_send(error: Exception) -> Seen:
    return Seen(error=error, answer=None, bytes_may_have_left=False, payload=PAYLOAD)


def after_send(error: Exception, **changes: Any) -> Seen:
    return Seen(error=error, answer=None, bytes_may_have_left=True, payload=PAYLOAD, **changes)


def answered(status: int, body: Any, headers: dict[str, str] | None = None) -> Seen:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Seen(
        error=None,
        answer=Answer(
            status=status, headers={"idempotency-key": ACTION} | (headers or {}), body=content
        ),
        bytes_may_have_left=True,
        payload=PAYLOAD,
        sent_key=ACTION,
    )


def refused(status: int, message: str = "No.", **error: Any) -> Seen:
    return answered(
        status, {"error": {"type": "invalid_request_error", "message": message} | error}
    )


def stored(seen: Seen) -> Seen:
    """The same answer out of what the provider has stored under the key."""
    assert seen.answer is not None
    headers = dict(seen.answer.headers) | {"idempotent-replayed": "true"}
    return replace(seen, answer=replace(seen.answer, headers=headers))


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def max_retries(reason: Exception) -> Exception:
    return http.ConnectionError(
        transport.MaxRetryError(None, "/v1/refunds", reason)  # type: ignore[arg-type]
    )


class TimeLimit(Exception):
    """Stands for the exception a worker's time limit raises in the middle of anything."""


CASES: list[tuple[str, Seen, type, str]] = [
    ("fenced", before_send(Fenced()), NotSent, "fenced"),
    ("fence failed", before_send(FenceFailed()), NotSent, "fence_failed"),
    ("late", before_send(DeadlineBeforeSend()), NotSent, "deadline"),
    ("connect timeout", before_send(http.ConnectTimeout()), NotSent, "connect_timeout"),
    (
        "connect timeout inside",
        before_send(max_retries(transport.ConnectTimeoutError("late"))),
        NotSent,
        "connect_timeout",
    ),
    (
        "no such name",
        before_send(
            max_retries(transport.NameResolutionError("nope", None, OSError()))  # type: ignore[arg-type]
        ),
        NotSent,
        "name_resolution",
    ),
    (
        "refused",
        before_send(max_retries(transport.NewConnectionError(None, "no"))),  # type: ignore[arg-type]
        NotSent,
        "connection_refused",
    ),
    ("bad certificate", before_send(http.SSLError()), NotSent, "tls_handshake"),
    ("bad header", before_send(http.InvalidHeader()), NotSent, "before_send"),
    ("time limit before the first byte", before_send(TimeLimit()), NotSent, "before_send"),
    ("cut", after_send(DeadlineCut()), Unknown, "deadline"),
    ("cut, seen as a reset", after_send(http.ConnectionError(), was_cut=True), Unknown, "deadline"),
    ("read timeout", after_send(http.ReadTimeout()), Unknown, "read_timeout"),
    (
        "read timeout in the body",
        after_send(
            http.ConnectionError(transport.ReadTimeoutError(None, "", ""))  # type: ignore[arg-type]
        ),
        Unknown,
        "read_timeout",
    ),
    ("truncated", after_send(http.ChunkedEncodingError()), Unknown, "truncated"),
    ("tls broke", after_send(http.SSLError()), Unknown, "tls"),
    (
        "reset",
        after_send(caused(http.ConnectionError(), ConnectionResetError())),
        Unknown,
        "connection_reset",
    ),
    # Looks like "not sent" by its class, and is not: the bytes may have left.
    ("connect timeout, too late", after_send(http.ConnectTimeout()), Unknown, "connection_reset"),
    ("too long", after_send(AnswerTooLong()), Unknown, "answer_too_long"),
    ("time limit", after_send(TimeLimit()), Unknown, "interrupted"),
    ("no error and no answer", after_send(ValueError()), Unknown, "interrupted"),
    ("succeeded", answered(200, REFUND), Succeeded, "succeeded"),
    ("created", answered(201, REFUND), Succeeded, "succeeded"),
    ("pending", answered(200, REFUND | {"status": "pending"}), Pending, "pending"),
    (
        "requires action",
        answered(200, REFUND | {"status": "requires_action"}),
        Pending,
        "requires_action",
    ),
    ("a new status", answered(200, REFUND | {"status": "resting"}), Pending, "resting"),
    ("failed", answered(200, REFUND | {"status": "failed"}), Refused, "failed"),
    ("canceled", answered(200, REFUND | {"status": "canceled"}), Refused, "failed"),
    ("amount differs", answered(200, REFUND | {"amount": 790}), Unknown, "answer_mismatch"),
    ("currency differs", answered(200, REFUND | {"currency": "eur"}), Unknown, "answer_mismatch"),
    (
        "payment differs",
        answered(200, REFUND | {"payment_intent": "pi_2"}),
        Unknown,
        "answer_mismatch",
    ),
    ("no metadata", answered(200, REFUND | {"metadata": {}}), Unknown, "answer_mismatch"),
    (
        "another instance",
        answered(200, REFUND | {"metadata": PAYLOAD.metadata | {"instance": "shop-2"}}),
        Unknown,
        "answer_mismatch",
    ),
    (
        "another key",
        answered(200, REFUND, {"idempotency-key": "refund:other"}),
        Unknown,
        "answer_mismatch",
    ),
    (
        "a refusal for another key",
        answered(
            400,
            {"error": {"type": "invalid_request_error", "code": "charge_disputed"}},
            {"idempotency-key": "refund:other"},
        ),
        Unknown,
        "answer_mismatch",
    ),
    ("html with 200", answered(200, b"<html>"), Unknown, "unreadable_answer"),
    ("empty with 200", answered(200, b""), Unknown, "unreadable_answer"),
    ("a list with 200", answered(200, []), Unknown, "unreadable_answer"),
    ("deep nesting", answered(200, b"[" * 200_000), Unknown, "unreadable_answer"),
    ("an error with 200", refused(200), Unknown, "unreadable_answer"),
    ("amount as text", answered(200, REFUND | {"amount": "7900"}), Unknown, "unreadable_answer"),
    ("amount as true", answered(200, REFUND | {"amount": True}), Unknown, "unreadable_answer"),
    ("redirect", answered(307, b""), Unknown, "redirect"),
    ("html 502", answered(502, b"<html>"), Unknown, "server_error"),
    ("empty 500", answered(500, b""), Unknown, "server_error"),
    ("500", refused(500, type="api_error"), Unknown, "server_error"),
    ("html 404 of a proxy", answered(404, b"<html>"), Unknown, "unreadable_answer"),
    ("html 429 of a proxy", answered(429, b"<html>"), Unknown, "unreadable_answer"),
    ("400 without an error", answered(400, {}), Unknown, "unreadable_answer"),
    ("409", refused(409, code="idempotency_key_in_use"), Unknown, "conflict"),
    ("409, other type", refused(409, type="idempotency_error"), Unknown, "conflict"),
    ("424", refused(424, type="api_error"), Unknown, "external_dependency"),
    ("429 lock", refused(429, code="lock_timeout"), RateLimited, ""),
    ("429 rate", refused(429), RateLimited, ""),
    ("400 rate", refused(400, code="rate_limit"), RateLimited, ""),
    (
        "key reused",
        refused(400, type="idempotency_error"),
        Unknown,
        "key_reused_with_other_content",
    ),
    ("401", refused(401), Misconfigured, "unauthorized"),
    ("403", refused(403), Misconfigured, "forbidden"),
    ("account", refused(400, code="account_invalid"), Misconfigured, "account_invalid"),
    ("mode", refused(400, code="livemode_mismatch"), Misconfigured, "livemode_mismatch"),
    ("404", refused(404, code="resource_missing", param="id"), Misconfigured, "not_found"),
    ("400 missing", refused(400, code="resource_missing"), Misconfigured, "not_found"),
    ("stored 404", stored(refused(404, code="resource_missing")), Refused, "not_found"),
    ("stored 403", stored(refused(403)), Refused, "not_found"),
    ("stored mode", stored(refused(400, code="livemode_mismatch")), Refused, "misconfigured"),
    ("stored missing", stored(refused(400, code="resource_missing")), Refused, "misconfigured"),
    ("refunded", refused(400, code="charge_already_refunded"), Refused, "already_refunded"),
    (
        "over what is left",
        refused(
            400,
            "Refund amount ($30.00) is greater than unrefunded amount on charge ($25.00)",
            param="amount",
        ),
        Refused,
        "amount_over_remaining",
    ),
    (
        "over what is left, older words",
        refused(
            400, "Refund amount ($30.00) is greater than charge amount ($25.00)", param="amount"
        ),
        Refused,
        "amount_over_remaining",
    ),
    ("too large", refused(400, code="amount_too_large"), Refused, "amount_over_remaining"),
    ("disputed", refused(400, code="charge_disputed"), Refused, "disputed"),
    ("disputed payment", refused(400, code="refund_disputed_payment"), Refused, "disputed"),
    ("not refundable", refused(400, code="charge_not_refundable"), Refused, "not_refundable"),
    (
        "not captured",
        refused(400, "This uncaptured Charge was created by a PaymentIntent (pi_1)."),
        Refused,
        "not_captured",
    ),
    (
        "no charge",
        refused(400, "This PaymentIntent (pi_1) does not have a successful charge to refund."),
        Refused,
        "no_successful_charge",
    ),
    (
        "balance",
        refused(400, message_code="insufficient_balance_for_refund"),
        Refused,
        "insufficient_funds",
    ),
    (
        "balance in words",
        refused(400, "Insufficient funds in your Stripe balance to refund this amount."),
        Refused,
        "insufficient_funds",
    ),
    (
        "another currency",
        refused(
            400,
            "Can't combine currencies on a single customer. This customer has had a subscription, "
            "coupon, or invoice item with currency eur",
        ),
        Refused,
        "currency_mismatch",
    ),
    ("unknown parameter", refused(400, code="parameter_unknown"), Refused, "invalid_parameter"),
    (
        "amount of zero",
        refused(400, code="parameter_invalid_integer", param="amount"),
        Refused,
        "invalid_parameter",
    ),
    ("reason", refused(400, "Invalid reason", param="reason"), Refused, "invalid_parameter"),
    (
        "no payment",
        refused(
            400,
            "One of the following params should be provided for this request: "
            "payment_intent or charge.",
        ),
        Refused,
        "invalid_parameter",
    ),
    ("402", refused(402, type="card_error"), Refused, "declined"),
    ("a new refusal", refused(400, code="moon_phase"), Refused, "unrecognised_refusal"),
    ("400 of a new type", refused(400, type="api_error"), Unknown, "unrecognised_answer"),
    ("418", refused(418), Unknown, "unrecognised_answer"),
]

READ_FIRST = {
    "already_refunded",
    "amount_over_remaining",
    "disputed",
    "not_refundable",
    "declined",
    "unrecognised_refusal",
}
INCIDENTS = {"answer_mismatch", "key_reused_with_other_content"}


def word_of(outcome: Outcome) -> str:
    if isinstance(outcome, Succeeded | Pending):
        return outcome.effect.status
    if isinstance(outcome, Refused):
        return outcome.code
    if isinstance(outcome, RateLimited):
        return ""
    return outcome.reason


@pytest.mark.parametrize(
    ("seen", "kind", "word"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_each_answer_has_its_outcome(seen: Seen, kind: type, word: str) -> None:
    outcome = classify(seen)
    assert (type(outcome), word_of(outcome)) == (kind, word)
    if isinstance(outcome, Refused):
        assert outcome.read_first == (word in READ_FIRST)
    if isinstance(outcome, Unknown):
        assert outcome.incident == (word in INCIDENTS)


def test_every_row_of_the_table_is_reached_by_a_case() -> None:
    reached = {id(_first_row(_read(seen)[0])) for _, seen, _, _ in CASES}
    assert [row.what for row in TABLE if id(row) not in reached] == []


@pytest.mark.parametrize("status", range(300, 600))
def test_no_status_alone_is_a_success_a_refusal_or_proof_of_not_sent(status: int) -> None:
    outcome = classify(answered(status, b"<html>proxy</html>"))
    assert isinstance(outcome, Unknown)


def test_nothing_that_may_have_left_is_ever_called_not_sent() -> None:
    for _, seen, _, _ in CASES:
        assert not (seen.bytes_may_have_left and isinstance(classify(seen), NotSent))


def test_what_the_watchdog_cut_is_not_an_answer_however_whole_it_looks() -> None:
    seen = answered(200, REFUND)
    cut = Seen(error=None, answer=seen.answer, bytes_may_have_left=True, was_cut=True)
    assert word_of(classify(cut)) == "deadline"


def test_an_exception_after_a_whole_answer_does_not_hide_the_refund() -> None:
    seen = Seen(
        error=RuntimeError("the SDK tripped over a header"),
        answer=answered(200, REFUND).answer,
        bytes_may_have_left=True,
        payload=PAYLOAD,
        sent_key=ACTION,
    )
    assert isinstance(classify(seen), Succeeded)


def test_an_absent_key_echo_is_no_mismatch() -> None:
    assert isinstance(classify(answered(200, REFUND, {"idempotency-key": ""})), Succeeded)


def test_evidence_keeps_the_replay_the_request_and_the_code() -> None:
    headers = {
        "idempotent-replayed": "true",
        "request-id": "req_9",
        "stripe-should-retry": "false",
        "original-request": "req_1",
    }
    seen = answered(500, {"error": {"type": "api_error", "code": "x", "message": "Sorry"}}, headers)
    evidence = classify(seen).evidence
    assert (evidence.http_status, evidence.replayed, evidence.request_id) == (500, True, "req_9")
    assert (evidence.error_code, evidence.message) == ("x", "Sorry")
    assert evidence.extra["stripe_should_retry"] == "false"
    assert evidence.extra["original_request"] == "req_1"


def test_evidence_is_fit_for_a_database_and_holds_no_secrets() -> None:
    body = json.dumps(
        {"error": {"type": "x", "message": "Key sk_live_abc\x00\ud800 and rk_test_1", "n": "y"}}
    ).encode()
    evidence = classify(answered(401, body + b" " * 9000 + b"\x00\xff")).evidence
    text = evidence.message + evidence.body_excerpt
    assert "sk_live" not in text
    assert "rk_test" not in text
    assert "\x00" not in text
    text.encode("utf-8")
    assert len(evidence.body_excerpt) <= 2000


def test_an_html_body_is_kept_short() -> None:
    evidence = classify(answered(502, b"<html>" + b"x" * 100_000)).evidence
    assert len(evidence.body_excerpt) == 2000


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7.0), ("", None), ("-1", None), ("1e9", None), ("²", None)]
)
def test_retry_after_is_whole_seconds_or_nothing(text: str, seconds: float | None) -> None:
    outcome = classify(
        answered(429, {"error": {"type": "invalid_request_error"}}, {"retry-after": text})
    )
    assert isinstance(outcome, RateLimited)
    assert outcome.retry_after_seconds == seconds


def test_the_table_can_be_printed() -> None:
    lines = render_table().splitlines()
    assert len(lines) == len(TABLE) + 2
    # Five columns; a bar inside a cell is escaped.
    assert all(line.replace("\\|", "").count("|") == 6 for line in lines)
