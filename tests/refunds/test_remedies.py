"""What people do after a refund failed for good: proposed, approved, recorded, stopped."""

from __future__ import annotations

import pytest

from effects.models import Case
from effects.states import State
from policies.models import DecisionRecord
from policies.parameters import Tier
from reconciliation.check_now import check_now
from refunds import remedies
from refunds.dispatch import dispatch
from refunds.models import Order, RefundEvent, Remedy
from refunds.remedies import RemedyDone, RemedyRefused, Why
from tests import builders
from tests.refunds import debts

pytestmark = pytest.mark.django_db(transaction=True)

MANUAL = ["bank_transfer", "cheque"]


@pytest.fixture
def debt(sandbox):
    return debts.debt(sandbox)


def left(row):
    return Order.objects.get(pk=row.order.pk).refundable_minor


@pytest.mark.parametrize("kind", MANUAL)
def test_a_remedy_made_by_a_person_settles_the_debt(debt, kind):
    remedy = debts.proposed(debt, kind)
    assert (remedy.state, remedy.proof, remedy.people_needed) == ("AUTHORIZED", "provider", 1)
    assert Case.Kind.FAILED in debts.open_cases(debt)

    recorded = debts.recording(remedy, reference="SEPA 4821")

    assert isinstance(recorded, RemedyDone)
    assert debts.fresh(remedy).state == "ISSUED"
    assert debts.fresh(remedy).reference == "SEPA 4821"
    case = Case.objects.get(action_id=debt.action_id, kind=Case.Kind.FAILED)
    assert case.closed_at is not None
    assert "SEPA 4821" in case.resolution
    assert not debts.open_cases(debt)
    debts.balance_agrees(debt.order)


def test_every_step_stands_in_the_refunds_history(debt):
    remedy = debts.proposed(debt, "cheque")
    debts.recording(remedy)

    kinds = list(
        RefundEvent.objects.filter(action=debt, kind__startswith="refund.remedy")
        .order_by("pk")
        .values_list("kind", flat=True)
    )
    assert kinds == ["refund.remedy_proposed", "refund.remedy_issued"]


def test_a_live_remedy_takes_up_the_balance_and_stopping_gives_it_back(debt):
    version, before = builders.fresh(debt).order.version, left(debt)

    remedy = debts.proposed(debt, "cheque")

    assert left(debt) == before - debt.amount_minor
    assert builders.fresh(debt).order.version > version
    debts.stopping(remedy)
    assert left(debt) == before
    assert debts.fresh(remedy).state == "STOPPED"
    debts.balance_agrees(debt.order)


def test_another_refund_cannot_use_what_a_live_remedy_takes(sandbox):
    builders.allow_all()
    order = debts.order_of_customer(sandbox, captured_minor=10_000)
    debt = debts.debt(sandbox, order=order, amount_minor=7_900)
    debts.proposed(debt, "bank_transfer")

    other = builders.action(order, amount_minor=2_101)
    dispatch(action_id=other.action_id)

    assert builders.fresh(other).state == State.REJECTED
    fits = builders.action(order, amount_minor=2_100)
    dispatch(action_id=fits.action_id)
    assert builders.fresh(fits).state == State.SUCCEEDED


def test_a_remedy_does_not_fit_where_another_refund_has_used_the_balance(sandbox):
    builders.allow_all()
    order = debts.order_of_customer(sandbox, captured_minor=10_000)
    debt = debts.debt(sandbox, order=order, amount_minor=7_900)
    other = builders.action(order, amount_minor=5_000)
    dispatch(action_id=other.action_id)
    assert builders.fresh(other).state == State.SUCCEEDED

    refused = debts.proposing(debt, "cheque")

    assert isinstance(refused, RemedyRefused)
    assert refused.why is Why.DOES_NOT_FIT
    assert "50.00 USD is left" in refused.sentence
    assert not Remedy.objects.exists()
    debts.balance_agrees(order)


def test_a_debt_is_settled_once(debt):
    remedy = debts.proposed(debt, "cheque")

    again = debts.proposing(debt, "bank_transfer")

    assert isinstance(again, RemedyRefused)
    assert again.why is Why.ALREADY_LIVE
    debts.recording(remedy)
    after = debts.proposing(debt, "bank_transfer")
    assert isinstance(after, RemedyRefused)
    assert after.why is Why.ALREADY_LIVE


