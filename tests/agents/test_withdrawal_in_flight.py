"""A withdrawal that arrives while its proposal is being recorded finds it, and takes it back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

from effects.states import State
from refunds.models import Order, RefundAction
from tests import builders
from tests.agents.conftest import Caller, read, refund_body
from tests.agents.mcp_client import WORDS, Tools, opened

pytestmark = pytest.mark.django_db(transaction=True)

WAIT_SECONDS_MAX = 3.0
# Of the MCP clients that docs/frameworks.md is about, the one that waits the shortest.
SHORTEST_CLIENT_TIMEOUT_SECONDS = 5


@contextmanager
def order_held(order: Order) -> Iterator[None]:
    """Somebody has the order's row while the block runs."""
    with transaction.atomic():
        Order.objects.select_for_update(no_key=True).get(pk=order.pk)
        yield


def wait_for_waiters(number: int) -> None:
    """Return once so many others wait for a lock of this database."""
    give_up_at = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < give_up_at:
        with connection.cursor() as cursor:
            # A transaction sees the activity that it saw first.
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            if cursor.fetchone()[0] >= number:
                return
        time.sleep(0.01)
    raise AssertionError(f"there were never {number} who wait")


def elsewhere(threads: ThreadPoolExecutor, call: Callable[[], Any]) -> Future[Any]:
    """Run a call on a connection of its own."""

    def run() -> Any:
        try:
            return call()
        finally:
            connection.close()

    return threads.submit(run)


Doors = tuple[Callable[[], Any], Callable[[], Any]]


def over_mcp(caller: Caller, order: Order) -> Doors:
    tools = opened(caller, order)
    return (
        lambda: tools.call("propose_refund", **WORDS)["state"],
        lambda: tools.call("withdraw_refund")["state"],
    )


def over_http_with_a_session(caller: Caller, order: Order) -> Doors:
    session = Caller(opened(caller, order).token)
    body = WORDS | {"currency": order.currency}
    return (
        lambda: read(session.call("POST", "/refunds", body), 201)["state"],
        lambda: read(session.call("POST", "/refunds/withdraw"), 200)["state"],
    )


def over_http_with_a_key(caller: Caller, order: Order) -> Doors:
    body = refund_body(order.order_id, request_id="7")
    path = f"/refunds/refund:order-{order.order_id}:request-7/withdraw"
    return (
        lambda: read(caller.call("POST", "/refunds", body, **{"Idempotency-Key": "v"}), 201)[
            "state"
        ],
        lambda: read(caller.call("POST", path), 200)["state"],
    )


@pytest.mark.parametrize("door", [over_mcp, over_http_with_a_session, over_http_with_a_key])
def test_a_proposal_that_is_being_recorded_is_waited_for_and_withdrawn(
    caller: Caller, door: Callable[[Caller, Order], Doors]
) -> None:
    order = builders.order()
    propose, withdraw = door(caller, order)
    with ThreadPoolExecutor(2) as threads:
        with order_held(order):
            proposed = elsewhere(threads, propose)
            wait_for_waiters(1)
            withdrawn = elsewhere(threads, withdraw)
            wait_for_waiters(2)
        assert (proposed.result(), withdrawn.result()) == ("AUTHORIZED", "CANCELLED")
    action = RefundAction.objects.get()
    assert (action.state, action.due_at, action.attempt_count) == (State.CANCELLED, None, 0)


def test_a_proposal_that_committed_in_the_instant_of_the_first_look_is_withdrawn(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst instant: nothing was found, and it is there before the lock is asked for."""
    order = builders.order()
    propose, withdraw = over_mcp(caller, order)
    real = Order.objects.select_for_update
    proposed = threading.Event()

    def late(**options: Any) -> Any:
        if not proposed.is_set():
            proposed.set()
            assert propose() == "AUTHORIZED"
        return real(**options)

    monkeypatch.setattr("refunds.withdraw.Order.objects.select_for_update", late)
    assert withdraw() == "CANCELLED"


def test_whoever_waits_too_long_is_told_that_it_is_not_known(caller: Caller) -> None:
    order = builders.order()
    tools, session = opened(caller, order), Caller(opened(caller, order).token)
    with ThreadPoolExecutor(3) as threads, order_held(order):
        began = time.monotonic()
        over_tools = elsewhere(threads, lambda: tools.call("withdraw_refund"))
        over_http = elsewhere(threads, lambda: session.call("POST", "/refunds/withdraw"))
        path = f"/refunds/refund:order-{order.order_id}:request-7/withdraw"
        with_key = elsewhere(threads, lambda: caller.call("POST", path))
        assert over_tools.result()["outcome"] == "unanswered"
        for response in (over_http.result(), with_key.result()):
            assert read(response, 503)["type"].endswith(":unavailable")
            assert response["Retry-After"]
        assert time.monotonic() - began > 2
    assert tools.call("withdraw_refund")["outcome"] == "none"


def test_a_lock_is_waited_for_shorter_than_the_shortest_client_waits() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM current_setting('lock_timeout')::interval)")
        seconds = float(cursor.fetchone()[0])
    assert 0 < seconds < SHORTEST_CLIENT_TIMEOUT_SECONDS
    connect = connection.settings_dict["OPTIONS"]["connect_timeout"]
    assert 0 < connect < SHORTEST_CLIENT_TIMEOUT_SECONDS


def test_a_proposal_that_arrives_after_it_can_still_be_recorded_and_nobody_said_otherwise(
    caller: Caller,
) -> None:
    """It was on the network all the time: no lock can know of it, and only words can be right."""
    order = builders.order()
    tools = opened(caller, order)
    none = tools.call("withdraw_refund")
    assert (none["outcome"], none["final"], none["poll_after_seconds"]) == ("none", False, 5)
    assert "can still arrive" in none["next"]
    session = Caller(tools.token)
    for caller_of_it, path in (
        (session, "/refunds/withdraw"),
        (session, f"/refunds/refund:order-{order.order_id}:request-7/withdraw"),
        (caller, f"/refunds/refund:order-{order.order_id}:request-7/withdraw"),
    ):
        told = read(caller_of_it.call("POST", path), 404)
        assert told["type"].endswith(":action-unknown")
        assert "can be recorded later" in told["detail"]
    status = tools.call("refund_status")
    assert (status["outcome"], status["final"], status["poll_after_seconds"]) == ("none", False, 5)
    assert "can still arrive" in status["next"]
    assert Tools(tools.token).call("propose_refund", **WORDS)["outcome"] == "recorded"
    assert tools.call("withdraw_refund")["outcome"] == "withdrawn"
