"""Many threads, each with a connection of its own, at the same row at the same moment."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connection, connections

from effects.claim import Claimed, NotClaimed, claim
from effects.clock import database_now
from effects.models import Case
from effects.outcomes import Evidence, NotSent, Refused, Succeeded, Unknown
from effects.states import State
from policies.models import PolicyVersion
from providers.sandbox import Sandbox
from reconciliation.leases import end_lease
from refunds import hint
from refunds.dispatch import dispatch
from refunds.dispatch_due import hint_due_actions
from refunds.kind import REFUND
from refunds.models import Order, RefundAction, RefundAttempt, RefundEvent
from refunds.orders import OrderFacts, mirror_order
from refunds.propose import Recorded, Replayed, propose_refund
from refunds.withdraw import Withdrawn, withdraw_refund
from tests import builders

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run every call in a thread of its own, all let go together; their results, or the error."""
    results: list[Any] = [None] * len(calls)
    gate = threading.Barrier(len(calls))

    def run(number: int, call: Callable[[], Any]) -> None:
        try:
            connection.ensure_connection()
            gate.wait()
            results[number] = call()
        except BaseException as error:
            results[number] = error
            gate.abort()  # or the others would wait for this one for ever
        finally:
            connections.close_all()

    threads = [
        threading.Thread(target=run, args=(number, call)) for number, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def insisting(call: Callable[[], Any]) -> Callable[[], Any]:
    """A caller as the API asks for: told 503 in a crowd, it sends the identical request again.

    On a slow machine the last of a hundred does not get the order's lock within its 4 seconds. Its
    transaction left nothing then, and what is proved of the end is the same.
    """

    def insist() -> Any:
        deadline = time.monotonic() + 90
        while True:
            try:
                return call()
            except OperationalError as error:
                if "lock timeout" not in str(error) or time.monotonic() > deadline:
                    raise

    return insist


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker of anybody's listens; the tests dispatch themselves."""
    monkeypatch.setattr(hint, "publish", lambda action_id: None)


def assert_balances_add_up(order: Order) -> None:
    order.refresh_from_db()
    actions = RefundAction.objects.filter(order=order)
    assert order.reserved_minor == sum(action.reserved_minor for action in actions)
    assert order.refunded_minor == sum(
        action.amount_minor for action in actions if action.state == State.SUCCEEDED
    )


def test_fifty_parallel_proposals_of_one_request_are_one_action() -> None:
    order = builders.order()
    proposal = builders.proposal(order)

    results = at_once(*[insisting(partial(propose_refund, proposal=proposal))] * 50)

    assert Counter(type(result) for result in results) == {Recorded: 1, Replayed: 49}
    (action,) = RefundAction.objects.filter(order=order)
    assert {result.action.pk for result in results} == {action.pk}
    assert RefundEvent.objects.filter(action=action).count() == 2


def test_fifty_parallel_mirrors_of_one_new_order_are_one_order() -> None:
    facts = OrderFacts(
        order_id="4821",
        currency="USD",
        captured_minor=20_000,
        provider="stripe",
        payment_ref="pi_1",
    )
    results = at_once(*[insisting(partial(mirror_order, facts=facts, actor="t"))] * 50)
    assert sum(result.created for result in results) == 1
    assert Order.objects.get().version == 1
    assert RefundEvent.objects.count() == 1


def test_a_claim_raced_by_twenty_workers_is_one_request_on_the_wire(sandbox: Sandbox) -> None:
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)

    results = at_once(*[lambda: dispatch(action_id=action.action_id)] * 20)

    assert results.count("succeeded") == 1
    assert sum("got there first" in result for result in results) == 19
    assert len(builders.refunds_on_the_wire(sandbox)) == 1
    assert len(sandbox.refunds()) == 1
    assert RefundAttempt.objects.filter(action=action).count() == 1
    assert_balances_add_up(order)


def test_a_hundred_refunds_at_once_never_pass_the_balance(sandbox: Sandbox) -> None:
    """100 x 7.00 asked of an order of 200.00: 28 fit, the rest are told no, none is stranded."""
    builders.allow_all()
    order = builders.order(sandbox=sandbox, captured_minor=20_000)
    proposals = [builders.proposal(order, amount_minor=700) for _ in range(100)]
    at_once(*[insisting(partial(propose_refund, proposal=proposal)) for proposal in proposals])
    ids = list(RefundAction.objects.values_list("action_id", flat=True))
    assert len(ids) == 100

    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for action_id in ids * 2:  # every hint is delivered twice
        waiting.put(action_id)

    def work() -> None:
        while True:
            try:
                action_id = waiting.get_nowait()
            except queue.Empty:
                return
            if "on the wire" in insisting(partial(dispatch, action_id=action_id))():
                waiting.put(action_id)
                time.sleep(0.02)

    at_once(*[work] * 10)

    states = Counter(RefundAction.objects.values_list("state", flat=True))
    assert states == {State.SUCCEEDED: 28, State.REJECTED: 72}
    ledger = sandbox.ledger(order.payment_ref)
    assert ledger["payments"][order.payment_ref]["refunded"] == 28 * 700
    keys = [refund["idempotency_key"] for refund in ledger["refunds"]]
    assert len(keys) == len(set(keys)) == 28
    assert len(builders.refunds_on_the_wire(sandbox)) == 28
    assert_balances_add_up(order)
    assert not Case.objects.exists()


