"""A database restored to a moment before a refund: what it forgot is found at the provider."""

from __future__ import annotations

import pytest
from django.db import connection

from effects.models import Case
from effects.states import State
from kernel.identity import idempotency_key
from providers.sandbox import Sandbox
from refunds.dispatch import dispatch
from refunds.models import Order, RefundAction
from refunds.propose import propose_refund
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)


def forget_all_refunds() -> None:
    """Empty the tables and let their numbers begin again, as a restore from an old dump does."""
    with connection.cursor() as cursor:
        tables = [
            table
            for table in connection.introspection.table_names(cursor)
            if table.startswith(("refunds_", "policies_decisionrecord", "effects_case"))
        ]
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE")
        cursor.execute("SET session_replication_role = DEFAULT")
    assert not RefundAction.objects.exists()


@pytest.fixture(autouse=True)
def _numbers_begin_at_one(transactional_db: None) -> None:
    forget_all_refunds()


def an_order(sandbox: Sandbox) -> Order:
    return builders.order(order_id="4821", payment_ref="pi_restored", sandbox=sandbox)


def test_a_refund_that_the_backup_forgot_is_adopted_and_not_sent_again(sandbox: Sandbox) -> None:
    first = builders.action(an_order(sandbox), request_id="3")
    dispatch(action_id=first.action_id)
    forget_all_refunds()
    again = builders.action(an_order(sandbox), request_id="3")
    assert again.action_id == first.action_id

    dispatch(action_id=again.action_id)

    again = builders.fresh(again)
    assert again.state == State.SUCCEEDED
    assert again.order.refunded_minor == 7_900
    assert [refund["id"] for refund in sandbox.refunds("pi_restored")] == [again.provider_ref]
    assert len(builders.refunds_on_the_wire(sandbox)) == 1


def test_another_refund_of_a_forgotten_one_s_order_is_not_sent_and_a_person_is_asked(
    sandbox: Sandbox,
) -> None:
    first = builders.action(an_order(sandbox), request_id="3")
    dispatch(action_id=first.action_id)
    forget_all_refunds()
    another = builders.action(an_order(sandbox), request_id="4")
    assert another.pk == first.pk  # the number came back, and means nothing

    dispatch(action_id=another.action_id)

    assert builders.fresh(another).state != State.SUCCEEDED
    assert len(sandbox.refunds("pi_restored")) == 1
    assert Case.objects.filter(kind=Case.Kind.FOUND_ELSEWHERE, closed_at__isnull=True).exists()


def test_neither_key_nor_payload_knows_a_primary_key(sandbox: Sandbox) -> None:
    first = builders.action(an_order(sandbox), request_id="3")
    forget_all_refunds()
    builders.action(builders.order())  # takes the numbers of the first
    second = builders.action(an_order(sandbox), request_id="3")
    assert second.pk != first.pk
    assert second.order_id != first.order_id
    assert second.payload == first.payload
    assert idempotency_key(action_id=second.action_id, generation=1) == first.action_id


def test_two_equal_refunds_of_one_order_have_two_keys_and_are_two_refunds(
    sandbox: Sandbox,
) -> None:
    builders.allow_all()
    order = an_order(sandbox)
    for request_id in ("3", "4", "3"):
        proposal = builders.proposal(order, request_id=request_id, amount_minor=500)
        propose_refund(proposal=proposal)
        dispatch(action_id=f"refund:order-4821:request-{request_id}")
    assert [refund["amount"] for refund in sandbox.refunds("pi_restored")] == [500, 500]
    keys = {request["idempotency_key"] for request in builders.refunds_on_the_wire(sandbox)}
    assert keys == {"refund:order-4821:request-3", "refund:order-4821:request-4"}
