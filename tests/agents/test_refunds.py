"""Proposing, reading and withdrawing refunds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from agents.answers import NEXT, POLL_AFTER_SECONDS, TOLD_OF_CASES
from agents.shapes import PAGE_MAX
from effects.cases import open_case
from effects.claim import claim
from effects.models import Case
from effects.outcomes import Succeeded
from effects.states import FINAL_STATES, State
from policies.models import DecisionRecord
from refunds.kind import REFUND
from refunds.models import AgentNote, Order, RefundAction, RefundEvent
from tests import builders
from tests.agents.conftest import Caller, order_body, read, refund_body

pytestmark = pytest.mark.django_db

FIELDS = [
    "action_id",
    "order_id",
    "request_id",
    "state",
    "amount_minor",
    "currency",
    "reason",
    "order_version",
    "payload_hash",
    "decision",
    "approval",
    "provider",
    "attempts",
    "case",
    "final",
    "retry",
    "next",
    "poll_after_seconds",
    "created_at",
    "updated_at",
]


def propose(caller: Caller, order: Order, status: int, **changes: Any) -> Any:
    return read(caller.call("POST", "/refunds", refund_body(order.order_id, **changes)), status)


def succeeded(caller: Caller, order: Order) -> str:
    """A refund of 79.00 that is done; answers its id."""
    action_id: str = propose(caller, order, 201)["action_id"]
    action = RefundAction.objects.select_related("order").get(action_id=action_id)
    token = builders.claimed(action).token
    done = Succeeded(effect=builders.effect(action, ref="re_1"), evidence=builders.NO_EVIDENCE)
    builders.answered(token, done)
    return action_id


def test_a_new_proposal_is_recorded_and_answered_whole(caller: Caller) -> None:
    order = builders.order(order_id="4821")
    response = caller.call("POST", "/refunds", refund_body("4821", note="the customer is angry"))
    answer = read(response, 201)
    assert list(answer) == FIELDS
    assert "Idempotent-Replayed" not in response
    row = RefundAction.objects.get()
    assert answer | {"decision": None, "created_at": "", "updated_at": ""} == {
        "action_id": "refund:order-4821:request-3",
        "order_id": "4821",
        "request_id": "3",
        "state": "AUTHORIZED",
        "amount_minor": 7_900,
        "currency": "USD",
        "reason": "requested_by_customer",
        "order_version": order.version,
        "payload_hash": row.payload_hash,
        "decision": None,
        "approval": None,
        "provider": {"name": "stripe", "refund_id": None, "status": None},
        "attempts": 0,
        "case": None,
        "final": False,
        "retry": "never",
        "next": NEXT[State.AUTHORIZED],
        "poll_after_seconds": 2,
        "created_at": "",
        "updated_at": "",
    }
    assert answer["decision"]["verdict"] == "ALLOW"
    assert answer["decision"]["policy_version"] == 1
    assert {rule["verdict"] for rule in answer["decision"]["rules"]} == {"ALLOW"}
    assert AgentNote.objects.get().text == "the customer is angry"
    assert row.proposed_by in caller.key
    assert row.request_ref == response["X-Request-ID"]


def test_reading_a_new_action_gives_what_proposing_it_gave(caller: Caller) -> None:
    proposed = propose(caller, builders.order(), 201)
    assert read(caller.call("GET", f"/refunds/{proposed['action_id']}"), 200) == proposed


def test_the_same_proposal_again_is_answered_with_its_action(caller: Caller) -> None:
    order = builders.order()
    first = propose(caller, order, 201)
    response = caller.call("POST", "/refunds", refund_body(order.order_id, note="other words"))
    assert read(response, 200) == first
    assert response["Idempotent-Replayed"] == "true"
    assert RefundAction.objects.count() == 1
    assert AgentNote.objects.count() == 0


def test_another_content_under_the_same_ids_is_a_conflict(caller: Caller) -> None:
    order = builders.order()
    first = propose(caller, order, 201)
    answer = propose(caller, order, 409, amount_minor=3_000, reason="goodwill")
    assert answer["type"] == "urn:refund-once:problem:action-conflict"
    assert answer["differing"] == ["amount_minor", "reason"]
    assert answer["action"] == first
    assert RefundAction.objects.get().amount_minor == 7_900


def test_a_replay_after_success_ignores_beliefs_that_are_now_old(caller: Caller) -> None:
    order = builders.order()
    action_id = succeeded(caller, order)
    answer = propose(caller, order, 200, refunded_so_far_minor=0)
    assert (answer["action_id"], answer["state"]) == (action_id, "SUCCEEDED")
    assert answer["final"] is True
    assert answer["poll_after_seconds"] is None
    assert answer["provider"] == {"name": "stripe", "refund_id": "re_1", "status": "succeeded"}


def test_a_replay_in_another_currency_is_a_conflict_and_not_a_bad_field(caller: Caller) -> None:
    order = builders.order()
    propose(caller, order, 201)
    assert propose(caller, order, 409, currency="EUR")["differing"] == ["currency"]


def test_a_belief_that_is_not_so_is_412_and_leaves_no_row(caller: Caller) -> None:
    order = builders.order()
    succeeded(caller, order)
    answer = propose(caller, order, 412, request_id="4", refunded_so_far_minor=0)
    assert answer["type"] == "urn:refund-once:problem:stale-balance"
    assert RefundAction.objects.count() == 1


def test_a_belief_that_is_so_is_recorded(caller: Caller) -> None:
    propose(caller, builders.order(), 201, refunded_so_far_minor=0)


def test_an_order_that_was_never_mirrored_is_404(caller: Caller) -> None:
    answer = read(caller.call("POST", "/refunds", refund_body("nobody")), 404)
    assert answer["type"] == "urn:refund-once:problem:order-unknown"


def test_the_orders_currency_is_asked_for_by_name(caller: Caller) -> None:
    answer = propose(caller, builders.order(), 422, currency="EUR")
    assert answer["field"] == "currency"
    assert RefundAction.objects.count() == 0


@pytest.mark.parametrize(("currency", "amount_minor"), [("KWD", 7_901), ("ISK", 7_950)])
def test_an_amount_the_provider_would_refuse_is_refused_here(
    caller: Caller, currency: str, amount_minor: int
) -> None:
    order = builders.order(currency=currency)
    answer = propose(caller, order, 422, currency=currency, amount_minor=amount_minor)
    assert answer["field"] == "amount_minor"


def test_a_denial_is_a_recorded_result_and_not_an_error(caller: Caller) -> None:
    answer = propose(caller, builders.order(), 201, amount_minor=20_001)
    assert (answer["state"], answer["decision"]["verdict"]) == ("REJECTED", "DENY")
    assert (answer["final"], answer["poll_after_seconds"]) == (True, None)


def test_a_refund_above_the_ceiling_waits_for_a_person(caller: Caller) -> None:
    answer = propose(caller, builders.order(), 201, amount_minor=15_000)
    assert answer["state"] == "AWAITING_APPROVAL"
    assert answer["next"] == NEXT[State.AWAITING_APPROVAL]


def test_an_open_case_is_told_in_one_sentence_and_with_its_due_time_only(caller: Caller) -> None:
    action_id = propose(caller, builders.order(), 201)["action_id"]
    with transaction.atomic():
        locked = REFUND.lock(action_id=action_id)
        assert locked is not None
        open_case(
            kind=Case.Kind.CANNOT_SEND,
            effect="refund",
            locked=locked,
            reason="Its key is 3 hours old; use check now before you send it again.",
            evidence={"secret": "internal"},
        )
    case = read(caller.call("GET", f"/refunds/{action_id}"), 200)["case"]
    assert set(case) == {"reason", "due_at"}
    assert case["reason"] == TOLD_OF_CASES[Case.Kind.CANNOT_SEND]


def test_whose_approval_lapsed_and_why_is_not_told(caller: Caller) -> None:
    action_id = propose(caller, builders.order(), 201, amount_minor=15_000)["action_id"]
    action = RefundAction.objects.get(action_id=action_id)
    builders.approved(action, builders.person("alice"))
    User.objects.filter(username="alice").update(is_active=False)
    claim(kind=REFUND, action_id=action_id, worker="w")
    answer = read(caller.call("GET", f"/refunds/{action_id}"), 200)
    assert answer["state"] == "AWAITING_APPROVAL"
    assert answer["case"]["reason"] == TOLD_OF_CASES[Case.Kind.STALE_APPROVAL]
    assert "alice" not in str(answer)


def test_a_newer_decision_is_the_one_that_is_told(caller: Caller) -> None:
    action_id = propose(caller, builders.order(), 201)["action_id"]
    first = DecisionRecord.objects.get()
    DecisionRecord.objects.create(
        effect="refund",
        action_id=action_id,
        number=2,
        policy_version=1,
        verdict="REVIEW",
        rules=[],
        facts={},
        facts_read_at=first.facts_read_at,
    )
    answer = read(caller.call("GET", f"/refunds/{action_id}"), 200)
    assert answer["decision"]["verdict"] == "REVIEW"


def test_an_action_nobody_proposed_is_404(caller: Caller) -> None:
    for method, path in (
        ("GET", "/refunds/refund:order-1:request-1"),
        ("POST", "/refunds/refund:order-1:request-1/withdraw"),
    ):
        answer = read(caller.call(method, path), 404)
        assert answer["type"] == "urn:refund-once:problem:action-unknown"


def test_an_orders_actions_are_listed_newest_first_in_pages(caller: Caller) -> None:
    order = builders.order(captured_minor=2**40)
    builders.action(builders.order())
    proposer = caller.key.split("_")[2]
    builders.action(order, proposer="another")
    ids = [builders.action(order, proposer=proposer).action_id for _ in range(PAGE_MAX + 2)]
    first = read(caller.call("GET", f"/refunds?order_id={order.order_id}"), 200)
    assert [answer["action_id"] for answer in first["data"]] == ids[:1:-1]
    cursor = first["next_cursor"]
    rest = read(caller.call("GET", f"/refunds?order_id={order.order_id}&cursor={cursor}"), 200)
    assert [answer["action_id"] for answer in rest["data"]] == ids[1::-1]
    assert rest["next_cursor"] is None


def test_a_page_may_be_smaller(caller: Caller) -> None:
    order = builders.order(captured_minor=100_000)
    proposer = caller.key.split("_")[2]
    for _ in range(5):
        builders.action(order, amount_minor=100, proposer=proposer)
    seen: list[str] = []
    sizes: list[int] = []
    cursor = ""
    while True:
        path = f"/refunds?order_id={order.order_id}&limit=2{cursor}"
        page = read(caller.call("GET", path), 200)
        seen += [action["action_id"] for action in page["data"]]
        sizes.append(len(page["data"]))
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert sizes == [2, 2, 1]
    assert len(set(seen)) == 5


def test_an_order_without_actions_is_an_empty_list_and_an_unknown_one_404(caller: Caller) -> None:
    order = builders.order()
    assert read(caller.call("GET", f"/refunds?order_id={order.order_id}"), 200)["data"] == []
    read(caller.call("GET", "/refunds?order_id=nobody"), 404)


def test_a_refund_is_withdrawn_and_stays_withdrawn(caller: Caller) -> None:
    action_id = propose(caller, builders.order(), 201)["action_id"]
    for _ in range(2):
        answer = read(caller.call("POST", f"/refunds/{action_id}/withdraw"), 200)
        assert (answer["state"], answer["final"]) == ("CANCELLED", True)
    assert RefundEvent.objects.filter(kind="refund.withdrawn").count() == 1
    assert read(caller.call("POST", f"/refunds/{action_id}/withdraw", {}), 200) == answer


def test_a_refund_that_is_done_cannot_be_withdrawn(caller: Caller) -> None:
    action_id = succeeded(caller, builders.order())
    answer = read(caller.call("POST", f"/refunds/{action_id}/withdraw"), 409)
    assert answer["type"] == "urn:refund-once:problem:too-late"
    assert answer["action"]["state"] == "SUCCEEDED"


def test_every_state_has_one_sentence_that_invites_no_second_proposal() -> None:
    assert set(NEXT) == set(State)
    assert set(POLL_AFTER_SECONDS) == set(State) - set(FINAL_STATES)
    for sentence in NEXT.values():
        words = sentence.lower()
        assert not any(
            word in words for word in ("retry", "try again", "error", "failed", "timeout")
        )


@pytest.fixture
def counted() -> Callable[[Callable[[], Any]], tuple[int, int]]:
    """Answers how many statements, and how many commits, a call cost."""

    def count(call: Callable[[], Any]) -> tuple[int, int]:
        with CaptureQueriesContext(connection) as captured:
            call()
        statements = [query["sql"].strip().upper() for query in captured.captured_queries]
        commits = sum(sql == "COMMIT" for sql in statements)
        return len([sql for sql in statements if sql not in ("BEGIN", "COMMIT")]), commits

    return count


@pytest.mark.django_db(transaction=True)
def test_what_each_call_costs_in_statements_and_commits(
    caller: Caller, counted: Callable[[Callable[[], Any]], tuple[int, int]]
) -> None:
    order = builders.order()
    propose(caller, order, 201, request_id="1")  # reads the policy version for this process
    action_id = f"refund:order-{order.order_id}:request-3"
    # The key, the time, the order, its row between a savepoint and its release, its history; then
    # the key, the time, the order, and when it was last stated.
    stated = order_body()
    assert counted(lambda: read(caller.call("PUT", "/orders/new", stated), 201)) == (7, 1)
    assert counted(lambda: read(caller.call("PUT", "/orders/new", stated), 200)) == (4, 1)
    # The key; then: is it known, lock the order, the facts beside it, the locks of the limits, what
    # was used of them, the action, its decision, its two events. The answer of a new action is made
    # of what was just written.
    assert counted(lambda: propose(caller, order, 201)) == (9, 1)
    # With an Idempotency-Key: a savepoint and its release, the value, and whose it is.
    body = refund_body(order.order_id, request_id="4", amount_minor=100)
    fenced = {"Idempotency-Key": "job-1"}
    call = lambda: read(caller.call("POST", "/refunds", body, **fenced), 201)  # noqa: E731
    assert counted(call) == (13, 1)
    # The key, is it known, the answer.
    assert counted(lambda: propose(caller, order, 200)) == (3, 0)
    assert counted(lambda: propose(caller, order, 409, amount_minor=1)) == (3, 0)
    assert counted(lambda: read(caller.call("GET", f"/refunds/{action_id}"), 200)) == (2, 0)
    listed = f"/refunds?order_id={order.order_id}"
    assert counted(lambda: read(caller.call("GET", listed), 200)) == (2, 0)


def test_an_answer_is_valid_json_with_integers(caller: Caller) -> None:
    response = caller.call("POST", "/refunds", refund_body(builders.order().order_id))
    read(response, 201)
    floats: list[str] = []
    json.loads(response.content, parse_float=lambda text: floats.append(text))
    assert floats == []
