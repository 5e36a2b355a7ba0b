"""What credentials were used for and are not for: few rows, nothing secret in them, never in the
way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from agents.keys import Rotated, create_key, revoke_key, rotate_key
from agents.models import AgentKey, SecurityEvent
from agents.security import NOWHERE
from effects.clock import database_now
from refunds.models import RefundAction
from tests import builders
from tests.agents.conftest import Caller, read, refund_body
from tests.agents.mcp_client import Tools
from tests.agents.test_sessions import opened, words

Kind = SecurityEvent.Kind


def told() -> list[tuple[str, str, str]]:
    """Every event: its kind, what was used, and where."""
    rows = SecurityEvent.objects.order_by("pk")
    return [(row.kind, row.credential.partition(":")[0], row.address) for row in rows]


@pytest.fixture
def theirs(caller: Caller) -> RefundAction:
    """What another agent proposed."""
    other = Caller(create_key(name="other").key)
    order = builders.order()
    answer = read(other.call("POST", "/refunds", refund_body(order.order_id)), 201)
    return RefundAction.objects.select_related("order").get(action_id=answer["action_id"])


@pytest.mark.django_db
def test_a_session_outside_its_order_is_told(caller: Caller, theirs: RefundAction) -> None:
    _, tools = opened(caller, builders.order())
    order_id, action_id = theirs.order.order_id, theirs.action_id
    for method, path, body in (
        ("GET", f"/orders/{order_id}", None),
        ("GET", f"/refunds?order_id={order_id}", None),
        ("GET", f"/refunds/{action_id}", None),
        ("POST", f"/refunds/{action_id}/withdraw", None),
        ("POST", "/refunds", words(order_id=order_id)),
        # One that nobody has: a session has no business with it either.
        ("GET", "/orders/none", None),
    ):
        read(tools.call(method, path, body), 404)
    assert told() == [
        (Kind.OUTSIDE_ITS_ORDER, "session", "GET /api/v1/orders/{order_id}"),
        (Kind.OUTSIDE_ITS_ORDER, "session", "GET /api/v1/refunds"),
        (Kind.OUTSIDE_ITS_ORDER, "session", "GET /api/v1/refunds/{action_id}"),
        (Kind.OUTSIDE_ITS_ORDER, "session", "POST /api/v1/refunds/{action_id}/withdraw"),
        (Kind.OUTSIDE_ITS_ORDER, "session", "POST /api/v1/refunds"),
    ]


@pytest.mark.django_db
def test_what_is_another_agents_is_told(caller: Caller, theirs: RefundAction) -> None:
    order = theirs.order
    session, _ = opened(Caller(create_key(name="third").key), order)
    read(caller.call("GET", f"/refunds/{theirs.action_id}"), 404)
    read(caller.call("POST", f"/refunds/{theirs.action_id}/withdraw"), 404)
    read(caller.call("DELETE", f"/sessions/{session['session_id']}"), 404)
    read(caller.call("POST", "/refunds", refund_body(order.order_id)), 409)
    assert told() == [
        (Kind.OF_ANOTHER_AGENT, "key", "GET /api/v1/refunds/{action_id}"),
        (Kind.OF_ANOTHER_AGENT, "key", "POST /api/v1/refunds/{action_id}/withdraw"),
        (Kind.OF_ANOTHER_AGENT, "key", "DELETE /api/v1/sessions/{session_id}"),
        (Kind.OF_ANOTHER_AGENT, "key", "POST /api/v1/refunds"),
    ]
    mine = AgentKey.objects.get(name="shop").prefix
    assert set(SecurityEvent.objects.values_list("actor", flat=True)) == {f"agent:{mine}"}


@pytest.mark.django_db
def test_a_tool_that_meets_another_agents_refund_is_told(
    caller: Caller, theirs: RefundAction
) -> None:
    body = {"order_id": theirs.order.order_id, "request_id": theirs.request_id}
    token = read(caller.call("POST", "/sessions", body), 201)["token"]
    answer = Tools(token).call("propose_refund", amount_minor=7_900, reason="damaged")
    assert (answer["outcome"], answer["action_id"], answer["state"]) == ("conflict", None, None)
    assert told() == [(Kind.OF_ANOTHER_AGENT, "session", "POST /mcp propose_refund")]


@pytest.mark.django_db
def test_mistakes_and_good_use_are_not_told(caller: Caller) -> None:
    order = builders.order()
    session, tools = opened(caller, order)
    read(tools.call("POST", "/refunds", words()), 201)
    read(tools.call("POST", "/refunds", words(amount_minor=0)), 422)
    read(caller.call("GET", "/refunds/refund:order-1:request-1"), 404)
    read(caller.call("GET", "/orders/none"), 404)
    read(caller.call("DELETE", "/sessions/0123"), 404)
    read(tools.call("PATCH", f"/orders/{order.order_id}"), 405)
    read(Caller("ro_live_000000000000_" + "0" * 64).call("GET", "/refunds"), 401)
    read(Caller(session["token"][:-1] + "x").call("GET", "/refunds"), 401)
    assert told() == []


@pytest.mark.django_db
def test_a_credential_that_is_over_is_told(caller: Caller) -> None:
    order = builders.order()
    session, tools = opened(caller, order, expires_in_seconds=60)
    _, later = opened(caller, order)
    builders.skew_clock(61)
    read(tools.call("GET", "/refunds"), 401)
    assert Tools(session["token"]).request("tools/list").status_code == 401
    revoke_key(prefix=AgentKey.objects.get().prefix, actor="operator:x")
    read(caller.call("GET", "/orders/1"), 401)
    read(later.call("GET", "/refunds"), 401)
    assert told() == [
        (Kind.OVER, "session", "GET /api/v1/refunds"),
        (Kind.OVER, "session", "POST /mcp"),
        (Kind.OVER, "key", "GET /api/v1/orders/{order_id}"),
        (Kind.OVER, "session", "GET /api/v1/refunds"),
    ]


@pytest.mark.django_db
def test_a_row_holds_nothing_that_was_sent(caller: Caller, theirs: RefundAction) -> None:
    _, tools = opened(caller, builders.order())
    read(tools.call("GET", f"/refunds/{theirs.action_id}"), 404)
    read(tools.call("GET", "/orders/my-own-text?note=secret-words"), 422)
    Client().get("/admin/my-own-text/", headers={"Authorization": f"Bearer {tools.key}"})
    kept = str(list(SecurityEvent.objects.values()))
    for text in (theirs.action_id, "my-own-text", "secret-words", tools.key.rpartition("_")[2]):
        assert text not in kept
    for event in SecurityEvent.objects.all():
        assert len(event.request_id) == 36
        assert event.minute == event.at.replace(second=0, microsecond=0)


@pytest.mark.django_db
def test_a_storm_is_one_row_a_minute_and_no_error(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    _, tools = opened(caller, builders.order())
    client = Client()
    for number in range(30):
        read(tools.call("GET", f"/orders/{number}"), 404)
        client.get(f"/nowhere/{number}", headers={"Authorization": f"Bearer {tools.key}"})
    minutes = len(set(SecurityEvent.objects.values_list("minute", flat=True)))
    assert SecurityEvent.objects.count() <= 2 * minutes
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
    before = SecurityEvent.objects.count()
    builders.skew_clock(120)
    read(tools.call("GET", "/orders/1"), 404)
    assert SecurityEvent.objects.count() == before + 1


@pytest.mark.django_db
@pytest.mark.parametrize("is_over", [False, True], ids=["in use", "over"])
@pytest.mark.parametrize("credential", ["session", "key"])
def test_a_storm_over_all_addresses_writes_no_more_rows_than_its_limit(
    caller: Caller, settings: Any, credential: str, is_over: bool
) -> None:
    session, _ = opened(caller, builders.order())
    settings.SESSION_REQUESTS_PER_MINUTE = settings.AGENT_REQUESTS_PER_MINUTE = 5
    token = session["token"] if credential == "session" else caller.key
    if is_over and credential == "session":
        caller.call("DELETE", f"/sessions/{session['session_id']}")
    elif is_over:
        revoke_key(prefix=AgentKey.objects.get().prefix, actor="operator:x")
    client, begun = Client(), database_now()
    for path in (
        "/admin/",
        "/metrics",
        "/api/v1/refunds",
        "/mcp",
        "/api/v1/none",
        "/.well-known/x",
    ):
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            response = client.generic(
                method, path, b"", headers={"Authorization": f"Bearer {token}"}
            )
            if path not in ("/api/v1/refunds", "/mcp"):
                assert response.status_code == 404
            elif is_over:
                assert response.status_code in (401, 405)
    minutes = (database_now() - begun) / timedelta(minutes=1) + 1
    assert 1 <= SecurityEvent.objects.count() <= 5 * minutes


@pytest.mark.django_db
def test_who_kept_an_old_secret_does_not_use_up_what_the_new_one_may_do(
    caller: Caller, settings: Any
) -> None:
    prefix = AgentKey.objects.get().prefix
    rotated = rotate_key(prefix=prefix, actor="operator:x", keep=timedelta())
    assert isinstance(rotated, Rotated)
    settings.AGENT_REQUESTS_PER_MINUTE = 3
    for _ in range(6):
        read(caller.call("GET", "/orders/none"), 401)
    read(Caller(rotated.created.key).call("GET", "/orders/none"), 404)


@pytest.mark.django_db(transaction=True)
def test_many_at_the_same_instant_are_one_row_and_all_are_answered(caller: Caller) -> None:
    _, tools = opened(caller, builders.order())
    ready = threading.Barrier(12)

    def ask(number: int) -> int:
        try:
            ready.wait(timeout=30)
            status: int = Caller(tools.key).call("GET", f"/orders/{number}").status_code
            return status
        finally:
            connection.close()

    with ThreadPoolExecutor(12) as threads:
        assert set(threads.map(ask, range(12))) == {404}
    assert 1 <= SecurityEvent.objects.count() <= 2


@pytest.mark.django_db
def test_rows_are_never_changed_or_deleted(caller: Caller) -> None:
    _, tools = opened(caller, builders.order())
    read(tools.call("GET", "/orders/1"), 404)
    changes: tuple[Callable[[], Any], ...] = (
        lambda: SecurityEvent.objects.update(actor="agent:other"),
        lambda: SecurityEvent.objects.all().delete(),
    )
    for change in changes:
        with pytest.raises(DatabaseError), transaction.atomic():
            change()


@pytest.mark.django_db
def test_an_event_that_cannot_be_written_changes_no_answer_and_is_logged(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, tools = opened(caller, builders.order())
    asked = [
        (tools, "GET", "/orders/1", 404),
        (tools, "POST", "/sessions", 403),
        (Caller(create_key(name="x", scopes=["orders"]).key), "GET", "/refunds", 403),
    ]

    def answers() -> list[Any]:
        found = [who.call(method, path) for who, method, path, _ in asked]
        return [(each.status_code, without_ids(each)) for each in found]

    def full(*arguments: Any, **options: Any) -> Any:
        raise OperationalError("no space left on device")

    before = answers()
    monkeypatch.setattr(SecurityEvent.objects, "bulk_create", full)
    with caplog.at_level(logging.ERROR):
        assert answers() == before
        response = Client().get("/metrics", headers={"Authorization": f"Bearer {tools.key}"})
    assert response.status_code == 404
    assert [status for status, _ in before] == [status for *_, status in asked]
    lost = [one for one in caplog.records if "could not be written" in one.getMessage()]
    assert len(lost) == 4


def without_ids(response: Any) -> Any:
    body = response.json()
    return {name: value for name, value in body.items() if name != "instance"}


@pytest.mark.django_db
def test_without_a_database_an_address_elsewhere_is_still_nothing(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(text: str) -> Any:
        raise OperationalError("gone")

    monkeypatch.setattr("agents.elsewhere.prove", away)
    response = Client().get("/admin/", headers={"Authorization": f"Bearer {caller.key}"})
    assert response.status_code == 404


@pytest.mark.django_db
def test_what_comes_without_a_credential_costs_no_statement(
    caller: Caller,
) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert Client().get("/nowhere").status_code == 404
    assert len(queries) == 0
    with CaptureQueriesContext(connection) as queries:
        Client().get("/nowhere", headers={"Authorization": "Bearer ro_live_zz_00"})
    assert len(queries) == 0
    # However many credentials a header holds.
    many = ",".join(f"ro_live_{number:012x}_{'0' * 64}" for number in range(50))
    with CaptureQueriesContext(connection) as queries:
        Client().get("/nowhere", headers={"Authorization": f"Bearer {many}"})
    assert len(queries) == 2


@pytest.mark.django_db
def test_events_of_the_last_hour_are_counted_by_kind_and_by_nobodys_name(caller: Caller) -> None:
    def scraped() -> dict[str, float]:
        families = text_string_to_metric_families(Client().get("/metrics").content.decode())
        family = next(f for f in families if f.name == "refund_once_security_events")
        assert all(set(sample.labels) == {"kind"} for sample in family.samples)
        return {sample.labels["kind"]: sample.value for sample in family.samples}

    assert scraped() == dict.fromkeys(Kind.values, 0)
    _, tools = opened(caller, builders.order())
    read(tools.call("GET", "/orders/1"), 404)
    Client().get("/nowhere", headers={"Authorization": f"Bearer {tools.key}"})
    assert scraped() == {
        **dict.fromkeys(Kind.values, 0),
        Kind.OUTSIDE_ITS_ORDER.value: 1,
        Kind.ELSEWHERE.value: 1,
    }
    assert SecurityEvent.objects.get(kind=Kind.ELSEWHERE).address == f"GET {NOWHERE}"
    builders.skew_clock(timedelta(hours=1, minutes=1).total_seconds())
    assert scraped() == dict.fromkeys(Kind.values, 0)
