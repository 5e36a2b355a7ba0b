"""Every field that leaves through the agents' door, and what never does. Changes are decided."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import User

from agents.answers import NOT_TOLD, TOLD_OF_CASES, TOLD_OF_OTHERS, _told_rules
from effects.clock import database_now
from effects.models import Case
from policies.decision import Verdict
from policies.rules import RULES
from refunds.models import RefundAction
from tests import builders
from tests.agents.conftest import Caller, order_body, read, refund_body
from tests.agents.mcp_client import Tools
from tests.agents.test_mcp import INVITES
from tests.agents.test_sessions import opened, words

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
# No rule: a model that reads ceilings and counts stays below them.
ACTION_OF_SESSION = ACTION | {"decision": {"verdict": "", "policy_version": "", "rules": [{}]}}
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
    "check now",
    "re_88",
    "41.00",
    "refund:order-4821:request-other",
)
STAFF_TEXT = (
    "The key is 3 hours old: use check now. refund:order-4821:request-other refunded 41.00 USD as "
    "re_88."
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
        reason=STAFF_TEXT,
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
        (caller.call("GET", "/refunds?order_id=4821"), {"data": [ACTION], "next_cursor": ""}),
        (tools.call("GET", f"/refunds/{decided.action_id}"), ACTION_OF_SESSION),
        (tools.call("GET", "/refunds"), {"data": [ACTION_OF_SESSION], "next_cursor": ""}),
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


def test_no_answer_to_a_session_holds_a_rule(caller: Caller) -> None:
    builders.policy()
    order = builders.order()
    session, tools = opened(caller, order)
    asked: list[tuple[str, str, dict[str, Any] | None, int]] = [
        ("POST", "/refunds", words(amount_minor=15_000), 201),
        ("POST", "/refunds", words(amount_minor=15_000), 200),
        ("POST", "/refunds", words(amount_minor=14_000), 409),
        ("GET", f"/refunds/{session['action_id']}", None, 200),
        ("GET", "/refunds", None, 200),
        ("POST", "/refunds/withdraw", None, 200),
    ]
    for method, path, body, status in asked:
        assert_no_rules(read(tools.call(method, path, body), status))
    other = builders.order()
    _, tools = opened(caller, other)
    action_id = read(tools.call("POST", "/refunds", words()), 201)["action_id"]
    builders.claimed(RefundAction.objects.get(action_id=action_id))
    for path in ("/refunds/withdraw", f"/refunds/{action_id}/withdraw"):
        assert_no_rules(read(tools.call("POST", path), 409))
    # The backend reads them all the same.
    assert read(caller.call("GET", f"/refunds/{action_id}"), 200)["decision"]["rules"]


def assert_no_rules(answer: Any) -> None:
    """An answer that holds an action, with its verdict and without a rule."""
    action = answer.get("action") or answer.get("data", [answer])[0]
    assert action["decision"]["rules"] == []
    assert action["decision"]["verdict"] in Verdict.__members__
    assert action["decision"]["policy_version"] >= 1


# ---- Words that are not the agent's --------------------------------------------------------------

# Rules whose words are about the refund itself, its own order, and what the merchant states of it.
OF_THE_REFUND = {
    "agent_scope",
    "amount_explicit",
    "charge_state",
    "headroom",
    "dispute_block",
    "facts_reachable",
    "exchange_rate",
    "per_refund_limit",
    "four_eyes",
    "reason_allowlist",
    "window_days",
    "method_window",
    "final_sale",
    "return_evidence",
    "component_caps",
    "provider_searchable",
    "stale_evidence",
    "sample_qa",
}
# Names of people, amounts and counts, ids, and what is pressed on the staff site.
OF_THE_STAFF = re.compile(
    r"\d|\b[A-Z]{3}\b|\b(?:re|pi|acct|ro)_|(?i:refund:|order:|agent:|reviewer|approver|operator|"
    r"admin|check now|press|button|close|link|send again|resend|give up|withdraw|with a note|"
    r"this agent|kill switch|\bkeys?\b)"
)


def test_of_every_rule_it_was_judged_whose_words_it_speaks() -> None:
    assert set(RULES) == OF_THE_REFUND | set(TOLD_OF_OTHERS) | set(NOT_TOLD)
    assert not OF_THE_REFUND & set(TOLD_OF_OTHERS)


@pytest.mark.parametrize("verdict", ["REVIEW", "HOLD", "DENY"])
def test_a_rule_about_others_is_told_in_neutral_words(verdict: str) -> None:
    why = "this agent proposed 31 refunds within an hour; refund:order-1:request-1 is HELD"
    rules = [{"rule": rule, "verdict": verdict, "why": why, "tier": 1} for rule in RULES]
    said = {rule["rule"]: rule["why"] for rule in _told_rules(rules)}
    assert set(said) == set(RULES) - set(NOT_TOLD)
    for rule, told in said.items():
        assert (told == why) == (rule in OF_THE_REFUND), rule


def test_an_agent_that_is_held_for_its_traffic_is_told_no_count(caller: Caller) -> None:
    builders.policy(anomaly_factor=2, anomaly_floor_count=1)
    order = builders.order()
    answer = read(caller.call("POST", "/refunds", refund_body(order.order_id)), 201)
    said = {rule["rule"]: rule for rule in answer["decision"]["rules"]}
    assert (said["anomaly"]["verdict"], answer["state"]) == ("HOLD", "HELD")
    assert said["anomaly"]["why"] == TOLD_OF_OTHERS["anomaly"]


def test_every_kind_of_case_has_a_sentence_of_its_own() -> None:
    assert set(TOLD_OF_CASES) == set(Case.Kind)
    assert len(set(TOLD_OF_CASES.values())) == len(Case.Kind)


@pytest.mark.parametrize("told", [*TOLD_OF_CASES.values(), *TOLD_OF_OTHERS.values()])
def test_no_sentence_for_agents_is_the_staffs(told: str) -> None:
    assert OF_THE_STAFF.search(told) is None
    assert INVITES.search(told) is None


def test_the_staffs_words_would_be_noticed() -> None:
    for text in STAFF_TEXT.split(". "):
        assert OF_THE_STAFF.search(text)


def test_what_staff_reads_of_a_case_reaches_no_agent(caller: Caller, decided: RefundAction) -> None:
    session, tools = opened(caller, decided.order)
    mcp = Tools(session["token"])
    case = read(caller.call("GET", f"/refunds/{decided.action_id}"), 200)["case"]
    assert case["reason"] == TOLD_OF_CASES[Case.Kind.UNKNOWN_OUTCOME]
    answers = [
        caller.call("GET", "/refunds?order_id=4821").content.decode(),
        tools.call("GET", "/refunds").content.decode(),
        tools.call("POST", "/refunds", words(amount_minor=1)).content.decode(),
        json.dumps(mcp.call("refund_status")),
        tools.call("POST", "/refunds/withdraw").content.decode(),
    ]
    assert Case.objects.get().reason == STAFF_TEXT
    for answer in answers:
        assert not [secret for secret in NEVER if secret in answer]
