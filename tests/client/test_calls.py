"""Every call of a merchant's backend, against the real application."""

from __future__ import annotations

import inspect
import pickle
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection

from effects.states import State
from refund_once_client import (
    AsyncRefundOnce,
    AsyncRefundSession,
    Customer,
    NoAnswer,
    OrderLine,
    OutcomeUnknown,
    Payment,
    Problem,
    RefundLine,
    RefundOnce,
    RefundSession,
)
from refunds.models import Order
from refunds.withdraw import withdraw_refund
from tests import builders
from tests.client.conftest import BRISK, Client
from tests.client.faulty_proxy import FaultyProxy, Reply
from tests.client.test_lost_answers import proposal

pytestmark = [pytest.mark.django_db(transaction=True)]

AN_ORDER: dict[str, Any] = {
    "currency": "USD",
    "captured_minor": 20_000,
    "payment": Payment(payment_intent="pi_4821", method="card"),
    "customer": Customer(ref="cus_88", email="ada@example.com", risk="low"),
    "placed_at": datetime(2026, 11, 1, 12, tzinfo=timezone(timedelta(hours=2))),
}


def test_an_order_is_stated_and_read(refunds: Client) -> None:
    put = refunds.put_order(
        "4821",
        **AN_ORDER,
        delivered_at=datetime(2026, 11, 3, tzinfo=UTC),
        shipping_minor=500,
        lines=[OrderLine(line_id="a", amount_minor=19_500, tax_minor=0, final_sale=False)],
        source_version=7,
    )

    assert put == refunds.get_order("4821")
    assert (put.order_id, put.currency, put.source_version) == ("4821", "USD", 7)
    assert (put.captured_minor, put.refundable_minor) == (20_000, 20_000)
    assert put.updated_at.tzinfo is not None
    kept = Order.objects.get(order_id="4821")
    assert kept.placed_at == datetime(2026, 11, 1, 10, tzinfo=UTC)
    assert kept.details["lines"] == [
        {"line_id": "a", "amount_minor": 19_500, "tax_minor": 0, "final_sale": False}
    ]


def test_an_older_statement_of_an_order_changes_nothing(refunds: Client) -> None:
    refunds.put_order("4821", **AN_ORDER, source_version=7)
    older = AN_ORDER | {"captured_minor": 100}
    assert refunds.put_order("4821", **older, source_version=6).captured_minor == 20_000


def test_a_refund_is_proposed_read_and_withdrawn(refunds: Client, proxy: FaultyProxy) -> None:
    refunds.put_order("4821", **AN_ORDER)
    proposed = refunds.propose_refund(
        **proposal("4821", amount_minor=15_000, currency="usd"),
        lines=[RefundLine(line_id="a", amount_minor=15_000)],
    )

    assert proposed.state == State.AWAITING_APPROVAL
    assert proposed.decision is not None
    assert proposed.decision.verdict == "REVIEW"
    assert any(rule.verdict == "REVIEW" and rule.why for rule in proposed.decision.rules)
    assert (proposed.currency, proposed.retry, proposed.final) == ("USD", "never", False)
    assert proposed == refunds.get_refund(proposed.action_id)

    withdrawn = refunds.withdraw_refund(proposed.action_id)
    assert (withdrawn.state, withdrawn.final) == (State.CANCELLED, True)
    assert refunds.withdraw_refund(proposed.action_id) == withdrawn


def test_the_same_proposal_again_is_the_same_action(refunds: Client) -> None:
    order = builders.order()
    first = refunds.propose_refund(**proposal(order.order_id))
    assert refunds.propose_refund(**proposal(order.order_id)).action_id == first.action_id


def test_the_actions_of_an_order_are_listed_page_by_page(
    refunds: Client, proxy: FaultyProxy, agent: str
) -> None:
    order = builders.order()
    made = [builders.action(order, proposer=agent, amount_minor=100 + n) for n in range(5)]

    listed = refunds.list_refunds(order.order_id, page_size=2)

    assert [action.action_id for action in listed] == [row.action_id for row in made[::-1]]
    assert len(proxy.sent("GET")) == 3


def test_an_explanation_records_nothing(refunds: Client) -> None:
    order = builders.order()
    explained = refunds.explain(
        order_id=order.order_id, amount_minor=15_000, currency="USD", reason="damaged"
    )
    assert (explained.verdict, explained.people) == ("REVIEW", 1)
    assert refunds.list_refunds(order.order_id) == []


def test_a_refusal_is_a_problem_with_its_fields(refunds: Client) -> None:
    order = builders.order()

    with pytest.raises(Problem) as caught:
        refunds.propose_refund(**proposal(order.order_id, currency="EUR"))

    problem = caught.value
    assert problem.type == "urn:refund-once:problem:invalid-field"
    assert (problem.kind, problem.status) == ("invalid-field", 422)
    assert [field.field for field in problem.fields] == ["currency"]
    assert "must be the order's currency, USD" in str(problem)
    assert problem.instance.startswith("urn:refund-once:request:")
    assert problem.instance in str(problem)


def test_a_definite_no_is_not_asked_again(refunds: Client, proxy: FaultyProxy) -> None:
    order = builders.order().order_id
    nothing = "refund:order-1:request-1"
    calls = [
        (lambda: refunds.get_order("none"), "order-unknown"),
        (lambda: refunds.propose_refund(**proposal("none")), "order-unknown"),
        (lambda: refunds.list_refunds("none"), "order-unknown"),
        (lambda: refunds.get_refund(nothing), "action-unknown"),
        (lambda: refunds.withdraw_refund(nothing), "action-unknown"),
        (
            lambda: refunds.propose_refund(**proposal(order, refunded_so_far_minor=1)),
            "stale-balance",
        ),
        (lambda: refunds.get_order(".."), "invalid-field"),
    ]
    for call, kind in calls:
        proxy.begin()
        with pytest.raises(Problem) as caught:
            call()
        assert caught.value.kind == kind
        assert len(proxy.arrived) == (0 if kind == "invalid-field" else 1)


