"""Sessions: bound by the backend, without an id to choose, short, hashed, revocable."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from agents.keys import revoke_key
from agents.models import AgentKey, AgentSession
from refunds.models import Order, RefundAction, RefundEvent
from tests import builders
from tests.agents.conftest import Caller, read, refund_body

pytestmark = pytest.mark.django_db


def opened(caller: Caller, order: Order, **binding: Any) -> tuple[Any, Caller]:
    """The answer of a new session for request "7" of an order, and a caller with its token."""
    body = {"order_id": order.order_id, "request_id": "7", **binding}
    answer = read(caller.call("POST", "/sessions", body), 201)
    return answer, Caller(answer["token"])


def words(**changes: Any) -> dict[str, Any]:
    """All that a model may say."""
    return {"amount_minor": 7_900, "currency": "USD", "reason": "damaged", **changes}


def test_a_session_proposes_reads_and_withdraws_its_refund_without_an_id(caller: Caller) -> None:
    order = builders.order()
    session, tools = opened(caller, order)
    action_id = f"refund:order-{order.order_id}:request-7"
    assert (session["action_id"], session["request_id"]) == (action_id, "7")
    assert read(tools.call("GET", "/refunds"), 200) == {"data": [], "next_cursor": None}
    recorded = read(tools.call("POST", "/refunds", words()), 201)
    assert recorded["action_id"] == action_id
    assert read(tools.call("GET", "/refunds"), 200)["data"] == [recorded]
    assert read(tools.call("GET", f"/refunds/{action_id}"), 200) == recorded
    current = read(tools.call("GET", "/sessions/current"), 200)
    assert current == {name: value for name, value in session.items() if name != "token"}
    assert read(tools.call("POST", "/refunds/withdraw"), 200)["state"] == "CANCELLED"


def test_two_sessions_of_one_request_are_one_refund(caller: Caller) -> None:
    order = builders.order()
    first, second = opened(caller, order)[1], opened(caller, order)[1]
    recorded = read(first.call("POST", "/refunds", words()), 201)
    replayed = second.call("POST", "/refunds", words(note="other words"))
    assert read(replayed, 200)["action_id"] == recorded["action_id"]
    assert replayed["Idempotent-Replayed"] == "true"
    read(second.call("POST", "/refunds", words(amount_minor=100)), 409)
    assert RefundAction.objects.count() == 1


def test_the_history_says_through_which_session_it_came(caller: Caller) -> None:
    session, tools = opened(caller, builders.order())
    read(tools.call("POST", "/refunds", words()), 201)
    proposed = RefundEvent.objects.get(kind="refund.proposed")
    assert proposed.data["session"] == session["session_id"]
    assert proposed.actor == f"agent:{AgentKey.objects.get().prefix}"


def test_other_ids_than_the_bound_ones_are_not_there(caller: Caller) -> None:
    order, other = builders.order(), builders.order()
    own = builders.action(other, proposer=AgentKey.objects.get().prefix)
    _, tools = opened(caller, order)
    for method, path in (
        ("GET", f"/refunds/{own.action_id}"),
        ("POST", f"/refunds/{own.action_id}/withdraw"),
        ("GET", f"/refunds?order_id={other.order_id}"),
        ("GET", f"/orders/{other.order_id}"),
    ):
        read(tools.call(method, path), 404)
    for ids in (
        {"order_id": other.order_id},
        {"request_id": "8"},
        {"order_id": order.order_id, "request_id": "8"},
    ):
        read(tools.call("POST", "/refunds", words(**ids)), 404)
    read(tools.call("GET", f"/orders/{order.order_id}"), 200)
    assert RefundAction.objects.count() == 1


def test_more_than_the_session_is_for_is_refused_by_name_and_leaves_no_row(caller: Caller) -> None:
    order = builders.order()
    _, tools = opened(caller, order, max_amount_minor=5_000)
    refused = read(tools.call("POST", "/refunds", words(amount_minor=5_001)), 422)
    assert refused["field"] == "amount_minor"
    assert RefundAction.objects.count() == 0
    read(tools.call("POST", "/refunds", words(amount_minor=5_000)), 201)


def test_a_replay_is_answered_though_the_new_session_allows_less(caller: Caller) -> None:
    order = builders.order()
    read(opened(caller, order)[1].call("POST", "/refunds", words()), 201)
    _, tools = opened(caller, order, max_amount_minor=100)
    read(tools.call("POST", "/refunds", words()), 200)


def test_a_session_does_nothing_else(caller: Caller) -> None:
    order = builders.order()
    _, tools = opened(caller, order)
    for method, path in (
        ("POST", "/sessions"),
        ("DELETE", "/sessions/0123456789ab"),
        ("PUT", f"/orders/{order.order_id}"),
        ("POST", "/policy/explain"),
    ):
        assert read(tools.call(method, path, {}), 403)["type"].endswith(":forbidden")


def test_a_session_ends_by_time_by_revocation_and_with_its_key(caller: Caller) -> None:
    order = builders.order()
    session, tools = opened(caller, order, expires_in_seconds=60)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL refund_once.clock_skew_seconds = '61'")
        read(tools.call("GET", "/sessions/current"), 401)
        cursor.execute("SET LOCAL refund_once.clock_skew_seconds = '0'")
    read(tools.call("GET", "/sessions/current"), 200)
    for _ in range(2):
        assert caller.call("DELETE", f"/sessions/{session['session_id']}").status_code == 204
    read(tools.call("GET", "/sessions/current"), 401)
    _, later = opened(caller, order)
    revoke_key(prefix=AgentKey.objects.get().prefix, actor="operator:x")
    read(later.call("GET", "/sessions/current"), 401)


def test_only_a_digest_of_the_token_is_kept(caller: Caller) -> None:
    session, _ = opened(caller, builders.order())
    kept = AgentSession.objects.get()
    secret = session["token"].rpartition("_")[2]
    assert all(secret not in str(value) for value in vars(kept).values())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"expires_in_seconds": 59}, "expires_in_seconds"),
        ({"expires_in_seconds": 86_401}, "expires_in_seconds"),
        ({"expires_in_seconds": 60.0}, "expires_in_seconds"),
        ({"max_amount_minor": 0}, "max_amount_minor"),
        ({"max_amount_minor": "1"}, "max_amount_minor"),
        ({"request_id": "a b"}, "request_id"),
        ({"order_id": ""}, "order_id"),
        ({"agent": "x"}, "agent"),
    ],
)
def test_a_bad_binding_is_refused_by_name(caller: Caller, change: Any, field: str) -> None:
    body = {"order_id": builders.order().order_id, "request_id": "7", **change}
    assert read(caller.call("POST", "/sessions", body), 422)["field"] == field
    assert AgentSession.objects.count() == 0


def test_a_session_needs_an_order_that_is_mirrored(caller: Caller) -> None:
    body = {"order_id": "nobody", "request_id": "7"}
    assert read(caller.call("POST", "/sessions", body), 404)["type"].endswith(":order-unknown")


@pytest.mark.parametrize(
    "change",
    [{"request_id": "8"}, {"max_amount_minor": 1}, {"secret_sha256": "0" * 64}, {"key_id": 1}],
)
def test_a_session_never_becomes_another_one(caller: Caller, change: dict[str, Any]) -> None:
    opened(caller, builders.order(), max_amount_minor=5_000)
    with pytest.raises(DatabaseError), transaction.atomic():
        AgentSession.objects.update(**change if "key_id" not in change else {"key_id": 10**9})


def test_an_agent_cannot_read_or_touch_what_another_proposed(caller: Caller) -> None:
    order = builders.order()
    theirs = builders.action(order, proposer="another")
    read(caller.call("GET", f"/refunds/{theirs.action_id}"), 404)
    read(caller.call("POST", f"/refunds/{theirs.action_id}/withdraw"), 404)
    assert read(caller.call("GET", f"/refunds?order_id={order.order_id}"), 200)["data"] == []
    body = refund_body(order_id=order.order_id, request_id=theirs.request_id)
    answer = read(caller.call("POST", "/refunds", body), 409)
    assert (answer["differing"], "action" in answer) == (["agent"], False)
    theirs.refresh_from_db()
    assert theirs.state != "CANCELLED"
