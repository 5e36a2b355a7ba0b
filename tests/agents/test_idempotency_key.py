"""The Idempotency-Key header: a second fence around proposals, never an identity."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from agents.idempotency_key import HEADER
from agents.keys import create_key
from agents.models import IdempotencyValue
from refunds.models import Order, RefundAction, RefundEvent
from tests import builders
from tests.agents.conftest import Caller, read, refund_body
from tests.agents.test_sessions import opened, words

pytestmark = pytest.mark.django_db


def propose(caller: Caller, order: Order, value: str, **changes: Any) -> Any:
    """A proposal under a value of the header; answers Django's response."""
    body = refund_body(order.order_id, **changes)
    return caller.call("POST", "/refunds", body, **{HEADER: value})


def test_a_value_belongs_to_the_action_that_was_recorded_under_it(caller: Caller) -> None:
    order = builders.order()
    recorded = read(propose(caller, order, "job-1"), 201)
    kept = IdempotencyValue.objects.get()
    assert (kept.value, kept.action.action_id) == ("job-1", recorded["action_id"])
    assert kept.key.prefix in caller.key


def test_a_new_action_under_a_value_of_another_one_is_refused_and_leaves_no_row(
    caller: Caller,
) -> None:
    order = builders.order()
    first = read(propose(caller, order, "job-1"), 201)
    answer = read(propose(caller, order, "job-1", request_id="4"), 422)
    assert answer["type"] == "urn:refund-once:problem:idempotency-conflict"
    assert answer["field"] == HEADER
    assert answer["action"] == first
    assert RefundAction.objects.count() == 1
    assert RefundEvent.objects.filter(kind="refund.proposed").count() == 1


def test_an_action_that_exists_is_answered_whatever_the_header_says(caller: Caller) -> None:
    order = builders.order()
    read(propose(caller, order, "job-1"), 201)
    read(propose(caller, order, "job-2", request_id="4"), 201)
    for value in ("job-1", "job-2", "job-3"):
        replayed = propose(caller, order, value)
        assert read(replayed, 200)["request_id"] == "3"
        assert replayed["Idempotent-Replayed"] == "true"
        read(propose(caller, order, value, amount_minor=1), 409)
    read(caller.call("POST", "/refunds", refund_body(order.order_id)), 200)
    assert IdempotencyValue.objects.count() == 2


def test_what_was_not_recorded_leaves_the_value_free(caller: Caller) -> None:
    order = builders.order()
    body = refund_body("nobody")
    read(caller.call("POST", "/refunds", body, **{HEADER: "job-1"}), 404)
    read(propose(caller, order, "job-1", refunded_so_far_minor=5), 412)
    read(propose(caller, order, "job-1", amount_minor=0), 422)
    read(propose(caller, order, "job-1", currency="EUR"), 422)
    read(propose(caller, order, "job-1"), 201)


def test_two_agents_share_no_value(caller: Caller) -> None:
    order = builders.order()
    read(propose(caller, order, "job-1"), 201)
    other = Caller(create_key(name="another shop").key)
    read(propose(other, order, "job-1", request_id="4"), 201)


def test_under_a_session_a_value_means_nothing_and_its_agents_values_stay_free(
    caller: Caller,
) -> None:
    order = builders.order()
    first = read(propose(caller, order, "job-1"), 201)
    _, tools = opened(caller, order)
    answer = read(tools.call("POST", "/refunds", words(), **{HEADER: "job-1"}), 201)
    assert answer["action_id"] != first["action_id"]
    read(tools.call("POST", "/refunds", words(), **{HEADER: "job-7"}), 200)
    assert IdempotencyValue.objects.get().value == "job-1"
    _, others = opened(caller, order)
    read(others.call("POST", "/refunds", words(), **{HEADER: "job-7"}), 200)
    read(propose(caller, order, "job-7", request_id="5"), 201)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("a", "a"),
        ('"a"', "a"),
        ('"a,b"', "a,b"),
        ('"a\\"b\\\\"', 'a"b\\'),
        ('a"b\\', 'a"b\\'),
        ("x" * 255, "x" * 255),
        (f'"{"x" * 255}"', "x" * 255),
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
    ],
    ids=lambda text: text[:12],
)
def test_a_value_is_the_same_with_and_without_the_quotes_of_the_draft(
    caller: Caller, header: str, value: str
) -> None:
    order = builders.order()
    read(propose(caller, order, header), 201)
    assert IdempotencyValue.objects.get().value == value
    if "," not in value and not value.startswith('"'):
        read(propose(caller, order, value, request_id="4"), 422)


@pytest.mark.parametrize(
    "header",
    [
        " ",
        "x" * 256,
        f'"{"x" * 256}"',
        '""',
        '"',
        '"a',
        '"a"b',
        '"a\\"',
        '"a\\n"',
        "a b",
        '"a b"',
        "a,b",
        "a, a",
        '"a","b"',
        "a\x7f",
        "a\tb",
        "\u00e4",
        "\u2713",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_a_bad_value_is_refused_by_name_and_leaves_no_row(caller: Caller, header: str) -> None:
    answer = read(propose(caller, builders.order(), header), 422)
    assert answer["fields"][0]["field"] == HEADER
    assert answer["fields"][0]["reason"].startswith("must be given once")
    assert RefundAction.objects.count() == 0


def test_a_header_that_is_there_and_empty_is_refused(caller: Caller) -> None:
    answer: Any = caller.client.post(
        "/api/v1/refunds",
        refund_body(builders.order().order_id),
        content_type="application/json",
        headers={"Authorization": f"Bearer {caller.key}", HEADER: ""},
    )
    assert read(answer, 422)["field"] == HEADER


@pytest.mark.parametrize("change", [{"value": "other"}, {"action_id": 1}])
def test_a_value_never_becomes_that_of_another_action(
    caller: Caller, change: dict[str, Any]
) -> None:
    read(propose(caller, builders.order(), "job-1"), 201)
    with pytest.raises(DatabaseError), transaction.atomic():
        IdempotencyValue.objects.update(**change)
    with pytest.raises(DatabaseError), transaction.atomic():
        IdempotencyValue.objects.all()._raw_delete("default")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("requests", [1, 25], ids=["of one action", "of 25 actions"])
def test_fifty_parallel_proposals_under_one_value_record_one_action(
    caller: Caller, requests: int
) -> None:
    orders = [builders.order() for _ in range(requests)]
    ready = threading.Barrier(50)

    def deliver(number: int) -> int:
        try:
            ready.wait(timeout=30)
            for _ in range(5):
                status: int = propose(
                    Caller(caller.key), orders[number % requests], "job-1"
                ).status_code
                if status != 503:  # a crowd on a slow machine waits too long for a lock
                    break
            return status
        finally:
            connection.close()

    with ThreadPoolExecutor(50) as threads:
        statuses = Counter(threads.map(deliver, range(50)))
    assert statuses[201] == 1
    assert statuses == ({201: 1, 200: 49} if requests == 1 else {201: 1, 200: 1, 422: 48})
    assert RefundAction.objects.count() == IdempotencyValue.objects.count() == 1
