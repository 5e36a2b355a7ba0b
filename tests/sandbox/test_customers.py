"""Customers and their balance: store credit with keys, faults, locks, events and an oracle."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import stripe

from providers.sandbox import Sandbox, SandboxClient

from .calls import failure, impatient_client, stripe_client

GIVE = {"method": "POST", "path": "/v1/customers/*"}
READ = {"method": "GET", "path": "/v1/customers/*"}


def credit(
    client: stripe.StripeClient,
    customer: str = "cus_1",
    amount: object = -2500,
    key: str | None = "k1",
    **more: Any,
) -> stripe.CustomerBalanceTransaction:
    options: Any = {"idempotency_key": key} if key else {}
    params: Any = {"amount": amount, "currency": "usd", **more}
    return client.v1.customers.balance_transactions.create(customer, params, options)


@pytest.fixture
def customer(sandbox: Sandbox) -> str:
    return str(sandbox.customer("cus_1")["id"])


def test_a_customer_is_created_and_retrieved(client: stripe.StripeClient) -> None:
    made = client.v1.customers.create({"email": "a@example.com", "metadata": {"ref": "88"}})
    read = client.v1.customers.retrieve(made.id)
    assert (read.id, read.email, read.balance, read.currency) == (made.id, "a@example.com", 0, None)
    assert made.id.startswith("cus_")
    error = failure(lambda: client.v1.customers.retrieve("cus_2"))
    assert (error.http_status, error.param) == (404, "id")
    assert error.user_message == "No such customer: 'cus_2'"


def test_the_control_api_makes_a_customer_once(sandbox: Sandbox) -> None:
    assert sandbox.customer("cus_1") == sandbox.customer("cus_1")
    sandbox.payment(amount=100, customer="cus_2", id="pi_1")
    assert set(sandbox.call("credits")["customers"]) == {"cus_1", "cus_2"}


def test_credits_and_debits_add_up_by_currency(
    sandbox: Sandbox, client: stripe.StripeClient, customer: str
) -> None:
    assert credit(client, key="k1").ending_balance == -2500
    assert credit(client, key="k2", amount=1000).ending_balance == -1500
    assert credit(client, key="k3", amount=-300, currency="eur").ending_balance == -300
    read = client.v1.customers.retrieve(customer)
    assert (read.currency, read.balance) == ("usd", -1500)
    assert sandbox.call("credits")["customers"][customer]["credit"] == {"usd": 1500, "eur": 300}


def test_one_currency_for_each_customer_is_a_setting(
    sandbox: Sandbox, client: stripe.StripeClient, customer: str
) -> None:
    sandbox.settings(customer_currencies="one")
    credit(client, key="k1")
    error = failure(lambda: credit(client, key="k2", currency="eur"))
    assert error.http_status == 400
    assert error.user_message.startswith("Can't combine currencies on a single customer.")
    assert len(sandbox.credits(customer)) == 1


def test_the_oracle_tells_what_exists_with_its_key(
    sandbox: Sandbox, client: stripe.StripeClient, customer: str
) -> None:
    sandbox.fault("error-500-executed", match=GIVE)
    failure(lambda: credit(client, metadata={"action_id": "a1"}))
    sandbox.credit_outside(customer, amount=700)
    made, outside = sandbox.credits(customer)
    assert (made["amount"], made["currency"]) == (-2500, "usd")
    assert (made["metadata"], made["idempotency_key"]) == ({"action_id": "a1"}, "k1")
    assert (outside["amount"], outside["idempotency_key"]) == (-700, None)
    assert (made["outside"], outside["outside"]) == (False, True)
    assert SandboxClient(sandbox.url).credits(customer) == [made, outside]
    assert sandbox.credits("cus_2") == []


@pytest.mark.parametrize(
    ("customer", "amount"), [("cus_2", 100), ("cus_1", 0), ("cus_1", 1.5), ("cus_1", "1")]
)
def test_a_credit_by_hand_that_cannot_be_is_refused_in_words(
    sandbox: Sandbox, customer: str, amount: Any
) -> None:
    sandbox.customer("cus_1")
    with pytest.raises(ValueError, match=r"no customer|An amount|bad operand"):
        sandbox.credit_outside(customer, amount=amount)
    assert sandbox.credits() == []


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"amount": "1.5"}, "parameter_invalid_integer", "amount"),
        ({"amount": None}, "parameter_missing", "amount"),
        ({"currency": None}, "parameter_missing", "currency"),
        ({"currency": ""}, "parameter_invalid_empty", "currency"),
        ({"status": "succeeded"}, "parameter_unknown", "status"),
        ({"description": ""}, "parameter_invalid_empty", "description"),
    ],
)
def test_bad_parameters_leave_the_key_unused(
    client: stripe.StripeClient, customer: str, change: dict[str, Any], code: str, param: str
) -> None:
    error = failure(lambda: credit(client, **change))
    assert (error.http_status, error.code, error.param) == (400, code, param)
    assert credit(client).amount == -2500


def test_the_same_key_replays_and_other_content_is_refused(
    sandbox: Sandbox, client: stripe.StripeClient, customer: str
) -> None:
    first, again = credit(client), credit(client)
    assert first.id == again.id
    assert again.last_response is not None
    assert again.last_response.headers["Idempotent-Replayed"] == "true"
    assert isinstance(failure(lambda: credit(client, amount=-1)), stripe.IdempotencyError)
    sandbox.customer("cus_2")
    assert isinstance(failure(lambda: credit(client, "cus_2")), stripe.IdempotencyError)
    assert len(sandbox.credits()) == 1


def test_many_with_one_key_give_credit_once(sandbox: Sandbox, customer: str) -> None:
    client = stripe_client(sandbox)

    def one(_: int) -> str:
        try:
            return credit(client).id
        except stripe.StripeError as error:
            return str(error.http_status)

    with ThreadPoolExecutor(10) as pool:
        told = set(pool.map(one, range(20)))
    (made,) = sandbox.credits(customer)
    assert made["id"] in told
    assert told <= {made["id"], "409"}


def test_a_customer_that_is_locked_is_a_429_that_no_key_remembers(
    sandbox: Sandbox, client: stripe.StripeClient, customer: str
) -> None:
    sandbox.settings(charge_lock_seconds=0.5, charge_lock_wait_seconds=0.1)
    with ThreadPoolExecutor(2) as pool:

        def one(key: str) -> str:
            try:
                return credit(client, key=key).id
            except stripe.RateLimitError as error:
                return str(error.error and error.error.code)

        told = list(pool.map(one, ("k1", "k2")))
    assert told.count("lock_timeout") == 1
    credit(client, key=("k1", "k2")[told.index("lock_timeout")])
    assert len(sandbox.credits(customer)) == 2


@pytest.mark.parametrize(
    ("fault", "params", "exist"),
    [
        ("reset-before-execution", {}, 0),
        ("hang-before-execution", {"seconds": 2}, 0),
        ("error-500-not-executed", {}, 0),
        ("not-found-404", {}, 0),
        ("executed-late", {"seconds": 60}, 0),
        ("reset-after-execution", {}, 1),
        ("hang-after-execution", {"seconds": 2}, 1),
        ("error-500-executed", {}, 1),
        ("html-200", {}, 1),
    ],
)
def test_faults_work_on_credits(
    sandbox: Sandbox, customer: str, fault: str, params: dict[str, Any], exist: int
) -> None:
    sandbox.fault(fault, match=GIVE, **params)
    failure(lambda: credit(impatient_client(sandbox)))
    assert len(sandbox.credits(customer)) == exist
    if fault == "executed-late":
        sandbox.advance(61)
        assert len(sandbox.credits(customer)) == 1


def test_an_unknown_customer_is_the_404_a_fault_says(
    sandbox: Sandbox, client: stripe.StripeClient, customer: str
) -> None:
    real = failure(lambda: credit(client, "cus_2", key="k1"))
    sandbox.fault("not-found-404", match=GIVE)
    scripted = failure(lambda: credit(client, customer, key="k2"))
    assert (real.http_status, real.code, real.param) == (404, "resource_missing", "id")
    assert (scripted.http_status, scripted.code, scripted.param) == (404, "resource_missing", "id")
    assert scripted.user_message == "No such customer: 'cus_1'"


@pytest.mark.parametrize(
    ("fault", "field"),
    [
        ("mismatched-amount", "amount"),
        ("mismatched-currency", "currency"),
        ("mismatched-metadata", "metadata"),
        ("mismatched-payment", "customer"),
    ],
)
def test_a_mismatched_answer_differs_in_one_field(
    sandbox: Sandbox, client: stripe.StripeClient, customer: str, fault: str, field: str
) -> None:
    sandbox.fault(fault, match=GIVE)
    told = credit(client, metadata={"action_id": "a1"}).to_dict()
    true = client.v1.customers.balance_transactions.retrieve(customer, str(told["id"])).to_dict()
    assert {name for name in true if told[name] != true[name]} == {field}


def test_a_swapped_answer_is_another_credit_or_made_up(
    sandbox: Sandbox, client: stripe.StripeClient, customer: str
) -> None:
    sandbox.fault("swapped-response", match=GIVE, times=2)
    made_up = credit(client, key="k1")
    (real,) = sandbox.credits(customer)
    assert made_up.id != real["id"]
    assert made_up.customer != customer
    assert credit(client, key="k2", amount=-9).id == real["id"]


def test_credits_are_paged_filtered_and_kept_to_their_customer(
    sandbox: Sandbox, client: stripe.StripeClient, customer: str
) -> None:
    sandbox.customer("cus_2")
    sandbox.credit_outside("cus_2", amount=1)
    made = [credit(client, key=f"k{n}", amount=-n).id for n in range(1, 8)]
    balance = client.v1.customers.balance_transactions
    listed = balance.list(customer, {"limit": 3})
    assert [each.id for each in listed.auto_paging_iter()] == made[::-1]
    after = balance.list(customer, {"limit": 3, "starting_after": made[2]})
    assert ([each.id for each in after.data], after.has_more) == (made[1::-1], False)
    sandbox.advance(100)
    late = credit(client, key="late")
    recent = balance.list(customer, {"created": {"gte": late.created}})
    assert [each.id for each in recent.data] == [late.id]
    (other,) = sandbox.credits("cus_2")
    for wrong in (
        lambda: balance.list(customer, {"starting_after": other["id"]}),
        lambda: balance.retrieve(customer, other["id"]),
        lambda: balance.list("cus_3"),
    ):
        assert failure(wrong).code == "resource_missing"


def test_a_list_of_credits_can_lag_and_be_unreadable(
    sandbox: Sandbox, client: stripe.StripeClient, customer: str
) -> None:
    credit(client)
    balance = client.v1.customers.balance_transactions
    sandbox.fault("list-lags", match=READ)
    assert balance.list(customer).data == []
    assert len(balance.list(customer).data) == 1
    sandbox.fault("list-unreadable", match=READ)
    assert failure(lambda: balance.list(customer)).http_status == 500


def test_a_credit_changes_its_customer_with_an_event(
    client: stripe.StripeClient, customer: str
) -> None:
    credit(client)
    updated, created = client.v1.events.list({"types": ["customer.created", "customer.updated"]})
    assert created.request is not None
    assert created.request.id is None
    assert updated.request is not None
    assert updated.request.idempotency_key == "k1"
    assert updated.data.object["balance"] == -2500
    assert updated.data.to_dict()["previous_attributes"] == {"balance": 0, "currency": None}


def test_accounts_have_their_own_customers(sandbox: Sandbox, customer: str) -> None:
    other = stripe_client(sandbox, api_key="sk_test_second")
    error = failure(lambda: credit(other))
    assert error.http_status == 404


def test_a_customer_can_be_expanded(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    sandbox.payment(amount=100, customer="cus_1", id="pi_1")
    read = client.v1.payment_intents.retrieve("pi_1", {"expand": ["latest_charge.customer"]})
    assert not isinstance(read.latest_charge, str)
    assert read.latest_charge is not None
    assert not isinstance(read.latest_charge.customer, str)
    assert read.latest_charge.customer is not None
    assert read.latest_charge.customer.id == "cus_1"


def test_credits_and_their_keys_survive_a_kill(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with Sandbox(state=state) as first:
        first.customer("cus_1")
        made = credit(stripe_client(first))
    with Sandbox(state=state) as second:
        client = stripe_client(second)
        assert credit(client).id == made.id
        assert credit(client, key="k2").ending_balance == -5000
        assert len(second.credits("cus_1")) == 2
