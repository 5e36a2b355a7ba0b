"""Making, reading, changing and canceling refunds, and what is refused."""

from typing import Any

import pytest
import stripe

from providers.sandbox import Sandbox

from .calls import failure, paid, refund, stripe_client


def test_a_card_refund_has_the_recorded_shape(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox)
    made = refund(client, payment, 2500, metadata={"action_id": "a1"}).to_dict()
    charge = client.v1.payment_intents.retrieve(payment).latest_charge
    assert made["object"] == "refund"
    assert (made["amount"], made["currency"], made["status"]) == (2500, "usd", "succeeded")
    assert (made["charge"], made["payment_intent"]) == (charge, payment)
    assert made["metadata"] == {"action_id": "a1"}
    assert made["destination_details"] == {
        "card": {
            "reference_status": "pending",
            "reference_type": "acquirer_reference_number",
            "type": "refund",
        },
        "type": "card",
    }
    # What does not apply is absent, not null; and a refund has no livemode.
    for absent in ("failure_reason", "pending_reason", "next_action", "livemode", "description"):
        assert absent not in made
    assert not [name for name in made if name.startswith("_")]


def test_ids_of_one_payment_share_an_infix(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    made = refund(client, paid(sandbox))
    shared = str(made.charge).removeprefix("ch_")[:16]
    assert made.id.startswith(f"re_{shared}")
    assert str(made.balance_transaction).startswith(f"txn_{shared}")


def test_a_refund_without_an_amount_takes_the_whole_remainder(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox, 7900)
    refund(client, payment, 2500)
    assert client.v1.refunds.create({"payment_intent": payment}).amount == 5400


def test_a_refund_can_be_made_on_the_charge(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    made = sandbox.payment(amount=500)
    charge = made["charge"]["id"]
    got = client.v1.refunds.create({"charge": charge, "amount": 500})
    assert (got.charge, got.payment_intent) == (charge, made["payment_intent"]["id"])


def test_a_fully_refunded_charge_is_refused(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    payment = paid(sandbox, 2500)
    charge = refund(client, payment, 2500).charge
    error = failure(lambda: refund(client, payment, 1, key="k2"))
    assert (error.http_status, error.code, error.param) == (400, "charge_already_refunded", None)
    assert error.user_message == f"Charge {charge} has already been refunded."
    assert error.error.doc_url.endswith("/charge-already-refunded")


def test_more_than_the_remainder_is_refused_without_a_code(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox, 2500)
    error = failure(lambda: refund(client, payment, 3000))
    assert (error.http_status, error.code, error.param) == (400, None, "amount")
    assert error.user_message == (
        "Refund amount ($30.00) is greater than unrefunded amount on charge ($25.00)"
    )
    assert sandbox.refunds() == []


@pytest.mark.parametrize(
    ("params", "code", "param", "message"),
    [
        (
            {"amount": 0},
            "parameter_invalid_integer",
            "amount",
            "This value must be greater than or equal to 1.",
        ),
        ({"amount": "1000.0"}, "parameter_invalid_integer", "amount", "Invalid integer: 1000.0"),
        ({"amount": "ten"}, "parameter_invalid_integer", "amount", "Invalid integer: ten"),
        ({"wat": "1"}, "parameter_unknown", "wat", "Received unknown parameter: wat"),
        (
            {"reason": "angry"},
            None,
            "reason",
            "Invalid reason: must be one of duplicate, fraudulent, or requested_by_customer",
        ),
    ],
)
def test_bad_parameters_are_refused_by_name(
    sandbox: Sandbox,
    client: stripe.StripeClient,
    params: Any,
    code: str | None,
    param: str,
    message: str,
) -> None:
    payment = paid(sandbox)
    sent: Any = {"payment_intent": payment, **params}
    error = failure(lambda: client.v1.refunds.create(sent))
    assert (error.http_status, error.code, error.param) == (400, code, param)
    assert error.user_message == message


def test_neither_charge_nor_payment_intent_is_refused(client: stripe.StripeClient) -> None:
    error = failure(lambda: client.v1.refunds.create({"amount": 1}))
    assert (error.http_status, error.code, error.param) == (400, None, None)
    assert error.user_message == (
        "One of the following params should be provided for this request: payment_intent or charge."
    )


def test_an_unknown_charge_is_a_404_that_names_id(client: stripe.StripeClient) -> None:
    error = failure(lambda: client.v1.refunds.create({"charge": "ch_none", "amount": 1}))
    assert (error.http_status, error.code, error.param) == (404, "resource_missing", "id")
    assert error.user_message == "No such charge: 'ch_none'"


def test_an_unknown_refund_is_a_404(client: stripe.StripeClient) -> None:
    error = failure(lambda: client.v1.refunds.retrieve("re_none"))
    assert (error.http_status, error.code, error.param) == (404, "resource_missing", "refund")


def test_an_uncaptured_charge_is_refused(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    payment = paid(sandbox, capture=False)
    error = failure(lambda: refund(client, payment))
    assert error.http_status == 400
    assert error.user_message.startswith(
        f"This uncaptured Charge was created by a PaymentIntent ({payment})."
    )
    client.v1.payment_intents.capture(payment)
    assert refund(client, payment, key="k2").status == "succeeded"


def test_a_payment_that_was_never_paid_is_refused(client: stripe.StripeClient) -> None:
    payment = client.v1.payment_intents.create({"amount": 500, "currency": "usd"}).id
    error = failure(lambda: refund(client, payment, 100))
    assert error.user_message == (
        f"This PaymentIntent ({payment}) does not have a successful charge to refund."
    )


def test_a_declined_card_is_a_402_and_leaves_nothing_to_refund(client: stripe.StripeClient) -> None:
    error = failure(
        lambda: client.v1.payment_intents.create(
            {
                "amount": 500,
                "currency": "usd",
                "payment_method": "pm_card_chargeDeclined",
                "confirm": True,
            }
        )
    )
    assert (error.http_status, error.code) == (402, "card_declined")


def test_a_chargeback_blocks_refunds_until_it_is_won(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox)
    dispute = sandbox.dispute(payment)
    error = failure(lambda: refund(client, payment))
    assert (error.http_status, error.code) == (400, "charge_disputed")
    assert client.v1.disputes.list({"payment_intent": payment}).data[0].id == dispute["id"]
    sandbox.close_dispute(dispute["id"], status="won")
    assert refund(client, payment, key="k2").status == "succeeded"


def test_an_inquiry_does_not_block_refunds(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    payment = paid(sandbox)
    sandbox.dispute(payment, status="warning_needs_response")
    assert refund(client, payment).status == "succeeded"


def test_a_pending_refund_settles_by_itself(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    payment = paid(sandbox, payment_method="pm_card_pendingRefund")
    made = refund(client, payment)
    assert (made.status, made.pending_reason) == ("pending", "processing")
    sandbox.advance(10)
    got = client.v1.refunds.retrieve(made.id)
    assert got.status == "succeeded"
    assert "pending_reason" not in got


def test_a_succeeded_refund_can_fail_and_frees_the_amount(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox, 2500, payment_method="pm_card_refundFail")
    made = refund(client, payment, 2500)
    assert made.status == "succeeded"
    sandbox.advance(10)
    got = client.v1.refunds.retrieve(made.id)
    assert (got.status, got.failure_reason) == ("failed", "expired_or_canceled_card")
    assert got.failure_balance_transaction
    assert client.v1.charges.retrieve(str(made.charge)).amount_refunded == 0
    assert refund(client, payment, 2500, key="k2").status == "succeeded"
    kinds = [entry.type for entry in client.v1.balance_transactions.list({"source": made.id})]
    assert kinds == ["refund_failure", "refund"]


def test_only_a_refund_that_waits_for_the_customer_can_be_canceled(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    card = refund(client, paid(sandbox))
    error = failure(lambda: client.v1.refunds.cancel(card.id))
    assert error.user_message == "Canceling this refund is unsupported."
    waiting = refund(client, paid(sandbox, behaviour="requires-action"), key="k2")
    assert waiting.status == "requires_action"
    assert client.v1.refunds.cancel(waiting.id).status == "canceled"


def test_a_waiting_refund_can_be_expired(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    made = refund(client, paid(sandbox, behaviour="requires-action"))
    assert client.v1.test_helpers.refunds.expire(made.id).status == "failed"


def test_only_metadata_can_be_updated(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    made = refund(client, paid(sandbox), metadata={"a": "1", "b": "2"})
    got = client.v1.refunds.update(made.id, {"metadata": {"b": "", "c": "3"}})
    assert got.to_dict()["metadata"] == {"a": "1", "c": "3"}
    error = failure(lambda: client.raw_request("post", f"/v1/refunds/{made.id}", amount=1))
    assert error.code == "parameter_unknown"


def test_expanding_puts_the_objects_in(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    payment = paid(sandbox)
    made = client.v1.refunds.create(
        {"payment_intent": payment, "amount": 5, "expand": ["charge", "balance_transaction"]}
    )
    assert made.to_dict()["charge"]["amount_refunded"] == 5
    assert made.to_dict()["balance_transaction"]["amount"] == -5
    charge_id = made.to_dict()["charge"]["id"]
    assert "refunds" not in client.v1.charges.retrieve(charge_id)
    charge = client.v1.charges.retrieve(charge_id, {"expand": ["refunds"]})
    assert [each.id for each in charge.refunds.data] == [made.id]  # type: ignore[union-attr]


def test_an_empty_balance_holds_refunds_or_refuses_them(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox)
    sandbox.call("balance", available_minor=100)
    held = refund(client, payment)
    assert (held.status, held.pending_reason) == ("pending", "insufficient_funds")
    sandbox.settings(insufficient_balance="error")
    error = failure(lambda: refund(client, payment, key="k2"))
    assert (error.http_status, error.code) == (400, None)
    assert error.json_body["error"]["message_code"] == "insufficient_balance_for_refund"


@pytest.mark.parametrize(
    ("currency", "good", "bad"), [("isk", 500, 550), ("ugx", 500, 501), ("kwd", 5120, 5124)]
)
def test_odd_currencies_take_only_round_amounts(
    sandbox: Sandbox, client: stripe.StripeClient, currency: str, good: int, bad: int
) -> None:
    payment = paid(sandbox, 100_000, currency=currency)
    assert failure(lambda: refund(client, payment, bad)).param == "amount"
    assert refund(client, payment, good, key="k2").amount == good


def test_a_currency_without_decimals_is_shown_without_them(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox, 500, currency="jpy")
    assert "(¥600)" in failure(lambda: refund(client, payment, 600)).user_message


def test_accounts_do_not_see_each_other(sandbox: Sandbox) -> None:
    payment = paid(sandbox)
    other = stripe_client(sandbox, api_key="sk_test_second")
    assert failure(lambda: refund(other, payment)).http_status == 404


def test_a_connected_account_has_its_own_data(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox, account="acct_connected")
    assert failure(lambda: refund(client, payment)).http_status == 404
    made = client.v1.refunds.create(
        {"payment_intent": payment, "amount": 5}, {"stripe_account": "acct_connected"}
    )
    assert made.status == "succeeded"
    error = failure(lambda: client.v1.refunds.list(options={"stripe_account": "acct_stranger"}))
    assert (error.http_status, error.error.code) == (403, "account_invalid")
