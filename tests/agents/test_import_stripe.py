"""`manage.py orders import-stripe`: orders out of the payments, never over the merchant's word."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from agents.management.commands import orders as command
from effects.models import Case
from providers.sandbox import Sandbox
from reconciliation.compare_orders import compare_orders
from refunds.dispatch import dispatch
from refunds.models import ExternalRefund, Order, RefundEvent
from tests import builders
from tests.agents.conftest import Caller, order_body, read
from tests.sandbox.calls import stripe_client

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TRY_AGAIN_SECONDS", (0, 0, 0))


def run(*arguments: Any) -> tuple[list[dict[str, Any]], str]:
    """What was refused, and what was said on stderr."""
    since = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    out, err = StringIO(), StringIO()
    given = [*map(str, arguments)]
    if "--since" not in given:
        given += ["--since", since]
    if "--until" not in given:
        given += ["--until", (datetime.now(UTC) + timedelta(days=1)).isoformat()]
    try:
        call_command("orders", "import-stripe", *given, stdout=out, stderr=err)
    except CommandError as error:
        err.write(f"exit {error.returncode}: {error}")
    return [json.loads(one) for one in out.getvalue().splitlines()], err.getvalue()


def paid(sandbox: Sandbox, order_id: str | None, **more: Any) -> str:
    """A captured payment that names its order, and its id."""
    named = {} if order_id is None else {"metadata": {"order_id": order_id}}
    values: dict[str, Any] = {"amount": 20_000, **named, **more}
    return str(sandbox.payment(**values)["payment_intent"]["id"])


def a_customer(sandbox: Sandbox) -> str:
    """The id of a customer with an address."""
    return str(stripe_client(sandbox).v1.customers.create({"email": "ada@example.com"}).id)


def the_order(order_id: str) -> Order:
    return Order.objects.get(order_id=order_id)


def test_an_order_is_what_its_payment_shows(sandbox: Sandbox) -> None:
    customer = a_customer(sandbox)
    payment = paid(sandbox, "4821", customer=customer, currency="eur")
    refused, said = run()
    assert refused == []
    assert said.startswith("1 payments: 1 created, 0 changed, 0 unchanged, 0 older, 0 refused.")
    order = the_order("4821")
    assert (order.payment_ref, order.currency, order.captured_minor) == (payment, "EUR", 20_000)
    assert (order.customer_ref, order.customer_email) == (customer, "ada@example.com")
    assert (order.payment_method, order.source_version) == ("card", -1)
    assert order.placed_at is not None
    # What it shows is known with it: nothing is due to be compared.
    assert (order.shown_captured_minor, order.compare_due_at) == (20_000, None)
    assert compare_orders() == 0


def test_the_receipt_s_address_goes_before_the_customer_s(sandbox: Sandbox) -> None:
    customer = a_customer(sandbox)
    paid(sandbox, "1", customer=customer, receipt_email="grace@example.com")
    run()
    assert the_order("1").customer_email == "grace@example.com"


def test_a_refund_of_an_imported_order_goes_out(sandbox: Sandbox) -> None:
    paid(sandbox, "4821", customer=a_customer(sandbox))
    run()
    action = builders.action(the_order("4821"), amount_minor=5_000)
    assert dispatch(action_id=action.action_id) == "succeeded"


def test_it_can_be_run_again(sandbox: Sandbox) -> None:
    paid(sandbox, "1")
    run()
    events = RefundEvent.objects.count()
    _, said = run()
    assert "1 payments: 0 created, 0 changed, 1 unchanged" in said
    assert RefundEvent.objects.count() == events
    assert the_order("1").version == 1


def test_all_pages_are_read_and_what_names_no_order_is_counted(sandbox: Sandbox) -> None:
    for number in range(130):
        paid(sandbox, str(number), amount=1_000)
    paid(sandbox, None)
    paid(sandbox, "not-captured", capture=False)
    _, said = run()
    assert "132 payments: 130 created" in said
    assert "1 without order_id" in said
    assert "1 not captured" in said
    assert Order.objects.count() == 130
    assert len(sandbox.requests(method="GET", path="/v1/payment_intents")) == 2


def test_the_key_of_the_metadata_can_be_named(sandbox: Sandbox) -> None:
    paid(sandbox, None, metadata={"shop_order": "77", "order_id": "other"})
    run("--order-id-from", "metadata.shop_order")
    assert the_order("77")
    with pytest.raises(CommandError, match=r"not like metadata\.order_id"):
        call_command("orders", "import-stripe", "--since=2026-01-01", "--order-id-from=order_id")


def test_only_the_time_that_was_asked_for_is_read(sandbox: Sandbox) -> None:
    paid(sandbox, "before")
    now = datetime.fromtimestamp(sandbox.payment(amount=1)["payment_intent"]["created"], tz=UTC)
    sandbox.advance(3_600)
    paid(sandbox, "inside")
    sandbox.advance(3_600)
    paid(sandbox, "after")
    run(
        "--since",
        (now + timedelta(minutes=30)).isoformat(),
        "--until",
        (now + timedelta(minutes=90)).isoformat(),
    )
    assert [order.order_id for order in Order.objects.all()] == ["inside"]
    assert (
        "--since must be before --until" in run("--since", "2026-02-01", "--until", "2026-01-01")[1]
    )


def test_what_was_refunded_before_is_counted_and_no_case(sandbox: Sandbox) -> None:
    payment = paid(sandbox, "1")
    sandbox.refund_outside(payment, amount=5_000)
    builders.skew_clock(5)
    run()
    order = the_order("1")
    assert (order.refunded_minor, order.refundable_minor) == (5_000, 15_000)
    assert order.provider_read_at is None  # the first send looks
    assert ExternalRefund.objects.get(order=order).amount_minor == 5_000
    assert not Case.objects.exists()
    listed = len(sandbox.requests(path="/v1/refunds"))
    run()
    assert the_order("1").refunded_minor == 5_000
    assert len(sandbox.requests(path="/v1/refunds")) == listed


# -- beside what the merchant says ----------------------------------------------------------------


def test_nothing_that_the_merchant_said_is_overwritten(sandbox: Sandbox, caller: Caller) -> None:
    payment = paid(sandbox, "4821", receipt_email="grace@example.com")
    body = order_body(payment={"provider": "stripe", "payment_intent": payment})
    read(caller.call("PUT", "/orders/4821", body), 201)
    before = Order.objects.values("customer_email", "customer_ref", "placed_at", "version").get()
    _, said = run()
    assert "0 changed, 0 unchanged, 1 older" in said
    assert before == (
        Order.objects.values("customer_email", "customer_ref", "placed_at", "version").get()
    )
    assert the_order("4821").shown_captured_minor == 20_000


def test_the_merchant_s_first_word_overwrites_an_import(sandbox: Sandbox, caller: Caller) -> None:
    payment = paid(sandbox, "4821")
    run()
    body = order_body(payment={"provider": "stripe", "payment_intent": payment})
    answer = read(caller.call("PUT", "/orders/4821", body), 200)
    assert answer["source_version"] == 0
    assert the_order("4821").customer_ref == "cus_88"
    _, said = run()
    assert "1 older" in said


def test_an_import_that_contradicts_the_merchant_is_a_case(
    sandbox: Sandbox, caller: Caller
) -> None:
    payment = paid(sandbox, "4821", amount=15_000)
    body = order_body(payment={"provider": "stripe", "payment_intent": payment})
    read(caller.call("PUT", "/orders/4821", body), 201)
    _, said = run()
    assert "1 orders are not what Stripe shows: a case is open on each" in said
    case = Case.objects.get(kind=Case.Kind.CONTRADICTION)
    assert "Order 4821: you say 200.00 USD captured, Stripe shows 150.00 USD" in case.reason


def test_a_later_capture_of_an_imported_order_is_taken_over(sandbox: Sandbox) -> None:
    paid(sandbox, "1")
    run()
    order = the_order("1")
    Order.objects.filter(pk=order.pk).update(captured_minor=15_000, shown_captured_minor=15_000)
    _, said = run()
    assert "1 changed" in said
    assert the_order("1").captured_minor == 20_000
    assert not Case.objects.exists()


@pytest.mark.parametrize(
    ("order_id", "reason"),
    [("a:b", "must be 1 to 64 characters"), ("taken", "was paid with pi_")],
)
def test_a_payment_that_cannot_be_an_order_is_refused_by_name_and_the_rest_goes_on(
    sandbox: Sandbox, order_id: str, reason: str
) -> None:
    if order_id == "taken":
        paid(sandbox, order_id, metadata={"order_id": "taken", "n": "1"})
        run()
    bad = paid(sandbox, order_id)
    paid(sandbox, "good")
    refused, said = run()
    (told,) = refused
    assert (told["payment_intent"], told["order_id"]) == (bad, order_id)
    assert reason in told["fields"][0]["reason"]
    assert "exit 1:" in said
    assert the_order("good")


@pytest.mark.parametrize("order_id", [".", ".."])
def test_an_order_that_no_address_could_name_is_refused(sandbox: Sandbox, order_id: str) -> None:
    paid(sandbox, order_id)
    for dry in ([], ["--dry-run"]):
        (told,), said = run(*dry)
        assert told["fields"][0]["field"] == "order_id"
        assert "must not be . or .." in told["fields"][0]["reason"]
        assert "exit 1:" in said
    assert not Order.objects.exists()


def test_a_dry_run_writes_nothing(sandbox: Sandbox) -> None:
    paid(sandbox, "1")
    _, said = run("--dry-run")
    assert said.startswith("Dry run, nothing was written. 1 payments:")
    assert not Order.objects.exists()


# -- weather --------------------------------------------------------------------------------------


def test_a_page_that_cannot_be_read_is_asked_for_again(sandbox: Sandbox) -> None:
    paid(sandbox, "1")
    sandbox.fault("rate-limit-429", match={"path": "/v1/payment_intents"}, times=2)
    _, said = run()
    assert said.count("Stripe could not be read (rate_limited); again in") == 2
    assert "1 created" in said


def test_an_outage_ends_it_and_the_next_run_goes_on(sandbox: Sandbox) -> None:
    for number in range(120):
        paid(sandbox, str(number), amount=1_000)
    sandbox.fault("error-500-not-executed", match={"path": "/v1/payment_intents"}, times=9, skip=1)
    _, said = run()
    assert "exit 1: 100 payments: 100 created" in said
    assert "Run it again to go on" in said
    sandbox.clear_faults()
    _, said = run()
    assert "120 payments: 20 created, 0 changed, 100 unchanged" in said


def test_a_key_that_stripe_does_not_take_is_told_at_once(sandbox: Sandbox) -> None:
    _, said = run("--account", "acct_nobody")
    assert "exit 1:" in said
    assert "again in" not in said
