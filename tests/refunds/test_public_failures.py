"""Failures others met in public that belong to no single step: T22, T32, T33, T35, T77, X4."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, connections

from effects.states import State
from providers.sandbox import Sandbox
from refunds import hint, tasks
from refunds.dispatch import dispatch
from refunds.dispatch_due import hint_due_actions
from refunds.models import RefundAction
from refunds.orders import OrderFacts, mirror_order
from refunds.withdraw import withdraw_refund
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)


def in_threads(work: list[Callable[[], Any]]) -> list[Any]:
    """Run these at once, each thread with a connection of its own that it closes."""

    def one(job: Callable[[], Any]) -> Any:
        try:
            return job()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(one, work))


def test_a_new_request_beside_an_unknown_one_needs_a_person() -> None:
    order = builders.order()
    lost = builders.action(order)
    builders.claimed(lost)
    assert builders.lease_over(lost).state == State.UNKNOWN
    assert builders.action(order, amount_minor=100).state == State.AWAITING_APPROVAL


def test_a_worker_is_told_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        hint,
        "publish",
        lambda action_id: told.append((action_id, connection.in_atomic_block)),
    )
    action = builders.action(builders.order())
    assert told == [(action.action_id, False)]


def test_a_lost_hint_is_found_by_the_sweep(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hint, "publish", lambda action_id: None)
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)
    monkeypatch.setattr(hint, "publish", lambda action_id: dispatch(action_id=action_id))
    assert hint_due_actions() == 0  # not due yet: the hint may still be on its way
    builders.skew_clock(settings.DISPATCH_SWEEP_SECONDS + 1)
    assert hint_due_actions() == 1
    assert builders.fresh(action).state == State.SUCCEEDED
    assert len(sandbox.refunds(order.payment_ref)) == 1


def test_a_broker_that_is_down_at_the_commit_changes_no_answer(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(action_id: str) -> None:
        raise ConnectionRefusedError("no broker")

    monkeypatch.setattr(hint, "publish", down)
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)  # raises nothing
    builders.skew_clock(settings.DISPATCH_SWEEP_SECONDS + 1)
    hint_due_actions()
    monkeypatch.setattr(hint, "publish", lambda action_id: dispatch(action_id=action_id))
    assert hint_due_actions() == 1  # what could not be told is due at once
    assert builders.fresh(action).state == State.SUCCEEDED


def test_fifty_deliveries_at_once_are_one_request(sandbox: Sandbox) -> None:
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)
    ended = in_threads([lambda: tasks.dispatch_action(action.action_id)] * 50)
    assert ended.count("succeeded") == 1
    assert len(builders.refunds_on_the_wire(sandbox)) == 1
    assert len(sandbox.refunds(order.payment_ref)) == 1


def test_two_refunds_at_once_never_pass_what_was_captured(sandbox: Sandbox) -> None:
    builders.allow_all()
    order = builders.order(sandbox=sandbox, captured_minor=10_000)
    both = [builders.action(order, amount_minor=6_000) for _ in range(2)]
    assert [action.state for action in both] == [State.AUTHORIZED, State.AUTHORIZED]
    in_threads([lambda a=action: dispatch(action_id=a.action_id) for action in both * 4])  # type: ignore[misc]
    for action in both:  # the one that waited for the other on the wire
        dispatch(action_id=action.action_id)
    assert sorted(builders.fresh(action).state for action in both) == ["REJECTED", "SUCCEEDED"]
    assert len(builders.refunds_on_the_wire(sandbox)) == 1


@pytest.mark.parametrize("message", ["", "refund:order-1:request-none", "x" * 10_000, 4821, None])
def test_a_forged_message_does_nothing(sandbox: Sandbox, message: Any) -> None:
    tasks.dispatch_action(message)
    assert sandbox.requests() == []


def test_every_path_locks_in_the_same_order(sandbox: Sandbox) -> None:
    """Send, withdraw, propose and mirror one order at once: Postgres finds no deadlock."""
    builders.allow_all()
    order = builders.order(sandbox=sandbox, captured_minor=1_000_000)
    actions = [builders.action(order, amount_minor=100 + n) for n in range(16)]

    def mirrored(captured_minor: int) -> None:
        mirror_order(
            facts=OrderFacts(
                order_id=order.order_id,
                currency="USD",
                captured_minor=captured_minor,
                provider="stripe",
                payment_ref=order.payment_ref,
            ),
            actor="test",
        )

    work: list[Callable[[], Any]] = []
    for n, action in enumerate(actions):
        work += [
            lambda a=action: dispatch(action_id=a.action_id),  # type: ignore[misc]
            lambda a=action: withdraw_refund(action_id=a.action_id, actor="test"),  # type: ignore[misc]
            lambda n=n: mirrored(1_000_000 + n),  # type: ignore[misc]
            lambda n=n: builders.action(order, amount_minor=500 + n),  # type: ignore[misc]
        ]
    in_threads(work)  # a deadlock would raise OperationalError
    paid = RefundAction.objects.filter(order=order, state=State.SUCCEEDED)
    assert len(sandbox.refunds(order.payment_ref)) == paid.count()
    assert (
        sum(paid.values_list("amount_minor", flat=True))
        == builders.fresh(actions[0]).order.refunded_minor
    )
