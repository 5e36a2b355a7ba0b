"""A debt is paid once, however late the refund shows and whatever people have said before."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User

from approvals.settle import Settled, settle_case
from effects.models import Case, Switch
from effects.states import State
from effects.switches import turn_off, turn_on
from reconciliation.check_now import check_now
from reconciliation.sweep import sweep
from refunds import remedies
from refunds.dispatch import dispatch
from refunds.models import Order, RefundAction, Remedy
from refunds.orders import OrderFacts, mirror_order
from refunds.remedies import RemedyDone, RemedyRefused, Why
from tests import builders
from tests.refunds import debts

pytestmark = pytest.mark.django_db(transaction=True)

DAY = 86_400.0


def day(*numbers: int) -> None:
    """The sweep of each of these days."""
    for number in numbers:
        builders.skew_clock(number * DAY)
        sweep()


def appears(sandbox, debt: RefundAction) -> None:
    """The refund is at the provider after all, and nobody here has looked."""
    ours = {"action_id": debt.action_id, "instance": debt.instance}
    sandbox.refund_outside(debt.order.payment_ref, amount=debt.amount_minor, metadata=ours)


def closed_by_a_word(debt: RefundAction) -> None:
    settler = builders.person(may_decide=False)
    settler.user_permissions.add(Permission.objects.get(codename="settle_case"))
    case = debts.open_cases(debt)["failed"]
    closed = settle_case(
        case_id=case.case_id,
        user=User.objects.get(pk=settler.pk),
        note="we pay it by bank transfer tomorrow",
    )
    assert isinstance(closed, Settled), closed


def sent(remedy: Remedy) -> State:
    dispatch(action_id=debts.credit_of(remedy).action_id)
    return State(debts.credit_of(remedy).state)


# -- the watch


def test_a_refund_is_watched_as_long_as_its_credit_waits(sandbox):
    debt = debts.debt(sandbox)
    turn_on(scope="kind:credit", actor="person:grace", reason="a stop of a month")
    remedy = debts.proposed(debt, "store_credit")
    day(1, 31)
    appears(sandbox, debt)
    day(32, 33)
    turn_off(switch_id=Switch.objects.get(scope="kind:credit").pk, actor="person:grace")
    sent(remedy)
    assert builders.fresh(debt).state == State.SUCCEEDED
    assert debts.fresh(remedy).state == "STOPPED"
    assert debts.paid(sandbox, debt.order) == []


@pytest.mark.parametrize("stopped", [True, False])
def test_a_remedy_that_is_recorded_late_is_watched_from_then_on(sandbox, stopped):
    debt = debts.debt(sandbox)
    remedy = debts.proposed(debt, "cheque")
    if stopped:
        debts.stopping(remedy)
        day(1)
        assert builders.fresh(debt).due_at is None
    day(31)
    builders.skew_clock(32 * DAY)
    assert isinstance(debts.recording(remedy), RemedyDone)
    appears(sandbox, debt)
    day(60)
    assert builders.fresh(debt).state == State.SUCCEEDED
    assert "incident" in debts.open_cases(debt)


def test_a_remedy_that_was_issued_is_watched_for_thirty_days(sandbox):
    debt = debts.debt(sandbox)
    debts.recording(debts.proposed(debt, "cheque"))
    day(29)
    assert builders.fresh(debt).due_at is not None
    day(31)
    assert builders.fresh(debt).due_at is None


def test_a_given_up_credit_that_shows_late_begins_the_watch_of_its_refund_again(sandbox):
    debt = debts.debt(sandbox)
    remedy = debts.proposed(debt, "store_credit")
    path = f"/v1/customers/{debt.order.customer_ref}/balance_transactions"
    sandbox.fault("executed-late", match={"method": "POST", "path": path})
    assert sent(remedy) == State.UNKNOWN
    debts.give_up(debts.credit_of(remedy))
    builders.skew_clock(DAY + 100)
    sweep()
    assert builders.fresh(debt).due_at is None
    sandbox.advance(DAY)
    builders.skew_clock(DAY + 300)
    check_now(action_id=debts.credit_of(remedy).action_id, actor="person:grace")
    assert debts.fresh(remedy).state == "ISSUED"
    assert builders.fresh(debt).due_at is not None


# -- the look before a credit


@pytest.mark.parametrize("captured_minor", [7_900, 20_000])
@pytest.mark.parametrize("own", [True, False])
def test_a_credit_is_not_sent_beside_a_refund_that_is_there(sandbox, own, captured_minor):
    order = debts.order_of_customer(sandbox, captured_minor=captured_minor)
    debt = debts.debt(sandbox, order=order)
    if own:
        appears(sandbox, debt)
    else:
        sandbox.refund_outside(order.payment_ref, amount=7_900)
    remedy = debts.proposed(debt, "store_credit")
    assert sent(remedy) == State.AUTHORIZED
    row = builders.fresh(debt)
    assert row.due_at is not None
    assert row.due_at <= row.updated_at
    sweep()
    builders.skew_clock(120)
    sent(remedy)
    assert debts.paid(sandbox, order) == []
    if own:
        assert builders.fresh(debt).state == State.SUCCEEDED
        assert debts.fresh(remedy).state == "STOPPED"
    else:
        told = debts.open_cases(debt)["found-elsewhere"].reason
        assert "store credit 1 of 79.00 USD is authorized".lower() in told.lower()


def test_a_credit_goes_out_once_the_refund_made_elsewhere_was_looked_at(sandbox):
    debt = debts.debt(sandbox, order=debts.order_of_customer(sandbox, captured_minor=20_000))
    sandbox.refund_outside(debt.order.payment_ref, amount=1_000)
    remedy = debts.proposed(debt, "store_credit")
    sent(remedy)
    sweep()
    Case.objects.filter(kind="found-elsewhere").update(closed_at=debt.created_at)
    builders.skew_clock(120)
    assert sent(remedy) == State.SUCCEEDED
    assert debts.paid(sandbox, debt.order) == [7_900]


def test_a_credit_is_not_sent_while_the_payment_cannot_be_read(sandbox):
    debt = debts.debt(sandbox)
    remedy = debts.proposed(debt, "store_credit")
    sandbox.fault("error-500-not-executed", match={"method": "GET", "path": "/v1/refunds"})
    assert sent(remedy) == State.AUTHORIZED
    assert debts.paid(sandbox, debt.order) == []


# -- the customer


def changed_customer(order: Order) -> None:
    mirror_order(
        facts=OrderFacts(
            order_id=order.order_id,
            currency=order.currency,
            captured_minor=order.captured_minor,
            provider=order.provider,
            payment_ref=order.payment_ref,
            customer_ref="cus_mallory",
            customer_email="m@example.com",
        ),
        actor="agent-1",
    )


def test_a_credit_is_for_the_customer_of_its_proposal(sandbox):
    debt = debts.given_up(sandbox)
    remedy = debts.proposed(debt, "store_credit")
    sandbox.customer(id="cus_mallory")
    changed_customer(debt.order)
    refused = debts.approving(remedy)
    assert isinstance(refused, RemedyRefused)
    assert refused.why is Why.NO_CUSTOMER
    assert "cus_mallory" in refused.sentence
    assert sandbox.credits("cus_mallory") == []


def test_a_credit_stops_when_the_order_has_another_customer(sandbox):
    debt = debts.debt(sandbox)
    remedy = debts.proposed(debt, "store_credit")
    sandbox.customer(id="cus_mallory")
    changed_customer(debt.order)
    sent(remedy)
    assert debts.fresh(remedy).state == "STOPPED"
    assert debts.paid(sandbox, debt.order) == []
    assert sandbox.credits("cus_mallory") == []


# -- people


def test_after_the_case_was_closed_by_a_word_it_takes_two_people(sandbox):
    debt = debts.debt(sandbox)
    closed_by_a_word(debt)
    remedy = debts.proposed(debt, "cheque")
    assert (remedy.people_needed, remedy.proof) == (2, "people")
    assert "closed by a person" in remedy.why_two


def test_beside_a_later_refund_of_the_same_amount_it_takes_two_people(sandbox):
    debt = debts.debt(sandbox, order=debts.order_of_customer(sandbox, captured_minor=20_000))
    again = builders.action(debt.order)
    made = debts.proposing(debt, "store_credit")
    assert isinstance(made, RemedyDone)
    assert made.remedy.people_needed == 2
    assert again.action_id in made.sentence


@pytest.mark.parametrize("then", ["nothing", "stopped"])
def test_a_case_that_was_closed_is_open_again_while_the_customer_is_owed(sandbox, then):
    debt = debts.debt(sandbox)
    closed_by_a_word(debt)
    remedy = debts.proposed(debt, "bank_transfer")
    if then == "stopped":
        assert isinstance(debts.stopping(remedy), RemedyDone)
    assert "failed" in debts.open_cases(debt)


def test_a_transfer_that_bounced_opens_the_debt_again_for_two_people(sandbox):
    debt = debts.debt(sandbox)
    remedy = debts.proposed(debt, "bank_transfer")
    debts.recording(remedy)
    assert debts.open_cases(debt) == {}
    done = debts.coming_back(remedy)
    assert isinstance(done, RemedyDone), done
    assert "the bank sent it back" in debts.open_cases(debt)["failed"].reason
    debts.balance_agrees(debt.order)
    assert debts.proposed(debt, "cheque").people_needed == 2


def test_only_what_is_out_and_made_by_hand_can_have_come_back(sandbox):
    debt = debts.debt(sandbox)
    remedy = debts.proposed(debt, "cheque")
    assert isinstance(debts.coming_back(remedy), RemedyRefused)
    debts.recording(remedy)
    assert isinstance(debts.coming_back(remedy, reason="whim"), RemedyRefused)
    nobody = debts.coming_back(remedy, user=debts.person("propose_remedy"))
    assert isinstance(nobody, RemedyRefused)
    assert nobody.why is Why.NOT_PERMITTED
    stale = remedies.record_failed(
        remedy_id=remedy.pk, user=debts.person(), reason="lost", note=debts.NOTE, seen_version=1
    )
    assert isinstance(stale, RemedyRefused)
    assert stale.why is Why.CHANGED_SINCE


def test_a_transfer_that_was_recalled_leaves_a_refund_that_fails_late_owed(sandbox):
    debt = debts.debt(sandbox)
    remedy = debts.proposed(debt, "bank_transfer")
    debts.recording(remedy)
    assert debts.comes_back(sandbox, debt).state == State.SUCCEEDED
    done = debts.coming_back(remedy, reason="recalled")
    assert isinstance(done, RemedyDone)
    assert "nothing is owed" in done.sentence
    sandbox.fail_refund(builders.fresh(debt).provider_ref)
    builders.skew_clock(200)
    check_now(action_id=debt.action_id, actor="person:grace")
    assert "failed" in debts.open_cases(debt)


def test_one_number_settles_one_debt(sandbox):
    first, second = debts.debt(sandbox), debts.debt(sandbox)
    debts.recording(debts.proposed(first, "bank_transfer"), reference="SEPA 1")
    remedy = debts.proposed(second, "bank_transfer")
    again = debts.recording(remedy, reference="sepa 1")
    assert isinstance(again, RemedyRefused)
    assert again.why is Why.SAME_REFERENCE
    assert isinstance(debts.recording(remedy, reference="SEPA 2"), RemedyDone)
