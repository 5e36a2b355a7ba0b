"""Two agents and their sessions over one merchant's orders: nobody reads or touches another's.

Whatever ids they try: what is another's looks exactly like what does not exist, but for a proposal
under ids that are taken, which must say so (decision 0024).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agents.keys import create_key
from agents.models import AgentKey, AgentSession
from effects.states import State
from refunds.models import RefundAction
from tests import builders
from tests.agents.conftest import Caller, read, refund_body

pytestmark = pytest.mark.django_db

AGENTS, SHARED_ORDERS, REQUESTS = 2, 2, 3
# Amounts and reasons that stand nowhere else, so that one of them in an answer is a leak.
AMOUNTS = (7_301, 6_407)
REASONS = ("damaged", "late")


@dataclass
class World:
    """Two agents, and what each of them has."""

    callers: list[Caller] = field(default_factory=list)
    tokens: list[list[Caller]] = field(default_factory=lambda: [[], []])
    sessions: list[list[str]] = field(default_factory=lambda: [[], []])
    orders: list[str] = field(default_factory=list)
    # (order, request) -> whose
    actions: dict[tuple[str, str], int] = field(default_factory=dict)


@pytest.fixture
def world() -> World:
    builders.allow_all()
    found = World()
    for number in range(AGENTS):
        found.callers.append(Caller(create_key(name=f"agent-{number}").key))
    for _ in range(SHARED_ORDERS):
        found.orders.append(builders.order(captured_minor=1_000_000).order_id)
    for order_id in found.orders:
        for number, caller in enumerate(found.callers):
            request_id = f"of-{number}"
            body = refund_body(
                order_id,
                request_id=request_id,
                amount_minor=AMOUNTS[number],
                reason=REASONS[number],
                note=f"words of {number}",
            )
            read(caller.call("POST", "/refunds", body), 201)
            found.actions[order_id, request_id] = number
            body = {"order_id": order_id, "request_id": request_id}
            session = read(caller.call("POST", "/sessions", body), 201)
            found.sessions[number].append(session["session_id"])
            found.tokens[number].append(Caller(session["token"]))
    return found


def ids() -> st.SearchStrategy[str]:
    return st.one_of(
        st.sampled_from(["of-0", "of-1", "none"]),
        st.from_regex(r"\A[A-Za-z0-9_.-]{1,12}\Z"),
    )


CALLS = ("read", "withdraw", "list", "propose", "revoke", "order")


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
)
@given(data=st.data())
def test_no_ids_lead_to_what_is_anothers(world: World, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, AGENTS - 1), "agent")
    by_session = data.draw(st.booleans(), "by a session")
    place = data.draw(st.integers(0, SHARED_ORDERS - 1), "of which order")
    who = world.tokens[number][place] if by_session else world.callers[number]
    call = data.draw(st.sampled_from(CALLS), "call")
    order_id = data.draw(st.one_of(st.sampled_from(world.orders), ids()), "order")
    request_id = data.draw(ids(), "request")
    their_sessions = world.sessions[1 - number]
    session_id = data.draw(st.sampled_from([*their_sessions, "0" * 18]), "session")
    before = snapshot(of=1 - number)
    if call == "read":
        response = who.call("GET", f"/refunds/refund:order-{order_id}:request-{request_id}")
    elif call == "withdraw":
        path = f"/refunds/refund:order-{order_id}:request-{request_id}/withdraw"
        response = who.call("POST", path)
    elif call == "list":
        response = who.call("GET", f"/refunds?order_id={order_id}")
    elif call == "propose":
        body = refund_body(order_id, request_id=request_id, amount_minor=11, reason="other")
        response = who.call("POST", "/refunds", body)
    elif call == "revoke":
        response = who.call("DELETE", f"/sessions/{session_id}")
    else:
        response = who.call("GET", f"/orders/{order_id}")
    assert response.status_code < 500
    assert snapshot(of=1 - number) == before
    text = response.content.decode()
    stated = json.dumps([order_id, request_id, session_id])
    for secret in (str(AMOUNTS[1 - number]), f"words of {1 - number}", *their_sessions):
        assert secret not in text or secret in stated, (call, text)
    body = json.loads(text) if text else {}
    whose = world.actions.get((order_id, request_id))
    if call in ("read", "withdraw") and whose != number:
        assert response.status_code == 404
    if call in ("read", "withdraw") and by_session:
        bound = (order_id, request_id) == (world.orders[place], f"of-{number}")
        assert (response.status_code == 200) == bound
    if call == "propose" and whose == 1 - number:
        assert response.status_code == (404 if by_session else 409)
        assert set(body) <= {"type", "title", "status", "detail", "instance", "differing"}
        assert str(AMOUNTS[whose]) not in text
        assert REASONS[whose] not in text
        assert not any(state in text for state in State.values)
    if call == "list" and response.status_code == 200:
        mine = {key for key, agent in world.actions.items() if agent == number}
        listed = {(one["order_id"], one["request_id"]) for one in body["data"]}
        # What this property itself proposed before is the agent's own, too.
        assert all(one in mine or world.actions.get(one) is None for one in listed)
    if call == "revoke":
        assert response.status_code in (403, 404)


def snapshot(*, of: int) -> Any:
    """All that an agent has, as the database has it."""
    prefix = AgentKey.objects.get(name=f"agent-{of}").prefix
    return (
        list(RefundAction.objects.filter(proposed_by=prefix).order_by("pk").values()),
        list(AgentSession.objects.filter(key__prefix=prefix).order_by("pk").values()),
    )


def test_everybody_reads_exactly_what_is_theirs(world: World) -> None:
    """Each credential against each action: an agent its own, a session its one."""
    seen, theirs = set(), set()
    for number in range(AGENTS):
        for place, who in enumerate([*world.tokens[number], world.callers[number]]):
            is_session = place < SHARED_ORDERS
            for (order_id, request_id), whose in world.actions.items():
                path = f"/refunds/refund:order-{order_id}:request-{request_id}"
                if who.call("GET", path).status_code == 200:
                    seen.add((number, place, order_id, request_id))
                bound = not is_session or order_id == world.orders[place]
                if whose == number and bound:
                    theirs.add((number, place, order_id, request_id))
    assert seen == theirs
    assert len(theirs) == AGENTS * (SHARED_ORDERS + SHARED_ORDERS)


def test_what_is_anothers_cannot_be_told_from_what_does_not_exist(world: World) -> None:
    """Status, headers and body, but for the ids that the caller itself sent."""
    mine, order_id = world.callers[0], world.orders[0]
    token, other_order = world.tokens[0][0], world.orders[1]
    theirs, nobodys = "of-1", "nobod"
    their_session = world.sessions[1][0]
    pairs: list[tuple[Caller, str, str, str, Any, Any]] = []
    for method, path in (
        ("GET", "/refunds/refund:order-{o}:request-{r}"),
        ("POST", "/refunds/refund:order-{o}:request-{r}/withdraw"),
    ):
        for who in (mine, token):
            there, absent = (path.format(o=order_id, r=r) for r in (theirs, nobodys))
            pairs.append((who, method, there, absent, None, None))
    pairs += [
        (mine, "DELETE", f"/sessions/{their_session}", f"/sessions/{'0' * 18}", None, None),
        (token, "GET", f"/orders/{other_order}", "/orders/none", None, None),
        (token, "GET", f"/refunds?order_id={other_order}", "/refunds?order_id=none", None, None),
        (
            token,
            "POST",
            "/refunds",
            "/refunds",
            refund_body(other_order, request_id=theirs),
            refund_body("none", request_id=nobodys),
        ),
    ]
    sent = {order_id, other_order, theirs, nobodys, their_session, "none", "0" * 18}
    for who, method, there, absent, body_there, body_absent in pairs:
        seen = bare(who.call(method, there, body_there), sent)
        assert seen == bare(who.call(method, absent, body_absent), sent), there
        assert seen[0] == 404


def bare(response: Any, sent: set[str]) -> Any:
    """A response without the ids that were sent, and without its request's own."""
    text = response.content.decode().replace(response["X-Request-ID"], "")
    for known in sorted(sent, key=len, reverse=True):
        text = text.replace(known, "·")
    headers = {name: value for name, value in response.items() if name != "X-Request-ID"}
    headers.pop("Content-Length", None)
    return response.status_code, headers, text