def test_other_content_under_the_same_ids_is_a_conflict_with_the_action(refunds: Client) -> None:
    order = builders.order()
    first = refunds.propose_refund(**proposal(order.order_id))

    with pytest.raises(Problem) as caught:
        refunds.propose_refund(**proposal(order.order_id, reason="damaged", amount_minor=1))

    assert caught.value.kind == "action-conflict"
    assert caught.value.differing == ("amount_minor", "reason")
    assert caught.value.action is not None
    assert caught.value.action.action_id == first.action_id


def test_a_withdrawal_that_comes_too_late_carries_the_action(refunds: Client, agent: str) -> None:
    action = builders.action(builders.order(), proposer=agent)
    builders.claimed(action)

    with pytest.raises(Problem) as caught:
        refunds.withdraw_refund(action.action_id)

    assert caught.value.kind == "too-late"
    assert caught.value.action is not None
    assert caught.value.action.state == State.SUBMITTING


def test_a_wrong_key_is_a_problem_and_is_never_shown(way: str, proxy: FaultyProxy) -> None:
    key = "ro_live_" + "0" * 12 + "_" + "1" * 64
    client = Client(RefundOnce if way == "blocking" else AsyncRefundOnce, proxy.url, key)
    with pytest.raises(Problem) as caught:
        client.get_order("4821")
    assert caught.value.kind == "unauthorized"
    assert key not in str(caught.value) + repr(RefundOnce(proxy.url, key))


@pytest.mark.parametrize(
    ("base_url", "token"),
    [
        ("refunds.example.com", "ro_live_0123456789ab_0"),
        ("ftp://refunds.example.com", "ro_live_0123456789ab_0"),
        ("https://user:secret@refunds.example.com", "ro_live_0123456789ab_0"),
        ("https://refunds.example.com", "sk_live_0123456789"),
        ("https://refunds.example.com", "ro_live_0123456789ab_0\r\nX: y"),
    ],
)
def test_an_address_or_a_key_that_cannot_be_right_is_refused_at_once(
    base_url: str, token: str
) -> None:
    with pytest.raises(ValueError) as caught:
        RefundOnce(base_url, token)
    assert "secret@" not in str(caught.value)
    assert token not in str(caught.value)


# ---- waiting


def test_waiting_ends_when_nothing_more_happens(
    refunds: Client, proxy: FaultyProxy, agent: str
) -> None:
    action = builders.action(builders.order(), proposer=agent)
    passed_on = proxy.pass_on

    def ended_before_the_second_read(arrived: Any) -> Reply:
        if len(proxy.arrived) == 2:
            withdraw_refund(action_id=action.action_id, actor="test")
            connection.close()  # this thread's own
        return passed_on(arrived)

    proxy.pass_on = ended_before_the_second_read  # type: ignore[method-assign]

    waited = refunds.wait_until_final(action.action_id, timeout_seconds=20)

    assert (waited.state, waited.final) == (State.CANCELLED, True)
    assert len(proxy.arrived) == 2


def test_what_takes_longer_than_the_deadline_is_answered_as_it_is(
    refunds: Client, proxy: FaultyProxy, agent: str
) -> None:
    action = builders.action(builders.order(), proposer=agent, amount_minor=15_000)
    began = time.monotonic()

    waited = refunds.wait_until_final(action.action_id, timeout_seconds=20)

    assert (waited.state, waited.final) == (State.AWAITING_APPROVAL, False)
    assert time.monotonic() - began < 15
    assert len(proxy.arrived) == 1


def test_waiting_asks_only_for_what_changed(
    refunds: Client, proxy: FaultyProxy, agent: str
) -> None:
    action = builders.action(builders.order(), proposer=agent)

    waited = refunds.wait_until_final(action.action_id, timeout_seconds=5)

    assert waited == refunds.get_refund(action.action_id)
    assert [reply.status for reply in proxy.answered[:2]] == [200, 304]
    assert not proxy.answered[1].body


# ---- the two kinds


def test_both_kinds_have_the_same_calls_with_the_same_words() -> None:
    for blocking, awaiting in ((RefundOnce, AsyncRefundOnce), (RefundSession, AsyncRefundSession)):
        theirs = {name for name in vars(awaiting) if not name.startswith("_")}
        assert {name for name in vars(blocking) if not name.startswith("_")} == theirs
        for name in theirs:
            one, other = getattr(blocking, name), getattr(awaiting, name)
            assert inspect.getdoc(one)
            assert inspect.getdoc(one) == inspect.getdoc(other)
            assert "Steps" not in str(inspect.signature(one))
            if name != "list_refunds":
                assert inspect.signature(one) == inspect.signature(other)


def test_what_is_raised_survives_a_task_queue(refunds: Client, proxy: FaultyProxy) -> None:
    raised: list[Exception] = []
    proxy.begin(*["502_before"] * 2 * (1 + BRISK.tries_max))
    for call in (
        lambda: refunds.propose_refund(**proposal("4821")),
        lambda: refunds.get_order("4821"),
        lambda: refunds.get_order("4821"),
        lambda: refunds.get_order("4821"),
    ):
        with pytest.raises((OutcomeUnknown, NoAnswer, Problem)) as caught:
            call()
        raised.append(caught.value)
    assert {type(error) for error in raised} == {OutcomeUnknown, NoAnswer, Problem}
    for error in raised:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again).keys() == vars(error).keys()