def test_after_a_stop_another_remedy_may_be_proposed(debt):
    debts.stopping(debts.proposed(debt, "cheque"))

    second = debts.proposed(debt, "bank_transfer")

    assert second.number == 2
    debts.balance_agrees(debt.order)


def test_without_proof_it_takes_two_people(sandbox):
    debt = debts.given_up(sandbox)
    first = debts.person()
    remedy = debts.proposed(debt, "cheque", user=first)
    assert (remedy.state, remedy.proof) == ("PROPOSED", "people")

    early = debts.recording(remedy)
    alone = debts.approving(remedy, user=first)

    assert isinstance(early, RemedyRefused)
    assert early.why is Why.NOT_NOW
    assert isinstance(alone, RemedyRefused)
    assert alone.why is Why.SAME_PERSON
    assert isinstance(debts.approving(remedy), RemedyDone)
    assert debts.fresh(remedy).state == "AUTHORIZED"
    assert debts.fresh(remedy).approved_by != first


def test_a_large_amount_takes_two_people_as_its_refund_would(sandbox):
    debt = debts.debt(sandbox)
    builders.policy(
        tiers=(
            Tier(tier=1, up_to_base_minor=5_000),
            Tier(tier=2, up_to_base_minor=None, people=2),
        )
    )

    remedy = debts.proposed(debt, "cheque")

    assert (remedy.state, remedy.proof, remedy.people_needed) == ("PROPOSED", "provider", 2)


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.AUTHORIZED, State.UNKNOWN])
def test_only_what_failed_for_good_is_settled_another_way(sandbox, state):
    order = debts.order_of_customer(sandbox)
    row = builders.action(order)
    if state is State.UNKNOWN:
        sandbox.fault("reset-before-execution")
    if state is not State.AUTHORIZED:
        dispatch(action_id=row.action_id)
    assert builders.fresh(row).state == state

    refused = debts.proposing(row, "cheque")

    assert isinstance(refused, RemedyRefused)
    assert refused.why is Why.NOT_FAILED
    debts.balance_agrees(order)


def test_who_looked_at_an_older_page_acts_on_nothing(debt):
    seen = remedies.history_version(action_id=debt.action_id)
    remedy = debts.proposed(debt, "cheque")

    for refused in (
        debts.proposing(debt, "cheque", seen_version=seen),
        remedies.stop_remedy(
            remedy_id=remedy.pk, user=debts.person(), note=debts.NOTE, seen_version=seen
        ),
        remedies.record_issued(
            remedy_id=remedy.pk, user=debts.person(), reference="A 1234", seen_version=seen
        ),
        remedies.approve_remedy(
            remedy_id=remedy.pk, user=debts.person(), note=debts.NOTE, seen_version=seen
        ),
    ):
        assert isinstance(refused, RemedyRefused)
        assert refused.why is Why.CHANGED_SINCE
    assert debts.fresh(remedy).state == "AUTHORIZED"


def test_each_act_needs_its_own_right(debt):
    remedy = debts.proposed(debt, "cheque")
    nobody = builders.person()

    for refused in (
        debts.proposing(debt, "cheque", user=nobody),
        debts.stopping(remedy, user=debts.person("record_remedy")),
        debts.recording(remedy, user=debts.person("propose_remedy")),
        debts.approving(remedy, user=debts.person("propose_remedy")),
    ):
        assert isinstance(refused, RemedyRefused)
        assert refused.why is Why.NOT_PERMITTED
    assert debts.fresh(remedy).state == "AUTHORIZED"


@pytest.mark.parametrize(
    "bad",
    [
        {"note": "ok"},
        {"note": " " * 40},
        {"note": "a nul \x00 in a note that is long"},
        {"note": "half of a pair \ud800 in a note that is long"},
        {"note": "x" * 2_001},
        {"reason": "because"},
        {"kind": "cash"},
    ],
)
def test_bad_words_propose_nothing(debt, bad):
    kind = bad.get("kind", "cheque")

    refused = debts.proposing(debt, kind, **{k: v for k, v in bad.items() if k != "kind"})

    assert isinstance(refused, RemedyRefused)
    assert refused.why is Why.BAD_INPUT
    assert not Remedy.objects.exists()


