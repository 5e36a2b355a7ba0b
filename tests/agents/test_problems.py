"""Problems: unknown addresses, other methods, mistakes, a database that is away; request ids."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client

from tests import builders
from tests.agents.conftest import Caller, read, refund_body

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/", "/nothing", "/refunds/a/b/c", "/orders/", "/orders", "/%00"])
def test_an_unknown_address_is_a_404_problem(caller: Caller, method: str, path: str) -> None:
    answer = read(caller.call(method, path, {} if method != "GET" else None), 404)
    assert answer["type"] == "urn:refund-once:problem:not-found"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/orders/4821", {"GET", "PUT"}),
        ("POST", "/orders/4821", {"GET", "PUT"}),
        ("PUT", "/refunds", {"GET", "POST"}),
        ("DELETE", "/refunds/refund:order-1:request-1", {"GET"}),
        ("PATCH", "/refunds/refund:order-1:request-1", {"GET"}),
        ("GET", "/refunds/refund:order-1:request-1/withdraw", {"POST"}),
    ],
)
def test_another_method_is_a_405_problem_that_names_the_right_ones(
    caller: Caller, method: str, path: str, allowed: set[str]
) -> None:
    response = caller.call(method, path)
    assert read(response, 405)["type"] == "urn:refund-once:problem:method-not-allowed"
    assert set(response["Allow"].split(", ")) == allowed


@pytest.mark.parametrize(
    ("charset", "path"),
    [("rot13", "/orders/4"), ("zlib", "/orders/4"), ("latin-1", "/refunds?order_id=4")],
)
def test_another_encoding_is_415_even_where_no_body_is_read(
    caller: Caller, charset: str, path: str
) -> None:
    response: Any = caller.client.generic(
        "GET",
        f"/api/v1{path}",
        CONTENT_TYPE=f"application/json; charset={charset}",
        headers={"Authorization": f"Bearer {caller.key}"},
    )
    assert read(response, 415)["type"] == "urn:refund-once:problem:unsupported-media-type"


@pytest.mark.parametrize(
    "path", ["/orders/{order}", "/orders/none", "/docs", "/refunds/x/withdraw"]
)
def test_head_is_answered_like_get_without_a_body(caller: Caller, path: str) -> None:
    path = path.format(order=builders.order().order_id)
    got, head = caller.call("GET", path), caller.call("HEAD", path)
    assert head.status_code == got.status_code
    assert head["Content-Type"] == got["Content-Type"]
    assert int(head["Content-Length"]) > 0
    assert head.content == b""


def test_a_mistake_of_ours_is_logged_and_tells_nothing(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken(**_: Any) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr("agents.calls.propose_refund", mistaken)
    with caplog.at_level(logging.ERROR):
        response = caller.call("POST", "/refunds", refund_body("4821"))
    answer = read(response, 500)
    assert answer["type"] == "urn:refund-once:problem:internal"
    assert "Read the refund first" in answer["detail"]
    assert "hunter2" not in response.content.decode()
    assert "A request ended in a mistake." in caplog.messages


@pytest.mark.parametrize("where", ["agents.calls.propose_refund", "agents.bearer.prove_key"])
def test_a_database_that_is_away_is_503_with_retry_after(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("connection to server at db.internal failed")

    monkeypatch.setattr(where, away)
    response = caller.call("POST", "/refunds", refund_body("4821"))
    answer = read(response, 503)
    assert answer["type"] == "urn:refund-once:problem:unavailable"
    assert int(response["Retry-After"]) > 0
    assert "db.internal" not in response.content.decode()
    assert "not known" in answer["detail"]
    assert "Read the refund first" in answer["detail"]


def test_a_caller_cannot_choose_the_request_id(caller: Caller) -> None:
    order = builders.order()
    sent = {"X-Request-ID": "job-7"}
    response = caller.call("POST", "/refunds", refund_body(order.order_id), **sent)
    read(response, 201)
    assert response["X-Request-ID"] != "job-7"
    assert order.actions.get().request_ref == response["X-Request-ID"]


def test_answers_are_never_stored_by_a_cache(caller: Caller) -> None:
    assert caller.call("GET", "/orders/x")["Cache-Control"] == "no-store"


def test_a_proposal_is_logged_with_its_action_and_without_the_customer(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    order = builders.order()
    with caplog.at_level(logging.INFO, logger="agents"):
        read(caller.call("POST", "/refunds", refund_body(order.order_id, note="Ada is ill")), 201)
    (line,) = [record for record in caplog.records if record.name.startswith("agents")]
    assert vars(line)["action_id"] == f"refund:order-{order.order_id}:request-3"
    assert "Ada" not in str(vars(line))
    assert order.customer_email not in str(vars(line))


def test_the_readable_page_needs_nothing_from_elsewhere() -> None:
    page = Client().get("/api/v1/docs")
    assert page.status_code == 200
    text = page.content.decode()
    assert "swagger-ui-bundle.js" in text
    assert "http://" not in text
    assert "https://" not in text
