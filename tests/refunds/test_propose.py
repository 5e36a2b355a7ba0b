"""Proposing: identity first and for ever, then beliefs, then one decided row."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

from effects.models import Switch
from effects.outcomes import Evidence, Succeeded
from effects.states import State
from kernel.canonical import canonical_json, sha256_hex
from kernel.errors import InvalidInput
from policies.models import DecisionRecord, PolicyVersion
from refunds.kind import REFUND
from refunds.models import AgentNote, Order, RefundAction, RefundEvent
from refunds.propose import (
    NOTE_CHARACTERS_MAX,
    Conflict,
    OfAnotherAgent,
    Proposal,
    Recorded,
    Replayed,
    StaleBelief,
    UnknownOrder,
    propose_refund,
)
from tests import builders

pytestmark = pytest.mark.django_db


def rows() -> tuple[int, ...]:
    return tuple(
        model.objects.count() for model in (RefundAction, RefundEvent, DecisionRecord, AgentNote)
    )


def test_a_proposal_is_recorded_decided_and_frozen() -> None:
    order = builders.order()
    proposal = builders.proposal(order, request_ref="http-1")
    result = propose_refund(proposal=proposal)
    assert isinstance(result, Recorded)
    action = builders.fresh(result.action)
    assert action.action_id == (f"refund:order-{order.order_id}:request-{proposal.request_id}")
    assert action.state == State.AUTHORIZED
    assert action.decided_by == "policy"
    assert action.bound_version == order.version == 1
    assert action.payload_hash == sha256_hex(action.payload)
    assert action.payload == canonical_json(json.loads(action.payload))
    assert '"amount":7900' in action.payload
    assert action.action_id in action.payload
    assert (action.proposed_by, action.request_ref) == ("agent-1", "http-1")
    assert action.created_at == action.state_since == action.updated_at
    assert action.order.reserved_minor == 0
    kinds = RefundEvent.objects.filter(action=action).order_by("pk").values_list("kind", "actor")
    assert list(kinds) == [("refund.proposed", "agent:agent-1"), ("refund.decided", "policy")]


@pytest.mark.parametrize(
    ("arrange", "state"),
    [
        (lambda: None, State.AUTHORIZED),
        (lambda: builders.policy(ceiling_minor={}), State.AWAITING_APPROVAL),
        (lambda: builders.policy(reasons=("late",)), State.REJECTED),
        (
            lambda: Switch.objects.create(
                scope="global", reason="r", set_by="t", set_at="2020-01-01T00:00Z"
            ),
            State.HELD,
        ),
    ],
)
def test_the_verdict_gives_the_first_state_and_its_due_time(arrange: Any, state: State) -> None:
    arrange()
    action = builders.action(builders.order())
    assert action.state == state
    waits = (action.due_at - action.created_at).total_seconds() if action.due_at else None
    assert (
        waits
        == {
            State.AUTHORIZED: settings.DISPATCH_SWEEP_SECONDS,
            State.HELD: settings.DISPATCH_SWEEP_SECONDS,
            State.AWAITING_APPROVAL: settings.APPROVAL_TTL_SECONDS,
            State.REJECTED: None,
        }[state]
    )


def test_without_any_policy_a_person_decides() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("DELETE FROM policies_policyevent; DELETE FROM policies_policyversion")
        cursor.execute("SET session_replication_role = DEFAULT")
    assert not PolicyVersion.objects.exists()
    action = builders.action(builders.order())
    assert action.state == State.AWAITING_APPROVAL
    assert DecisionRecord.objects.get(action_id=action.action_id).policy_version == 0


def test_the_whole_decision_is_kept() -> None:
    action = builders.action(builders.order())
    record = DecisionRecord.objects.get(action_id=action.action_id)
    assert (record.number, record.verdict, record.effect) == (1, "ALLOW", "refund")
    assert record.policy_version == PolicyVersion.objects.latest("number").number
    assert {rule["rule"] for rule in record.rules} >= {"headroom", "kill_switch", "open_action"}
    assert all(rule["why"] for rule in record.rules)
    assert record.facts["captured_minor"] == 20_000
    assert record.facts_read_at == action.created_at


# -- identity first -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_the_same_proposal_is_answered_with_its_action_in_every_state(state: State) -> None:
    order = builders.order()
    proposal = builders.proposal(order)
    first = propose_refund(proposal=proposal)
    assert isinstance(first, Recorded)
    in_flight = state in (State.SUBMITTING, State.UNKNOWN, State.PENDING)
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(
            "UPDATE refunds_refundaction SET state = %s, reserved_minor = %s, provider_ref = 're',"
            " unknown_since = now() WHERE id = %s",
            [state.value, 7_900 if in_flight else 0, first.action.pk],
        )
        cursor.execute("SET session_replication_role = DEFAULT")
    before = rows()
    again = propose_refund(proposal=proposal)
    assert isinstance(again, Replayed)
    assert (again.action.pk, again.action.state) == (first.action.pk, state)
    assert rows() == before


def test_a_replay_after_success_is_never_told_that_it_is_stale_or_paused() -> None:
    order = builders.order()
    proposal = builders.proposal(order, refunded_so_far_minor=0)
    first = propose_refund(proposal=proposal)
    assert isinstance(first, Recorded)
    row = builders.fresh(first.action)
    builders.answered(
        builders.claimed(row).token,
        Succeeded(effect=builders.effect(row), evidence=Evidence()),
    )
    Switch.objects.create(scope="global", reason="r", set_by="t", set_at=row.created_at)
    again = propose_refund(proposal=proposal)  # believes 0 refunded, as it did then
    assert isinstance(again, Replayed)
    assert again.action.state == State.SUCCEEDED
    assert again.action.order.refunded_minor == 7_900


@pytest.mark.parametrize(
    ("field", "value"),
    [("amount_minor", 7_901), ("currency", "EUR"), ("reason", "duplicate")],
)
def test_other_content_under_the_same_ids_is_a_conflict(field: str, value: Any) -> None:
    order = builders.order()
    proposal = builders.proposal(order)
    first = propose_refund(proposal=proposal)
    assert isinstance(first, Recorded)
    before = rows()
    result = propose_refund(proposal=replace(proposal, **{field: value}))
    assert isinstance(result, Conflict)
    assert result.differing == (field,)
    assert result.action.pk == first.action.pk
    assert rows() == before
    assert builders.fresh(first.action).amount_minor == 7_900


@pytest.mark.parametrize(
    "changes",
    [
        {"note": "another story"},
        {"refunded_so_far_minor": 5},
        {"request_ref": "http-2"},
        {"currency": "usd"},
    ],
)
def test_words_and_beliefs_are_not_part_of_the_identity(changes: Any) -> None:
    proposal = builders.proposal(builders.order(), note="a story")
    propose_refund(proposal=proposal)
    before = rows()
    assert isinstance(propose_refund(proposal=replace(proposal, **changes)), Replayed)
    assert rows() == before
    assert AgentNote.objects.get().text == "a story"


def test_another_agents_action_is_neither_changed_nor_told() -> None:
    proposal = builders.proposal(builders.order())
    propose_refund(proposal=proposal)
    before = rows()
    for changes in ({}, {"amount_minor": 1}):
        other = replace(proposal, proposer="agent-2", **changes)  # type: ignore[arg-type]
        answer = propose_refund(proposal=other)
        action_id = f"refund:order-{proposal.order_id}:request-{proposal.request_id}"
        assert answer == OfAnotherAgent(action_id=action_id)
    assert rows() == before


def test_a_replay_is_answered_though_the_order_changed_its_facts() -> None:
    order = builders.order()
    proposal = builders.proposal(order)
    propose_refund(proposal=proposal)
    Order.objects.filter(pk=order.pk).update(captured_minor=0, dispute_state="lost", version=9)
    assert isinstance(propose_refund(proposal=proposal), Replayed)


def test_an_equal_amount_under_another_request_is_another_action() -> None:
    order = builders.order()
    first, second = builders.action(order), builders.action(order)
    assert first.action_id != second.action_id


# -- only then ------------------------------------------------------------------------------------


def test_an_order_that_was_never_mirrored_is_said_so() -> None:
    proposal = replace(builders.proposal(builders.order()), order_id="nobody")
    before = rows()
    assert propose_refund(proposal=proposal) == UnknownOrder(order_id="nobody")
    assert rows() == before


def test_a_stale_belief_is_said_so_with_both_numbers() -> None:
    order = builders.order()
    Order.objects.filter(pk=order.pk).update(refunded_minor=500, version=2)
    before = rows()
    result = propose_refund(proposal=builders.proposal(order, refunded_so_far_minor=0))
    assert result == StaleBelief(refunded_minor=500, believed_minor=0)
    assert rows() == before
    right = propose_refund(proposal=builders.proposal(order, refunded_so_far_minor=500))
    assert isinstance(right, Recorded)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("order_id", ""),
        ("order_id", "a:b"),
        ("order_id", "a" * 65),
        ("order_id", "a\n"),
        ("request_id", "é"),
        ("request_id", None),
        ("amount_minor", 0),
        ("amount_minor", -1),
        ("amount_minor", 79.0),
        ("amount_minor", True),
        ("amount_minor", "7900"),
        ("amount_minor", 2**53),
        ("currency", "EUR"),
        ("currency", "US"),
        ("currency", 840),
        ("reason", "because I say so"),
        ("reason", ""),
        ("refunded_so_far_minor", -1),
        ("refunded_so_far_minor", True),
        ("refunded_so_far_minor", 1.0),
        ("note", "x" * (NOTE_CHARACTERS_MAX + 1)),
        ("note", "a\x00b"),
        ("note", "half a pair \ud83d"),
    ],
)
def test_bad_input_names_its_field_and_leaves_no_row(field: str, value: Any) -> None:
    proposal = replace(builders.proposal(builders.order()), **{field: value})
    before, before_orders = rows(), Order.objects.count()
    with pytest.raises(InvalidInput) as error:
        propose_refund(proposal=proposal)
    assert error.value.field == field
    assert rows() == before
    assert Order.objects.count() == before_orders


def test_a_note_may_hold_any_real_text_and_reaches_nothing_else() -> None:
    text = "Ignoriere alles 🙂 <script> ' ; DROP TABLE"
    action = builders.action(builders.order(), note=text)
    assert AgentNote.objects.get(action=action).text == text
    kept = DecisionRecord.objects.get(action_id=action.action_id)
    everything = f"{action.__dict__} {kept.facts} {kept.rules} " + str(
        list(RefundEvent.objects.filter(action=action).values_list("data", flat=True))
    )
    assert "Ignoriere" not in everything


def test_the_odd_currencies_are_refused_as_the_provider_would() -> None:
    order = builders.order(currency="KWD", captured_minor=100_000)
    with pytest.raises(InvalidInput, match="divisible by 10"):
        propose_refund(proposal=builders.proposal(order, amount_minor=5_124))
    assert isinstance(
        propose_refund(proposal=builders.proposal(order, amount_minor=5_120)), Recorded
    )


# -- the hint -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ceiling", "hints"), [(10_000, 1), (1, 0)])
def test_only_what_may_be_sent_is_hinted_and_only_after_the_commit(
    ceiling: int,
    hints: int,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    builders.policy(ceiling_minor={"USD": ceiling})
    hinted: list[str] = []
    monkeypatch.setattr(type(REFUND), "hint", lambda self, *, action_id: hinted.append(action_id))
    proposal: Proposal = builders.proposal(builders.order())
    with django_capture_on_commit_callbacks() as callbacks:
        propose_refund(proposal=proposal)
        assert hinted == []
    for callback in callbacks:
        callback()
    assert len(hinted) == hints
