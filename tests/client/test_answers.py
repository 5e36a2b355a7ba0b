"""Answers are read whole or not at all."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from config.development import CHECKOUT
from refund_once_client import Order, answers
from refund_once_client.answers import ActionPage, Explanation, Unreadable, read_json
from tests.client.test_any_faults import found

ORDER: dict[str, Any] = {
    "order_id": "4821",
    "version": 3,
    "source_version": 7,
    "currency": "USD",
    "captured_minor": 20_000,
    "refunded_minor": 0,
    "reserved_minor": 0,
    "disputed_minor": 0,
    "settled_otherwise_minor": 0,
    "refundable_minor": -5,
    "dispute_state": "none",
    "updated_at": "2026-11-30T10:00:00.123456Z",
}
EXPLAINED: dict[str, Any] = {
    "verdict": "ALLOW",
    "tier": None,
    "people": None,
    "rules": [],
    "policy_version": 1,
}


# Each of ours, and its name in the service's OpenAPI document.
SCHEMAS = {
    answers.Rule: "RuleAnswer",
    answers.Decision: "DecisionAnswer",
    answers.Approval: "ApprovalAnswer",
    answers.ProviderRefund: "ProviderAnswer",
    answers.OpenCase: "CaseAnswer",
    answers.Action: "ActionAnswer",
    answers.ActionPage: "ActionPage",
    answers.Order: "OrderAnswer",
    answers.Explanation: "ExplainAnswer",
    answers.CurrentSession: "SessionAnswer",
    answers.OpenedSession: "OpenedSessionAnswer",
    answers.FieldProblem: "FieldProblem",
}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_our_answers_are_those_of_the_service(kind: type[Any]) -> None:
    document = json.loads((CHECKOUT / "docs/openapi.json").read_text())
    schema = document["components"]["schemas"][SCHEMAS[kind]]
    assert {field.name for field in fields(kind)} == schema["properties"].keys()


def body(value: Any) -> bytes:
    """As it comes."""
    return json.dumps(value).encode()


def test_what_a_later_version_adds_is_ignored() -> None:
    order = read_json(Order, body(ORDER | {"mood": "good"}))
    assert (order.refundable_minor, order.updated_at.utcoffset() is None) == (-5, False)


def test_what_may_be_none_may_be_missing() -> None:
    assert read_json(Explanation, body({"verdict": "ALLOW", "rules": [], "policy_version": 1})) == (
        read_json(Explanation, body(EXPLAINED))
    )


def test_a_whole_action_is_read() -> None:
    action = json.loads(found(200, {"action_id": "refund:order-1:request-1"}).body)
    action |= {"order_id": "1", "request_id": "1", "amount_minor": 1, "currency": "USD"}
    action |= {"reason": "damaged", "state": "A_LATER_STATE"}
    page = read_json(ActionPage, body({"data": [action, action], "next_cursor": None}))
    assert [one.state for one in page.data] == ["A_LATER_STATE", "A_LATER_STATE"]


@pytest.mark.parametrize(
    "changed",
    [
        {"captured_minor": True},
        {"captured_minor": 20_000.0},
        {"captured_minor": "20000"},
        {"captured_minor": None},
        {"updated_at": "2026-11-30T10:00:00"},
        {"updated_at": "yesterday"},
        {"updated_at": 0},
        {"order_id": 4_821},
    ],
)
def test_a_field_of_another_type_makes_the_answer_unreadable(changed: dict[str, Any]) -> None:
    (name,) = changed
    with pytest.raises(Unreadable, match=f"it.{name} "):
        read_json(Order, body(ORDER | changed))


@pytest.mark.parametrize("name", ORDER)
def test_a_missing_field_makes_the_answer_unreadable(name: str) -> None:
    with pytest.raises(Unreadable, match=f"lacks {name}"):
        read_json(Order, body({key: value for key, value in ORDER.items() if key != name}))


@pytest.mark.parametrize(
    "garbage",
    [b"", b"null", b"[]", b"<h1>", b'{"a": 1', b"\xff\xfe", b"[" * 100_000, b"1" * 5_000],
)
def test_garbage_is_unreadable(garbage: bytes) -> None:
    with pytest.raises(Unreadable):
        read_json(Order, garbage)


def test_a_list_that_is_none_is_unreadable() -> None:
    assert read_json(Explanation, body(EXPLAINED)).rules == ()
    wrong: list[Any] = [None, {}, [None], [{"rule": "ceiling"}]]
    for rules in wrong:
        with pytest.raises(Unreadable):
            read_json(Explanation, body(EXPLAINED | {"rules": rules}))
