"""Idempotency keys, and the order in which a request is looked at."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import stripe

from providers.sandbox import Sandbox

from .calls import failure, paid, refund, stripe_client


def headers(made: stripe.Refund) -> dict[str, str]:
    return {name.lower(): value for name, value in dict(made.last_response.headers).items()}  # type: ignore[union-attr]


def test_the_same_key_replays_the_first_answer(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox)
    first, again = refund(client, payment), refund(client, payment)
    assert first.last_response.body == again.last_response.body  # type: ignore[union-attr]
    told = headers(again)
    assert told["idempotent-replayed"] == "true"
    assert told["original-request"] == headers(first)["request-id"] != told["request-id"]
    assert told["idempotency-key"] == "k1"
    assert "idempotent-replayed" not in headers(first)
    assert len(sandbox.refunds()) == 1


def test_a_replay_does_not_follow_later_changes(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox)
    made = refund(client, payment)
    sandbox.fail_refund(made.id)
    assert refund(client, payment).status == "succeeded"
    assert client.v1.refunds.retrieve(made.id).status == "failed"


def test_other_parameters_under_the_same_key_are_refused(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox)
    refund(client, payment, metadata={"attempt": "1"})
    error = failure(lambda: refund(client, payment, metadata={"attempt": "2"}))
    assert isinstance(error, stripe.IdempotencyError)
    assert (error.http_status, error.code) == (400, None)
    assert error.user_message.startswith(
        "Keys for idempotent requests can only be used with the same parameters they were first "
        "used with. Try using a key other than 'k1'"
    )


def test_another_endpoint_under_the_same_key_is_refused(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    made = refund(client, paid(sandbox))
    error = failure(lambda: client.v1.refunds.cancel(made.id, None, {"idempotency_key": "k1"}))
    assert isinstance(error, stripe.IdempotencyError)
    assert f"('/v1/refunds/{made.id}/cancel' vs '/v1/refunds')" in error.user_message


def test_a_refusal_while_executing_is_remembered(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox)
    dispute = sandbox.dispute(payment)
    failure(lambda: refund(client, payment))
    sandbox.close_dispute(dispute["id"], status="won")
    again = failure(lambda: refund(client, payment))
    assert again.error.code == "charge_disputed"
    assert again.headers["Idempotent-Replayed"] == "true"


def test_bad_parameters_are_not_remembered(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    payment = paid(sandbox)
    failure(lambda: refund(client, payment, amount=0))
    assert refund(client, payment, amount=10).amount == 10


def test_a_key_is_looked_up_before_parameters_are_checked(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox)
    refund(client, payment)
    assert isinstance(failure(lambda: refund(client, payment, amount=0)), stripe.IdempotencyError)


def test_the_rate_limit_comes_before_the_key(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    payment = paid(sandbox)
    refund(client, payment)
    sandbox.settings(rate_limit_per_second=1)
    refund(client, payment)
    error = failure(lambda: refund(client, payment))
    assert (error.http_status, error.error.code) == (429, "rate_limit")


def test_a_bad_api_key_comes_before_everything(sandbox: Sandbox) -> None:
    sandbox.settings(rate_limit_per_second=0)
    stranger = stripe_client(sandbox, api_key="sk_test_of_somebody_else")
    error = failure(lambda: refund(stranger, "pi_none", amount=0))
    assert isinstance(error, stripe.AuthenticationError)
    assert error.user_message == "Invalid API Key provided: sk_test_************else"


def test_keys_may_be_forgotten_after_a_day(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    payment = paid(sandbox)
    first = refund(client, payment)
    sandbox.advance(86_399)
    assert refund(client, payment).id == first.id
    sandbox.advance(2)
    # The sharp edge: the same key is now a new request and pays a second time.
    assert refund(client, payment).id != first.id


def test_keys_can_be_kept_for_ever_or_pruned_at_once(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    sandbox.settings(key_retention_seconds=None)
    payment = paid(sandbox)
    first = refund(client, payment)
    sandbox.advance(10 * 86_400)
    assert refund(client, payment).id == first.id
    assert sandbox.prune_keys() == 1
    assert refund(client, payment).id != first.id


def test_accounts_have_their_own_keys(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    mine, theirs = paid(sandbox), paid(sandbox, account="acct_second")
    refund(client, mine)
    assert refund(stripe_client(sandbox, api_key="sk_test_second"), theirs).status == "succeeded"


@pytest.mark.parametrize("scope", ["connected", "platform"])
def test_the_scope_of_keys_with_stripe_account_is_a_setting(
    sandbox: Sandbox, client: stripe.StripeClient, scope: str
) -> None:
    sandbox.settings(idempotency_scope_with_stripe_account=scope)
    mine, theirs = paid(sandbox), paid(sandbox, account="acct_connected")
    refund(client, mine)

    def on_connected() -> stripe.Refund:
        return client.v1.refunds.create(
            {"payment_intent": theirs, "amount": 2500},
            {"idempotency_key": "k1", "stripe_account": "acct_connected"},
        )

    if scope == "connected":
        assert on_connected().status == "succeeded"
    else:
        assert isinstance(failure(on_connected), stripe.IdempotencyError)


def test_twenty_threads_with_one_key_make_one_refund(sandbox: Sandbox) -> None:
    sandbox.latency(50)
    payment = paid(sandbox)
    together = threading.Barrier(20)

    def one(_: int) -> str:
        client = stripe_client(sandbox)
        together.wait()
        try:
            made = refund(client, payment)
        except stripe.APIError as error:
            return f"{error.http_status} {error.error and error.error.code}"
        return "replay" if "idempotent-replayed" in headers(made) else "made"

    with ThreadPoolExecutor(20) as pool:
        told = Counter(pool.map(one, range(20)))
    assert told["made"] == 1
    assert told["409 idempotency_key_in_use"] > 0
    assert set(told) <= {"made", "replay", "409 idempotency_key_in_use"}
    assert len(sandbox.refunds()) == 1


def test_twenty_threads_with_twenty_keys_never_exceed_the_charge(sandbox: Sandbox) -> None:
    payment = paid(sandbox, 1000)

    def one(n: int) -> int:
        try:
            return refund(stripe_client(sandbox), payment, 100, key=f"k{n}").amount
        except stripe.InvalidRequestError:
            return 0

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(one, range(20))) == 1000
    assert sandbox.ledger()["payments"][payment]["refunded"] == 1000


def test_a_charge_that_is_locked_is_a_429_that_no_key_remembers(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    sandbox.settings(charge_lock_wait_seconds=0.1)
    payment = paid(sandbox)
    sandbox.call("lock-charge", payment=payment, seconds=0.4)
    error = failure(lambda: refund(client, payment))
    assert isinstance(error, stripe.RateLimitError)
    assert error.error is not None
    assert error.error.code == "lock_timeout"
    sandbox.settings(charge_lock_wait_seconds=5)
    assert refund(client, payment).status == "succeeded"


def test_only_posts_use_keys(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    made = refund(client, paid(sandbox))
    for _ in range(2):
        got = client.v1.refunds.retrieve(made.id, None, {"idempotency_key": "k1"})
        assert "idempotent-replayed" not in headers(got)
