"""What would happen to a refund, without any of it happening."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from effects.switches import turn_on
from kernel.errors import InvalidInput
from policies.decision import Verdict
from policies.models import DecisionRecord, PolicyVersion
from policies.read_only import read_only
from policies.versions import DEFAULT_PARAMETERS
from refunds.explain import Explained, explain_refund
from refunds.models import Order, RefundAction
from refunds.propose import UnknownOrder
from tests import builders

pytestmark = pytest.mark.django_db


def explained(order: Order, **fields: Any) -> Explained:
    values: dict[str, Any] = {
        "order_id": order.order_id,
        "amount_minor": 7_900,
        "currency": order.currency,
        "reason": "requested_by_customer",
        "proposer": "agent-1",
    }
    result = explain_refund(**(values | fields))
    assert isinstance(result, Explained), result
    return result


def test_it_says_what_a_proposal_would_then_be_told() -> None:
    builders.policy(review_beside_open=False)
    order = builders.order()
    version = PolicyVersion.objects.latest("number").number
    for amount_minor, reason in ((7_900, "damaged"), (15_000, "late"), (30_000, "late")):
        said = explained(order, amount_minor=amount_minor, reason=reason)
        action = builders.action(order, amount_minor=amount_minor, reason=reason)
        record = DecisionRecord.objects.get(action_id=action.action_id)
        assert (said.decision.verdict.name, said.policy_version) == (record.verdict, version)
        assert (said.decision.tier, said.decision.people) == (record.tier, record.people)
        # All but the rule that draws by the action's id.
        assert [(r.rule, r.verdict.name) for r in said.decision.rules] == [
            (rule["rule"], rule["verdict"]) for rule in record.rules
        ]


def test_it_says_what_a_draft_would_say() -> None:
    order = builders.order()
    draft = replace(DEFAULT_PARAMETERS, reasons=("damaged",))
    assert explained(order).decision.verdict is Verdict.ALLOW
    assert explained(order, draft=draft).decision.verdict is Verdict.DENY


def test_a_kill_switch_and_an_open_action_are_part_of_it() -> None:
    order = builders.order()
    open_action = builders.action(order, amount_minor=100)
    builders.claimed(open_action)
    said = explained(order)
    assert said.decision.verdict is Verdict.REVIEW
    assert open_action.action_id in said.decision.why
    turn_on(scope="agent:agent-1", reason="drill", actor="test")
    assert explained(order).decision.verdict is Verdict.HOLD
    assert explained(order, proposer="agent-2").decision.verdict is Verdict.REVIEW


def test_without_a_policy_a_person_would_decide() -> None:
    order = builders.order()
    with builders.past_the_triggers(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM policies_policyevent; DELETE FROM policies_policyversion")
    said = explained(order)
    assert (said.decision.verdict, said.policy_version) == (Verdict.REVIEW, 0)
    assert explained(order, draft=DEFAULT_PARAMETERS).decision.verdict is Verdict.ALLOW


def test_an_order_that_was_not_mirrored_is_unknown() -> None:
    result = explain_refund(
        order_id="nobody-s",
        amount_minor=100,
        currency="USD",
        reason="late",
        proposer="agent-1",
    )
    assert result == UnknownOrder(order_id="nobody-s")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"amount_minor": 0}, "amount_minor"),
        ({"amount_minor": 1.5}, "amount_minor"),
        ({"currency": "EUR"}, "currency"),
        ({"currency": "dollars"}, "currency"),
        ({"reason": "a b"}, "reason"),
        ({"order_id": "a/b"}, "order_id"),
    ],
)
def test_what_no_proposal_could_say_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        explained(builders.order(), **fields)
    assert raised.value.field == field


def test_nothing_is_written_and_no_row_is_locked() -> None:
    order = builders.order()
    with CaptureQueriesContext(connection) as queries:
        explained(order)
    statements = [query["sql"] for query in queries]
    assert not [s for s in statements if s.startswith(("INSERT", "UPDATE", "DELETE", "LOCK"))]
    assert not [s for s in statements if "FOR UPDATE" in s or "FOR NO KEY" in s or "advisory" in s]
    assert (RefundAction.objects.count(), DecisionRecord.objects.count()) == (0, 0)


def test_reading_only_is_what_postgres_itself_enforces() -> None:
    order = builders.order()
    with pytest.raises(DatabaseError, match="read-only"), read_only():
        Order.objects.filter(pk=order.pk).update(version=9)
    with pytest.raises(DatabaseError, match="read-only"), read_only():
        Order.objects.select_for_update().get(pk=order.pk)
    # And the transaction around it writes again.
    Order.objects.filter(pk=order.pk).update(version=9)
    with read_only():
        pass
    Order.objects.filter(pk=order.pk).update(version=10)


@pytest.mark.django_db(transaction=True)
def test_it_does_not_wait_for_a_proposal_that_holds_the_order() -> None:
    order, done = builders.order(), threading.Event()

    def ask() -> None:
        try:
            explained(order)
            done.set()
        finally:
            connection.close()

    with transaction.atomic():
        Order.objects.select_for_update().get(pk=order.pk)
        thread = threading.Thread(target=ask)
        thread.start()
        assert done.wait(timeout=10)
    thread.join()