@pytest.mark.parametrize("reference", ["", "  ", "12", "a\nb c", "=HYPERLINK()", "x" * 121])
def test_a_reference_is_one_that_can_be_found_again(debt, reference):
    remedy = debts.proposed(debt, "cheque")

    refused = debts.recording(remedy, reference=reference)

    assert isinstance(refused, RemedyRefused)
    assert debts.fresh(remedy).state == "AUTHORIZED"


def test_nothing_is_proposed_while_the_order_is_paused(debt):
    Order.objects.filter(pk=debt.order.pk).update(dispute_state=Order.DisputeState.OPEN)

    refused = debts.proposing(debt, "cheque")

    assert isinstance(refused, RemedyRefused)
    assert refused.why is Why.PAUSED


def test_a_store_credit_needs_the_providers_customer(sandbox):
    debt = debts.debt(sandbox, order=builders.order(sandbox=sandbox))

    refused = debts.proposing(debt, "store_credit")

    assert isinstance(refused, RemedyRefused)
    assert refused.why is Why.NO_CUSTOMER
    assert "cus_" in refused.sentence


def test_a_late_failure_opens_the_debt_again_and_says_what_is_not_undone(sandbox):
    debt = debts.debt(sandbox)

    case = debts.open_cases(debt)[Case.Kind.FAILED]

    assert case.owner
    assert case.due_at > case.opened_at
    assert "Deliberately not undone" in case.reason
    for words in ("nothing is sent again", "was not told otherwise", "no remedy was begun"):
        assert words in case.reason
    assert debt.order.refunded_minor == 0
    assert not Remedy.objects.exists()
    assert len(builders.refunds_on_the_wire(sandbox)) == 1


def test_the_case_does_not_close_by_a_word_while_a_remedy_is_on_its_way(debt):
    from django.contrib.auth.models import Permission, User

    from approvals.settle import NotSettled, Settled, settle_case

    owner = debts.person()
    owner.user_permissions.add(*Permission.objects.filter(codename="settle_case"))
    owner = User.objects.get(pk=owner.pk)
    case = debts.open_cases(debt)[Case.Kind.FAILED]
    remedy = debts.proposed(debt, "cheque")

    refused = settle_case(case_id=case.case_id, user=owner, note=debts.NOTE)

    assert isinstance(refused, NotSettled)
    assert "Cheque 1 of 79.00 USD" in refused.sentence
    debts.stopping(remedy)
    assert isinstance(settle_case(case_id=case.case_id, user=owner, note=debts.NOTE), Settled)


@pytest.mark.parametrize("kind", MANUAL)
def test_a_refund_that_is_back_stops_a_remedy_that_is_not_out(sandbox, kind):
    debt = debts.debt(sandbox)
    remedy = debts.proposed(debt, kind)

    debt = debts.comes_back(sandbox, debt)

    assert debt.state == State.SUCCEEDED
    assert debts.fresh(remedy).state == "STOPPED"
    cases = debts.open_cases(debt)
    assert set(cases) == {Case.Kind.UNEXPECTED_SUCCESS}
    assert "see to it that it is not paid" in cases[Case.Kind.UNEXPECTED_SUCCESS].reason
    debts.balance_agrees(debt.order)


def test_a_refund_that_is_back_beside_an_issued_remedy_is_an_incident(sandbox):
    debt = debts.debt(sandbox)
    remedy = debts.proposed(debt, "cheque")
    debts.recording(remedy, reference="cheque 0017")

    debt = debts.comes_back(sandbox, debt)

    assert debt.state == State.SUCCEEDED
    assert debts.fresh(remedy).state == "ISSUED"
    case = debts.open_cases(debt)[Case.Kind.INCIDENT]
    assert debt.action_id in case.reason
    assert "cheque 0017" in case.reason
    debts.balance_agrees(debt.order)


