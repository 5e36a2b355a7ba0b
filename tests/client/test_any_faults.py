"""Whatever is lost, in whatever order: one proposal, no more often than allowed, and no false word.

The first property drives the calls' steps against a service in memory, with a clock of its own; the
second one goes through HTTP to the real application.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from refund_once_client import Action, OutcomeUnknown, Patience, Problem
from refund_once_client.calls import KeyCalls
from refund_once_client.exchange import Answer, Came, Lost, Request, Steps
from refunds.models import RefundAction
from tests import builders
from tests.client.conftest import BRISK, Client
from tests.client.faulty_proxy import FAULTS, FaultyProxy

PROPOSAL: dict[str, Any] = {
    "order_id": "4821",
    "request_id": "3",
    "amount_minor": 7_900,
    "currency": "USD",
    "reason": "requested_by_customer",
}
ACTION_ID = "refund:order-4821:request-3"
TIMEOUT_SECONDS = 10.0
# A no to one request, which another one of the same bytes may not meet: facts change.
REFUSALS = {
    "401": (401, "unauthorized"),
    "404": (404, "order-unknown"),
    "409": (409, "order-incomplete"),
    "412": (412, "stale-balance"),
    "422": (422, "idempotency-conflict"),
}


@dataclass
class Service:
    """What the application promises, and a network that keeps nothing: one row for each action id.

    A request that is `late` is carried out while the caller has given it up, after later ones.
    """

    faults: Iterator[tuple[str, float]]
    refuses: str | None
    now: float = 0.0
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    late: list[Request] = field(default_factory=list)
    arrived: list[Request] = field(default_factory=list)
    begun_at: list[float] = field(default_factory=list)

    def answer(self, request: Request) -> Answer | Lost:
        """One request, and what becomes of it on the way there and back."""
        self.begun_at.append(self.now)
        fault, seconds = next(self.faults, ("ok", 0.1))
        self.now += TIMEOUT_SECONDS if fault in ("late", "hangs") else seconds
        if fault == "not_sent":
            return Lost(why="ConnectError", is_sent=False)
        self.arrived.append(request)
        if fault == "late":
            self.late.append(request)
            return Lost(why="ReadTimeout", is_sent=True)
        if fault == "429":
            return problem(429, "rate-limited", {"retry-after": str(int(seconds))})
        if fault == "conflict":
            return problem(409, "action-conflict")
        if fault in ("lost_before", "502"):
            spoiled = Answer(status=502, headers={}, body=b"<h1>Bad gateway</h1>")
            return spoiled if fault == "502" else Lost(why="ReadError", is_sent=True)
        if fault == "wrong_address":
            return problem(404, "not-found")
        if fault in REFUSALS and request.method == "POST":
            return problem(*REFUSALS[fault])
        answer = self.do(request)
        if fault == "problem_of_another":
            return problem(409, "conflict", prefix="https://gateway.example/")
        if fault == "other_amount":
            return found(200, self.rows.get(ACTION_ID, PROPOSAL) | {"amount_minor": 1})
        if fault == "problem_of_another_answer":
            return Answer(status=409, headers={}, body=problem(412, "stale-balance").body)
        if fault == "late_ones_arrive":
            while self.late:
                self.do(self.late.pop(0))
        if fault in ("lost_after", "hangs"):
            return Lost(why="ReadError", is_sent=True)
        if fault == "500":
            return problem(500, "internal")
        if fault == "garbage":
            return Answer(status=answer.status, headers={}, body=answer.body[:-7])
        return answer

    def do(self, request: Request) -> Answer:
        """Carry it out, as the application does: identity first."""
        if request.method == "GET":
            row = self.rows.get(request.path.rsplit("/", 1)[1])
            return problem(404, "action-unknown") if row is None else found(200, row)
        sent = json.loads(request.body or b"")
        action_id = f"refund:order-{sent['order_id']}:request-{sent['request_id']}"
        if action_id in self.rows:
            return found(200, self.rows[action_id])
        if self.refuses:
            return problem(412, self.refuses)
        self.rows[action_id] = sent | {"action_id": action_id}
        return found(201, self.rows[action_id])


def problem(
    status: int,
    kind: str,
    headers: dict[str, str] | None = None,
    *,
    prefix: str = "urn:refund-once:problem:",
) -> Answer:
    """As the service tells it; with another prefix, as somebody between us does."""
    details = {
        "type": prefix + kind,
        "title": "",
        "status": status,
        "detail": "",
        "instance": "",
    }
    return Answer(status=status, headers=headers or {}, body=json.dumps(details).encode())


def found(status: int, row: dict[str, Any]) -> Answer:
    """An action as the service shows it."""
    shown = {
        "state": "AUTHORIZED",
        "order_version": 1,
        "payload_hash": "",
        "decision": None,
        "approval": None,
        "provider": {"name": "stripe", "refund_id": None, "status": None},
        "attempts": 0,
        "case": None,
        "final": False,
        "retry": "never",
        "next": "",
        "poll_after_seconds": 2,
        "created_at": "2026-11-30T10:00:00Z",
        "updated_at": "2026-11-30T10:00:00Z",
    }
    return Answer(status=status, headers={}, body=json.dumps(shown | row).encode())


def drive(steps: Steps[Action], service: Service) -> Action:
    """What the clients do, without a network and without waiting."""
    came: Came = None
    while True:
        try:
            step = steps.send(came)
        except StopIteration as end:
            result: Action = end.value
            return result
        if isinstance(step, Request):
            came = service.answer(step)
        else:
            service.now += step.seconds
            came = None


def proposed(service: Service, patience: Patience) -> Action | Problem | OutcomeUnknown:
    """Propose; what came of it, raised or not."""
    calls = KeyCalls(patience=patience, clock=lambda: service.now)
    try:
        return drive(calls.propose_refund(**PROPOSAL), service)
    except (Problem, OutcomeUnknown) as error:
        return error


MEMORY_FAULTS = (
    *("ok", "not_sent", "late", "late_ones_arrive", "lost_before", "lost_after", "hangs"),
    *("502", "500", "garbage", "429", *REFUSALS),
    *("problem_of_another", "problem_of_another_answer"),
)


@settings(max_examples=400, deadline=None)
@given(
    faults=st.lists(st.tuples(st.sampled_from(MEMORY_FAULTS), st.floats(0, 9)), max_size=30),
    patience=st.builds(
        Patience,
        tries_max=st.integers(1, 6),
        total_seconds=st.floats(0.1, 60),
        pause_first_seconds=st.floats(0, 2),
        pause_max_seconds=st.floats(0, 30),
    ),
    refuses=st.sampled_from([None, None, "stale-balance"]),
)
def test_any_sequence_of_faults_makes_one_proposal_and_no_false_word(
    faults: list[tuple[str, float]], patience: Patience, refuses: str | None
) -> None:
    service = Service(faults=iter(faults), refuses=refuses)
    outcome = proposed(service, patience)
    event(type(outcome).__name__)
    seen_then = dict(service.rows)
    while service.late:
        service.do(service.late.pop(0))

    posts = [request for request in service.arrived if request.method == "POST"]
    assert len({(post.body, tuple(post.headers.items())) for post in posts}) <= 1
    assert len(posts) <= patience.tries_max
    assert len(service.arrived) - len(posts) <= patience.tries_max**2
    assert max(service.begun_at) <= patience.total_seconds
    assert len(service.rows) <= 1
    if isinstance(outcome, Action):
        assert outcome.action_id == ACTION_ID
        assert ACTION_ID in seen_then
    elif isinstance(outcome, Problem):
        assert service.rows == {}
    else:
        assert outcome.action_id == ACTION_ID
        assert outcome.may_be_recorded or service.rows == {}


def after(*faults: str, patience: Patience | None = None) -> tuple[Any, str]:
    """What comes of these faults, and the methods of what arrived."""
    service = Service(faults=iter([(fault, 1.0) for fault in faults]), refuses=None)
    outcome = proposed(service, patience or Patience())
    return outcome, " ".join(request.method for request in service.arrived)


def test_only_the_services_own_word_that_it_is_not_there_lets_it_be_sent_again() -> None:
    outcome, arrived = after("lost_before", "wrong_address")
    assert isinstance(outcome, OutcomeUnknown)
    assert arrived == "POST GET"


@pytest.mark.parametrize("no", REFUSALS)
def test_a_no_says_nothing_about_what_was_sent_before(no: str) -> None:
    """Whatever lost the first one may hold it, and deliver it when the answer is another."""
    outcome, arrived = after("late", "ok", no)
    assert isinstance(outcome, OutcomeUnknown)
    assert (outcome.may_be_recorded, arrived) == (True, "POST GET POST")
    assert outcome.last is not None
    assert (outcome.last.status, outcome.last.kind) == REFUSALS[no]

    # Nothing was lost before these: they are definite.
    for before in ([], ["not_sent", "ok"], ["429", "ok"]):
        outcome, _ = after(*before, no)
        assert isinstance(outcome, Problem)
        assert (outcome.status, outcome.kind) == REFUSALS[no]


def test_a_conflict_is_definite_whatever_was_sent_before() -> None:
    """The id is taken for ever, so what was lost cannot be recorded under it any more."""
    outcome, _ = after("late", "ok", "conflict")
    assert isinstance(outcome, Problem)
    assert outcome.kind == "action-conflict"


def test_what_may_have_been_recorded_once_may_be_for_the_whole_call() -> None:
    twice = Patience(tries_max=2)
    outcome, _ = after("lost_before", "ok", "not_sent", "ok", patience=twice)
    assert isinstance(outcome, OutcomeUnknown)
    assert outcome.may_be_recorded


def test_a_no_of_somebody_between_us_is_no_answer() -> None:
    for fault in ("problem_of_another", "problem_of_another_answer"):
        outcome, arrived = after(fault)
        assert isinstance(outcome, Action)
        assert arrived == "POST GET"


def test_an_answer_with_another_amount_is_not_taken_for_ours() -> None:
    """Something between us that keeps answers by their address, or the wrong one of two."""
    outcome, arrived = after("other_amount")
    assert isinstance(outcome, Action)
    assert outcome.amount_minor == PROPOSAL["amount_minor"]
    assert arrived == "POST GET"


def test_nothing_is_begun_once_the_time_is_over() -> None:
    brief = Patience(total_seconds=1.5, pause_first_seconds=0)
    outcome, arrived = after("lost_before", "ok", patience=brief)
    assert isinstance(outcome, OutcomeUnknown)
    assert arrived == "POST GET"


@pytest.mark.django_db(transaction=True)
def test_any_sequence_of_faults_leaves_at_most_one_row(refunds: Client, proxy: FaultyProxy) -> None:
    quick = [fault for fault in FAULTS if fault != "hangs_after"]
    proxy.retry_after_seconds = 0

    @settings(
        max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
    )
    @given(faults=st.lists(st.sampled_from(["ok", *quick]), max_size=9))
    def run(faults: list[str]) -> None:
        order = builders.order()
        proxy.begin(*faults)
        try:
            action = refunds.propose_refund(**PROPOSAL | {"order_id": order.order_id})
        except OutcomeUnknown:
            action = None
        except Problem as error:
            assert error.kind in ("rate-limited", "unavailable")  # noqa: PT017  # one of its ends
            action = None
        rows = list(RefundAction.objects.filter(order=order))
        posts = proxy.sent("POST")
        assert len(rows) <= 1
        assert action is None or action.action_id == rows[0].action_id
        assert len({post.body for post in posts}) == 1
        assert len(posts) <= BRISK.tries_max

    run()