def test_an_agent_lists_its_own_of_an_order_that_both_use(world: World) -> None:
    for number, caller in enumerate(world.callers):
        for order_id in world.orders:
            page = read(caller.call("GET", f"/refunds?order_id={order_id}"), 200)
            assert [one["request_id"] for one in page["data"]] == [f"of-{number}"]


def test_a_decision_beside_anothers_refund_tells_nothing_of_it(world: World) -> None:
    builders.policy()
    order_id = world.orders[0]
    theirs = RefundAction.objects.get(action_id=f"refund:order-{order_id}:request-of-1")
    builders.claimed(theirs)
    body = refund_body(order_id, request_id="beside", amount_minor=AMOUNTS[1])
    answer = read(world.callers[0].call("POST", "/refunds", body), 201)
    said = {rule["rule"]: rule for rule in answer["decision"]["rules"]}
    assert said["open_action"]["verdict"] == said["duplicate_suspect"]["verdict"] == "REVIEW"
    explained = world.callers[0].call(
        "POST",
        "/policy/explain",
        {name: value for name, value in body.items() if name != "request_id"},
    )
    for text in (json.dumps(answer["decision"]), json.dumps(read(explained, 200)["rules"])):
        assert "of-1" not in text
        assert "refund:order" not in text
        assert "SUBMITTING" not in text