def test_a_refund_that_fails_again_beside_an_issued_remedy_leaves_nobody_owed(sandbox):
    debt = debts.debt(sandbox)
    debts.recording(debts.proposed(debt, "cheque"))
    debt = debts.comes_back(sandbox, debt)
    sandbox.fail_refund(debt.provider_ref)

    builders.skew_clock(120)
    checked = check_now(action_id=debt.action_id, actor="person:grace")

    assert checked.state == State.FAILED_FINAL
    assert Case.Kind.FAILED not in debts.open_cases(debt)
    debts.balance_agrees(debt.order)


def test_what_was_stopped_before_a_second_person_agreed_is_not_recorded(sandbox):
    debt = debts.given_up(sandbox)
    remedy = debts.proposed(debt, "cheque")
    debts.stopping(remedy)

    refused = debts.recording(remedy)

    assert isinstance(refused, RemedyRefused)
    assert "no second person" in refused.sentence
    assert debts.fresh(remedy).state == "STOPPED"


def test_a_transfer_that_was_out_before_it_was_stopped_is_written_down_as_an_incident(sandbox):
    debt = debts.debt(sandbox)
    remedy = debts.proposed(debt, "bank_transfer")
    debt = debts.comes_back(sandbox, debt)

    recorded = debts.recording(remedy, reference="SEPA 99")

    assert isinstance(recorded, RemedyDone)
    assert debts.fresh(remedy).state == "ISSUED"
    assert "SEPA 99" in debts.open_cases(debt)[Case.Kind.INCIDENT].reason
    debts.balance_agrees(debt.order)


def test_a_stopped_transfer_that_was_out_beside_another_remedy_is_a_second_settlement(debt):
    first = debts.proposed(debt, "bank_transfer")
    debts.stopping(first)
    second = debts.proposed(debt, "cheque")
    debts.recording(second, reference="cheque 0018")

    debts.recording(first, reference="SEPA 100")

    assert debts.fresh(first).is_second
    case = debts.open_cases(debt)[Case.Kind.INCIDENT]
    assert "SEPA 100" in case.reason
    assert "cheque 0018" in case.reason
    debts.balance_agrees(debt.order)


def test_a_stopped_transfer_that_was_out_stops_the_remedy_that_came_after_it(debt):
    first = debts.proposed(debt, "bank_transfer")
    debts.stopping(first)
    second = debts.proposed(debt, "cheque")

    debts.recording(first)

    assert debts.fresh(first).state == "ISSUED"
    assert debts.fresh(second).state == "STOPPED"
    assert not debts.open_cases(debt)
    debts.balance_agrees(debt.order)


def test_an_approved_refund_goes_back_to_people_when_a_remedy_takes_from_its_order(sandbox):
    order = debts.order_of_customer(sandbox)
    debt = debts.debt(sandbox, order=order)
    other = builders.action(order, amount_minor=12_000)
    builders.approved(other)
    debts.proposed(debt, "cheque")

    dispatch(action_id=other.action_id)

    assert builders.fresh(other).state == State.AWAITING_APPROVAL
    assert len(builders.refunds_on_the_wire(sandbox)) == 1


def test_a_debt_settled_another_way_counts_as_refunded_for_the_policy(sandbox):
    builders.policy(same_amount_window_seconds=72 * 3600)
    order = debts.order_of_customer(sandbox)
    debt = debts.debt(sandbox, order=order)
    debts.recording(debts.proposed(debt, "cheque"))

    again = builders.action(order, amount_minor=debt.amount_minor)

    assert again.state == State.AWAITING_APPROVAL
    assert f"{debt.action_id} refunded the same amount" in str(
        DecisionRecord.objects.get(action_id=again.action_id).rules
    )


def test_while_a_remedy_is_on_its_way_another_refund_of_the_order_needs_a_person(sandbox):
    order = debts.order_of_customer(sandbox)
    debt = debts.debt(sandbox, order=order)
    Case.objects.filter(action_id=debt.action_id).update(closed_at=debt.created_at)
    assert builders.action(order, amount_minor=100).state == State.AUTHORIZED
    debts.proposed(debt, "cheque")

    assert builders.action(order, amount_minor=200).state == State.AWAITING_APPROVAL
