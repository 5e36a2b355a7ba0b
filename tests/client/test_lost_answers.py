"""A proposal whose answer is lost: one action, one row, and the same bytes again."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest
from django.db import connection

from agents.keys import revoke_key
from refund_once_client import (
    AsyncRefundOnce,
    NoAnswer,
    OutcomeUnknown,
    Patience,
    Problem,
    RefundOnce,
)
from refunds.models import RefundAction
from tests import builders
from tests.client.conftest import BRISK, Client
from tests.client.faulty_proxy import AFTER, BEFORE, FAULTS, FaultyProxy

pytestmark = [pytest.mark.django_db(transaction=True)]

REFUNDS = "/api/v1/refunds"


def proposal(order_id: str, **changes: Any) -> dict[str, Any]:
    """A refund of 79.00."""
    return {
        "order_id": order_id,
        "request_id": "3",
        "amount_minor": 7_900,
        "currency": "USD",
        "reason": "requested_by_customer",
        "note": "brisé — ☕",
        "refunded_so_far_minor": 0,
        **changes,
    }


def one_action(order_id: str) -> RefundAction:
    """The only action of an order."""
    action = RefundAction.objects.get(order__order_id=order_id)
    assert action.action_id == f"refund:order-{order_id}:request-3"
    assert action.amount_minor == 7_900
    return action


def assert_all_the_same(proxy: FaultyProxy) -> None:
    """Every proposal that arrived is the first one, to the byte."""
    posts = proxy.sent("POST", REFUNDS)
    first = posts[0]
    assert {post.body for post in posts} == {first.body}
    assert all(post.headers == first.headers for post in posts)
    body = json.loads(first.body)
    action_id = f"refund:order-{body['order_id']}:request-{body['request_id']}"
    assert first.headers["Idempotency-Key"] == action_id


def test_an_answer_lost_after_the_commit_is_read_and_not_sent_again(
    refunds: Client, proxy: FaultyProxy
) -> None:
    for fault in AFTER:
        order = builders.order()
        proxy.begin(fault)

        action = refunds.propose_refund(**proposal(order.order_id))

        assert action.action_id == one_action(order.order_id).action_id
        assert [(one.method, one.path) for one in proxy.arrived] == [
            ("POST", REFUNDS),
            ("GET", f"{REFUNDS}/{action.action_id}"),
        ], fault


def test_a_proposal_lost_before_the_commit_is_sent_again_byte_for_byte(
    refunds: Client, proxy: FaultyProxy
) -> None:
    proxy.retry_after_seconds = 0
    for fault in BEFORE:
        order = builders.order()
        proxy.begin(fault)

        action = refunds.propose_refund(**proposal(order.order_id))

        assert action.action_id == one_action(order.order_id).action_id
        assert [one.method for one in proxy.arrived] == ["POST", "GET", "POST"], fault
        assert_all_the_same(proxy)


def test_a_read_that_is_lost_too_is_read_again(refunds: Client, proxy: FaultyProxy) -> None:
    order = builders.order()
    proxy.begin("dropped_after", "502_before", "garbage_after", "404_of_a_proxy")

    refunds.propose_refund(**proposal(order.order_id))

    one_action(order.order_id)
    assert [one.method for one in proxy.arrived] == ["POST", "GET", "GET", "GET", "GET"]


def test_a_service_that_never_answers_leaves_the_outcome_unknown(
    refunds: Client, proxy: FaultyProxy
) -> None:
    proxy.retry_after_seconds = 0
    for fault in ("dropped_before", "502_before", "503", "dropped_after"):
        order = builders.order()
        proxy.begin(*[fault] * 30)

        with pytest.raises(OutcomeUnknown) as caught:
            refunds.propose_refund(**proposal(order.order_id))

        error = caught.value
        assert error.action_id == f"refund:order-{order.order_id}:request-3"
        assert error.may_be_recorded
        assert error.action_id in str(error)
        assert "Never propose it under another request id" in str(error)
        assert (error.last is not None) == (fault == "503")
        assert len(proxy.sent("POST")) == 1
        assert len(proxy.sent("GET")) == BRISK.tries_max
        assert len(error.tried) == 1 + BRISK.tries_max


def test_calling_again_after_an_unknown_outcome_answers_the_same_action(
    refunds: Client, proxy: FaultyProxy
) -> None:
    order = builders.order()
    proxy.begin("dropped_after", *["502_before"] * BRISK.tries_max)
    with pytest.raises(OutcomeUnknown):
        refunds.propose_refund(**proposal(order.order_id))

    action = refunds.propose_refund(**proposal(order.order_id))

    assert action.action_id == one_action(order.order_id).action_id
    assert_all_the_same(proxy)


def test_a_proposal_is_sent_no_more_often_than_allowed(refunds: Client, proxy: FaultyProxy) -> None:
    order = builders.order()
    proxy.begin(*["502_before", "ok"] * 30)

    with pytest.raises(OutcomeUnknown):
        refunds.propose_refund(**proposal(order.order_id))

    assert len(proxy.sent("POST")) == BRISK.tries_max
    assert RefundAction.objects.count() == 0


def test_nobody_there_is_an_unknown_outcome_that_says_nothing_was_sent(way: str, key: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        refunds = Client(RefundOnce if way == "blocking" else AsyncRefundOnce, url, key)

        with pytest.raises(OutcomeUnknown) as caught:
            refunds.propose_refund(**proposal("4821"))

    assert not caught.value.may_be_recorded
    assert caught.value.action_id == "refund:order-4821:request-3"


def test_a_rate_limit_that_is_longer_than_the_patience_is_the_problem_itself(
    refunds: Client, proxy: FaultyProxy
) -> None:
    order = builders.order()
    proxy.retry_after_seconds = 3_600
    proxy.begin("429")
    began = time.monotonic()

    with pytest.raises(Problem) as caught:
        refunds.propose_refund(**proposal(order.order_id))

    assert time.monotonic() - began < 10
    assert caught.value.kind == "rate-limited"
    assert caught.value.retry_after_seconds == 3_600
    assert RefundAction.objects.count() == 0


def test_retry_after_is_waited_for(refunds: Client, proxy: FaultyProxy) -> None:
    order = builders.order()
    proxy.begin("429")
    began = time.monotonic()

    refunds.propose_refund(**proposal(order.order_id))

    assert time.monotonic() - began >= proxy.retry_after_seconds


def test_a_rate_limit_after_a_lost_answer_does_not_hide_it(
    refunds: Client, proxy: FaultyProxy
) -> None:
    order = builders.order()
    proxy.retry_after_seconds = 3_600
    proxy.begin("dropped_after", "429")

    with pytest.raises(OutcomeUnknown) as caught:
        refunds.propose_refund(**proposal(order.order_id))

    assert caught.value.last is not None
    assert caught.value.last.kind == "rate-limited"
    one_action(order.order_id)


def test_other_content_that_is_found_after_a_lost_answer_is_a_conflict(
    refunds: Client, proxy: FaultyProxy
) -> None:
    order = builders.order()
    refunds.propose_refund(**proposal(order.order_id))
    proxy.begin("dropped_after")

    with pytest.raises(Problem) as caught:
        refunds.propose_refund(**proposal(order.order_id, amount_minor=100))

    assert caught.value.kind == "action-conflict"
    assert caught.value.differing == ("amount_minor",)
    assert caught.value.action is not None
    assert caught.value.action.amount_minor == 7_900
    one_action(order.order_id)


def test_the_time_of_a_call_is_bounded(way: str, proxy: FaultyProxy, key: str) -> None:
    order = builders.order()
    proxy.begin(*["hangs_after"] * 10)
    client = Client(
        RefundOnce if way == "blocking" else AsyncRefundOnce,
        proxy.url,
        key,
        timeout_seconds=0.5,
        patience=Patience(total_seconds=1, pause_first_seconds=0.1),
    )
    began = time.monotonic()

    with pytest.raises(OutcomeUnknown):
        client.propose_refund(**proposal(order.order_id))

    assert time.monotonic() - began < 5


def test_everything_else_is_harmless_to_repeat_and_repeated(
    refunds: Client, proxy: FaultyProxy
) -> None:
    proxy.retry_after_seconds = 0
    order = builders.order()
    action_id = refunds.propose_refund(**proposal(order.order_id, amount_minor=15_000)).action_id
    for fault in FAULTS:
        # One that hangs is like the others, and takes long; an order is of no request.
        if fault in ("hangs_after", "foreign_after"):
            continue
        for call in (
            lambda: refunds.get_order(order.order_id),
            lambda: refunds.get_refund(action_id),
            lambda: refunds.withdraw_refund(action_id),
        ):
            proxy.begin(fault)
            call()
            first, second = proxy.arrived
            assert first == second, fault

    assert refunds.get_refund(action_id).state == "CANCELLED"


def test_a_read_that_is_never_answered_is_no_answer(refunds: Client, proxy: FaultyProxy) -> None:
    proxy.begin(*["502_before"] * 10)

    with pytest.raises(NoAnswer, match="harmless to call again") as caught:
        refunds.get_order("4821")

    assert len(proxy.arrived) == BRISK.tries_max
    assert len(caught.value.tried) == BRISK.tries_max


def test_an_overloaded_service_is_quoted_once_patience_is_over(
    refunds: Client, proxy: FaultyProxy
) -> None:
    proxy.retry_after_seconds = 0
    proxy.begin(*["503"] * 10)

    with pytest.raises(Problem) as caught:
        refunds.get_order("4821")

    assert (caught.value.status, caught.value.kind) == (503, "unavailable")


def test_a_no_after_a_lost_proposal_does_not_hide_that_it_may_arrive_later(
    refunds: Client, proxy: FaultyProxy
) -> None:
    proxy.begin("dropped_before")

    with pytest.raises(OutcomeUnknown) as caught:
        refunds.propose_refund(**proposal("4821"))

    assert caught.value.may_be_recorded
    assert caught.value.last is not None
    assert caught.value.last.kind == "order-unknown"
    held, _ = proxy.sent("POST")
    builders.order(order_id="4821", captured_minor=20_000)
    assert proxy.pass_on(held).status == 201
    one_action("4821")


def test_a_revoked_key_after_a_lost_answer_leaves_the_outcome_unknown(
    refunds: Client, proxy: FaultyProxy, agent: str
) -> None:
    order = builders.order()
    passed_on = proxy.pass_on

    def revoked_afterwards(arrived: Any) -> Any:
        reply = passed_on(arrived)
        revoke_key(prefix=agent, actor="test")
        connection.close()  # this thread's own
        return reply

    proxy.pass_on = revoked_afterwards  # type: ignore[method-assign]
    proxy.begin("dropped_after")

    with pytest.raises(OutcomeUnknown) as caught:
        refunds.propose_refund(**proposal(order.order_id))

    assert caught.value.may_be_recorded
    assert caught.value.last is not None
    assert caught.value.last.status == 401
    one_action(order.order_id)
