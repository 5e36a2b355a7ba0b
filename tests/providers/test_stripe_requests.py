"""What leaves the machine: bytes, headers, keys and accounts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects.outcomes import Misconfigured, Succeeded, Unreadable
from kernel.canonical import canonical_json
from kernel.errors import Bug
from providers.port import SendRequest
from providers.stripe.client import API_VERSION
from providers.stripe.objects import REFUND
from providers.stripe.payload import parse_payload, refund_payload, stripe_reason
from tests.providers.loopback import Request, loopback, refunds_everything
from tests.providers.requests_made import ACTION, a_payload, a_provider, a_request


def sent(*requests: SendRequest, **provider: Any) -> list[Request]:
    with loopback(refunds_everything) as server:
        for request in requests:
            outcome = a_provider(server.base, **provider).send_refund(request=request)
            assert isinstance(outcome, Succeeded)
        return server.requests


def test_a_refund_is_sent_with_everything_explicit() -> None:
    (request,) = sent(a_request())
    assert (request.method, request.target) == ("POST", "/v1/refunds")
    assert request.form == {
        "payment_intent": "pi_1",
        "amount": "7900",
        "reason": "requested_by_customer",
        "metadata[action_id]": ACTION,
        "metadata[instance]": "shop-1",
        "metadata[order_id]": "4821",
        "metadata[reason]": "damaged",
        "metadata[request_id]": "3",
    }
    assert request.headers["idempotency-key"] == ACTION
    assert request.headers["stripe-version"] == API_VERSION
    assert request.headers["authorization"] == "Bearer sk_test_platform"
    assert "stripe-account" not in request.headers


def test_a_retry_is_the_same_request_byte_for_byte() -> None:
    first, second = sent(a_request(), a_request())
    without_host = [
        [line for line in request.raw.split(b"\r\n") if not line.startswith(b"Host:")]
        for request in (first, second)
    ]
    assert without_host[0] == without_host[1]
    assert first.body == second.body


def test_every_request_has_a_connection_of_its_own() -> None:
    with loopback(refunds_everything) as server:
        provider = a_provider(server.base)
        for _ in range(3):
            provider.send_refund(request=a_request())
        assert (server.connections, len(server.requests)) == (3, 3)


def test_a_trailing_slash_in_the_address_changes_nothing() -> None:
    with loopback(refunds_everything) as server:
        a_provider(server.base + "/").send_refund(request=a_request())
        assert server.requests[0].target == "/v1/refunds"


def test_nothing_is_said_about_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLAUDECODE", "CODEX_SANDBOX", "CURSOR_AGENT", "GEMINI_CLI"):
        monkeypatch.setenv(name, "1")
    first, second = sent(a_request(), a_request())
    for request in (first, second):
        assert request.headers["user-agent"].startswith("Stripe/v1 PythonBindings/")
        assert "AIAgent" not in request.raw.decode()
        assert "ai_agent" not in request.raw.decode()
        assert "telemetry" not in request.raw.decode().lower()
        assert "platform" not in json.loads(request.headers["x-stripe-client-user-agent"])


def test_a_netrc_entry_does_not_replace_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    (request,) = sent(a_request())
    assert request.headers["authorization"] == "Bearer sk_test_platform"


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert len(sent(a_request())) == 1


def test_no_telemetry_file_is_written(tmp_path: Path) -> None:
    """In a process of its own, since the SDK writes it at most once."""
    program = (
        "from tests.providers.requests_made import a_provider, a_request\n"
        "from tests.providers.loopback import loopback, refunds_everything\n"
        "with loopback(refunds_everything) as server:\n"
        "    a_provider(server.base).send_refund(request=a_request())\n"
        "    print(len(server.requests))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "1\n"
    assert list(tmp_path.rglob("*")) == []


ACCOUNTS = [
    ("", "Bearer sk_test_platform", None),
    ("acct_1", "Bearer sk_test_platform", "acct_1"),
    ("alias:europe", "Bearer sk_test_europe", None),
    ("alias:europe/acct_2", "Bearer sk_test_europe", "acct_2"),
]


@pytest.mark.parametrize(("account", "bearer", "stripe_account"), ACCOUNTS)
def test_an_account_chooses_the_key_and_the_header(
    account: str, bearer: str, stripe_account: str | None
) -> None:
    (request,) = sent(a_request(account=account), more_api_keys={"europe": "sk_test_europe"})
    assert request.headers["authorization"] == bearer
    assert request.headers.get("stripe-account") == stripe_account


def test_one_provider_serves_several_accounts_in_turn() -> None:
    with loopback(refunds_everything) as server:
        provider = a_provider(server.base, more_api_keys={"europe": "sk_test_europe"})
        for account, _, _ in ACCOUNTS * 2:
            provider.send_refund(request=a_request(account=account))
        seen = [
            (request.headers["authorization"], request.headers.get("stripe-account"))
            for request in server.requests
        ]
    assert seen == [(bearer, stripe_account) for _, bearer, stripe_account in ACCOUNTS * 2]


@pytest.mark.parametrize("account", ["alias:asia", "alias:", "acct_1/x", "somebody", "acct_1\n"])
def test_an_account_without_a_key_sends_nothing_and_a_person_is_told(account: str) -> None:
    with loopback(refunds_everything) as server:
        provider = a_provider(server.base)
        outcome = provider.send_refund(request=a_request(account=account))
        assert isinstance(outcome, Misconfigured)
        assert outcome.reason == "unknown_account"
        assert "STRIPE_API_KEYS" in outcome.evidence.message
        for read in (
            provider.list_refunds(payment_ref="pi_1", account=account),
            provider.retrieve_refund(refund_ref="re_1", account=account),
        ):
            assert isinstance(read, Unreadable)
            assert read.misconfigured
        assert server.requests == []


def test_a_request_for_another_account_than_the_frozen_one_is_a_bug() -> None:
    request = SendRequest(payload=a_request().payload, idempotency_key=ACTION, account="acct_1")
    with pytest.raises(Bug, match="another account"):
        a_provider("http://127.0.0.1:1").send_refund(request=request)


@pytest.mark.parametrize(
    "key", ["", " a", "a\nb", "a b", "\N{GRINNING FACE}", "é", "a" * 256, "a/b", "a\n"]
)
def test_a_key_with_odd_characters_is_a_bug(key: str) -> None:
    with loopback(refunds_everything) as server:
        with pytest.raises(Bug, match="idempotency key"):
            a_provider(server.base).send_refund(request=a_request(key=key))
        assert server.requests == []


@pytest.mark.parametrize("amount", [None, 0, -1, 1.0, "7900", True, [7900]])
def test_an_amount_that_is_not_an_explicit_positive_integer_is_a_bug(amount: Any) -> None:
    payload = a_payload() | {"amount": amount}
    with loopback(refunds_everything) as server:
        with pytest.raises(Bug, match="amount"):
            a_provider(server.base).send_refund(
                request=SendRequest(payload=json.dumps(payload), idempotency_key=ACTION)
            )
        assert server.requests == []


@pytest.mark.parametrize(
    "field", ["account", "amount", "currency", "metadata", "payment_intent", "reason"]
)
def test_a_payload_without_one_of_its_fields_is_a_bug(field: str) -> None:
    payload = a_payload()
    del payload[field]
    with pytest.raises(Bug, match="exactly the fields"):
        parse_payload(REFUND, json.dumps(payload))


@pytest.mark.parametrize(
    "changes",
    [
        {"extra": 1},
        {"reason": "fraudulent"},
        {"reason": None},
        {"payment_intent": ""},
        {"payment_intent": "pi_1/../x"},
        {"payment_intent": None},
        {"currency": "us"},
        {"account": None},
        {"metadata": {}},
        {"metadata": None},
        {"metadata": a_payload()["metadata"] | {"attempt": "2"}},
        {"metadata": a_payload()["metadata"] | {"reason": ""}},
        {"metadata": a_payload()["metadata"] | {"reason": "x" * 501}},
        {"metadata": a_payload()["metadata"] | {"reason": 5}},
    ],
    ids=str,
)
def test_a_payload_that_was_not_built_here_is_a_bug(changes: dict[str, Any]) -> None:
    with pytest.raises(Bug):
        parse_payload(REFUND, json.dumps(a_payload() | changes))


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "7"])
def test_a_payload_that_is_not_an_object_is_a_bug(text: str) -> None:
    with pytest.raises(Bug):
        parse_payload(REFUND, text)


def test_stripes_reason_is_never_fraudulent() -> None:
    assert stripe_reason("duplicate") == "duplicate"
    assert stripe_reason("fraudulent") == "requested_by_customer"
    assert stripe_reason("damaged") == "requested_by_customer"


WORDS = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)


@given(
    amount_minor=st.integers(1, 2**53 - 1),
    currency=st.sampled_from(["USD", "JPY", "KWD"]),
    payment_intent=st.from_regex(r"pi_[A-Za-z0-9]{1,30}", fullmatch=True),
    reason_code=WORDS,
    order_id=WORDS,
    request_id=WORDS,
)
def test_what_is_frozen_is_what_is_sent(
    amount_minor: int,
    currency: str,
    payment_intent: str,
    reason_code: str,
    order_id: str,
    request_id: str,
) -> None:
    built = refund_payload(
        account="",
        payment_intent=payment_intent,
        amount_minor=amount_minor,
        currency=currency,
        reason_code=reason_code,
        action_id=f"refund:order-{order_id}:request-{request_id}",
        instance="shop-1",
        order_id=order_id,
        request_id=request_id,
    )
    params = parse_payload(REFUND, canonical_json(built)).params
    assert type(params["amount"]) is int
    assert params["amount"] == amount_minor
    assert params["payment_intent"] == payment_intent
    assert params["metadata"] == built["metadata"]
    assert "currency" not in params
    assert json.dumps(params) == json.dumps(parse_payload(REFUND, canonical_json(built)).params)