def test_claims_of_one_order_raced_without_sending_reserve_at_most_what_is_left() -> None:
    """Each claim is answered by nobody: only the reservation stands between two of them."""
    builders.allow_all()
    order = builders.order(captured_minor=20_000)
    actions = [builders.action(order, amount_minor=15_000) for _ in range(8)]
    results = at_once(
        *[
            lambda row=row: claim(kind=REFUND, action_id=row.action_id, worker="w")
            for row in actions
        ]
    )
    assert sum(isinstance(result, Claimed) for result in results) == 1
    order.refresh_from_db()
    assert order.reserved_minor == 15_000
    assert_balances_add_up(order)


@pytest.mark.parametrize("round_number", range(5))
def test_a_withdrawal_and_a_claim_never_both_win(round_number: int) -> None:
    action = builders.action(builders.order())
    claimed, withdrawn = at_once(
        lambda: claim(kind=REFUND, action_id=action.action_id, worker="w"),
        lambda: withdraw_refund(action_id=action.action_id, actor="t"),
    )
    assert isinstance(claimed, NotClaimed) is isinstance(withdrawn, Withdrawn)
    assert_balances_add_up(action.order)


@pytest.mark.parametrize("round_number", range(5))
def test_a_proposal_and_a_change_of_the_order_are_one_after_the_other(round_number: int) -> None:
    """What a proposal was frozen with and what the order says never differ."""
    order = builders.order()
    proposal = builders.proposal(order)

    def move_the_payment() -> Any:
        try:
            return mirror_order(
                facts=OrderFacts(
                    order_id=order.order_id,
                    currency="USD",
                    captured_minor=20_000,
                    provider="stripe",
                    payment_ref="pi_another",
                    source_version=1,
                ),
                actor="t",
            )
        except ValueError as error:
            return str(error)

    proposed, _ = at_once(lambda: propose_refund(proposal=proposal), move_the_payment)
    assert isinstance(proposed, Recorded)
    order.refresh_from_db()
    assert f'"payment_intent":"{order.payment_ref}"' in proposed.action.payload


OUTCOMES: dict[str, Callable[[RefundAction], Any]] = {
    "success": lambda row: Succeeded(effect=builders.effect(row, ref="re_1"), evidence=Evidence()),
    "refusal": lambda row: Refused(code="disputed", evidence=Evidence()),
    "not sent": lambda row: NotSent(reason="fenced", evidence=Evidence()),
    "unknown": lambda row: Unknown(reason="read_timeout", evidence=Evidence()),
}


@pytest.mark.parametrize("late", OUTCOMES)
@pytest.mark.parametrize("own", OUTCOMES)
def test_a_late_answer_beside_the_open_attempt_s_own(own: str, late: str) -> None:
    """Whichever of two workers records first, the end is the same and nothing is stranded."""
    action = builders.fresh(builders.action(builders.order()))
    first = builders.claimed(action)
    builders.lease_over(action)
    builders.not_executed(action)
    builders.stand_at(action, State.AUTHORIZED, due_at=database_now())
    second = builders.claimed(action)

    at_once(
        lambda: builders.answered(first.token, OUTCOMES[late](action)),
        lambda: builders.answered(second.token, OUTCOMES[own](action)),
    )

    after = builders.fresh(action)
    if "success" in (own, late):
        assert after.state == State.SUCCEEDED
    else:
        # What the late answer says of its own attempt says nothing of the other one.
        expected = {
            "refusal": {State.FAILED_FINAL},
            "not sent": {State.AUTHORIZED},
            "unknown": {State.UNKNOWN},
        }[own]
        if own == "unknown":
            assert RefundAttempt.objects.get(token=second.token).resolution == ""
        assert after.state in expected
    assert_balances_add_up(after.order)
    assert not RefundAttempt.objects.filter(action=action, closed_at__isnull=True).exists()
    assert (
        after.state == State.SUCCEEDED
        or after.due_at is not None
        or Case.objects.filter(action_id=action.action_id, closed_at__isnull=True).exists()
    )


@pytest.mark.parametrize("round_number", range(5))
def test_an_answer_and_the_end_of_its_lease_are_one_after_the_other(round_number: int) -> None:
    action = builders.fresh(builders.action(builders.order()))
    claimed = builders.claimed(action)
    RefundAction.objects.filter(pk=action.pk).update(due_at=database_now())
    at_once(
        lambda: builders.answered(claimed.token, OUTCOMES["success"](action)),
        lambda: end_lease(kind=REFUND, now=database_now(), seen=[]),
    )
    after = builders.fresh(action)
    assert after.state == State.SUCCEEDED
    assert RefundAttempt.objects.get(action=action).resolution == "executed"
    assert_balances_add_up(after.order)


def test_two_sweeps_at_once_hint_each_action_once(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[str] = []
    for _ in range(20):
        builders.action(builders.order())
    RefundAction.objects.update(due_at=database_now())
    monkeypatch.setattr(hint, "publish", published.append)
    counts = at_once(*[hint_due_actions] * 4)
    assert sum(counts) == len(published) == 20
    assert len(set(published)) == 20


def test_policies_published_at_once_are_numbered_without_a_gap() -> None:
    before = PolicyVersion.objects.count()
    at_once(*[lambda: builders.policy()] * 8)
    numbers = list(PolicyVersion.objects.order_by("number").values_list("number", flat=True))
    assert numbers == list(range(1, before + 9))
