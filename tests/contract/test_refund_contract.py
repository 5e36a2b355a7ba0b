"""What the product relies on at Stripe, asked of the sandbox and of Stripe in the same words."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import stripe

from .conftest import Provider


def failure(call: Callable[[], object]) -> Any:
    with pytest.raises(stripe.StripeError) as caught:
        call()
    return caught.value


def header(made: Any, name: str) -> str | None:
    told = {key.lower(): value for key, value in dict(made.last_response.headers).items()}
    return told.get(name)


# Refunds


def test_a_card_refund_succeeds_at_once_and_says_what_was_asked(provider: Provider) -> None:
    payment = provider.paid()
    made = provider.refund(payment.id, 2500, metadata={"action_id": "a1", "instance": "i1"})
    assert (made.object, made.status) == ("refund", "succeeded")
    assert (made.amount, made.currency) == (2500, "usd")
    assert (made.payment_intent, made.charge) == (payment.id, payment.latest_charge)
    assert made.to_dict()["metadata"] == {"action_id": "a1", "instance": "i1"}
    for absent in ("failure_reason", "pending_reason", "next_action", "livemode"):
        assert absent not in made
    read = provider.client.v1.refunds.retrieve(made.id)
    assert (read.id, read.amount, read.status) == (made.id, 2500, "succeeded")


def test_a_refund_shows_in_the_payments_list_at_once(provider: Provider) -> None:
    payment = provider.paid()
    made = [provider.refund(payment.id, 100, metadata={"n": str(n)}).id for n in range(3)]
    listed = provider.client.v1.refunds.list({"payment_intent": payment.id, "limit": 2})
    assert [each.id for each in listed.data] == made[:0:-1]
    assert listed.has_more
    assert [each.id for each in listed.auto_paging_iter()] == made[::-1]
    by_charge = provider.client.v1.refunds.list({"charge": str(payment.latest_charge)})
    assert [each.id for each in by_charge.data] == made[::-1]


def test_equal_amounts_are_refunded_as_often_as_asked(provider: Provider) -> None:
    payment = provider.paid(300)
    assert len({provider.refund(payment.id, 100).id for _ in range(3)}) == 3
    charge = provider.client.v1.charges.retrieve(str(payment.latest_charge))
    assert (charge.amount_refunded, charge.refunded) == (300, True)


def test_refunds_hang_on_a_charge_only_when_asked_for(provider: Provider) -> None:
    payment = provider.paid()
    made = provider.refund(payment.id, 100)
    charge_id = str(payment.latest_charge)
    assert "refunds" not in provider.client.v1.charges.retrieve(charge_id)
    expanded: Any = provider.client.v1.charges.retrieve(charge_id, {"expand": ["refunds"]})
    assert [each.id for each in expanded.refunds.data] == [made.id]


def test_metadata_can_be_changed_and_nothing_else(provider: Provider) -> None:
    made = provider.refund(provider.paid().id, 100, metadata={"a": "1", "b": "2"})
    changed = provider.client.v1.refunds.update(made.id, {"metadata": {"b": "", "c": "3"}})
    assert changed.to_dict()["metadata"] == {"a": "1", "c": "3"}
    error = failure(lambda: provider.client.raw_request("post", f"/v1/refunds/{made.id}", amount=1))
    assert (error.http_status, error.code) == (400, "parameter_unknown")


def test_a_card_refund_cannot_be_canceled(provider: Provider) -> None:
    made = provider.refund(provider.paid().id, 100)
    error = failure(lambda: provider.client.v1.refunds.cancel(made.id))
    assert error.http_status == 400
    assert error.user_message == "Canceling this refund is unsupported."


def test_a_pending_refund_settles_later(provider: Provider) -> None:
    payment = provider.paid(method="pm_card_pendingRefund")
    made = provider.refund(payment.id, 100)
    assert made.status == "pending"
    provider.eventually(lambda: provider.client.v1.refunds.retrieve(made.id).status == "succeeded")


def test_a_succeeded_refund_can_still_fail(provider: Provider) -> None:
    payment = provider.paid(method="pm_card_refundFail")
    made = provider.refund(payment.id, 100)
    assert made.status == "succeeded"

    def failed() -> bool:
        return provider.client.v1.refunds.retrieve(made.id).status == "failed"

    provider.eventually(failed)
    assert provider.client.v1.refunds.retrieve(made.id).failure_reason


def test_the_event_of_a_refund_names_its_key(provider: Provider) -> None:
    payment, key = provider.paid(), provider.key()
    made = provider.refund(payment.id, 100, key)

    def event() -> stripe.Event | None:
        recent = provider.client.v1.events.list({"type": "refund.created", "limit": 20})
        return next((each for each in recent.data if each.data.object["id"] == made.id), None)

    found = provider.eventually(event)
    assert found.request.idempotency_key == key
    assert found.request.id == made.last_response.request_id


# Idempotency keys


def test_the_same_key_and_parameters_replay_the_first_answer(provider: Provider) -> None:
    payment, key = provider.paid(), provider.key()
    first = provider.refund(payment.id, 100, key, metadata={"action_id": "a1"})
    again = provider.refund(payment.id, 100, key, metadata={"action_id": "a1"})
    assert again.id == first.id
    assert again.last_response.idempotency_key == first.last_response.idempotency_key == key
    assert header(first, "idempotent-replayed") is None
    assert header(again, "idempotent-replayed") == "true"
    assert again.last_response.request_id != first.last_response.request_id
    assert len(provider.client.v1.refunds.list({"payment_intent": payment.id}).data) == 1


@pytest.mark.parametrize("other", [{"amount": 200}, {"metadata": {"attempt": "2"}}])
def test_the_same_key_with_other_parameters_is_refused(
    provider: Provider, other: dict[str, Any]
) -> None:
    payment, key = provider.paid(), provider.key()
    provider.refund(payment.id, 100, key, metadata={"attempt": "1"})
    changed: Any = {"amount": 100, "metadata": {"attempt": "1"}} | other
    error = failure(lambda: provider.refund(payment.id, key=key, **changed))
    assert isinstance(error, stripe.IdempotencyError)
    assert error.http_status == 400
    assert "can only be used with the same parameters" in error.user_message


def test_the_same_key_at_another_endpoint_is_refused(provider: Provider) -> None:
    key = provider.key()
    made = provider.refund(provider.paid().id, 100, key)
    error = failure(
        lambda: provider.client.v1.refunds.update(
            made.id, {"metadata": {"a": "1"}}, {"idempotency_key": key}
        )
    )
    assert isinstance(error, stripe.IdempotencyError)


def test_one_key_used_by_many_at_once_makes_one_refund(provider: Provider) -> None:
    payment, key = provider.paid(), provider.key()

    def one(_: int) -> str:
        try:
            return str(provider.refund(payment.id, 100, key).id)
        except stripe.StripeError as error:
            return f"{error.http_status} {error.error and error.error.code}"

    with ThreadPoolExecutor(8) as pool:
        told = set(pool.map(one, range(8)))
    (refund,) = provider.client.v1.refunds.list({"payment_intent": payment.id}).data
    # 429: one of several requests that met at the charge's lock.
    assert told <= {refund.id, "409 idempotency_key_in_use", "429 lock_timeout", "429 rate_limit"}
    assert refund.id in told


def test_bad_parameters_leave_the_key_unused(provider: Provider) -> None:
    payment, key = provider.paid(), provider.key()
    assert failure(lambda: provider.refund(payment.id, 0, key)).http_status == 400
    assert provider.refund(payment.id, 100, key).amount == 100


def test_a_refusal_by_the_charge_is_remembered_under_the_key(provider: Provider) -> None:
    payment, key = provider.paid(500), provider.key()
    first = failure(lambda: provider.refund(payment.id, 600, key))
    again = failure(lambda: provider.refund(payment.id, 600, key))
    assert again.user_message == first.user_message
    assert again.headers.get("Idempotent-Replayed") == "true"


# Refusals


def test_more_than_is_left_is_refused_without_a_code(provider: Provider) -> None:
    error = failure(lambda: provider.refund(provider.paid(2500).id, 3000))
    assert (error.http_status, error.code, error.param) == (400, None, "amount")
    assert error.user_message == (
        "Refund amount ($30.00) is greater than unrefunded amount on charge ($25.00)"
    )


def test_a_charge_that_is_wholly_refunded_is_refused(provider: Provider) -> None:
    payment = provider.paid(500)
    provider.refund(payment.id, 500)
    error = failure(lambda: provider.refund(payment.id, 1))
    assert (error.http_status, error.code) == (400, "charge_already_refunded")
    assert error.user_message == f"Charge {payment.latest_charge} has already been refunded."


@pytest.mark.parametrize("amount", [0, -1, "1000.0", "ten"])
def test_an_amount_that_is_no_positive_integer_is_refused(
    provider: Provider, amount: object
) -> None:
    error = failure(lambda: provider.refund(provider.paid().id, amount))
    assert (error.http_status, error.code, error.param) == (
        400,
        "parameter_invalid_integer",
        "amount",
    )


def test_a_reason_outside_the_list_is_refused(provider: Provider) -> None:
    error = failure(lambda: provider.refund(provider.paid().id, 100, reason="angry"))
    assert (error.http_status, error.param) == (400, "reason")
    assert "must be one of duplicate, fraudulent, or requested_by_customer" in error.user_message


def test_an_unknown_parameter_is_refused(provider: Provider) -> None:
    error = failure(lambda: provider.refund(provider.paid().id, 100, wat="1"))
    assert (error.http_status, error.code, error.param) == (400, "parameter_unknown", "wat")


def test_a_refund_of_nothing_is_refused(provider: Provider) -> None:
    error = failure(lambda: provider.client.v1.refunds.create({"amount": 100}))
    assert (error.http_status, error.code, error.param) == (400, None, None)


def test_an_unknown_charge_is_a_404(provider: Provider) -> None:
    params: Any = {"charge": "ch_3NoSuchChargeAtAll000", "amount": 100}
    error = failure(lambda: provider.client.v1.refunds.create(params))
    assert (error.http_status, error.code, error.param) == (404, "resource_missing", "id")


def test_an_unknown_refund_is_a_404(provider: Provider) -> None:
    error = failure(lambda: provider.client.v1.refunds.retrieve("re_3NoSuchRefundAtAll000"))
    assert (error.http_status, error.code, error.param) == (404, "resource_missing", "refund")


def test_an_unknown_cursor_is_a_400(provider: Provider) -> None:
    error = failure(
        lambda: provider.client.v1.refunds.list({"starting_after": "re_3NoSuchRefundAtAll000"})
    )
    assert (error.http_status, error.code, error.param) == (
        400,
        "resource_missing",
        "starting_after",
    )


def test_a_payment_that_was_only_authorized_is_refused(provider: Provider) -> None:
    payment = provider.paid(capture_method="manual")
    error = failure(lambda: provider.refund(payment.id, 100))
    assert error.http_status == 400
    assert error.user_message.startswith(
        f"This uncaptured Charge was created by a PaymentIntent ({payment.id})."
    )


def test_a_payment_without_a_charge_is_refused(provider: Provider) -> None:
    payment = provider.client.v1.payment_intents.create({"amount": 500, "currency": "usd"})
    error = failure(lambda: provider.refund(payment.id, 100))
    assert error.http_status == 400
    assert "does not have a successful charge to refund" in error.user_message


def test_a_wrong_api_key_is_a_401(provider: Provider) -> None:
    error = failure(lambda: provider.wrong_key_client.v1.refunds.list())
    assert isinstance(error, stripe.AuthenticationError)
    assert error.http_status == 401


def test_every_answer_names_its_request_and_its_version(provider: Provider) -> None:
    made = provider.refund(provider.paid().id, 100)
    assert str(header(made, "request-id")).startswith("req_")
    assert header(made, "stripe-version") == "2026-10-28.endive"
    error = failure(lambda: provider.client.v1.refunds.retrieve("re_3NoSuchRefundAtAll000"))
    assert error.request_id.startswith("req_")
