"""A person's decision: bound to what was shown, taken once, refused with a reason otherwise."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import Error, connection

from approvals.decide import Approved, Refused, Rejected, Seen, Why, approve, reject
from approvals.models import Approval
from effects.clock import database_now
from effects.models import Case
from effects.states import State
from refunds.dispatch import dispatch
from refunds.models import Order, RefundAction, RefundEvent
from refunds.orders import OrderFacts, mirror_order
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def awaiting() -> RefundAction:
    """150.00 of an order of 200.00: above the ceiling, so a person must decide."""
    action = builders.action(builders.order(), amount_minor=15_000)
    assert action.state == State.AWAITING_APPROVAL
    return action


@pytest.fixture
def reviewer() -> User:
    return builders.person("reviewer")


def as_seen(action: RefundAction, *, note: str = "", **seen: Any) -> dict[str, Any]:
    return {
        "action_id": action.action_id,
        "note": note,
        "seen": builders.seen(action, **seen),
    }


def capture(order: Order, captured_minor: int) -> None:
    mirror_order(
        facts=OrderFacts(
            order_id=order.order_id,
            currency=order.currency,
            captured_minor=captured_minor,
            provider=order.provider,
            payment_ref=order.payment_ref,
            source_version=order.source_version + 1,
        ),
        actor="test",
    )


def refused_unchanged(result: object, action: RefundAction, why: Why) -> str:
    assert isinstance(result, Refused)
    assert result.why is why
    assert builders.fresh(action).state == State.AWAITING_APPROVAL
    assert not Approval.objects.exists()
    assert not RefundEvent.objects.filter(actor__startswith="person:").exists()
    return result.sentence


def test_an_approval_authorizes_and_is_bound_to_what_was_seen(awaiting, reviewer):
    result = approve(user=reviewer, **as_seen(awaiting, note="the lamp arrived broken"))
    assert isinstance(result, Approved)
    action, approval = builders.fresh(awaiting), Approval.objects.get()
    assert (action.state, action.decided_by) == (State.AUTHORIZED, "person")
    assert action.bound_version == approval.resource_version == action.order.version
    assert action.bound_facts == approval.facts
    assert approval.facts["refundable_minor"] == 20_000
    assert action.bound_until == approval.expires_at == result.expires_at
    assert action.due_at is not None
    assert action.due_at < result.expires_at
    assert (approval.number, approval.decided_by) == (1, reviewer)
    event = RefundEvent.objects.get(kind="refund.approved")
    assert event.actor == "person:reviewer"
    assert event.data["note"] == "the lamp arrived broken"


def test_an_approved_refund_is_sent_once(sandbox, reviewer):
    order = builders.order(sandbox=sandbox)
    action = builders.action(order, amount_minor=15_000)
    assert isinstance(approve(user=reviewer, **as_seen(action)), Approved)
    assert dispatch(action_id=action.action_id) == "succeeded"
    assert len(sandbox.refunds(order.payment_ref)) == 1


def test_a_rejection_is_final_and_needs_no_end(awaiting, reviewer):
    result = reject(user=reviewer, **as_seen(awaiting, note="out of policy"))
    assert isinstance(result, Rejected)
    assert builders.fresh(awaiting).state == State.REJECTED
    assert Approval.objects.get().approved is False
    assert RefundEvent.objects.get(kind="refund.rejected").actor == "person:reviewer"


@pytest.mark.parametrize("decide", [approve, reject])
def test_without_the_permission_nothing_is_decided(awaiting, decide):
    somebody = builders.person(may_decide=False)
    sentence = refused_unchanged(
        decide(user=somebody, **as_seen(awaiting)), awaiting, Why.NOT_PERMITTED
    )
    assert "refunds.decide_refund" in sentence


@pytest.mark.parametrize("decide", [approve, reject])
def test_a_person_who_was_disabled_decides_nothing(awaiting, reviewer, decide):
    User.objects.filter(pk=reviewer.pk).update(is_active=False)
    disabled = User.objects.get(pk=reviewer.pk)
    refused_unchanged(decide(user=disabled, **as_seen(awaiting)), awaiting, Why.NOT_PERMITTED)


@pytest.mark.parametrize("decide", [approve, reject])
@pytest.mark.parametrize("proposer", ["reviewer", "person:reviewer"])
def test_the_proposer_does_not_decide(reviewer, decide, proposer):
    action = builders.action(builders.order(), amount_minor=15_000, proposer=proposer)
    refused_unchanged(decide(user=reviewer, **as_seen(action)), action, Why.IS_PROPOSER)


@pytest.mark.parametrize("decide", [approve, reject])
def test_an_order_that_changed_since_the_page_was_shown_is_refused(awaiting, reviewer, decide):
    seen = as_seen(awaiting)
    capture(awaiting.order, 19_000)
    sentence = refused_unchanged(decide(user=reviewer, **seen), awaiting, Why.CHANGED_SINCE)
    assert "version 1" in sentence
    assert "version 2" in sentence


def test_another_payload_than_the_one_shown_is_refused(awaiting, reviewer):
    seen = as_seen(awaiting, payload_hash="0" * 64)
    refused_unchanged(approve(user=reviewer, **seen), awaiting, Why.CHANGED_SINCE)


def test_a_yes_that_does_not_fit_what_is_left_is_refused(awaiting, reviewer):
    capture(awaiting.order, 10_000)
    sentence = refused_unchanged(
        approve(user=reviewer, **as_seen(awaiting)), awaiting, Why.NOT_ALLOWED
    )
    assert "150.00 USD is more than the 100.00 USD left" in sentence
    assert isinstance(reject(user=reviewer, **as_seen(awaiting)), Rejected)


def test_a_yes_to_what_the_policy_now_denies_is_refused(awaiting, reviewer):
    Order.objects.filter(pk=awaiting.order_id).update(dispute_state="open", version=2)
    sentence = refused_unchanged(
        approve(user=reviewer, **as_seen(awaiting)), awaiting, Why.NOT_ALLOWED
    )
    assert "dispute" in sentence


def test_an_unknown_action_is_refused(reviewer):
    for action_id in ("refund:order-1:request-none", "nothing", "", "refund:"):
        result = approve(
            action_id=action_id,
            user=reviewer,
            note="",
            seen=Seen(version=1, payload_hash="", round=1, policy_version=1),
        )
        assert isinstance(result, Refused)
        assert result.why is Why.UNKNOWN_ACTION


@pytest.mark.parametrize("note", ["x" * 2_001, "a\x00b", "a\ud800b"])
def test_a_note_that_cannot_be_stored_is_refused(awaiting, reviewer, note):
    refused_unchanged(
        approve(user=reviewer, **as_seen(awaiting, note=note)), awaiting, Why.BAD_NOTE
    )


@pytest.mark.parametrize("second", [approve, reject])
def test_a_double_click_is_told_it_was_decided(awaiting, reviewer, second):
    seen = as_seen(awaiting)
    assert isinstance(approve(user=reviewer, **seen), Approved)
    again = second(user=reviewer, **seen)
    assert isinstance(again, Refused)
    assert again.why is Why.ALREADY_DECIDED
    assert Approval.objects.count() == 1


def test_of_people_who_decide_at_once_one_is_taken(awaiting):
    people = [builders.person() for _ in range(6)]
    seen, results, start = as_seen(awaiting), [], threading.Barrier(6)

    def click(number: int) -> None:
        start.wait()
        try:
            results.append((approve, reject)[number % 2](user=people[number], **seen))
        finally:
            connection.close()

    threads = [threading.Thread(target=click, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = [result for result in results if isinstance(result, Approved | Rejected)]
    others = [result for result in results if isinstance(result, Refused)]
    assert len(taken) == 1
    assert [other.why for other in others] == [Why.ALREADY_DECIDED] * 5
    assert Approval.objects.count() == 1


@pytest.mark.parametrize(
    ("decide", "word"), [(approve, "approved"), (reject, "rejected")], ids=["approve", "reject"]
)
def test_a_decision_closes_the_cases_that_asked_for_it_and_says_why(
    awaiting, reviewer, decide, word
):
    now = database_now()
    for kind in (Case.Kind.STALE_APPROVAL, Case.Kind.FOUND_ELSEWHERE, Case.Kind.INCIDENT):
        Case.objects.create(
            kind=kind,
            action_id=awaiting.action_id,
            resource=str(awaiting.order),
            reason="the facts have changed",
            owner="case-owner",
            opened_at=now,
            due_at=now,
        )
    refused_unchanged(decide(user=reviewer, **as_seen(awaiting)), awaiting, Why.BAD_NOTE)
    assert not isinstance(
        decide(user=reviewer, **as_seen(awaiting, note="spoke to the customer")), Refused
    )
    assert set(
        Case.objects.filter(closed_at__isnull=False).values_list("kind", "closed_by", "resolution")
    ) == {
        (Case.Kind.STALE_APPROVAL, "person:reviewer", f"{word}: spoke to the customer"),
        (Case.Kind.FOUND_ELSEWHERE, "person:reviewer", f"{word}: spoke to the customer"),
    }


def test_a_stale_approval_sends_nothing_and_a_second_one_sends_once(sandbox, reviewer):
    order = builders.order(sandbox=sandbox)
    action = builders.action(order, amount_minor=15_000)
    approve(user=reviewer, **as_seen(action))
    capture(order, 19_000)
    dispatch(action_id=action.action_id)
    assert builders.fresh(action).state == State.AWAITING_APPROVAL
    assert sandbox.refunds(order.payment_ref) == []

    again = approve(user=reviewer, **as_seen(action, note="still owed"))
    assert isinstance(again, Approved)
    assert again.number == 2
    assert dispatch(action_id=action.action_id) == "succeeded"
    assert len(sandbox.refunds(order.payment_ref)) == 1
    assert Case.objects.get(kind=Case.Kind.STALE_APPROVAL).resolution == "approved: still owed"


def test_the_record_of_a_decision_cannot_be_changed(awaiting, reviewer):
    approve(user=reviewer, **as_seen(awaiting))
    with pytest.raises(Error, match="update"):
        Approval.objects.update(approved=False)
