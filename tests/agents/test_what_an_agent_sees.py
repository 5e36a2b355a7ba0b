"""Every field that leaves through the agents' door, and what never does. Changes are decided."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User

from effects.clock import database_now
from effects.models import Case
from refunds.models import RefundAction
from tests import builders
from tests.agents.conftest import Caller, order_body, read, refund_body
from tests.agents.mcp_client import Tools
from tests.agents.test_sessions import opened

pytestmark = pytest.mark.django_db

ACTION = {
    "action_id": "",
    "order_id": "",
    "request_id": "",
    "state": "",
    "amount_minor": "",
    "currency": "",
    "reason": "",
    "order_version": "",
    "payload_hash": "",
    "decision": {
        "verdict": "",
        "policy_version": "",
        "rules": [{"rule": "", "verdict": "", "why": "", "tier": ""}],
    },
    "approval": {"approved": "", "decided_at": "", "expires_at": ""},
    "provider": {"name": "", "refund_id": "", "status": ""},
    "attempts": "",
    "case": {"reason": "", "due_at": ""},
    "final": "",
    "retry": "",
    "next": "",
    "poll_after_seconds": "",
    "created_at": "",
    "updated_at": "",
}
ORDER = dict.fromkeys(
    (
        *("order_id", "version", "source_version", "currency", "captured_minor"),
        *("refunded_minor", "reserved_minor", "disputed_minor", "settled_otherwise_minor"),
        *("refundable_minor", "dispute_state", "updated_at"),
    ),
    "",
)
SESSION = {
    **dict.fromkeys(
        (
            *("session_id", "order_id", "request_id", "action_id", "currency", "captured_minor"),
            *("refunded_minor", "refundable_minor", "max_amount_minor", "expires_at"),
        ),
        "",
    ),
    "reasons": [{}],  # a list of words
}
EXPLAINED = {
    "verdict": "",
    "tier": "",
    "people": "",
    "rules": [{"rule": "", "verdict": "", "why": "", "tier": ""}],
    "policy_version": "",
}
REFUND_RESULT = dict.fromkeys(
    (
        *("outcome", "action_id", "state", "amount_minor", "currency", "amount", "final"),
        *("retry", "next", "poll_after_seconds"),
    ),
    "",
)
REFUNDABLE_RESULT = {
    **dict.fromkeys(
        (
            *("outcome", "currency", "refundable_minor", "refundable", "max_amount_minor", "final"),
            *("retry", "next", "poll_after_seconds"),
        ),
        "",
    ),
    "reasons": [{}],  # a list of words
}

# Of the customer, the risk, the people who decided, the agent's owner, and the staff's notes.
NEVER = (
    "ada@example.com",
    "cus_88",
    "villainous",
    "grace.hopper",
    "spoke to her",
    "customer_risk",
    "pi_4821",
)


def shape(value: Any) -> Any:
    """The names of the fields; of a list, of its entries together."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        merged: dict[str, Any] = {}
        for one in value:
            merged |= shape(one)
        return [merged]
    return ""


@pytest.fixture
def decided(caller: Caller) -> RefundAction:
    """An action of the caller with a decision, a yes of a person, and a case."""
    builders.policy(risk_review=("villainous",), sample_qa_per_mille=1_000)
    customer = {"ref": "cus_88", "email": "ada@example.com", "risk": "villainous"}
    read(caller.call("PUT", "/orders/4821", order_body(customer=customer)), 201)
    body = refund_body("4821", request_id="7")
    answer = read(caller.call("POST", "/refunds", body), 201)
    assert answer["state"] == "AWAITING_APPROVAL"
    action = RefundAction.objects.get(action_id=answer["action_id"])
    builders.approved(action, builders.person("grace.hopper"), note="spoke to her")
    now = database_now()
    Case.objects.create(
        kind=Case.Kind.UNKNOWN_OUTCOME,
        effect="refund",
        action_id=action.action_id,
        resource="order:4821",
        reason="it is being looked at",
        owner="grace.hopper",
        assignee=User.objects.get(username="grace.hopper"),
        opened_at=now,
        due_at=now,
    )
    return builders.fresh(action)


def test_every_field_that_leaves_by_http(caller: Caller, decided: RefundAction) -> None:
    session, tools = opened(caller, decided.order)
    asked: list[tuple[Any, Any]] = [
        (caller.call("GET", "/orders/4821"), ORDER),
        (tools.call("GET", "/orders/4821"), ORDER),
        (caller.call("GET", f"/refunds/{decided.action_id}"), ACTION),
        (tools.call("GET", f"/refunds/{decided.action_id}"), ACTION),
        (tools.call("GET", "/refunds"), {"data": [ACTION], "next_cursor": ""}),
        (tools.call("GET", "/sessions/current"), SESSION),
        (
            caller.call(
                "POST",
                "/policy/explain",
                {"order_id": "4821", "amount_minor": 1, "currency": "USD", "reason": "late"},
            ),
            EXPLAINED,
        ),
    ]
    assert shape(session) == {**SESSION, "token": ""}
    for response, expected in asked:
        assert shape(read(response, 200)) == expected
        assert not [secret for secret in NEVER if secret in response.content.decode()]


def test_every_field_that_leaves_by_a_tool(caller: Caller, decided: RefundAction) -> None:
    session, _ = opened(caller, decided.order)
    tools = Tools(session["token"])
    calls: dict[str, dict[str, Any]] = {
        "get_refundable": {},
        "propose_refund": {"amount_minor": 7_900, "reason": "requested_by_customer"},
        "refund_status": {},
        "withdraw_refund": {},
    }
    for name, arguments in calls.items():
        answer = tools.call(name, **arguments)
        assert shape(answer) == (REFUNDABLE_RESULT if name == "get_refundable" else REFUND_RESULT)
        assert not [secret for secret in NEVER if secret in json.dumps(answer)]


def test_a_refusal_for_risk_does_not_say_so(caller: Caller) -> None:
    builders.policy(risk_deny=("villainous",))
    customer = {"ref": "cus_88", "email": "ada@example.com", "risk": "villainous"}
    read(caller.call("PUT", "/orders/4821", order_body(customer=customer)), 201)
    response = caller.call("POST", "/refunds", refund_body("4821"))
    assert read(response, 201)["decision"]["verdict"] == "DENY"
    assert "risk" not in response.content.decode()
    assert "villainous" not in response.content.decode()
