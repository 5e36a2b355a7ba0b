"""Store credit and payment totals, asked of the sandbox and of Stripe in the same words."""

import pytest

from .conftest import Provider
from .test_refund_contract import failure, header

# Store credit: transactions on a customer's balance


def test_a_credit_is_done_at_once_and_says_what_was_asked(provider: Provider) -> None:
    customer = provider.customer()
    made = provider.credit(customer, -2500, description="Store credit", metadata={"action_id": "a"})
    assert (made.object, made.type) == ("customer_balance_transaction", "adjustment")
    assert (made.amount, made.currency, made.customer) == (-2500, "usd", customer)
    assert (made.ending_balance, made.description) == (-2500, "Store credit")
    assert made.to_dict()["metadata"] == {"action_id": "a"}
    assert "status" not in made
    assert provider.client.v1.customers.retrieve(customer).balance == -2500
    read = provider.client.v1.customers.balance_transactions.retrieve(customer, made.id)
    assert (read.id, read.amount, read.customer) == (made.id, -2500, customer)


def test_credits_are_listed_newest_first_and_paged(provider: Provider) -> None:
    customer = provider.customer()
    made = [provider.credit(customer, -100, metadata={"n": str(n)}).id for n in range(3)]
    balance = provider.client.v1.customers.balance_transactions

    def all_listed() -> bool:
        return len(balance.list(customer).data) == 3

    # Sublists may be eventually consistent at Stripe.
    provider.eventually(all_listed)
    listed = balance.list(customer, {"limit": 2})
    assert [each.id for each in listed.data] == made[:0:-1]
    assert listed.has_more
    assert [each.id for each in listed.auto_paging_iter()] == made[::-1]


def test_the_same_key_gives_credit_once(provider: Provider) -> None:
    customer, key = provider.customer(), provider.key()
    first = provider.credit(customer, -100, key)
    again = provider.credit(customer, -100, key)
    assert again.id == first.id
    assert again.last_response.idempotency_key == key
    assert header(again, "idempotent-replayed") == "true"
    assert provider.client.v1.customers.retrieve(customer).balance == -100


def test_the_same_key_with_another_amount_is_refused(provider: Provider) -> None:
    customer, key = provider.customer(), provider.key()
    provider.credit(customer, -100, key)
    error = failure(lambda: provider.credit(customer, -200, key))
    assert error.http_status == 400
    assert "can only be used with the same parameters" in error.user_message


def test_the_same_key_for_another_customer_is_refused(provider: Provider) -> None:
    """Two paths are two endpoints, so a key can never give the same credit to somebody else."""
    key = provider.key()
    provider.credit(provider.customer(), -100, key)
    error = failure(lambda: provider.credit(provider.customer(), -100, key))
    assert error.http_status == 400


def test_a_credit_to_nobody_is_a_404(provider: Provider) -> None:
    error = failure(lambda: provider.credit("cus_NoSuchCustomer", -100))
    assert (error.http_status, error.code) == (404, "resource_missing")


def test_a_second_currency_has_a_balance_of_its_own(provider: Provider) -> None:
    customer = provider.customer()
    provider.credit(customer, -100)
    assert provider.credit(customer, -300, currency="eur").ending_balance == -300
    read = provider.client.v1.customers.retrieve(customer)
    assert (read.currency, read.balance) == ("usd", -100)


@pytest.mark.parametrize("amount", ["1000.0", "ten"])
def test_an_amount_that_is_no_integer_is_refused(provider: Provider, amount: str) -> None:
    error = failure(lambda: provider.credit(provider.customer(), amount))  # type: ignore[arg-type]
    assert (error.http_status, error.code, error.param) == (
        400,
        "parameter_invalid_integer",
        "amount",
    )


# The totals of a payment


def test_a_payments_totals_stand_on_its_latest_charge(provider: Provider) -> None:
    customer = provider.customer()
    payment = provider.paid(7900, customer=customer)
    provider.refund(payment.id, 2500)
    provider.refund(payment.id, 400)
    read = provider.client.v1.payment_intents.retrieve(payment.id, {"expand": ["latest_charge"]})
    charge = read.latest_charge
    assert not isinstance(charge, str)
    assert charge is not None
    assert (charge.payment_intent, charge.currency) == (payment.id, "usd")
    assert (charge.amount_captured, charge.amount_refunded) == (7900, 2900)
    assert (charge.disputed, charge.refunded) == (False, False)
    assert read.customer == customer


def test_a_payment_without_a_charge_has_none_to_show(provider: Provider) -> None:
    payment = provider.client.v1.payment_intents.create({"amount": 500, "currency": "usd"})
    read = provider.client.v1.payment_intents.retrieve(payment.id, {"expand": ["latest_charge"]})
    assert (read.latest_charge, read.customer) == (None, None)


def test_a_payment_of_a_customer_nobody_knows_is_refused(provider: Provider) -> None:
    error = failure(lambda: provider.paid(500, customer="cus_NoSuchCustomer"))
    assert (error.http_status, error.code, error.param) == (400, "resource_missing", "customer")
