"""Store credit: a remedy that is sent once, found out about, and never paid beside the refund."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from effects.models import Case, Switch
from effects.outcomes import Succeeded
from effects.states import State
from effects.switches import turn_on
from kernel.identity import credit_action_id
from providers.port import SendRequest
from providers.registry import payment_provider
from reconciliation.check_now import check_now
from reconciliation.sweep import sweep
from refunds import credits, hint
from refunds.dispatch import dispatch
from refunds.dispatch_due import hint_due_actions
from refunds.models import CreditAction, CreditEvent, Order, Remedy
from refunds.remedies import RemedyRefused, Why
from tests import builders
from tests.refunds import debts

pytestmark = pytest.mark.django_db(transaction=True)


def on(order, **more):
    """The fault's match: the credit request of this order's customer."""
    path = f"/v1/customers/{order.customer_ref}/balance_transactions"
    return {"method": "POST", "path": path, **more}


def sent(remedy):
    credit = debts.credit_of(remedy)
    dispatch(action_id=credit.action_id)
    return debts.credit_of(remedy)


@pytest.fixture
def debt(sandbox):
    return debts.debt(sandbox)


def test_a_store_credit_settles_the_debt(sandbox, debt):
    remedy = debts.proposed(debt, "store_credit")
    credit = debts.credit_of(remedy)
    assert credit.action_id == credit_action_id(
        order_id=debt.order.order_id, request_id=debt.request_id, number=1
    )

    credit = sent(remedy)

    assert credit.state == State.SUCCEEDED
    remedy = debts.fresh(remedy)
    assert (remedy.state, remedy.reference) == ("ISSUED", credit.provider_ref)
    assert debts.paid(sandbox, debt.order) == [7_900]
    case = Case.objects.get(action_id=debt.action_id, kind=Case.Kind.FAILED)
    assert credit.provider_ref in case.resolution
    assert not debts.open_cases(debt)
    debts.balance_agrees(debt.order)


def test_it_is_sent_once_however_often_it_is_dispatched(sandbox, debt):
    remedy = debts.proposed(debt, "store_credit")
    for _ in range(3):
        sent(remedy)
    assert debts.paid(sandbox, debt.order) == [7_900]


def test_the_dispatch_sweep_finds_a_credit_whose_hint_was_lost(debt, monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(hint, "publish", told.append)
    remedy = debts.proposed(debt, "store_credit")
    told.clear()
    builders.skew_clock(3_600)

    hint_due_actions()

    assert told == [debts.credit_of(remedy).action_id]


def test_without_proof_a_credit_exists_only_after_the_second_person(sandbox):
    debt = debts.given_up(sandbox)
    remedy = debts.proposed(debt, "store_credit")
    assert not CreditAction.objects.exists()

    debts.approving(remedy)

    assert sent(remedy).state == State.SUCCEEDED
    assert debts.paid(sandbox, debt.order) == [7_900]


@pytest.mark.parametrize("fault", ["reset-after-execution", "error-500-executed"])
def test_a_credit_whose_answer_was_lost_is_found_and_not_sent_again(sandbox, debt, fault):
    remedy = debts.proposed(debt, "store_credit")
    sandbox.fault(fault, match=on(debt.order))
    assert sent(remedy).state == State.UNKNOWN
    assert debts.fresh(remedy).state == "ISSUING"

    builders.skew_clock(200)
    sweep()

    assert debts.credit_of(remedy).state == State.SUCCEEDED
    assert debts.fresh(remedy).state == "ISSUED"
    assert debts.paid(sandbox, debt.order) == [7_900]
    assert not debts.open_cases(debt)


def test_a_credit_that_never_happened_is_sent_again_under_its_key(sandbox, debt):
    """The listed changes add up to the balance: none is missing, so it did not happen."""
    remedy = debts.proposed(debt, "store_credit")
    sandbox.credit_outside(debt.order.customer_ref, amount=500)
    sandbox.credit_outside(debt.order.customer_ref, amount=300, currency="eur")
    sandbox.fault("reset-before-execution", match=on(debt.order))
    assert sent(remedy).state == State.UNKNOWN

    builders.skew_clock(300)
    sweep()

    assert debts.credit_of(remedy).state == State.AUTHORIZED
    assert debts.fresh(remedy).state == "AUTHORIZED"
    assert sent(remedy).state == State.SUCCEEDED
    assert debts.paid(sandbox, debt.order) == [500, 300, 7_900]


@pytest.mark.parametrize("why", ["the list lags", "the balance cannot be read"])
def test_a_credit_that_nobody_finds_is_a_persons_after_three_tries(sandbox, debt, why):
    """Absence from the list alone proves nothing: that list is eventually consistent."""
    remedy = debts.proposed(debt, "store_credit")
    path = on(debt.order)["path"]
    if why == "the list lags":
        sandbox.fault("reset-after-execution", match=on(debt.order))
        sandbox.fault("list-lags", match={"method": "GET", "path": path}, times=None, seconds=9e9)
    else:
        sandbox.fault("reset-before-execution", match=on(debt.order))
        customer = {"method": "GET", "path": f"/v1/customers/{debt.order.customer_ref}"}
        sandbox.fault("list-unreadable", match=customer, times=None)
    credit = sent(remedy)
    assert credit.state == State.UNKNOWN

    for seconds in (400, 4_000, 40_000):
        builders.skew_clock(seconds)
        sweep()

    credit = debts.credit_of(remedy)
    assert credit.state == State.UNKNOWN
    assert set(debts.open_cases(credit)) == {Case.Kind.UNKNOWN_OUTCOME}
    assert debts.fresh(remedy).state == "ISSUING"
    assert debts.paid(sandbox, debt.order) == ([7_900] if why == "the list lags" else [])
    refused = debts.proposing(debt, "cheque")
    assert isinstance(refused, RemedyRefused)
    assert refused.why is Why.ALREADY_LIVE
    debts.balance_agrees(debt.order)


def test_a_refused_credit_opens_the_debt_again_and_another_remedy_follows(sandbox, debt):
    other = debts.order_of_customer(sandbox)
    sandbox.credit_outside(other.customer_ref, amount=1, currency="eur")
    sandbox.settings(customer_currencies="one")
    row = debts.debt(sandbox, order=other)
    remedy = debts.proposed(row, "store_credit")

    credit = sent(remedy)

    assert credit.state == State.FAILED_FINAL
    assert debts.fresh(remedy).state == "FAILED"
    assert not debts.open_cases(credit)
    assert set(debts.open_cases(row)) == {Case.Kind.FAILED}
    second = debts.proposed(row, "bank_transfer")
    assert (second.number, second.proof) == (2, "provider")
    debts.recording(second)
    assert not debts.open_cases(row)
    debts.balance_agrees(other)


def test_a_request_that_was_turned_away_waits_and_goes_out_later(sandbox, debt):
    remedy = debts.proposed(debt, "store_credit")
    sandbox.fault("rate-limit-429", match=on(debt.order))

    assert sent(remedy).state == State.AUTHORIZED
    assert debts.fresh(remedy).state == "AUTHORIZED"
    assert sent(remedy).state == State.SUCCEEDED
    assert debts.paid(sandbox, debt.order) == [7_900]
    debts.balance_agrees(debt.order)


@pytest.mark.parametrize("scope", ["global", "kind:credit", "account:stripe:"])
def test_a_kill_switch_keeps_a_credit_back(sandbox, debt, scope):
    remedy = debts.proposed(debt, "store_credit")
    turn_on(scope=scope, reason="drill", actor="person:grace")

    assert sent(remedy).state == State.AUTHORIZED

    assert debts.paid(sandbox, debt.order) == []
    Switch.objects.update(ended_at=debt.created_at)
    assert sent(remedy).state == State.SUCCEEDED


def test_an_incident_on_the_order_keeps_a_credit_back(sandbox, debt):
    remedy = debts.proposed(debt, "store_credit")
    with debts.locked(debt) as locked:
        debts.incident(locked)

    assert sent(remedy).state == State.AUTHORIZED
    assert debts.paid(sandbox, debt.order) == []


def test_a_stopped_credit_is_not_sent(sandbox, debt):
    remedy = debts.proposed(debt, "store_credit")
    debts.stopping(remedy)

    credit = sent(remedy)

    assert credit.state == State.REJECTED
    assert debts.paid(sandbox, debt.order) == []
    debts.balance_agrees(debt.order)


def test_a_credit_for_another_customer_is_not_sent(sandbox, debt):
    remedy = debts.proposed(debt, "store_credit")
    Order.objects.filter(pk=debt.order.pk).update(customer_ref="cus_other")

    assert sent(remedy).state == State.REJECTED
    assert debts.fresh(remedy).state == "STOPPED"
    assert set(debts.open_cases(debt)) == {Case.Kind.FAILED}
    debts.balance_agrees(debt.order)


def test_a_refund_that_is_back_before_the_credit_was_claimed_stops_it(sandbox, debt):
    remedy = debts.proposed(debt, "store_credit")

    debt = debts.comes_back(sandbox, debt)

    assert debt.state == State.SUCCEEDED
    assert debts.fresh(remedy).state == "STOPPED"
    assert sent(remedy).state == State.REJECTED
    assert debts.paid(sandbox, debt.order) == []
    assert Case.Kind.INCIDENT not in debts.open_cases(debt)
    debts.balance_agrees(debt.order)


def test_a_refund_that_is_back_between_the_claim_and_the_bytes_keeps_them_here(
    sandbox, debt, monkeypatch
):
    remedy = debts.proposed(debt, "store_credit")
    look = credits.CREDIT.look

    def look_while_it_comes_back(*, action):
        seen = look(action=action)
        debts.comes_back(sandbox, debt)
        return seen

    monkeypatch.setattr(credits.CREDIT, "look", look_while_it_comes_back)
    builders.skew_clock(60)  # as it will be when it comes back: the lease is not what stops it

    assert sent(remedy).state == State.AUTHORIZED

    monkeypatch.undo()
    assert debts.fresh(remedy).state == "STOPPED"
    assert sent(remedy).state == State.REJECTED
    assert debts.paid(sandbox, debt.order) == []
    assert Case.Kind.INCIDENT in debts.open_cases(debt)  # nobody knew then that nothing had left
    debts.balance_agrees(debt.order)


def test_a_worker_that_slept_past_its_lease_gives_no_credit(sandbox, debt, monkeypatch):
    remedy = debts.proposed(debt, "store_credit")
    look = credits.CREDIT.look

    def look_too_long(*, action):
        seen = look(action=action)
        builders.skew_clock(3_600)
        return seen

    monkeypatch.setattr(credits.CREDIT, "look", look_too_long)

    assert sent(remedy).state == State.AUTHORIZED
    assert debts.paid(sandbox, debt.order) == []


def test_a_refund_that_is_back_while_the_credit_may_be_out_is_an_incident(sandbox, debt):
    remedy = debts.proposed(debt, "store_credit")
    sandbox.fault("reset-after-execution", match=on(debt.order))
    assert sent(remedy).state == State.UNKNOWN

    debt = debts.comes_back(sandbox, debt)

    case = debts.open_cases(debt)[Case.Kind.INCIDENT]
    assert debt.action_id in case.reason
    assert "Store credit 1" in case.reason or "store credit 1" in case.reason
    assert debts.fresh(remedy).state == "ISSUING"
    builders.skew_clock(300)
    sweep()
    assert debts.credit_of(remedy).state == State.SUCCEEDED
    assert debts.fresh(remedy).state == "ISSUED"
    debts.balance_agrees(debt.order)


def test_a_refund_that_is_back_beside_an_issued_credit_is_an_incident(sandbox, debt):
    remedy = debts.proposed(debt, "store_credit")
    credit = sent(remedy)

    debt = debts.comes_back(sandbox, debt)

    case = debts.open_cases(debt)[Case.Kind.INCIDENT]
    assert debt.action_id in case.reason
    assert credit.provider_ref in case.reason
    debts.balance_agrees(debt.order)


def test_a_credit_of_ours_without_a_row_stops_the_next_one(sandbox, debt):
    remedy = debts.proposed(debt, "store_credit")
    sandbox.credit_outside(
        debt.order.customer_ref,
        amount=7_900,
        metadata={"action_id": "credit:order-x:request-y:r1", "instance": debt.instance},
    )

    assert sent(remedy).state == State.AUTHORIZED

    assert debts.paid(sandbox, debt.order) == [7_900]  # only what was there
    assert Case.Kind.INCIDENT in debts.open_cases(debts.credit_of(remedy))


def test_what_others_did_to_the_balance_is_their_business(sandbox, debt):
    sandbox.credit_outside(debt.order.customer_ref, amount=500)
    sandbox.credit_outside(debt.order.customer_ref, amount=-300)
    remedy = debts.proposed(debt, "store_credit")

    assert sent(remedy).state == State.SUCCEEDED
    assert debts.paid(sandbox, debt.order) == [500, -300, 7_900]


def test_a_replayed_credit_is_read_again(sandbox, debt):
    """The first answer was lost after the provider stored it; the same key is sent again."""
    remedy = debts.proposed(debt, "store_credit")
    credit = debts.credit_of(remedy)
    provider = payment_provider("stripe")
    outcome = provider.send_credit(
        request=SendRequest(
            payload=credit.payload, idempotency_key=credit.action_id, account=credit.account
        )
    )
    match = {"method": "GET", "path": on(debt.order)["path"]}
    sandbox.fault("list-lags", match=match)

    credit = sent(remedy)

    assert isinstance(outcome, Succeeded)
    assert credit.provider_ref == outcome.effect.ref
    assert debts.paid(sandbox, debt.order) == [7_900]
    assert debts.fresh(remedy).state == "ISSUED"


def test_check_now_finds_a_credit(sandbox, debt):
    remedy = debts.proposed(debt, "store_credit")
    sandbox.fault("reset-after-execution", match=on(debt.order))
    credit = sent(remedy)

    checked = check_now(action_id=credit.action_id, actor="person:grace")

    assert checked.state == State.SUCCEEDED
    assert debts.fresh(remedy).state == "ISSUED"


# -- the watch ------------------------------------------------------------------------------------


def days(number):
    return number * 86_400 + 60


def test_the_old_refund_is_read_again_day_by_day_and_adopted(sandbox, debt):
    remedy = debts.proposed(debt, "cheque")
    tries = debt.tries
    builders.skew_clock(days(1))
    sweep()
    assert builders.fresh(debt).state == State.FAILED_FINAL
    ours = {"action_id": debt.action_id, "instance": debt.instance}
    sandbox.refund_outside(debt.order.payment_ref, amount=7_900, metadata=ours)

    builders.skew_clock(days(2))
    sweep()

    debt = builders.fresh(debt)
    assert (debt.state, debt.tries) == (State.SUCCEEDED, tries)
    assert debts.fresh(remedy).state == "STOPPED"


def test_the_watch_reads_once_a_day(sandbox, debt):
    debts.proposed(debt, "cheque")

    def reads():
        return len(sandbox.requests(method="GET", path="/v1/refunds"))

    before = reads()
    builders.skew_clock(days(1))
    sweep()
    sweep()
    assert reads() == before + 1


def test_the_watch_ends_thirty_days_after_the_remedy_moved_last(sandbox, debt):
    debts.recording(debts.proposed(debt, "cheque"))

    builders.skew_clock(days(29))
    sweep()
    assert builders.fresh(debt).due_at is not None
    builders.skew_clock(days(31))
    sweep()
    assert builders.fresh(debt).due_at is None


def test_the_watch_ends_with_its_remedy(debt):
    debts.stopping(debts.proposed(debt, "cheque"))

    builders.skew_clock(days(1))
    sweep()

    assert builders.fresh(debt).due_at is None


def test_a_credit_that_was_given_up_is_watched_beside_the_next_remedy(sandbox, debt):
    first = debts.proposed(debt, "store_credit")
    sandbox.fault("executed-late", match=on(debt.order))
    credit = sent(first)
    assert credit.state == State.UNKNOWN
    debts.give_up(credit)
    assert debts.fresh(first).state == "FAILED"
    second = debts.proposed(debt, "cheque")
    assert (second.state, second.proof) == ("PROPOSED", "people")
    debts.approving(second)
    debts.recording(second, reference="cheque 0019")

    builders.skew_clock(days(1))
    sandbox.advance(days(1))
    sweep()

    assert debts.credit_of(first).state == State.SUCCEEDED
    assert debts.fresh(first).is_second
    case = debts.open_cases(debt)[Case.Kind.INCIDENT]
    assert "cheque 0019" in case.reason
    assert debts.fresh(first).reference in case.reason
    debts.balance_agrees(debt.order)


# -- what no code of ours may do ------------------------------------------------------------------


def test_every_credit_keeps_its_history(debt):
    remedy = debts.proposed(debt, "store_credit")
    credit = sent(remedy)

    kinds = list(
        CreditEvent.objects.filter(action=credit).order_by("pk").values_list("kind", flat=True)
    )

    assert kinds == ["credit.authorized", "credit.claimed", "credit.succeeded"]


def test_only_one_credit_of_a_debt_is_live_when_many_propose(sandbox, debt):
    made = [debts.proposing(debt, "store_credit") for _ in range(3)]

    assert [isinstance(each, RemedyRefused) for each in made] == [False, True, True]
    for credit in CreditAction.objects.all():
        dispatch(action_id=credit.action_id)
    assert debts.paid(sandbox, debt.order) == [7_900]
    assert Remedy.objects.count() == 1


def test_the_words_of_a_reading_hold_no_other_customers_business(sandbox, debt):
    remedy = debts.proposed(debt, "store_credit")
    sandbox.credit_outside(debt.order.customer_ref, amount=500)
    sandbox.fault("reset-after-execution", match=on(debt.order))
    credit = sent(remedy)
    check_now(action_id=credit.action_id, actor="person:grace")

    looked = CreditEvent.objects.filter(action=credit, kind="credit.looked").get()

    assert looked.data["balance_changes_seen"] == 2
    assert len(looked.data["refs"]) == 1


# -- at the same moment ---------------------------------------------------------------------------


@pytest.mark.parametrize("turn", range(6))
def test_a_refund_that_comes_back_while_a_worker_claims_the_credit_ends_in_one_of_two_ways(
    sandbox, turn
):
    """Either the credit is stopped and nothing leaves, or both are out and it is an incident."""
    debt = debts.debt(sandbox)
    remedy = debts.proposed(debt, "store_credit")
    credit_id = debts.credit_of(remedy).action_id
    ours = {"action_id": debt.action_id, "instance": debt.instance}
    sandbox.refund_outside(debt.order.payment_ref, amount=debt.amount_minor, metadata=ours)
    barrier, broken = threading.Barrier(2), list[BaseException]()

    def at_once(act: Callable[[], Any], *, seconds: float) -> None:
        try:
            builders.skew_clock(60)
            barrier.wait()
            time.sleep(seconds)
            act()
        except BaseException as error:
            broken.append(error)
        finally:
            connection.close()

    threads = [
        threading.Thread(
            target=at_once,
            args=[lambda: check_now(action_id=debt.action_id, actor="person:grace")],
            kwargs={"seconds": 0.0},
        ),
        threading.Thread(
            target=at_once,
            args=[lambda: dispatch(action_id=credit_id)],
            kwargs={"seconds": turn * 0.01},
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    builders.skew_clock(120)
    dispatch(action_id=credit_id)

    assert not broken
    assert builders.fresh(debt).state == State.SUCCEEDED
    paid, cases = debts.paid(sandbox, debt.order), debts.open_cases(debt)
    assert (paid, debts.fresh(remedy).state) in (([], "STOPPED"), ([7_900], "ISSUED"))
    if paid:
        assert Case.Kind.INCIDENT in cases
    debts.balance_agrees(debt.order)
