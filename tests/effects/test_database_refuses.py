"""What Postgres itself refuses, whatever the code above it does (invariant I7)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.db import connection
from django.db.models import F

from approvals.models import Approval
from effects.clock import database_now
from effects.models import Breaker, Case, SweepRun
from effects.outcomes import Evidence, Succeeded
from effects.states import IN_FLIGHT_STATES, STATES_WITHOUT_OPEN_QUESTIONS, State
from policies.models import DecisionRecord, PolicyVersion
from refunds.models import (
    AgentNote,
    ExternalRefund,
    Order,
    RefundAction,
    RefundAttempt,
    RefundEvent,
)
from tests import builders
from tests.database import refused, sql

pytestmark = pytest.mark.django_db


def columns_of_an_action() -> list[str]:
    names = [str(field.column) for field in RefundAction._meta.concrete_fields]
    return [name for name in names if name != "id"]


@pytest.fixture
def action() -> RefundAction:
    return builders.fresh(builders.action(builders.order()))


@pytest.fixture
def history(action: RefundAction) -> RefundAction:
    """One row in every table of history."""
    token = builders.claimed(action).token
    builders.answered(token, Succeeded(effect=builders.effect(action), evidence=Evidence()))
    now = database_now()
    builders.approved(builders.action(builders.order(), amount_minor=15_000))
    ExternalRefund.objects.create(
        order=action.order,
        provider_ref="re_x",
        amount_minor=1,
        currency="USD",
        status="succeeded",
        seen_at=now,
    )
    Case.objects.create(
        kind=Case.Kind.INCIDENT,
        resource="order:1",
        reason="?",
        owner="o",
        opened_at=now,
        due_at=now,
    )
    return builders.fresh(action)


# -- states ---------------------------------------------------------------------------------------


def test_an_illegal_move_is_refused_in_raw_sql(action: RefundAction) -> None:
    with refused('Invalid transition of field "state" from "AUTHORIZED" to "EXPIRED"'):
        sql("UPDATE refunds_refundaction SET state = 'EXPIRED' WHERE id = %s", action.pk)


def test_an_illegal_move_is_refused_through_a_queryset(action: RefundAction) -> None:
    with refused("Invalid transition"):
        RefundAction.objects.filter(pk=action.pk).update(state=State.EXPIRED)


def test_an_illegal_move_is_refused_through_bulk_update(action: RefundAction) -> None:
    action.__dict__["state"] = State.FAILED_FINAL.value  # round django-fsm's protection
    with refused("Invalid transition"):
        RefundAction.objects.bulk_update([action], ["state"])


def test_an_illegal_move_is_refused_through_save(action: RefundAction) -> None:
    action.__dict__["state"] = State.FAILED_FINAL.value
    with refused("Invalid transition"):
        action.save()


@pytest.mark.parametrize("state", State)
def test_a_row_begins_only_where_a_decision_puts_it(action: RefundAction, state: State) -> None:
    """A copy of a proposed row under another id, in each state."""
    columns = columns_of_an_action()
    in_flight = state in (State.SUBMITTING, State.UNKNOWN, State.PENDING)
    changed = {
        "action_id": f"'{action.action_id}-copy'",
        "state": f"'{state.value}'",
        "reserved_minor": "amount_minor" if in_flight else "0",
        "unknown_since": "now()",
        "due_at": "now()",
    }
    insert = (
        f"INSERT INTO refunds_refundaction ({', '.join(columns)}) "
        f"SELECT {', '.join(changed.get(column, column) for column in columns)} "
        f"FROM refunds_refundaction WHERE id = {action.pk}"
    )
    if state in (State.HELD, State.AWAITING_APPROVAL, State.AUTHORIZED, State.REJECTED):
        assert sql(insert) == 1
    else:
        with refused(f"cannot begin in state {state.value}"):
            sql(insert)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("generation", "2"),
        ("provider_ref", "'re_1'"),
        ("attempt_count", "1"),
        ("key_first_used_at", "now()"),
    ],
)
def test_a_row_begins_with_nothing_sent(action: RefundAction, column: str, value: str) -> None:
    columns = columns_of_an_action()
    changed = {"action_id": "'refund:order-1:request-copy'", column: value}
    with refused("cannot begin"):
        sql(
            f"INSERT INTO refunds_refundaction ({', '.join(columns)}) "
            f"SELECT {', '.join(changed.get(name, name) for name in columns)} "
            f"FROM refunds_refundaction WHERE id = {action.pk}"
        )


@pytest.mark.parametrize("state", STATES_WITHOUT_OPEN_QUESTIONS)
def test_no_state_without_open_questions_is_entered_with_an_unresolved_attempt(
    action: RefundAction, state: State
) -> None:
    builders.claimed(action)
    builders.lease_over(action)
    with refused("unresolved attempt|Invalid transition"):
        sql(
            "UPDATE refunds_refundaction SET state = %s, reserved_minor = 0, due_at = now() "
            "WHERE id = %s",
            state.value,
            action.pk,
        )


@pytest.mark.parametrize("state", ["AUTHORIZED", "AWAITING_APPROVAL", "FAILED_FINAL"])
def test_with_every_attempt_resolved_the_same_moves_pass(action: RefundAction, state: str) -> None:
    builders.claimed(action)
    builders.lease_over(action)
    update = "UPDATE refunds_refundaction SET state = %s, reserved_minor = 0 WHERE id = %s"
    with refused("has an unresolved attempt and cannot become"):
        sql(update, state, action.pk)
    builders.not_executed(action)
    assert sql(update, state, action.pk) == 1


def test_what_is_done_names_its_effect(action: RefundAction) -> None:
    with refused("refund_done_names_its_effect"):
        sql("UPDATE refunds_refundaction SET state = 'SUCCEEDED' WHERE id = %s", action.pk)


def test_what_moves_by_itself_is_due(action: RefundAction) -> None:
    with refused("refund_moving_states_are_due"):
        sql("UPDATE refunds_refundaction SET due_at = NULL WHERE id = %s", action.pk)


def test_what_is_on_the_wire_is_reserved(action: RefundAction) -> None:
    with refused("refund_in_flight_is_reserved"):
        sql("UPDATE refunds_refundaction SET state = 'SUBMITTING' WHERE id = %s", action.pk)


def test_a_reservation_is_all_or_nothing(action: RefundAction) -> None:
    with refused("refund_reserves_all_or_nothing"):
        sql("UPDATE refunds_refundaction SET reserved_minor = 1 WHERE id = %s", action.pk)


def test_only_the_claim_reserves(action: RefundAction) -> None:
    """Without an attempt or evidence nothing is on the wire that the amount could be held for."""
    update = "UPDATE refunds_refundaction SET reserved_minor = amount_minor WHERE id = %s"
    with refused("refund_reserves_for_an_attempt"):
        sql(update, action.pk)
    builders.claimed(action)
    assert builders.fresh(action).reserved_minor == action.amount_minor


def test_what_is_over_reserves_nothing(action: RefundAction) -> None:
    with refused("refund_over_reserves_nothing"):
        sql(
            "UPDATE refunds_refundaction SET state = 'REJECTED', reserved_minor = amount_minor "
            "WHERE id = %s",
            action.pk,
        )


def test_an_unknown_has_a_beginning(action: RefundAction) -> None:
    with refused("refund_unknown_has_a_beginning"):
        sql(
            "UPDATE refunds_refundaction SET state = 'UNKNOWN', reserved_minor = amount_minor, "
            "attempt_count = 1 WHERE id = %s",
            action.pk,
        )


# -- what was frozen ------------------------------------------------------------------------------

FROZEN = {
    "action_id": "action_id || 'x'",
    "request_id": "request_id || 'x'",
    "amount_minor": "amount_minor + 1",
    "currency": "'EUR'",
    "reason": "'duplicate'",
    "payload": "payload || ' '",
    "payload_hash": "repeat('0', 64)",
    "provider": "'another'",
    "account": "'acct_2'",
    "proposed_by": "'another'",
    "lines": "'[1]'::jsonb",
    "created_at": "created_at + interval '1 second'",
}


@pytest.mark.parametrize("column", FROZEN)
def test_what_was_proposed_is_never_edited(action: RefundAction, column: str) -> None:
    with refused("Cannot update rows"):
        sql(f"UPDATE refunds_refundaction SET {column} = {FROZEN[column]} WHERE id = %s", action.pk)


def test_an_action_stays_with_its_order(action: RefundAction) -> None:
    other = builders.order()
    with refused("Cannot update rows"):
        sql("UPDATE refunds_refundaction SET order_id = %s WHERE id = %s", other.pk, action.pk)


ATTEMPT_FROZEN = {
    "token": f"'{uuid4()}'",
    "number": "number + 1",
    "generation": "generation + 1",
    "idempotency_key": "'another'",
    "worker": "'another'",
    "claimed_at": "claimed_at - interval '1 hour'",
    "lease_until": "lease_until + interval '1 hour'",
}


@pytest.mark.parametrize("column", ATTEMPT_FROZEN)
def test_an_attempt_is_never_edited(action: RefundAction, column: str) -> None:
    builders.claimed(action)
    with refused("Cannot update rows"):
        sql(f"UPDATE refunds_refundattempt SET {column} = {ATTEMPT_FROZEN[column]}")


CLOSED = {
    "closed_at": "closed_at + interval '1 second'",
    "outcome": "'failed'",
    "evidence": "'{}'::jsonb",
    "resolution": "'not_executed'",
    "resolved_at": "resolved_at + interval '1 second'",
    "resolved_by": "'another'",
}


@pytest.mark.parametrize("column", CLOSED)
@pytest.mark.parametrize("to", ["another value", "nothing"])
def test_a_closed_attempt_is_never_rewritten(history: RefundAction, column: str, to: str) -> None:
    nothing = "''" if column in ("outcome", "resolution", "resolved_by") else "NULL"
    value = CLOSED[column] if to == "another value" else nothing
    with refused("a closed row of refunds_refundattempt stays as it is"):
        sql(f"UPDATE refunds_refundattempt SET {column} = {value}")


def test_an_attempt_closed_without_an_answer_is_still_resolved_once(action: RefundAction) -> None:
    builders.claimed(action)
    builders.lease_over(action)
    assert sql("UPDATE refunds_refundattempt SET resolution = 'executed'") == 1
    with refused("stays as it is"):
        sql("UPDATE refunds_refundattempt SET resolution = 'not_executed'")


INSERT_ATTEMPT = (
    "INSERT INTO refunds_refundattempt (token, number, generation, idempotency_key, worker, "
    "claimed_at, lease_until, closed_at, outcome, resolution, resolved_by, action_id) "
    "VALUES (gen_random_uuid(), 9, 1, 'k', 'w', now(), now(), {closed_at}, '', {resolution}, '', "
    "%s)"
)


def stands(action: RefundAction, state: State) -> None:
    """Put it there whatever the way: which states take an attempt is asked, not how it came."""
    columns = {
        "state": state.value,
        "reserved_minor": 7_900 if state in IN_FLIGHT_STATES else 0,
        "provider_ref": "re_1" if state in (State.SUCCEEDED, State.PENDING) else "",
        "attempt_count": 1,
        "due_at": database_now(),
        "unknown_since": database_now(),
    }
    with builders.past_the_triggers():
        RefundAction.objects.filter(pk=action.pk).update(**columns)


@pytest.mark.parametrize("state", State)
def test_an_attempt_is_born_only_while_its_action_is_submitting(
    action: RefundAction, state: State
) -> None:
    stands(action, state)
    insert = INSERT_ATTEMPT.format(closed_at="NULL", resolution="''")
    if state is State.SUBMITTING:
        assert sql(insert, action.pk) == 1
        return
    with refused("an attempt begins open, in the claim of its action"):
        sql(insert, action.pk)
    now = database_now()
    with refused("an attempt begins open, in the claim of its action"):
        RefundAttempt.objects.create(
            action=action,
            number=9,
            generation=1,
            idempotency_key="k",
            worker="w",
            claimed_at=now,
            lease_until=now,
        )
    assert not RefundAttempt.objects.exists()


@pytest.mark.parametrize(
    ("closed_at", "resolution"), [("now()", "''"), ("now()", "'not_executed'"), ("NULL", "'x'")]
)
def test_an_attempt_begins_open_and_unresolved(
    action: RefundAction, closed_at: str, resolution: str
) -> None:
    stands(action, State.SUBMITTING)
    with refused("an attempt begins open, in the claim of its action"):
        sql(INSERT_ATTEMPT.format(closed_at=closed_at, resolution=resolution), action.pk)


def test_a_second_open_attempt_is_refused(action: RefundAction) -> None:
    builders.claimed(action)
    now = database_now()
    with refused("refund_one_open_attempt"):
        RefundAttempt.objects.create(
            action=action,
            number=2,
            generation=1,
            idempotency_key="k",
            worker="w",
            claimed_at=now,
            lease_until=now,
        )


def test_a_resolved_attempt_is_closed_and_resolved_in_known_words(action: RefundAction) -> None:
    builders.claimed(action)
    with refused("refund_attempt_resolved_is_closed"):
        sql("UPDATE refunds_refundattempt SET resolution = 'executed'")
    with refused("refund_attempt_known_resolution"):
        sql("UPDATE refunds_refundattempt SET closed_at = now(), resolution = 'perhaps'")


# -- history --------------------------------------------------------------------------------------

APPEND_ONLY = (RefundEvent, DecisionRecord, PolicyVersion, Approval)
NEVER_DELETED = (*APPEND_ONLY, RefundAction, RefundAttempt, Order, ExternalRefund, Case)


@pytest.mark.parametrize("model", APPEND_ONLY)
def test_history_is_never_edited(history: RefundAction, model: Any) -> None:
    table, row = model._meta.db_table, model.objects.first()
    assert row is not None
    with refused("Cannot update rows"):
        sql(f"UPDATE {table} SET id = id WHERE id = %s", row.pk)
    with refused("Cannot update rows"):
        model.objects.filter(pk=row.pk).update(id=F("id"))
    with refused("Cannot update rows"):
        row.save()


@pytest.mark.parametrize("model", NEVER_DELETED)
def test_nothing_is_ever_deleted(history: RefundAction, model: Any) -> None:
    row = model.objects.first()
    with refused("Cannot delete rows"):
        sql(f"DELETE FROM {model._meta.db_table} WHERE id = %s", row.pk)
    with refused("Cannot delete rows"):
        model.objects.filter(pk=row.pk)._raw_delete("default")


@pytest.mark.parametrize("model", [RefundAttempt, RefundEvent, DecisionRecord, ExternalRefund])
def test_nothing_is_deleted_through_the_orm(history: RefundAction, model: Any) -> None:
    with refused("Cannot delete rows"):
        model.objects.all().delete()


@pytest.mark.parametrize("model", NEVER_DELETED)
def test_nothing_is_ever_truncated(history: RefundAction, model: Any) -> None:
    # Inside the test's transaction the deferred foreign keys are still to be checked.
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    with refused("is never truncated"):
        sql(f"TRUNCATE {model._meta.db_table} CASCADE")


def test_every_table_of_an_effect_is_guarded_against_delete_and_truncate() -> None:
    """A table added later without its triggers is found here, not by an auditor."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname, array_agg(t.tgname::text) FROM pg_trigger t "
            "JOIN pg_class c ON c.oid = t.tgrelid WHERE NOT t.tgisinternal GROUP BY 1"
        )
        guards = dict(cursor.fetchall())
    open_tables = set()
    for room in ("effects", "policies", "approvals", "refunds"):
        for model in apps.get_app_config(room).get_models():
            names = " ".join(guards.get(model._meta.db_table, []))
            if "no_delete" not in names or "no_truncate" not in names:
                open_tables.add(model)
    # What is rewritten all the time, and an agent's words, which may have to be erased.
    assert open_tables == {Breaker, SweepRun, AgentNote}


