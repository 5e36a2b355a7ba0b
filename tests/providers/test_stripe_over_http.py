"""The adapter and the real SDK against real sockets: each way a call can end badly."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import stripe

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
from tests.providers.loopback import (
    Handler,
    Loopback,
    answers,
    drips,
    loopback,
    raw_answer,
    refund_body,
    refunds_everything,
    resets,
    silent,
)
from tests.providers.requests_made import ACTION, a_provider, a_request


def send_to(handler: Handler) -> tuple[Outcome, Loopback, float]:
    with loopback(handler) as server:
        started = time.monotonic()
        outcome = a_provider(server.base).send_refund(request=a_request())
        return outcome, server, time.monotonic() - started


def error(**fields: str) -> dict[str, object]:
    return {"error": {"type": "invalid_request_error", "message": "No."} | fields}


def test_a_refund_succeeds_and_its_answer_is_evidence() -> None:
    outcome, server, _ = send_to(refunds_everything)
    assert isinstance(outcome, Succeeded)
    assert (outcome.effect.ref, outcome.effect.amount_minor) == ("re_3", 7900)
    assert (outcome.effect.currency, outcome.effect.payment_ref) == ("USD", "pi_1")
    assert (outcome.evidence.http_status, outcome.evidence.request_id) == (200, "req_1")
    assert len(server.requests) == 1


UNKNOWN: list[tuple[str, Handler, str]] = [
    ("the server hangs", silent(2), "read_timeout"),
    ("the connection is reset", resets(), "connection_reset"),
    ("the connection closes without an answer", raw_answer(b""), "connection_reset"),
    ("garbage instead of HTTP", raw_answer(b"\x00\xff garbage\r\n\r\n"), "connection_reset"),
    (
        "a truncated body with a length",
        raw_answer(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"id":'),
        "truncated",
    ),
    (
        "a truncated chunked body",
        raw_answer(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{"id":'),
        "truncated",
    ),
    (
        "a truncated body that only the close ends",
        raw_answer(b'HTTP/1.1 200 OK\r\n\r\n{"id": "re_1", "object": "ref'),
        "unreadable_answer",
    ),
    ("a page of HTML with 200", answers(200, b"<html>Hello</html>"), "unreadable_answer"),
    ("a page of HTML with 502", answers(502, b"<html>Bad gateway</html>"), "server_error"),
    ("an empty 500", answers(500, b""), "server_error"),
    ("JSON without an error", answers(400, {"oops": 1}), "unreadable_answer"),
    ("JSON that is a list", answers(200, b"[]"), "unreadable_answer"),
    ("a conflict", answers(409, error(code="idempotency_key_in_use")), "conflict"),
    ("a failed dependency", answers(424, error()), "external_dependency"),
    (
        "a server error, replayed",
        answers(500, error(type="api_error"), {"Idempotent-Replayed": "true"}),
        "server_error",
    ),
    ("a redirect", answers(307, b"", {"Location": "/v1/refunds"}), "redirect"),
    (
        "a body larger than any answer",
        answers(200, b" " * (9 * 1024 * 1024)),
        "answer_too_long",
    ),
    (
        "another refund than the one asked for",
        answers(200, refund_body({"amount": "500", "payment_intent": "pi_9"})),
        "answer_mismatch",
    ),
]


@pytest.mark.parametrize(
    ("handler", "reason"), [case[1:] for case in UNKNOWN], ids=[case[0] for case in UNKNOWN]
)
def test_an_answer_that_proves_nothing_is_unknown(handler: Handler, reason: str) -> None:
    outcome, server, _ = send_to(handler)
    assert isinstance(outcome, Unknown)
    assert outcome.reason == reason
    # One call is one request on the wire: nothing is retried and no redirect is followed.
    assert len(server.requests) == 1


def test_a_replayed_server_error_keeps_that_it_was_replayed() -> None:
    outcome, _, _ = send_to(answers(500, error(type="api_error"), {"Idempotent-Replayed": "true"}))
    assert outcome.evidence.replayed


def test_a_stripe_answer_asking_for_a_retry_is_not_obeyed() -> None:
    _, server, _ = send_to(answers(500, error(), {"Stripe-Should-Retry": "true"}))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "fields", "kind", "word"),
    [
        (429, {"code": "lock_timeout"}, RateLimited, None),
        (401, {}, Misconfigured, "unauthorized"),
        (403, {}, Misconfigured, "forbidden"),
        (404, {"code": "resource_missing"}, Misconfigured, "not_found"),
        (400, {"code": "charge_already_refunded"}, Refused, "already_refunded"),
        (400, {"code": "charge_disputed"}, Refused, "disputed"),
        (400, {"message_code": "insufficient_balance_for_refund"}, Refused, "insufficient_funds"),
        (400, {"type": "idempotency_error"}, Unknown, "key_reused_with_other_content"),
    ],
)
def test_stripe_errors_go_through_the_sdk_into_the_table(
    status: int, fields: dict[str, str], kind: type, word: str | None
) -> None:
    outcome, _, _ = send_to(answers(status, error(**fields)))
    assert type(outcome) is kind
    if word is not None:
        assert word in (getattr(outcome, "reason", None), getattr(outcome, "code", None))


def test_a_pending_refund_is_pending() -> None:
    def handler(connection: object, request: object) -> None:
        body = refund_body(request.form, status="pending", pending_reason="processing")  # type: ignore[attr-defined]
        answers(200, body)(connection, request)  # type: ignore[arg-type]

    outcome, _, _ = send_to(handler)
    assert isinstance(outcome, Pending)
    assert outcome.effect.pending_reason == "processing"


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 400,
        # Without a length the cut looks like the end of a whole answer.
        b'HTTP/1.1 200 OK\r\n\r\n{"id": "re_1"}' + b" " * 400,
    ],
    ids=["in the headers", "in the body"],
)
def test_a_dripping_server_is_cut_at_the_total_deadline_and_unknown(text: bytes) -> None:
    outcome, server, took_seconds = send_to(drips(text, every_seconds=0.02))
    assert isinstance(outcome, Unknown)
    assert outcome.reason == "deadline"
    assert took_seconds < 5
    assert len(server.requests) == 1


def test_the_deadline_works_in_many_threads_at_once() -> None:
    outcomes: list[Outcome] = []
    with loopback(drips(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 400, every_seconds=0.05)) as server:
        provider = a_provider(server.base)

        def send() -> None:
            outcomes.append(provider.send_refund(request=a_request()))

        threads = [threading.Thread(target=send) for _ in range(8)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_seconds = time.monotonic() - started
    assert [getattr(outcome, "reason", "") for outcome in outcomes] == ["deadline"] * 8
    assert took_seconds < 5


def test_no_watchdog_is_left_behind() -> None:
    before = threading.active_count()
    with loopback(refunds_everything) as server:
        for _ in range(5):
            a_provider(server.base, total_timeout_seconds=60).send_refund(request=a_request())
    time.sleep(0.2)
    assert threading.active_count() <= before + 1


def test_a_closed_port_is_proof_of_not_sent() -> None:
    outcome = a_provider("http://127.0.0.1:1").send_refund(request=a_request())
    assert isinstance(outcome, NotSent)
    assert outcome.reason == "connection_refused"


def test_an_unknown_name_is_proof_of_not_sent() -> None:
    outcome = a_provider("http://provider.invalid").send_refund(request=a_request())
    assert isinstance(outcome, NotSent)
    assert outcome.reason == "name_resolution"


def test_a_handshake_that_never_ends_is_proof_of_not_sent() -> None:
    with loopback(silent(3)) as server:
        base = server.base.replace("http:", "https:")
        outcome = a_provider(base).send_refund(request=a_request())
    assert isinstance(outcome, NotSent)
    assert outcome.reason == "tls_handshake"


def test_the_fence_is_asked_once_and_its_no_sends_nothing() -> None:
    asked = []

    def fence() -> bool:
        asked.append(True)
        return False

    with loopback(refunds_everything) as server:
        outcome = a_provider(server.base).send_refund(request=a_request(), before_bytes_leave=fence)
        assert isinstance(outcome, NotSent)
        assert outcome.reason == "fenced"
        assert (len(asked), server.requests) == (1, [])


def test_the_fence_is_asked_after_connecting_and_before_the_first_byte() -> None:
    with loopback(refunds_everything) as server:
        seen = []

        def fence() -> bool:
            time.sleep(0.1)
            seen.append((server.connections, len(server.requests)))
            return True

        outcome = a_provider(server.base).send_refund(request=a_request(), before_bytes_leave=fence)
    assert isinstance(outcome, Succeeded)
    assert seen == [(1, 0)]


def test_a_fence_that_fails_sends_nothing() -> None:
    def fence() -> bool:
        raise OSError("the database went away")

    with loopback(refunds_everything) as server:
        outcome = a_provider(server.base).send_refund(request=a_request(), before_bytes_leave=fence)
        assert isinstance(outcome, NotSent)
        assert outcome.reason == "fence_failed"
        assert server.requests == []


def test_a_fence_that_takes_too_long_sends_nothing() -> None:
    def fence() -> bool:
        time.sleep(0.4)
        return True

    with loopback(refunds_everything) as server:
        outcome = a_provider(server.base, total_timeout_seconds=0.2).send_refund(
            request=a_request(), before_bytes_leave=fence
        )
        assert isinstance(outcome, NotSent)
        assert outcome.reason == "deadline"
        assert server.requests == []


def test_an_interruption_while_waiting_for_the_answer_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class TimeLimit(Exception):
        pass

    def interrupted(*args: object) -> bytes:
        raise TimeLimit

    monkeypatch.setattr("providers.stripe.wire._read", interrupted)
    outcome, server, _ = send_to(refunds_everything)
    assert isinstance(outcome, Unknown)
    assert outcome.reason == "interrupted"
    assert len(server.requests) == 1


def test_the_end_of_the_process_is_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*args: object) -> bytes:
        raise SystemExit

    monkeypatch.setattr("providers.stripe.wire._read", ended)
    with pytest.raises(SystemExit):
        send_to(refunds_everything)


def test_a_notice_of_stripe_does_not_hide_a_refund() -> None:
    def handler(connection: object, request: object) -> None:
        body = refund_body(request.form)  # type: ignore[attr-defined]
        answers(200, body, {"Stripe-Notice": "Something is old."})(connection, request)  # type: ignore[arg-type]

    outcome, _, _ = send_to(handler)
    assert isinstance(outcome, Succeeded)


def over_tls(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> tuple[Outcome, Loopback, float]:
    certificate = Path(__file__).with_name("loopback.pem")
    monkeypatch.setattr(stripe, "ca_bundle_path", str(certificate))
    with loopback(handler, certificate=certificate) as server:
        started = time.monotonic()
        outcome = a_provider(server.base).send_refund(request=a_request())
        return outcome, server, time.monotonic() - started


def test_a_refund_succeeds_over_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, server, _ = over_tls(refunds_everything, monkeypatch)
    assert isinstance(outcome, Succeeded)
    assert server.requests[0].headers["idempotency-key"] == ACTION


def test_a_server_dripping_over_tls_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, _, took_seconds = over_tls(
        drips(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 400, every_seconds=0.02), monkeypatch
    )
    assert isinstance(outcome, Unknown)
    assert outcome.reason == "deadline"
    assert took_seconds < 5


def test_a_certificate_nobody_signed_is_proof_of_not_sent() -> None:
    certificate = Path(__file__).with_name("loopback.pem")
    with loopback(refunds_everything, certificate=certificate) as server:
        outcome = a_provider(server.base).send_refund(request=a_request())
    assert isinstance(outcome, NotSent)
    assert outcome.reason == "tls_handshake"
    assert server.requests == []
