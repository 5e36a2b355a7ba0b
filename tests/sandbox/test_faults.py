"""Each fault: what the wire shows, and whether the refund exists."""

import json
import socket
import time

import pytest
import stripe

from providers.sandbox import FAULTS, Sandbox

from .calls import (
    connected,
    create_raw,
    failure,
    impatient_client,
    paid,
    raw_request,
    refund,
    until_closed,
)


def refunds(sandbox: Sandbox) -> int:
    return len(sandbox.refunds())


# Lost connections


@pytest.mark.parametrize(
    ("fault", "executed"), [("reset-before-execution", 0), ("reset-after-execution", 1)]
)
def test_a_reset_is_a_real_rst(sandbox: Sandbox, fault: str, executed: int) -> None:
    sandbox.fault(fault)
    with pytest.raises(ConnectionResetError):
        create_raw(sandbox, paid(sandbox))
    assert refunds(sandbox) == executed


@pytest.mark.parametrize(
    ("fault", "executed"), [("close-before-execution", 0), ("close-after-execution", 1)]
)
def test_a_close_ends_without_a_byte(sandbox: Sandbox, fault: str, executed: int) -> None:
    sandbox.fault(fault)
    assert create_raw(sandbox, paid(sandbox)) == b""
    assert refunds(sandbox) == executed


@pytest.mark.parametrize(
    ("fault", "executed"), [("hang-before-execution", 0), ("hang-after-execution", 1)]
)
def test_a_hang_outlives_the_read_timeout(sandbox: Sandbox, fault: str, executed: int) -> None:
    sandbox.fault(fault)
    payment = paid(sandbox)
    error = failure(lambda: refund(impatient_client(sandbox), payment))
    assert isinstance(error, stripe.APIConnectionError)
    assert "ReadTimeout" in repr(error.__cause__)
    assert refunds(sandbox) == executed


