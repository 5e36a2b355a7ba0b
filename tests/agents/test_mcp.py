"""The tools of a model: four, without an id, and what they answer."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from django.db import InterfaceError, OperationalError, connection
from django.test.utils import CaptureQueriesContext

from agents import calls, mcp
from agents.answers import NEXT
from agents.keys import create_key
from agents.mcp import SERVER
from agents.models import AgentKey
from effects.states import State
from policies.versions import DEFAULT_PARAMETERS
from refunds.models import AgentNote, Order, RefundAction, RefundEvent
from refunds.propose import Conflict
from tests import builders
from tests.agents.conftest import Caller, read, refund_body
from tests.agents.mcp_client import LEGACY, NOW, TOOLS, WORDS, opened
from tests.agents.test_bad_input import AMOUNTS, rows

pytestmark = pytest.mark.django_db

SNAPSHOT = Path(__file__).with_name("mcp_tools.json")


@pytest.mark.parametrize("era", [NOW, *LEGACY])
def test_a_conversation_proposes_reads_and_withdraws_in_every_era(caller: Caller, era: str) -> None:
    order = builders.order()
    tools = opened(caller, order, era=era)
    refundable = tools.call("get_refundable")
    assert (refundable["refundable_minor"], refundable["refundable"]) == (20_000, "200.00 USD")
    for tool, told in (
        ("refund_status", mcp.NEXT_OF_NONE),
        ("withdraw_refund", mcp.NEXT_OF_NONE_TO_WITHDRAW),
    ):
        none = tools.call(tool)
        assert (none["outcome"], none["final"], none["next"]) == ("none", False, told)
        assert none["poll_after_seconds"] == 5
    recorded = tools.call("propose_refund", **WORDS)
    assert recorded == {
        "outcome": "recorded",
        "action_id": f"refund:order-{order.order_id}:request-7",
        "state": "AUTHORIZED",
        "amount_minor": 7_900,
        "currency": "USD",
        "amount": "79.00 USD",
        "final": False,
        "retry": "never",
        "next": NEXT[State.AUTHORIZED],
        "poll_after_seconds": 2,
    }
    replayed = tools.call("propose_refund", **WORDS, note="other words")
    assert replayed == {**recorded, "outcome": "replayed"}
    assert tools.call("refund_status") == {**recorded, "outcome": "found"}
    withdrawn = tools.call("withdraw_refund")
    assert (withdrawn["outcome"], withdrawn["state"]) == ("withdrawn", "CANCELLED")
    assert (withdrawn["final"], withdrawn["poll_after_seconds"]) == (True, None)
    assert tools.call("withdraw_refund") == withdrawn
    assert tools.call("propose_refund", **WORDS) == {**withdrawn, "outcome": "replayed"}
    assert RefundAction.objects.count() == 1


def test_the_proposal_is_the_sessions_own(caller: Caller) -> None:
    order = builders.order(currency="JPY")
    opened(caller, order).call("propose_refund", **WORDS, note="Ada is ill")
    action = RefundAction.objects.get()
    assert (action.order, action.request_id, action.currency) == (order, "7", "JPY")
    assert action.proposed_by == AgentKey.objects.get().prefix
    assert RefundEvent.objects.get(kind="refund.proposed").data["session"]
    assert AgentNote.objects.get().text == "Ada is ill"


def test_what_a_person_decides_is_a_result(caller: Caller) -> None:
    answer = opened(caller).call("propose_refund", amount_minor=15_000, reason="damaged")
    assert (answer["state"], answer["next"]) == (
        "AWAITING_APPROVAL",
        NEXT[State.AWAITING_APPROVAL],
    )
    denied = opened(caller).call("propose_refund", amount_minor=20_001, reason="damaged")
    assert (denied["outcome"], denied["state"], denied["final"]) == ("recorded", "REJECTED", True)


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({"amount_minor": 100}, "with another amount."),
        ({"reason": "late"}, "with another reason."),
        ({"amount_minor": 100, "reason": "late"}, "with another amount and another reason."),
    ],
)
def test_other_content_is_a_result_that_shows_what_is_there(
    caller: Caller, change: dict[str, Any], differing: str
) -> None:
    tools = opened(caller)
    recorded = tools.call("propose_refund", **WORDS)
    before = rows()
    conflict = tools.call("propose_refund", **WORDS | change)
    told = conflict.pop("next")
    assert "Nothing was changed" in told
    assert differing in told
    assert told.endswith(recorded.pop("next"))
    assert conflict == {**recorded, "outcome": "conflict"}
    assert rows() == before


def test_the_refund_of_another_agent_is_not_shown(caller: Caller) -> None:
    order = builders.order()
    other = Caller(create_key(name="other").key)
    read(other.call("POST", "/refunds", refund_body(order.order_id, request_id="7")), 201)
    before = rows()
    tools = opened(caller, order)
    conflict = tools.call("propose_refund", **WORDS)
    assert (conflict["outcome"], conflict["state"], conflict["amount"]) == ("conflict", None, None)
    assert "another agent" in conflict["next"]
    # The same words whatever is asked, so that nobody is told first that nothing was proposed.
    assert tools.call("refund_status") == conflict
    assert tools.call("withdraw_refund") == conflict
    assert rows() == before
    assert RefundAction.objects.get().state == State.AUTHORIZED


def test_what_is_being_sent_is_too_late_to_withdraw(caller: Caller) -> None:
    tools = opened(caller)
    tools.call("propose_refund", **WORDS)
    builders.claimed(RefundAction.objects.get())
    late = tools.call("withdraw_refund")
    assert (late["outcome"], late["state"]) == ("too_late", "SUBMITTING")
    assert late["next"] == mcp.NEXT_OF_TOO_LATE + NEXT[State.SUBMITTING]
    assert RefundAction.objects.get().state == State.SUBMITTING


def test_what_is_left_is_told_with_the_most_that_is_allowed(caller: Caller) -> None:
    order = builders.order()
    tools = opened(caller, order, max_amount_minor=5_000)
    assert tools.call("get_refundable") == {
        "outcome": "found",
        "currency": "USD",
        "refundable_minor": 20_000,
        "refundable": "200.00 USD",
        "max_amount_minor": 5_000,
        "reasons": list(DEFAULT_PARAMETERS.reasons),
        "final": False,
        "retry": "never",
        "next": mcp.NEXT_OF_REFUNDABLE,
        "poll_after_seconds": None,
    }
    # A refund that somebody made elsewhere, and a dispute on top of it.
    Order.objects.filter(pk=order.pk).update(refunded_minor=15_000, disputed_minor=6_000)
    nothing = tools.call("get_refundable")
    assert (nothing["refundable_minor"], nothing["refundable"]) == (0, "0.00 USD")
    assert nothing["next"] == mcp.NEXT_OF_NOTHING_REFUNDABLE


# ---- What nothing was done for -------------------------------------------------------------------


def test_more_than_the_session_is_for_is_refused_by_name_and_leaves_no_row(caller: Caller) -> None:
    tools = opened(caller, max_amount_minor=5_000)
    before = rows()
    assert tools.refused("propose_refund", amount_minor=5_001, reason="damaged") == (
        "amount_minor must be at most 5000, what this session is for; nothing was done."
    )
    assert rows() == before
    tools.call("propose_refund", amount_minor=5_000, reason="damaged")


def test_an_amount_that_the_currency_does_not_have_is_refused_by_name(caller: Caller) -> None:
    before_words = {"KWD": "divisible by 10 in KWD", "ISK": "divisible by 100 in ISK"}
    for currency, words in before_words.items():
        tools = opened(caller, builders.order(currency=currency))
        refused = tools.refused("propose_refund", amount_minor=7_905, reason="damaged")
        assert refused == f"amount_minor must be {words}; nothing was done."
    assert RefundAction.objects.count() == 0


def test_an_amount_that_is_not_a_plain_positive_integer_is_refused_by_name(caller: Caller) -> None:
    tools = opened(caller)
    before = rows()
    params = {"name": "propose_refund", "arguments": WORDS}
    good, headers = tools.message("tools/call", params), tools.headers("tools/call", params)
    for amount in AMOUNTS:
        body = json.dumps(good).replace("7900", amount).encode()
        answer = json.loads(tools.send(body, **headers).content)
        assert answer["id"] == 1
        assert answer["result"]["isError"] is True, amount[:24]
        text = answer["result"]["content"][0]["text"]
        assert text.startswith("amount_minor")
        assert text.endswith("; nothing was done.")
    assert rows() == before


BAD: list[tuple[dict[str, Any], str]] = [
    ({"amount_minor": None}, "amount_minor"),
    ({"amount_minor": "79"}, "amount_minor"),
    ({"amount_minor": True}, "amount_minor"),
    ({"reason": ""}, "reason"),
    ({"reason": None}, "reason"),
    ({"reason": "because I\u2019m upset"}, "reason"),
    ({"reason": "a" * 65}, "reason"),
    ({"reason": "damaged\n"}, "reason"),
    ({"reason": ["damaged"]}, "reason"),
    ({"reason": 7}, "reason"),
    ({"note": "a\x00b"}, "note"),
    ({"note": "half \udc00"}, "note"),
    ({"note": "x" * 10_001}, "note"),
    ({"note": 1}, "note"),
    ({"note": {"text": "x"}}, "note"),
    ({"note": []}, "note"),
    ({"order_id": "4821"}, "order_id"),
    ({"request_id": "8"}, "request_id"),
    ({"action_id": "refund:order-1:request-1"}, "action_id"),
    ({"currency": "USD"}, "currency"),
    ({"idempotency_key": "mine"}, "idempotency_key"),
    ({"session_id": "x"}, "session_id"),
    ({"approved": None}, "approved"),
    ({"agent": {"a": {"b": {"c": [1]}}}}, "agent"),
    ({"Amount_minor": 1}, "Amount_minor"),
    ({"": 1}, " is not an argument"),
    ({"a\x00b": 1}, "a\x00b"),
    ({"\ud800": 1}, "\\ud800"),
    ({"x" * 5_000: 1}, "x" * 80),
]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_bad_argument_of_any_tool_is_named(caller: Caller, tool: str) -> None:
    tools = opened(caller)
    before = rows()
    for change, name in BAD:
        arguments = WORDS | change if tool == "propose_refund" else change
        assert tools.refused(tool, **arguments).startswith(name), change
    assert rows() == before


def test_a_missing_argument_is_named(caller: Caller) -> None:
    tools = opened(caller)
    for name in WORDS:
        given = {key: value for key, value in WORDS.items() if key != name}
        assert tools.refused("propose_refund", **given) == f"{name} is required; nothing was done."


def test_a_note_may_be_null_and_long(caller: Caller) -> None:
    opened(caller).call("propose_refund", **WORDS, note=None)
    opened(caller).call("propose_refund", **WORDS, note="\u00e9" * 10_000)
    assert [len(note.text) for note in AgentNote.objects.all()] == [10_000]


@pytest.mark.parametrize("arguments", [None, {}])
def test_tools_without_arguments_need_none(caller: Caller, arguments: Any) -> None:
    tools = opened(caller)
    params = {"name": "refund_status"} | ({} if arguments is None else {"arguments": arguments})
    assert tools.result("tools/call", params)["isError"] is False


# ---- What nobody knows ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("connection to server at db.internal failed"),
        InterfaceError("connection already closed"),
        RuntimeError("password=hunter2"),
        KeyError("hunter2"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize(
    ("tool", "where"),
    [
        ("propose_refund", "agents.calls.propose_refund"),
        ("refund_status", "agents.calls.read_answer"),
        ("withdraw_refund", "agents.calls.may_touch"),
        ("get_refundable", "agents.mcp.format_amount"),
    ],
)
def test_whatever_breaks_in_a_tool_is_an_ordinary_result(
    caller: Caller,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tool: str,
    where: str,
    error: Exception,
) -> None:
    tools = opened(caller)

    def breaks(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(where, breaks)
    arguments = dict(WORDS) if tool == "propose_refund" else {}
    with caplog.at_level(logging.ERROR):
        answer = tools.call(tool, **arguments)
    assert_unanswered(answer)
    assert "A tool could not answer." in caplog.messages


def assert_unanswered(answer: dict[str, Any]) -> None:
    """A result that claims nothing, in words that say so."""
    told = answer.pop("next")
    assert "looked at" in told
    claims = {name: answer.pop(name) for name in ("outcome", "final", "retry")}
    assert claims == {"outcome": "unanswered", "final": False, "retry": "never"}
    assert answer.pop("poll_after_seconds") > 0
    assert set(answer.values()) == {None}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_database_that_is_away_is_an_ordinary_result_though_nobody_was_recognized(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    tools = opened(caller)
    before = rows()

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("connection to server at db.internal failed")

    with monkeypatch.context() as patch:
        patch.setattr("agents.mcp.find_caller", away)
        assert_unanswered(tools.call(tool, **(WORDS if tool == "propose_refund" else {})))
        assert {one["name"] for one in tools.result("tools/list")["tools"]} == set(TOOLS)
        assert "is not an argument" in tools.refused(tool, order_id="1")
    assert rows() == before


def test_an_outcome_that_is_not_known_is_found_later(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = opened(caller)
    real = calls.propose

    def lost(**given: Any) -> None:
        real(**given)
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr("agents.calls.propose", lost)
        assert_unanswered(tools.call("propose_refund", **WORDS))
    found = tools.call("refund_status")
    assert (found["outcome"], found["state"]) == ("found", "AUTHORIZED")
    assert tools.call("propose_refund", **WORDS)["outcome"] == "replayed"
    assert RefundAction.objects.count() == 1


# ---- Words ---------------------------------------------------------------------------------------

# What a tool loop, or a model, takes for a reason to call once more.
INVITES = re.compile(
    r"error|fail|time[d]?[ -]?out|try|retr[iy]|re-?send|send again|call again|repeat|exception|"
    r"crash|invalid|unable|unavailable|problem|went wrong|mistake|broken|unsuccessful|abort",
    re.IGNORECASE,
)
# Names of the contract, not sentences.
NAMES = ('"retry": "never"', '"retry": {', "FAILED_FINAL")


def every_result() -> list[Any]:
    """Every result that a tool can give: each outcome in each state, and those without a state."""
    results: list[Any] = [
        mcp._unanswered_change(),
        mcp._unanswered_read(),
        mcp._unanswered_refundable(),
        mcp._none(mcp.NEXT_OF_NONE),
        mcp._none(mcp.NEXT_OF_NONE_TO_WITHDRAW),
        mcp._of_another_agent(),
    ]
    for state in State:
        action: Any = SimpleNamespace(
            action_id="refund:order-1:request-1", state=state, amount_minor=7_900, currency="USD"
        )
        for outcome, before in (
            ("recorded", ""),
            ("replayed", ""),
            ("found", ""),
            ("withdrawn", ""),
            ("too_late", mcp.NEXT_OF_TOO_LATE),
        ):
            results.append(mcp._result(outcome=outcome, action=action, before_next=before))
        for differing in (("amount_minor",), ("reason",), ("amount_minor", "currency", "reason")):
            results.append(mcp._conflict(Conflict(action=action, differing=differing)))
    return results


def test_no_word_that_a_model_reads_invites_a_second_call(caller: Caller) -> None:
    texts = [
        mcp.INSTRUCTIONS,
        mcp.NEXT_OF_REFUNDABLE,
        mcp.NEXT_OF_NOTHING_REFUNDABLE,
        json.dumps(opened(caller).result("tools/list")),
        *(json.dumps(msgspec.to_builtins(result)) for result in every_result()),
    ]
    sentences = [value for name, value in vars(mcp).items() if name.startswith("NEXT_OF_")]
    for text in [*texts, *sentences]:
        for name in NAMES:
            text = text.replace(name, "")
        found = INVITES.search(text)
        assert found is None, (found, text)


def test_the_word_list_would_notice() -> None:
    for sentence in (
        "An error occurred while running the tool. Please try again.",
        "Request timed out.",
        "The refund failed.",
        "You may retry.",
    ):
        assert INVITES.search(sentence)


def test_every_result_fits_the_schema_that_is_declared(caller: Caller) -> None:
    tools = {tool["name"]: tool for tool in opened(caller).result("tools/list")["tools"]}
    for result in every_result():
        name = "get_refundable" if isinstance(result, mcp.RefundableResult) else "refund_status"
        jsonschema_rs.validate(tools[name]["outputSchema"], msgspec.to_builtins(result))


def test_the_tool_list_is_the_one_that_was_published(caller: Caller) -> None:
    """A change is seen in review: write the new list down, and raise the server's version."""
    published = json.loads(SNAPSHOT.read_text())
    tools = opened(caller)
    listed = {
        "version": SERVER.server_info["version"],
        "instructions": SERVER.instructions,
        "tools": tools.result("tools/list")["tools"],
    }
    assert listed == published
    assert [tool["name"] for tool in listed["tools"]] == list(TOOLS)
    for tool in listed["tools"]:
        assert tool["inputSchema"]["additionalProperties"] is False
        assert not set(tool["inputSchema"]["properties"]) & {"order_id", "request_id", "action_id"}


