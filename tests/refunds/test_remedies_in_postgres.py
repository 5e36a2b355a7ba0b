"""What Postgres refuses about remedies, whoever writes the SQL (invariant I7)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from effects.models import Case
from effects.states import State
from refunds.dispatch import dispatch
from refunds.models import CreditAction, RefundAction, Remedy
from tests import builders
from tests.database import refused, sql
from tests.refunds import debts

pytestmark = pytest.mark.django_db(transaction=True)

COLUMNS = (
    "debt_id, number, kind, amount_minor, currency, state, state_since, proof, people_needed, "
    "reason, note, proposed_by_id, proposed_at, reference, is_second, approved_by_id, "
    "why_two, customer_ref"
)


def insert(debt: RefundAction, **changed: Any) -> None:
    """A remedy by raw SQL, with what is right unless said otherwise."""
    values = {
        "number": 9,
        "kind": "cheque",
        "amount_minor": debt.amount_minor,
        "state": "AUTHORIZED",
        "proof": "provider",
        "people_needed": 1,
        "proposed_by_id": builders.person().pk,
        "reference": "",
        "is_second": False,
        "approved_by_id": None,
    } | changed
    sql(
        f"INSERT INTO refunds_remedy ({COLUMNS}) VALUES (%s, %s, %s, %s, 'USD', %s, now(), %s, "
        "%s, 'other', 'raw', %s, now(), %s, %s, %s, '', '')",
        debt.pk,
        values["number"],
        values["kind"],
        values["amount_minor"],
        values["state"],
        values["proof"],
        values["people_needed"],
        values["proposed_by_id"],
        values["reference"],
        values["is_second"],
        values["approved_by_id"],
    )


def update(remedy: Remedy, assignments: str, *values: Any) -> None:
    sql(f"UPDATE refunds_remedy SET {assignments} WHERE id = %s", *values, remedy.pk)


@pytest.fixture
def debt(sandbox):
    return debts.debt(sandbox)


def test_what_is_right_is_let_in(debt):
    insert(debt)
    assert Remedy.objects.count() == 1


@pytest.mark.parametrize("settled", ["AUTHORIZED", "ISSUED"])
def test_a_second_live_settlement_is_refused(debt, settled):
    remedy = debts.proposed(debt, "bank_transfer")
    if settled == "ISSUED":
        debts.recording(remedy)
    with refused("another live remedy"):
        insert(debt)
    with refused("cannot begin|observed"):
        insert(debt, is_second=True)


def test_a_stopped_remedy_does_not_come_alive_beside_another(debt):
    first = debts.proposed(debt, "bank_transfer")
    debts.stopping(first)
    debts.proposed(debt, "cheque")
    for state in ("PROPOSED", "AUTHORIZED", "ISSUING"):
        with refused("[Ii]nvalid|transition"):
            update(first, "state = %s", state)
    with refused("another live remedy"):
        update(
            first,
            "state = 'ISSUED', reference = 'SEPA 1', recorded_by_id = %s",
            first.proposed_by_id,
        )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"amount_minor": 1}, "whole debt"),
        ({"state": "ISSUED", "reference": "x"}, "cannot begin"),
        ({"state": "PROPOSED"}, "cannot begin"),
        ({"people_needed": 2}, "cannot begin"),
        ({"proof": "people"}, "remedy_without_proof_needs_two"),
        ({"proof": "rumour"}, "remedy_known_words"),
        ({"kind": "cash"}, "remedy_known_words"),
        ({"people_needed": 0}, "remedy_known_words"),
    ],
)
def test_a_remedy_begins_in_its_place(debt, changed, words):
    with refused(words):
        insert(debt, **changed)


@pytest.mark.parametrize("state", [State.AUTHORIZED, State.SUCCEEDED, State.UNKNOWN])
def test_only_a_refund_that_failed_has_a_remedy(sandbox, state):
    row = builders.action(builders.order(sandbox=sandbox))
    if state is State.UNKNOWN:
        sandbox.fault("reset-before-execution")
    if state is not State.AUTHORIZED:
        dispatch(action_id=row.action_id)
    assert builders.fresh(row).state == state
    with refused("a remedy is for one that has failed"):
        insert(row)


def test_the_proposer_is_not_the_second_person(sandbox):
    debt = debts.given_up(sandbox)
    remedy = debts.proposed(debt, "cheque")
    with refused("remedy_approver_is_another"):
        update(remedy, "state = 'AUTHORIZED', approved_by_id = %s", remedy.proposed_by_id)
    with refused("remedy_out_was_agreed"):
        update(remedy, "state = 'AUTHORIZED'")


@pytest.mark.parametrize(
    "column",
    ["amount_minor = 1", "kind = 'cheque'", "proof = 'people'", "people_needed = 2", "note = ''"],
)
def test_what_was_proposed_stays(debt, column):
    remedy = debts.proposed(debt, "bank_transfer")
    with refused("(?i)read.?only|cannot edit|frozen"):
        update(remedy, column)


def test_a_reference_is_written_once(debt):
    remedy = debts.proposed(debt, "cheque")
    debts.recording(remedy, reference="cheque 0017")
    with refused("append-only"):
        update(remedy, "reference = 'cheque 0018'")
    with refused("append-only"):
        update(remedy, "recorded_by_id = %s", builders.person().pk)


def test_nothing_is_issued_without_a_reference_and_a_name(debt):
    remedy = debts.proposed(debt, "cheque")
    with refused("remedy_issued_has_a_reference"):
        update(remedy, "state = 'ISSUED'")
    with refused("remedy_issued_has_a_reference"):
        update(remedy, "state = 'ISSUED', reference = 'cheque 1'")
    with refused("remedy_only_credits_are_sent"):
        update(remedy, "state = 'ISSUING'")


def test_remedies_are_never_deleted(debt):
    debts.proposed(debt, "cheque")
    with refused("(?i)cannot delete"):
        sql("DELETE FROM refunds_remedy")
    with refused("never truncated"):
        sql("TRUNCATE refunds_remedy CASCADE")


def test_a_second_settlement_is_observed_and_never_planned(debt):
    remedy = debts.proposed(debt, "cheque")
    with refused("beside another"):
        update(
            remedy,
            "state = 'ISSUED', is_second = true, reference = 'x 1', recorded_by_id = %s",
            remedy.proposed_by_id,
        )
    with refused("beside another"):
        update(remedy, "is_second = true")


SECOND = "state = 'ISSUED', is_second = true, reference = 'x 1', recorded_by_id = %s"


def test_a_second_settlement_takes_a_first_and_an_open_incident(debt):
    first = debts.proposed(debt, "bank_transfer")
    debts.stopping(first)
    with debts.locked(debt) as found:
        debts.incident(found)
    with refused("beside another"):  # an incident, but no other
        update(first, SECOND, first.proposed_by_id)
    Case.objects.filter(kind=Case.Kind.INCIDENT).update(closed_at=debt.created_at)
    debts.recording(debts.proposed(debt, "cheque"))
    with refused("beside another"):  # another, but no incident
        update(first, SECOND, first.proposed_by_id)
    with debts.locked(debt) as found:
        debts.incident(found)
    update(first, SECOND, first.proposed_by_id)
    assert debts.fresh(first).is_second


def test_beside_a_second_settlement_nothing_else_becomes_live(debt):
    first = debts.proposed(debt, "bank_transfer")
    debts.stopping(first)
    other = debts.proposed(debt, "cheque")
    debts.recording(other, reference="cheque 1")
    debts.recording(first, reference="SEPA 1")
    debts.coming_back(other)
    assert debts.fresh(first).is_second
    with refused("another live remedy"):
        insert(debt)


def test_one_person_is_not_enough_for_a_refund_that_was_given_up(sandbox):
    debt = debts.given_up(sandbox)
    with refused("needs two people"):
        insert(debt)


def test_a_credit_goes_to_the_customer_that_its_remedy_names(debt):
    remedy = debts.proposed(debt, "store_credit")
    with refused("(?i)read.?only|cannot edit|frozen"):
        update(remedy, "customer_ref = 'cus_mallory'")


def test_a_refund_does_not_come_back_past_a_remedy_that_could_go_out(debt):
    debts.proposed(debt, "cheque")
    with refused("stop it first"):
        sql("UPDATE refunds_refundaction SET state = 'SUCCEEDED' WHERE id = %s", debt.pk)


def test_a_credit_begins_with_its_remedy_and_is_sent_only_while_that_is_issued(debt):
    remedy = debts.proposed(debt, "store_credit")
    credit = debts.credit_of(remedy)
    with refused("no remedy that lets it be"):
        sql(
            "UPDATE refunds_creditaction SET state = 'SUBMITTING', due_at = now() WHERE id = %s",
            credit.pk,
        )
    debts.stopping(remedy)
    other = debts.proposed(debt, "cheque")
    columns = [
        str(field.column) for field in CreditAction._meta.concrete_fields if field.column != "id"
    ]
    taken = ", ".join(
        {"remedy_id": str(other.pk), "action_id": "'credit:raw'"}.get(name, name)
        for name in columns
    )
    with refused("no remedy that lets it be"):
        sql(
            f"INSERT INTO refunds_creditaction ({', '.join(columns)}) "
            f"SELECT {taken} FROM refunds_creditaction WHERE id = %s",
            credit.pk,
        )


def test_a_remedy_and_a_refund_that_comes_back_at_once_do_not_both_stand(sandbox, debt):
    """The trigger's share lock: the remedy waits for the refund's transaction, then is refused."""
    inserted: list[str] = []

    def propose() -> None:
        try:
            insert(debt)
            inserted.append("stands")
        except DatabaseError as error:
            inserted.append(str(error))
        finally:
            connection.close()

    thread = threading.Thread(target=propose)
    with transaction.atomic():
        RefundAction.objects.select_for_update(no_key=True).get(pk=debt.pk)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        sql("UPDATE refunds_refundaction SET state = 'SUCCEEDED' WHERE id = %s", debt.pk)
    thread.join(10)

    assert len(inserted) == 1
    assert "a remedy is for one that has failed" in inserted[0]


def test_two_people_who_propose_at_once_make_one_remedy(debt):
    made: list[Any] = []
    people = [debts.person() for _ in range(4)]
    barrier = threading.Barrier(4)

    def propose(user: Any) -> None:
        try:
            barrier.wait()
            made.append(debts.proposing(debt, "cheque", user=user))
        finally:
            connection.close()

    threads = [threading.Thread(target=propose, args=[user]) for user in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert len(made) == 4
    assert Remedy.objects.count() == 1
    debts.balance_agrees(debt.order)