def test_the_same_key_after_a_lost_answer_finds_the_refund(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    sandbox.fault("reset-after-execution")
    payment = paid(sandbox)
    failure(lambda: refund(client, payment))
    assert refund(client, payment).id == sandbox.refunds()[0]["id"]
    assert refunds(sandbox) == 1


def test_slow_executes_even_when_the_client_has_gone(sandbox: Sandbox) -> None:
    sandbox.fault("slow", seconds=1.0)
    payment = paid(sandbox)
    failure(lambda: refund(impatient_client(sandbox), payment))
    assert refunds(sandbox) == 0
    deadline = time.monotonic() + 5
    while refunds(sandbox) == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert refunds(sandbox) == 1


def test_executed_late_is_in_flight_until_it_is_done(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    sandbox.fault("executed-late", seconds=60)
    payment = paid(sandbox)
    failure(lambda: refund(client, payment))
    assert client.v1.refunds.list({"payment_intent": payment}).data == []
    assert failure(lambda: refund(client, payment)).http_status == 409
    sandbox.advance(61)
    assert refunds(sandbox) == 1
    assert refund(client, payment).id == sandbox.refunds()[0]["id"]


def test_executed_late_can_hold_the_line_first(sandbox: Sandbox) -> None:
    sandbox.fault("executed-late", seconds=60, hang_seconds=30)
    payment = paid(sandbox)
    error = failure(lambda: refund(impatient_client(sandbox), payment))
    assert "ReadTimeout" in repr(error.__cause__)
    sandbox.advance(91)
    assert refunds(sandbox) == 1


def test_down_refuses_and_comes_back_on_the_same_port(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox)
    client.v1.balance.retrieve()  # leaves a connection open, which must not survive
    sandbox.down(0.5)
    error = failure(lambda: refund(client, payment))
    assert "NewConnectionError" in repr(error.__cause__)
    time.sleep(0.8)
    assert refund(client, payment).status == "succeeded"


def test_refuse_connection_is_a_fault_too(sandbox: Sandbox) -> None:
    sandbox.fault("refuse-connection", seconds=5)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", sandbox.port), timeout=1)


def test_connect_timeout_leaves_syns_without_an_answer(sandbox: Sandbox) -> None:
    payment = paid(sandbox)
    sandbox.fault("connect-timeout", seconds=1.5)
    error = failure(lambda: refund(impatient_client(sandbox), payment))
    assert "ConnectTimeout" in repr(error.__cause__)
    time.sleep(1.5)
    assert refund(impatient_client(sandbox), payment).status == "succeeded"
    assert refunds(sandbox) == 1


# Broken answers


def test_a_drip_outlives_the_timeout_of_requests(sandbox: Sandbox) -> None:
    sandbox.fault("drip", chunk_bytes=100, interval_seconds=0.1)
    payment = paid(sandbox)
    started = time.monotonic()
    assert refund(impatient_client(sandbox), payment).status == "succeeded"
    # The SDK's timeout is for each read: the whole took longer, and nothing timed out.
    assert time.monotonic() - started > 0.5


def test_a_truncated_content_length_is_short_of_what_it_says(sandbox: Sandbox) -> None:
    sandbox.fault("truncated-content-length")
    head, _, body = create_raw(sandbox, paid(sandbox)).partition(b"\r\n\r\n")
    (said,) = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Length")]
    assert 0 < len(body) < int(said.split(b":")[1])
    assert refunds(sandbox) == 1


def test_a_truncated_chunk_has_no_end(sandbox: Sandbox) -> None:
    sandbox.fault("truncated-chunked")
    head, _, body = create_raw(sandbox, paid(sandbox)).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    size, _, data = body.partition(b"\r\n")
    assert 0 < len(data) < int(size, 16)
    assert refunds(sandbox) == 1


def test_a_truncated_chunk_is_a_connection_error_to_the_sdk(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    sandbox.fault("truncated-chunked")
    payment = paid(sandbox)
    assert isinstance(failure(lambda: refund(client, payment)), stripe.APIConnectionError)


def test_a_close_delimited_truncation_looks_complete(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    sandbox.fault("truncated-close-delimited-200")
    payment = paid(sandbox)
    error = failure(lambda: refund(client, payment))
    assert isinstance(error, stripe.APIError)
    assert error.http_status == 200
    assert refunds(sandbox) == 1


@pytest.mark.parametrize(
    ("fault", "status", "executed"),
    [
        ("html-200", 200, 1),
        ("html-502", 502, 0),
        ("html-502-executed", 502, 1),
        ("empty-500", 500, 1),
        ("json-without-error", 500, 1),
    ],
)
def test_answers_that_are_not_stripe_answers(
    sandbox: Sandbox, client: stripe.StripeClient, fault: str, status: int, executed: int
) -> None:
    sandbox.fault(fault)
    payment = paid(sandbox)
    error = failure(lambda: refund(client, payment))
    assert isinstance(error, stripe.APIError)
    assert (error.http_status, error.error) == (status, None)
    assert refunds(sandbox) == executed


@pytest.mark.parametrize(
    ("fault", "executed"), [("error-500-executed", 1), ("error-500-not-executed", 0)]
)
def test_a_500_is_remembered_under_its_key(
    sandbox: Sandbox, client: stripe.StripeClient, fault: str, executed: int
) -> None:
    sandbox.fault(fault)
    payment = paid(sandbox)
    first = failure(lambda: refund(client, payment))
    assert (first.http_status, first.error.type) == (500, "api_error")
    assert first.headers["Stripe-Should-Retry"] == "false"
    again = failure(lambda: refund(client, payment))
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.http_body == first.http_body
    assert refunds(sandbox) == executed
    assert len(client.v1.refunds.list({"payment_intent": payment}).data) == executed


def test_an_executed_500_can_keep_its_events_back(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    sandbox.fault("error-500-executed", events=False)
    payment = paid(sandbox)
    failure(lambda: refund(client, payment))
    assert client.v1.events.list({"type": "refund.created"}).data == []


@pytest.mark.parametrize("should_retry", [True, False, None])
@pytest.mark.parametrize(
    ("fault", "code"),
    [("rate-limit-429", "rate_limit"), ("lock-timeout-429", "lock_timeout")],
)
def test_a_429_says_or_does_not_say_whether_to_retry(
    sandbox: Sandbox,
    client: stripe.StripeClient,
    fault: str,
    code: str,
    should_retry: bool | None,
) -> None:
    sandbox.fault(fault, should_retry=should_retry)
    payment = paid(sandbox)
    error = failure(lambda: refund(client, payment))
    assert (error.http_status, error.error.code) == (429, code)
    said = None if should_retry is None else str(should_retry).lower()
    assert error.headers.get("Stripe-Should-Retry") == said
    assert refunds(sandbox) == 0
    assert refund(client, payment).status == "succeeded"  # nothing was remembered


@pytest.mark.parametrize(
    ("fault", "status", "code", "remembered"),
    [
        ("error-409-in-flight", 409, "idempotency_key_in_use", False),
        ("unauthorized-401", 401, None, False),
        ("forbidden-403", 403, None, False),
        ("list-unreadable", 500, None, False),
        ("error-424", 424, None, True),
        ("insufficient-balance-400", 400, None, True),
        ("disputed-400", 400, "charge_disputed", True),
        ("already-refunded-400", 400, "charge_already_refunded", True),
        ("not-found-404", 404, "resource_missing", True),
    ],
)
def test_refusals_execute_nothing(
    sandbox: Sandbox,
    client: stripe.StripeClient,
    fault: str,
    status: int,
    code: str | None,
    remembered: bool,
) -> None:
    sandbox.fault(fault, match={"method": "POST", "path": "/v1/refunds"})
    payment = paid(sandbox)
    error = failure(lambda: refund(client, payment))
    assert error.http_status == status
    assert getattr(error.error, "code", None) == code
    assert refunds(sandbox) == 0
    if remembered:
        assert failure(lambda: refund(client, payment)).headers["Idempotent-Replayed"] == "true"
    else:
        assert refund(client, payment).status == "succeeded"


def test_a_424_can_have_executed(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    sandbox.fault("error-424", executed=True)
    payment = paid(sandbox)
    assert failure(lambda: refund(client, payment)).http_status == 424
    assert refunds(sandbox) == 1


def test_a_redirect_makes_the_sdk_post_again(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    sandbox.fault("redirect-307", times=3)
    payment = paid(sandbox)
    assert refund(client, payment).status == "succeeded"
    statuses = [line["status"] for line in sandbox.requests("POST", "/v1/refunds")]
    assert statuses == [307, 307, 307, 200]
    assert refunds(sandbox) == 1


def test_a_swapped_response_is_another_refund_whole(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    other = refund(client, paid(sandbox), 100, key="other")
    sandbox.fault("swapped-response")
    payment = paid(sandbox)
    got = refund(client, payment)
    assert got.id == other.id
    assert got.last_response.idempotency_key == "other"  # type: ignore[union-attr]
    assert sandbox.ledger()["payments"][payment]["refunds"] == 1


def test_a_swapped_response_is_made_up_when_there_is_no_other(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    sandbox.fault("swapped-response")
    payment = paid(sandbox)
    got = refund(client, payment)
    assert got.id != sandbox.refunds()[0]["id"]
    assert got.payment_intent != payment


@pytest.mark.parametrize(
    ("fault", "field", "default", "given"),
    [
        ("mismatched-amount", "amount", 2501, 1),
        ("mismatched-currency", "currency", "eur", "gbp"),
        ("mismatched-metadata", "metadata", {}, {"action_id": "other"}),
        ("mismatched-payment", "payment_intent", None, "pi_other"),
        ("unknown-status", "status", "unheard_of", "lost"),
    ],
)
def test_a_mismatched_answer_differs_in_one_field(
    sandbox: Sandbox,
    client: stripe.StripeClient,
    fault: str,
    field: str,
    default: object,
    given: object,
) -> None:
    sandbox.fault(fault)
    sandbox.call("faults", fault=fault, **{field: given})
    payment = paid(sandbox)
    for told in (default, given):
        got = refund(client, payment, metadata={"action_id": "a1"}).to_dict()
        real = client.v1.refunds.retrieve(got["id"]).to_dict()
        assert got[field] != real[field]
        assert told is None or got[field] == told
        assert {**got, field: real[field]} == real


def test_a_list_can_be_unreadable(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    sandbox.fault("list-unreadable", times=None)
    payment = paid(sandbox)
    for _ in range(3):
        error = failure(lambda: client.v1.refunds.list({"payment_intent": payment}))
        assert error.http_status == 500
    sandbox.clear_faults()
    assert client.v1.refunds.list({"payment_intent": payment}).data == []


def test_a_list_can_lag(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    sandbox.fault("list-lags", times=None, seconds=60)
    payment = paid(sandbox)
    made = refund(client, payment)
    assert client.v1.refunds.list({"payment_intent": payment}).data == []
    assert client.v1.refunds.retrieve(made.id).id == made.id
    sandbox.advance(61)
    assert len(client.v1.refunds.list({"payment_intent": payment}).data) == 1


# The script


def test_a_rule_lets_some_by_and_fires_so_often(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    sandbox.fault("html-502", skip=1, times=2)
    payment = paid(sandbox)
    told = []
    for n in range(5):
        try:
            told.append(refund(client, payment, 10, key=f"k{n}").status)
        except stripe.APIError as error:
            told.append(str(error.http_status))
    assert told == ["succeeded", "502", "502", "succeeded", "succeeded"]
    (rule,) = sandbox.faults()
    assert (rule["seen"], rule["fired"]) == (3, 2)


@pytest.mark.parametrize(
    "match",
    [
        {"idempotency_key": "k2"},
        {"idempotency_key": "k2*"},
        {"metadata": {"action_id": "a2"}},
        {"params": {"amount": "20"}},
        {"method": "post", "path": "/v1/ref*", "params": {"amount": "20"}},
        {"account": "acct_sandbox", "idempotency_key": "k2"},
    ],
)
def test_a_rule_finds_its_request(
    sandbox: Sandbox, client: stripe.StripeClient, match: dict[str, object]
) -> None:
    # disputed-400 acts once the account is known, so that every kind of match can be used.
    sandbox.fault("disputed-400", match=match)
    payment = paid(sandbox)
    assert refund(client, payment, 10, key="k1", metadata={"action_id": "a1"}).amount == 10
    failure(lambda: refund(client, payment, 20, key="k2", metadata={"action_id": "a2"}))
    assert sandbox.requests("POST")[-1]["faults"] == ["disputed-400"]


def test_rules_of_different_stages_add_up(sandbox: Sandbox) -> None:
    sandbox.fault("slow", seconds=0.3)
    sandbox.fault("reset-after-execution")
    started = time.monotonic()
    with pytest.raises(ConnectionResetError):
        create_raw(sandbox, paid(sandbox))
    assert time.monotonic() - started >= 0.3
    assert sandbox.requests()[-1]["faults"] == ["slow", "reset-after-execution"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"fault": "no-such-fault"},
        {"fault": "drip", "speed": 3},
        {"fault": "drip", "match": {"verb": "POST"}},
    ],
)
def test_a_wrong_rule_is_refused_in_words(sandbox: Sandbox, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Nothing was added"):
        sandbox.call("faults", **wrong)
    assert sandbox.faults() == []


def test_every_fault_says_what_it_does() -> None:
    for name, kind in FAULTS.items():
        assert kind.wire, name
        assert kind.executed in ("yes", "no", "late", "as usual"), name


def test_requests_can_follow_each_other_on_one_connection(sandbox: Sandbox) -> None:
    payment = paid(sandbox)
    with connected(sandbox) as sock:
        both = raw_request("GET", f"/v1/payment_intents/{payment}") + raw_request(
            "GET", "/v1/balance", Connection="close"
        )
        sock.sendall(both)
        got = until_closed(sock)
    assert got.count(b"HTTP/1.1 200 OK") == 2
    assert json.loads(got.rpartition(b"\r\n\r\n")[2])["object"] == "balance"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /v1/refunds HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST /v1/refunds HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST /v1/refunds HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
    ],
)
def test_what_is_not_http_is_refused(sandbox: Sandbox, sent: bytes, status: int) -> None:
    with connected(sandbox) as sock:
        sock.sendall(sent)
        assert until_closed(sock).startswith(f"HTTP/1.1 {status} ".encode())