# ---- What it costs, and what it writes down ------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_what_each_tool_costs_in_statements_and_commits(caller: Caller) -> None:
    def cost(call: Callable[[], Any]) -> tuple[int, int]:
        with CaptureQueriesContext(connection) as captured:
            call()
        statements = [query["sql"].strip().upper() for query in captured.captured_queries]
        commits = sum(sql == "COMMIT" for sql in statements)
        return len([sql for sql in statements if sql not in ("BEGIN", "COMMIT")]), commits

    opened(caller).call("propose_refund", **WORDS)  # reads the policy version for this process
    tools = opened(caller)
    assert cost(lambda: tools.result("tools/list")) == (1, 0)
    # The session with its key and its order, and which policy is in force.
    assert cost(lambda: tools.call("get_refundable")) == (2, 0)
    # Nothing is there: is it another agent's? A withdrawal waits for the order's lock, too.
    assert cost(lambda: tools.call("refund_status")) == (3, 0)
    assert cost(lambda: tools.call("withdraw_refund")) == (4, 1)
    # As over HTTP: see tests/agents/test_refunds.py.
    assert cost(lambda: tools.call("propose_refund", **WORDS)) == (9, 1)
    assert cost(lambda: tools.call("refund_status")) == (2, 0)
    assert cost(lambda: tools.call("propose_refund", **WORDS)) == (2, 0)
    assert cost(lambda: tools.call("propose_refund", **WORDS | {"amount_minor": 1})) == (2, 0)
    assert cost(lambda: tools.refused("propose_refund", **WORDS, order_id="1")) == (1, 0)
    # The session, whose action it is, its lock, what is beside it, the move and its event.
    assert cost(lambda: tools.call("withdraw_refund")) == (6, 1)
    assert cost(lambda: tools.call("withdraw_refund")) == (4, 1)


def test_what_a_model_wrote_reaches_no_log(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    tools = opened(caller)
    with caplog.at_level(logging.DEBUG):
        tools.call("propose_refund", **WORDS, note="Ada Lovelace is ill")
        tools.refused("propose_refund", **WORDS, customer="Ada Lovelace")
        tools.call("propose_refund", **WORDS | {"reason": "Ada_Lovelace"})
    assert {"MCP: recorded", "MCP: conflict"} <= set(caplog.messages)
    written = "".join(str(vars(record)) for record in caplog.records)
    assert "Lovelace" not in written
    assert tools.token not in written
