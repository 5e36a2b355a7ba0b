"""Tiers and rounds: how many people, of what standing, and which yeses count together."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection

from approvals.decide import Approved, Refused, Rejected, Seen, Why, approve, reject
from approvals.models import Approval
from effects.claim import send_back
from effects.kinds import Back
from effects.models import Case
from effects.states import State
from policies.parameters import Tier
from refunds.credits import CREDIT
from refunds.dispatch import dispatch
from refunds.models import Order, RefundAction, RefundEvent
from refunds.withdraw import withdraw_refund
from tests import builders
from tests.approvals.ways import (
    TIERS,
    awaiting,
    edited_policy,
    group_of,
    history,
    move_on,
    refused,
    rounds,
    say_yes,
    take_away_permissions,
    tiered_policy,
    waits_for,
)
from tests.database import refused as refused_by_postgres
from tests.database import sql
from tests.refunds import debts

pytestmark = pytest.mark.django_db
# Where several connections act, or something is really sent.
really = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _tiers() -> None:
    tiered_policy()


@pytest.fixture
def alice() -> User:
    return builders.person("alice", tier=3)


@pytest.fixture
def bob() -> User:
    return builders.person("bob", tier=3)


# -- how many, of what tier -----------------------------------------------------------------------


def test_a_proposal_says_who_must_approve_it():
    for amount_minor, tier, people in ((9_000, 1, 1), (20_000, 2, 1), (40_000, 3, 2)):
        action = awaiting(amount_minor)
        assert (action.review_tier, action.review_people) == (tier, people)
        assert action.approval_round == 1


@really
def test_the_first_of_two_yeses_sends_nothing_and_waits_for_one_more(sandbox, alice, bob):
    order = builders.order(sandbox=sandbox, captured_minor=50_000)
    action = awaiting(order=order)
    assert waits_for(say_yes(action, alice)) == 1
    after = builders.fresh(action)
    assert (after.state, after.approval_round) == (State.AWAITING_APPROVAL, 1)
    assert after.due_at == action.due_at  # the customer waits no longer for it
    event = RefundEvent.objects.get(kind="refund.approved_by_one")
    assert (event.actor, event.data["waiting_for"], event.data["tier"]) == ("person:alice", 1, 3)
    assert "not claimed" in dispatch(action_id=action.action_id)
    assert sandbox.refunds(order.payment_ref) == []

    assert isinstance(say_yes(action, bob), Approved)
    assert RefundEvent.objects.get(kind="refund.approved").data["earlier"] == ["alice"]
    assert rounds(action) == [(1, "alice"), (1, "bob")]
    assert dispatch(action_id=action.action_id) == "succeeded"
    assert len(sandbox.refunds(order.payment_ref)) == 1


def test_one_person_is_not_two(alice):
    action = awaiting()
    assert waits_for(say_yes(action, alice)) == 1
    assert "somebody else" in refused(say_yes(action, alice), Why.ALREADY_APPROVED)
    assert builders.fresh(action).state == State.AWAITING_APPROVAL
    assert Approval.objects.count() == 1


@really
def test_two_clicks_of_one_person_at_once_are_one_yes(alice):
    action = awaiting()
    seen, results, start = builders.seen(action), [], threading.Barrier(4)

    def click() -> None:
        start.wait()
        try:
            results.append(approve(action_id=action.action_id, user=alice, note="", seen=seen))
        finally:
            connection.close()

    threads = [threading.Thread(target=click) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(result).__name__ for result in results) == [
        "ApprovedByOne",
        *["Refused"] * 3,
    ]
    assert Approval.objects.count() == 1


@really
def test_of_many_people_at_once_the_first_two_authorize_it():
    action = awaiting()
    people = [builders.person(tier=3) for _ in range(5)]
    seen, results, start = builders.seen(action), [], threading.Barrier(5)

    def click(user: User) -> None:
        start.wait()
        try:
            results.append(approve(action_id=action.action_id, user=user, note="", seen=seen))
        finally:
            connection.close()

    threads = [threading.Thread(target=click, args=(user,)) for user in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = sorted(type(result).__name__ for result in results)
    assert names == ["Approved", "ApprovedByOne", *["Refused"] * 3]
    assert Approval.objects.count() == 2
    assert builders.fresh(action).state == State.AUTHORIZED


@pytest.mark.parametrize("tier", [1, 2])
def test_a_tier_that_is_too_low_is_refused_and_named(tier):
    tiered_policy(tiers=(Tier(tier=tier + 1, up_to_base_minor=None),))
    action = awaiting()
    sentence = refused(say_yes(action, builders.person(tier=tier)), Why.TIER_TOO_LOW)
    assert f"needs approval of tier {tier + 1}, and yours is tier {tier}" in sentence
    assert f"approvals.approve_tier_{tier + 1}" in sentence
    assert not Approval.objects.exists()


@pytest.mark.parametrize("tier", [2, 3])
def test_a_higher_tier_implies_the_lower_ones(tier):
    for amount_minor in (9_000, 20_000):
        action = awaiting(amount_minor)
        assert isinstance(say_yes(action, builders.person(tier=tier)), Approved)
        assert Approval.objects.get(action_id=action.action_id).tier == tier


def test_a_tier_can_come_from_a_group_and_goes_with_it():
    user = builders.person(may_decide=False)
    user.groups.add(group_of("approve_tier_2"))
    action = awaiting(20_000)
    assert isinstance(say_yes(action, User.objects.get(pk=user.pk)), Approved)
    user.groups.clear()
    assert f"approver {user} may no longer approve" in dispatch(action_id=action.action_id)


def test_a_superuser_has_every_tier():
    root = User.objects.create_superuser("root", password="correct horse battery")
    assert isinstance(say_yes(awaiting(20_000), root), Approved)


def test_one_no_is_enough_whatever_its_tier(alice):
    action = awaiting()
    say_yes(action, alice)
    made = reject(
        action_id=action.action_id,
        user=builders.person(tier=1),
        note="not ours",
        seen=builders.seen(action),
    )
    assert isinstance(made, Rejected)
    assert builders.fresh(action).state == State.REJECTED


def test_a_person_may_take_back_a_yes_by_a_no_while_others_are_waited_for(alice):
    action = awaiting()
    say_yes(action, alice)
    made = reject(
        action_id=action.action_id, user=alice, note="I was wrong", seen=builders.seen(action)
    )
    assert isinstance(made, Rejected)


# -- who never approves ---------------------------------------------------------------------------


def test_whoever_answers_for_the_agent_does_not_approve_and_may_reject(alice):
    action = awaiting(proposer_owner_id=alice.pk)
    assert action.proposer_owner == alice
    assert "answer for agent-1" in refused(say_yes(action, alice), Why.IS_OWNER)
    assert not Approval.objects.exists()
    made = reject(action_id=action.action_id, user=alice, note="", seen=builders.seen(action))
    assert isinstance(made, Rejected)


def test_the_last_editor_of_the_policy_does_not_approve_under_it_and_may_reject(alice):
    edited_policy(editor=alice)
    action = awaiting()
    assert "last to edit" in refused(say_yes(action, alice), Why.IS_POLICY_EDITOR)
    assert not Approval.objects.exists()
    made = reject(action_id=action.action_id, user=alice, note="", seen=builders.seen(action))
    assert isinstance(made, Rejected)


def test_whoever_published_the_policy_without_having_written_it_may_approve(alice, bob):
    edited_policy(editor=alice, publisher=bob)
    assert waits_for(say_yes(awaiting(), bob)) == 1


def test_an_earlier_editor_may_approve_once_others_wrote_the_policy_in_force(alice, bob):
    edited_policy(editor=alice)
    edited_policy(editor=bob)
    assert waits_for(say_yes(awaiting(), alice)) == 1


def test_whoever_edits_the_policy_after_a_yes_has_said_yes_under_another_one(alice, bob):
    action = awaiting(20_000)
    assert isinstance(say_yes(action, alice), Approved)
    edited = edited_policy(editor=alice)
    reason = dispatch(action_id=action.action_id)
    assert f"policy {edited.number} is in force, not {edited.number - 1}" in reason
    assert builders.fresh(action).state == State.AWAITING_APPROVAL
    refused(say_yes(action, alice), Why.IS_POLICY_EDITOR)
    assert isinstance(say_yes(action, bob), Approved)


def test_the_proposer_says_neither_yes_nor_no(alice):
    action = awaiting(proposer="alice")
    refused(say_yes(action, alice), Why.IS_PROPOSER)
    made = reject(action_id=action.action_id, user=alice, note="", seen=builders.seen(action))
    refused(made, Why.IS_PROPOSER)


# -- when an earlier yes no longer counts ---------------------------------------------------------


def lapsed(action: RefundAction, second: User) -> str:
    """The second yes begins a new round; why, from the history."""
    assert waits_for(say_yes(action, second)) == 1
    after = builders.fresh(action)
    assert (after.state, after.approval_round) == (State.AWAITING_APPROVAL, 2)
    event = RefundEvent.objects.get(kind="refund.approvals_lapsed")
    assert event.data["ended_round"] == 1
    assert event.actor == f"person:{second}"
    return str(event.data["reason"])


def test_a_yes_to_another_version_of_the_order_does_not_count(alice, bob):
    action = awaiting()
    say_yes(action, alice)
    move_on(action.order, captured_minor=48_000)
    reason = lapsed(action, bob)
    assert "is at version 2, not 1: no longer captured: 20.00 USD" in reason
    assert rounds(action) == [(1, "alice"), (2, "bob")]
    assert isinstance(say_yes(action, alice), Approved)
    assert history(action)[-4:] == [
        "refund.approved_by_one",
        "refund.approvals_lapsed",
        "refund.approved_by_one",
        "refund.approved",
    ]


def test_a_person_whose_own_yes_lapsed_may_say_yes_again(alice):
    action = awaiting()
    say_yes(action, alice)
    move_on(action.order, captured_minor=48_000)
    assert waits_for(say_yes(action, alice)) == 1
    assert rounds(action) == [(1, "alice"), (2, "alice")]


def test_a_yes_under_another_policy_does_not_count(alice, bob):
    action = awaiting()
    say_yes(action, alice)
    tiered_policy(window_days=30)
    assert "is in force, not" in lapsed(action, bob)


def test_a_yes_of_somebody_who_was_disabled_does_not_count(alice, bob):
    action = awaiting()
    say_yes(action, alice)
    User.objects.filter(pk=alice.pk).update(is_active=False)
    assert lapsed(action, bob) == "approver alice may no longer approve"


def test_a_yes_of_somebody_who_lost_the_tier_does_not_count(alice, bob):
    action = awaiting()
    say_yes(action, alice)
    take_away_permissions(alice)
    assert lapsed(action, bob) == "approver alice may no longer approve"


def test_a_yes_whose_time_is_over_does_not_count(alice, bob):
    action = awaiting()
    say_yes(action, alice)
    with builders.past_the_triggers():
        Approval.objects.update(expires_at=builders.fresh(action).created_at)
    assert lapsed(action, bob) == "the approval of alice has expired"


def test_a_form_that_was_opened_before_a_new_round_is_refused(alice, bob):
    action = awaiting()
    say_yes(action, alice)
    old = builders.seen(action)
    take_away_permissions(alice)
    say_yes(action, bob)
    carol = builders.person(tier=3)
    made = approve(action_id=action.action_id, user=carol, note="", seen=old)
    assert "no longer holds, and all decide again" in refused(made, Why.CHANGED_SINCE)


def test_a_form_that_showed_another_policy_is_refused(alice):
    action = awaiting()
    old = builders.seen(action)
    tiered_policy(window_days=30)
    made = approve(action_id=action.action_id, user=alice, note="", seen=old)
    assert "and policy" in refused(made, Why.CHANGED_SINCE)
    assert not Approval.objects.exists()


def test_a_stricter_policy_asks_for_more_people_than_were_asked_before():
    action = awaiting(20_000)
    assert action.review_people == 1
    tiered_policy(tiers=(Tier(tier=3, up_to_base_minor=None, people=2),))
    sentence = refused(say_yes(action, builders.person(tier=2)), Why.TIER_TOO_LOW)
    assert "needs approval of tier 3" in sentence
    assert waits_for(say_yes(action, builders.person(tier=3))) == 1
    after = builders.fresh(action)
    assert (after.review_tier, after.review_people) == (3, 2)


def test_a_milder_policy_asks_for_no_fewer(alice):
    action = awaiting()
    tiered_policy(tiers=(Tier(tier=1, up_to_base_minor=None),))
    assert waits_for(say_yes(action, alice)) == 1
    refused(say_yes(action, builders.person()), Why.TIER_TOO_LOW)


# -- after it was authorized ----------------------------------------------------------------------


def authorized(*people: User, amount_minor: int = 40_000) -> RefundAction:
    action = builders.approved(awaiting(amount_minor), *people)
    assert action.state == State.AUTHORIZED
    return action


def test_both_must_approve_again_after_the_claim_found_it_stale(alice, bob):
    action = authorized(alice, bob)
    move_on(action.order, captured_minor=48_000)
    dispatch(action_id=action.action_id)
    after = builders.fresh(action)
    assert (after.state, after.approval_round) == (State.AWAITING_APPROVAL, 2)
    (case,) = Case.objects.filter(action_id=action.action_id)
    assert case.kind == Case.Kind.STALE_APPROVAL
    assert case.reason.count("is at version 2, not 1") == 1  # both approved the same
    assert waits_for(say_yes(action, bob)) == 1
    assert case in Case.objects.filter(closed_at__isnull=True)  # one yes settles nothing
    assert isinstance(say_yes(action, alice), Approved)
    assert not Case.objects.filter(closed_at__isnull=True).exists()
    assert rounds(action) == [(1, "alice"), (1, "bob"), (2, "bob"), (2, "alice")]


def test_it_ends_with_the_first_of_its_approvals_to_end(alice, bob):
    action = awaiting()
    say_yes(action, alice)
    builders.skew_clock(3600)
    made = say_yes(action, bob)
    assert isinstance(made, Approved)
    first, second = Approval.objects.order_by("number")
    assert made.expires_at == builders.fresh(action).bound_until == first.expires_at
    assert second.decided_at - first.decided_at >= timedelta(seconds=3600)
    builders.skew_clock(settings.APPROVAL_TTL_SECONDS + 5)
    assert dispatch(action_id=action.action_id) == (
        "not claimed: the approval of alice has expired"
    )


@pytest.mark.parametrize("number", [1, 2])
def test_every_approver_of_the_round_must_still_be_one_at_the_claim(alice, bob, number):
    action = authorized(alice, bob)
    gone = (alice, bob)[number - 1]
    User.objects.filter(pk=gone.pk).update(is_active=False)
    reason = dispatch(action_id=action.action_id)
    assert reason == f"not claimed: approver {gone} may no longer approve"
    assert builders.fresh(action).state == State.AWAITING_APPROVAL


def test_an_approver_who_kept_a_lower_tier_no_longer_counts(alice, bob):
    action = authorized(alice, bob)
    take_away_permissions(alice)
    alice.groups.add(group_of("decide_refund"))
    assert "approver alice may no longer approve" in dispatch(action_id=action.action_id)


def test_everything_that_differs_is_said(alice, bob):
    action = authorized(alice, bob)
    User.objects.filter(pk=alice.pk).update(is_active=False)
    tiered_policy(window_days=30)
    move_on(action.order, captured_minor=48_000)
    reason = dispatch(action_id=action.action_id)
    for words in (
        "approver alice may no longer approve",
        "is in force, not",
        "is at version 2, not 1",
    ):
        assert words in reason
    (event,) = RefundEvent.objects.filter(kind="refund.approval_stale")
    assert event.data["order_version"] == 2
    assert event.data["round"] == 1


def test_the_state_can_not_be_reached_without_the_rows_it_stands_for(alice, bob):
    action = authorized(alice, bob)
    with builders.past_the_triggers():
        Approval.objects.filter(decided_by=bob).delete()
    assert "1 of 2 people have approved it" in dispatch(action_id=action.action_id)
    assert builders.fresh(action).state == State.AWAITING_APPROVAL


def test_a_decision_of_people_without_any_of_them_is_never_sent():
    """Like one that was approved before there were rounds: its approvals count for nothing."""
    builders.allow_all()
    action = builders.action(builders.order())
    assert action.state == State.AUTHORIZED
    with builders.past_the_triggers():
        RefundAction.objects.filter(pk=action.pk).update(decided_by="person")
    reason = "no approval of its present round is on record, so it must be approved again"
    assert dispatch(action_id=action.action_id) == f"not claimed: {reason}"
    assert builders.fresh(action).state == State.AWAITING_APPROVAL
    (case,) = Case.objects.filter(kind=Case.Kind.STALE_APPROVAL)
    assert reason in case.reason


def test_stale_expired_rejected_and_withdrawn_are_different_things(alice, bob):
    from reconciliation import sweep

    stale, no, taken_back, late = (authorized(alice, bob), awaiting(), awaiting(), awaiting())
    move_on(stale.order, captured_minor=48_000)
    dispatch(action_id=stale.action_id)
    reject(action_id=no.action_id, user=alice, note="", seen=builders.seen(no))
    withdraw_refund(action_id=taken_back.action_id, actor="agent:agent-1")
    RefundAction.objects.filter(pk=late.pk).update(due_at=late.created_at)
    sweep.sweep()
    told = {
        builders.fresh(action).state: (
            history(action)[-1],
            list(Case.objects.filter(action_id=action.action_id).values_list("kind", flat=True)),
        )
        for action in (stale, no, taken_back, late)
    }
    assert told == {
        State.AWAITING_APPROVAL: ("refund.approval_stale", [Case.Kind.STALE_APPROVAL]),
        State.REJECTED: ("refund.rejected", []),
        State.CANCELLED: ("refund.withdrawn", []),
        State.EXPIRED: ("refund.expired", [Case.Kind.EXPIRED]),
    }


def test_what_was_tampered_with_before_the_yes_cannot_be_approved(alice):
    action = awaiting(20_000)
    with builders.past_the_triggers():
        RefundAction.objects.filter(pk=action.pk).update(amount_minor=19_000)
    sentence = refused(say_yes(action, alice), Why.NOT_ALLOWED)
    assert "amount_minor is 19000, not 20000" in sentence


@pytest.mark.parametrize(
    ("table", "column", "value", "words"),
    [
        (RefundAction, "amount_minor", 39_999, "amount_minor is 39999, not 40000"),
        (RefundAction, "reason", "goodwill", "reason is 'goodwill', not 'requested_by_customer'"),
        (RefundAction, "currency", "EUR", "the order's currency is 'USD', not 'EUR'"),
        (Order, "currency", "EUR", "the order's currency is 'EUR', not 'USD'"),
        (Order, "payment_ref", "pi_other", "payment_ref is 'pi_other', not"),
        (Order, "account", "acct_2", "the order's account is 'acct_2', not ''"),
    ],
)
@pytest.mark.parametrize("by", ["people", "policy"])
def test_what_was_changed_behind_the_triggers_is_an_incident_and_is_never_sent(
    alice, bob, by, table, column, value, words
):
    if by == "people":
        action = authorized(alice, bob)
    else:
        builders.allow_all()
        action = builders.action(builders.order(captured_minor=50_000), amount_minor=40_000)
    with builders.past_the_triggers():
        pk = action.pk if table is RefundAction else action.order_id
        table.objects.filter(pk=pk).update(**{column: value})
    assert words in dispatch(action_id=action.action_id)
    after = builders.fresh(action)
    assert (after.state, after.attempt_count) == (State.AUTHORIZED, 0)
    (case,) = Case.objects.filter(action_id=action.action_id)
    assert case.kind == Case.Kind.INCIDENT
    assert words in case.reason


def test_the_tiers_of_this_page_are_what_it_says():
    assert [(tier.tier, tier.people) for tier in TIERS] == [(1, 1), (2, 1), (3, 2)]
    assert not isinstance(say_yes(awaiting(9_000), builders.person()), Refused)


# -- another kind of effect -----------------------------------------------------------------------


@really
def test_a_store_credit_that_went_back_to_people_is_approved_in_the_same_way(sandbox):
    builders.allow_all()
    remedy = debts.proposed(debts.debt(sandbox), "store_credit")
    credit = debts.credit_of(remedy)
    with debts.locked(credit) as found:
        send_back(kind=CREDIT, locked=found, verdict=Back(reason="it changed"), actor="worker:test")
    credit = debts.credit_of(remedy)
    assert (credit.state, credit.approval_round) == (State.AWAITING_APPROVAL, 2)
    for assignments, words in (
        ("state = 'AUTHORIZED', due_at = now()", "needs the approval of 1 people"),
        ("state = 'AUTHORIZED', due_at = now(), approval_round = 1", "never go back"),
        ("decided_by = 'policy'", "becomes that of people when they take it"),
        ("review_people = 0", "is never lowered"),
    ):
        with refused_by_postgres(words):
            sql(f"UPDATE refunds_creditaction SET {assignments} WHERE id = %s", credit.pk)
    with debts.locked(credit) as found:
        seen = Seen(
            version=CREDIT.version_of(locked=found),
            payload_hash=credit.payload_hash,
            round=2,
            policy_version=0,
        )
    somebody = debts.person("approve_remedy")
    made = approve(action_id=credit.action_id, user=somebody, note="still owed", seen=seen)
    assert isinstance(made, Approved), made
    assert debts.credit_of(remedy).state == State.AUTHORIZED