# -- orders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    [
        "captured_minor",
        "refunded_minor",
        "reserved_minor",
        "disputed_minor",
        "settled_otherwise_minor",
    ],
)
def test_no_balance_is_ever_negative(column: str) -> None:
    order = builders.order()
    with refused(f"order_{column}_not_negative"):
        sql(f"UPDATE refunds_order SET {column} = -1 WHERE id = %s", order.pk)


@pytest.mark.parametrize("column", ["payment_ref", "provider", "account", "currency"])
def test_the_payment_is_fixed_once_a_refund_exists(column: str) -> None:
    order = builders.order()
    update = f"UPDATE refunds_order SET {column} = 'new' WHERE id = %s"
    assert sql(update, order.pk) == 1
    sql(f"UPDATE refunds_order SET {column} = %s WHERE id = %s", getattr(order, column), order.pk)
    builders.action(order)
    with refused("its payment, account and currency stay"):
        sql(update, order.pk)


def test_the_version_of_an_order_never_goes_back() -> None:
    order = builders.order()
    assert sql("UPDATE refunds_order SET version = 5 WHERE id = %s", order.pk) == 1
    with refused("never goes back"):
        sql("UPDATE refunds_order SET version = 4 WHERE id = %s", order.pk)


def test_an_order_keeps_its_id() -> None:
    order = builders.order()
    with refused("Cannot update rows"):
        sql("UPDATE refunds_order SET order_id = 'x' WHERE id = %s", order.pk)


def test_an_observed_fact_that_overdraws_an_order_is_not_refused() -> None:
    order = builders.order()
    assert sql("UPDATE refunds_order SET refunded_minor = 99999 WHERE id = %s", order.pk) == 1


# -- cases and approvals --------------------------------------------------------------------------


def test_a_case_has_an_owner() -> None:
    with refused("case_has_an_owner"):
        Case.objects.create(
            kind=Case.Kind.INCIDENT,
            resource="order:1",
            reason="?",
            owner="",
            opened_at=database_now(),
            due_at=database_now(),
        )


def test_a_yes_always_ends() -> None:
    awaiting = builders.action(builders.order(), amount_minor=15_000)
    with refused("approval_of_a_yes_expires"):
        Approval.objects.create(
            effect="refund",
            action_id=awaiting.action_id,
            number=1,
            round=1,
            tier=1,
            approved=True,
            decided_by=builders.person(),
            decided_at=database_now(),
            payload_hash="",
            resource_version=1,
            policy_version=1,
            facts={},
        )


def test_two_decisions_never_share_a_number(action: RefundAction) -> None:
    kept = DecisionRecord.objects.get(action_id=action.action_id)
    kept.pk = None
    with refused("decision_numbered"):
        kept.save(force_insert=True)
