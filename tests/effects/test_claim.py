"""The claim, step by step: what is taken, what waits, what goes back to a person."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction

from approvals.models import Approval
from effects.claim import Claimed, NotClaimed, claim
from effects.clock import database_now
from effects.models import Case, Switch
from effects.outcomes import Evidence, NotSent, RateLimited, Succeeded
from effects.states import State
from kernel.errors import Bug
from policies.models import DecisionRecord
from refunds.kind import REFUND, SIBLING_RECHECK_SECONDS
from refunds.models import Order, RefundAction, RefundAttempt, RefundEvent
from refunds.order_effect import (
    INCIDENT_RECHECK_SECONDS,
    SWITCH_RECHECK_SECONDS,
)
from refunds.withdraw import Withdrawn, withdraw_refund
from tests import builders

pytestmark = pytest.mark.django_db


def try_claim(action: RefundAction) -> Claimed | NotClaimed:
    return claim(kind=REFUND, action_id=action.action_id, worker="worker:test")


def why_not(action: RefundAction) -> str:
    result = try_claim(action)
    assert isinstance(result, NotClaimed)
    return result.reason


def approved(action: RefundAction) -> RefundAction:
    """A person said yes to what the order is now."""
    return builders.approved(action)


def waiting_for_a_person(order: Order, **fields: Any) -> RefundAction:
    action = builders.action(order, **({"amount_minor": 15_000} | fields))  # above the ceiling
    assert action.state == State.AWAITING_APPROVAL
    return action


def test_an_unknown_id_is_nothing_to_do() -> None:
    result = claim(kind=REFUND, action_id="refund:order-1:request-none", worker="w")
    assert isinstance(result, NotClaimed)


def test_a_claim_moves_reserves_and_writes_the_attempt_with_its_lease() -> None:
    action = builders.action(builders.order())
    claimed = builders.claimed(action)
    after = builders.fresh(action)
    assert (after.state, after.attempt_count) == (State.SUBMITTING, 1)
    assert (after.reserved_minor, after.order.reserved_minor) == (7_900, 7_900)
    assert (after.order.version, after.bound_version) == (2, 2)
    (attempt,) = RefundAttempt.objects.filter(action=action)
    assert attempt.token == claimed.token
    assert attempt.idempotency_key == claimed.idempotency_key == action.action_id
    lease = timedelta(seconds=settings.SUBMIT_LEASE_SECONDS)
    assert attempt.lease_until == after.due_at == attempt.claimed_at + lease
    assert after.key_first_used_at == attempt.claimed_at == claimed.claimed_at
    assert attempt.closed_at is None
    assert attempt.resolution == ""


def test_what_is_not_authorized_was_claimed_by_another_worker() -> None:
    action = builders.action(builders.order())
    builders.claimed(action)
    assert "another worker got there first" in why_not(action)
    assert RefundAttempt.objects.filter(action=action).count() == 1


@pytest.mark.parametrize("scope", ["global", "kind:refund", "account:stripe:", "agent:agent-1"])
def test_a_kill_switch_leaves_it_authorized_and_due_again(scope: str) -> None:
    action = builders.action(builders.order())
    switch = Switch.objects.create(scope=scope, reason="stop", set_by="t", set_at=database_now())
    assert why_not(action) == f"kill switch on: {scope}"
    after = builders.fresh(action)
    assert after.state == State.AUTHORIZED
    waits = (builders.due(action) - database_now()).total_seconds()
    assert 0 < waits <= SWITCH_RECHECK_SECONDS
    assert after.order.reserved_minor == 0
    Switch.objects.filter(pk=switch.pk).update(ended_at=database_now())
    assert isinstance(try_claim(action), Claimed)


@pytest.mark.parametrize("scope", ["kind:email", "account:stripe:acct_2", "agent:agent-10"])
def test_a_switch_that_covers_something_else_does_not_stop_it(scope: str) -> None:
    action = builders.action(builders.order())
    Switch.objects.create(scope=scope, reason="stop", set_by="t", set_at=database_now())
    assert isinstance(try_claim(action), Claimed)


def test_a_switch_whose_time_is_over_does_not_stop_it() -> None:
    action = builders.action(builders.order())
    now = database_now()
    Switch.objects.create(scope="global", reason="stop", set_by="t", set_at=now, until=now)
    assert isinstance(try_claim(action), Claimed)


def test_a_kill_switch_stops_a_person_s_yes_as_well() -> None:
    action = approved(waiting_for_a_person(builders.order()))
    Switch.objects.create(scope="global", reason="stop", set_by="t", set_at=database_now())
    assert why_not(action) == "kill switch on: global"
    assert builders.fresh(action).state == State.AUTHORIZED


def test_an_open_incident_pauses_every_refund_of_the_order_and_no_other_order() -> None:
    order = builders.order()
    action, elsewhere = builders.action(order), builders.action(builders.order())
    Case.objects.create(
        kind=Case.Kind.INCIDENT,
        resource=str(order),
        reason="?",
        owner="o",
        opened_at=database_now(),
        due_at=database_now(),
    )
    assert "paused by an open incident" in why_not(action)
    after = builders.fresh(action)
    assert after.state == State.AUTHORIZED
    waits = (builders.due(action) - database_now()).total_seconds()
    assert 0 < waits <= INCIDENT_RECHECK_SECONDS
    assert isinstance(try_claim(elsewhere), Claimed)


def test_a_sibling_waits_while_another_refund_of_the_order_is_on_the_wire() -> None:
    builders.allow_all()
    order = builders.order()
    first, second = builders.action(order), builders.action(order)
    token = builders.claimed(first).token
    assert "on the wire" in why_not(second)
    after = builders.fresh(second)
    assert after.state == State.AUTHORIZED
    assert (builders.due(second) - database_now()).total_seconds() <= SIBLING_RECHECK_SECONDS
    builders.answered(
        token, Succeeded(effect=builders.effect(builders.fresh(first)), evidence=Evidence())
    )
    assert isinstance(try_claim(second), Claimed)


# -- a person's decision is compared --------------------------------------------------------------


def test_a_person_s_yes_on_unchanged_facts_is_claimed() -> None:
    action = approved(waiting_for_a_person(builders.order()))
    assert isinstance(try_claim(action), Claimed)
    assert DecisionRecord.objects.filter(action_id=action.action_id).count() == 1


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "refunded": ({"refunded_minor": 1_000, "version": 2}, "refunded since: 10.00 USD"),
    "in flight": ({"reserved_minor": 1_000, "version": 2}, "in flight since: 10.00 USD"),
    "disputed": ({"disputed_minor": 1_000, "version": 2}, "disputed since: 10.00 USD"),
    "captured": ({"captured_minor": 30_000, "version": 2}, "captured since: 100.00 USD"),
    "dispute": ({"dispute_state": "inquiry", "version": 2}, "the dispute is now inquiry"),
    "version": ({"version": 2}, "a fact of the order changed"),
    "balance alone": ({"settled_otherwise_minor": 1_000}, "another balance"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_approval_ends_when_its_facts_change(change: str) -> None:
    columns, words = CHANGES[change]
    action = approved(waiting_for_a_person(builders.order()))
    Order.objects.filter(pk=action.order_id).update(**columns)

    reason = why_not(action)

    assert words in reason
    after = builders.fresh(action)
    assert after.state == State.AWAITING_APPROVAL
    assert builders.due(action) - after.state_since == timedelta(
        seconds=settings.APPROVAL_TTL_SECONDS
    )
    (case,) = Case.objects.filter(action_id=action.action_id)
    assert case.kind == Case.Kind.STALE_APPROVAL
    assert reason in case.reason
    assert case.reason.startswith("Nothing was sent.")
    event = RefundEvent.objects.filter(action=action).latest("pk")
    assert (event.kind, event.data["reason"]) == ("refund.approval_stale", reason)
    assert after.attempt_count == 0
    assert after.order.reserved_minor == columns.get("reserved_minor", 0)


def test_an_approval_ends_by_the_database_s_clock() -> None:
    action = approved(waiting_for_a_person(builders.order()))
    builders.skew_clock(settings.APPROVAL_TTL_SECONDS + 1)
    assert why_not(action).startswith("the approval of person")
    assert RefundEvent.objects.filter(kind="refund.approval_stale", action=action).exists()
    assert builders.fresh(action).state == State.AWAITING_APPROVAL


def test_an_approval_of_another_payload_does_not_hold() -> None:
    action = approved(waiting_for_a_person(builders.order()))
    with builders.past_the_triggers():
        Approval.objects.update(payload_hash="0" * 64)
    assert "was given for another request" in why_not(action)


def test_what_the_action_remembers_of_an_approval_counts_for_nothing() -> None:
    action = approved(waiting_for_a_person(builders.order()))
    Order.objects.filter(pk=action.order_id).update(refunded_minor=1_000, version=2)
    now = REFUND.lock(action_id=action.action_id)
    assert now is not None
    RefundAction.objects.filter(pk=action.pk).update(
        bound_version=2,
        bound_facts=REFUND.binding_of(locked=now),
        bound_until=database_now() + timedelta(days=9),
    )
    assert "is at version 2, not 1: refunded since: 10.00 USD" in why_not(action)


def test_a_new_yes_closes_the_case_of_the_stale_one() -> None:
    action = approved(waiting_for_a_person(builders.order()))
    Order.objects.filter(pk=action.order_id).update(version=2)
    why_not(action)
    approved(action)
    assert isinstance(try_claim(action), Claimed)
    assert not Case.objects.filter(action_id=action.action_id, closed_at__isnull=True).exists()


def test_a_person_s_yes_survives_our_own_reservation_and_a_try_that_did_nothing() -> None:
    action = approved(waiting_for_a_person(builders.order()))
    token = builders.claimed(action).token
    builders.answered(token, NotSent(reason="refused", evidence=Evidence()))
    after = builders.fresh(action)
    assert (after.state, after.reserved_minor) == (State.AUTHORIZED, 15_000)
    builders.claimed(action)
    after = builders.fresh(action)
    assert (after.reserved_minor, after.order.reserved_minor) == (15_000, 15_000)
    assert after.order.version == 2  # reserved once


# -- a policy's decision is made again ------------------------------------------------------------


def test_the_policy_made_again_on_the_same_facts_writes_no_second_decision() -> None:
    action = builders.action(builders.order())
    builders.claimed(action)
    assert DecisionRecord.objects.filter(action_id=action.action_id).count() == 1


def test_the_policy_made_again_may_ask_a_person() -> None:
    action = builders.action(builders.order())
    builders.policy(ceiling_minor={"USD": 1})
    reason = why_not(action)
    assert "above the ceiling" in reason
    after = builders.fresh(action)
    assert (after.state, after.decision_count) == (State.AWAITING_APPROVAL, 2)
    first, second = DecisionRecord.objects.filter(action_id=action.action_id).order_by("number")
    assert (first.verdict, second.verdict) == ("ALLOW", "REVIEW")
    assert second.policy_version == first.policy_version + 1
    # It was never a person's: no approval is stale, and no case is needed beside the queue.
    assert not Case.objects.filter(action_id=action.action_id).exists()
    assert RefundEvent.objects.filter(action=action).latest("pk").kind == "refund.needs_approval"


def test_the_policy_made_again_may_say_no() -> None:
    action = builders.action(builders.order())
    Order.objects.filter(pk=action.order_id).update(dispute_state="open", version=2)
    assert "dispute is open" in why_not(action)
    after = builders.fresh(action)
    assert (after.state, after.due_at) == (State.REJECTED, None)
    verdicts = DecisionRecord.objects.filter(action_id=action.action_id).order_by("number")
    assert [record.verdict for record in verdicts] == ["ALLOW", "DENY"]
    assert RefundEvent.objects.filter(action=action).latest("pk").kind == "refund.rejected"


def test_the_policy_made_again_on_other_facts_that_allows_is_recorded_and_bound() -> None:
    action = builders.action(builders.order())
    Order.objects.filter(pk=action.order_id).update(captured_minor=19_000, version=2)
    builders.claimed(action)
    after = builders.fresh(action)
    assert after.bound_version == after.order.version == 3
    assert after.decision_count == 2
    last = DecisionRecord.objects.filter(action_id=action.action_id).latest("number")
    assert last.facts["captured_minor"] == 19_000


def test_a_refund_that_no_longer_fits_what_is_left_is_never_sent() -> None:
    action = builders.action(builders.order())
    Order.objects.filter(pk=action.order_id).update(refunded_minor=12_101, version=2)
    assert "is more than the 78.99 USD left" in why_not(action)
    assert builders.fresh(action).state == State.REJECTED


def test_saying_no_after_a_try_that_did_nothing_gives_the_reservation_back() -> None:
    action = builders.action(builders.order())
    token = builders.claimed(action).token
    builders.answered(token, NotSent(reason="refused", evidence=Evidence()))
    Order.objects.filter(pk=action.order_id).update(dispute_state="lost", version=3)
    why_not(action)
    after = builders.fresh(action)
    assert (after.state, after.order.reserved_minor, after.order.version) == ("REJECTED", 0, 4)


# -- the key, the payload, the balance ------------------------------------------------------------


def test_a_key_past_its_limit_is_never_claimed_again() -> None:
    action = builders.action(builders.order())
    token = builders.claimed(action).token
    builders.answered(token, RateLimited(evidence=Evidence()))  # the provider has seen the key
    builders.skew_clock(settings.KEY_RESEND_SECONDS + 1)
    assert "past the limit" in why_not(action)
    after = builders.fresh(action)
    assert after.state == State.UNKNOWN
    assert builders.due(action) <= database_now()
    assert after.reserved_minor == 7_900
    assert RefundAttempt.objects.filter(action=action).count() == 1


def test_a_key_that_was_never_used_has_no_age() -> None:
    action = builders.action(builders.order())
    builders.skew_clock(settings.KEY_RESEND_SECONDS * 10)
    assert isinstance(try_claim(action), Claimed)


def tampered_with(action: RefundAction) -> RefundAction:
    """One minor unit more in the frozen request, as somebody with the database could write it."""
    changed = action.payload.replace("7900", "7901")
    assert changed != action.payload
    with builders.past_the_triggers():
        RefundAction.objects.filter(pk=action.pk).update(payload=changed)
    return builders.fresh(action)


def test_a_payload_that_was_tampered_with_is_an_incident_and_nothing_moves() -> None:
    action = tampered_with(builders.action(builders.order()))
    assert why_not(action) == "it was changed: the frozen request does not match its hash"
    after = builders.fresh(action)
    assert (after.state, after.order.reserved_minor) == (State.AUTHORIZED, 0)
    assert not RefundAttempt.objects.filter(action=action).exists()
    waits = (builders.due(action) - database_now()).total_seconds()
    assert 0 < waits <= INCIDENT_RECHECK_SECONDS
    (case,) = Case.objects.all()
    assert (case.kind, case.action_id) == (Case.Kind.INCIDENT, action.action_id)
    assert (case.resource, case.owner) == (str(action.order), settings.CASE_OWNER)
    assert "does not match its hash" in case.reason
    assert "Nothing was sent." in case.reason
    assert case.evidence["payload_hash"] == action.payload_hash


def test_a_payload_that_was_tampered_with_pauses_the_whole_order() -> None:
    order = builders.order()
    action, sibling = builders.action(order), builders.action(order, amount_minor=500)
    tampered_with(action)
    why_not(action)
    assert "paused by an open incident" in why_not(sibling)


def test_closing_the_incident_does_not_let_a_tampered_payload_through() -> None:
    action = tampered_with(builders.action(builders.order()))
    for closed in (1, 2):
        assert why_not(action) == "it was changed: the frozen request does not match its hash"
        assert Case.objects.filter(closed_at__isnull=True).update(closed_at=database_now()) == 1
        assert Case.objects.filter(kind=Case.Kind.INCIDENT).count() == closed
    assert not RefundAttempt.objects.exists()


def test_a_person_s_yes_does_not_let_a_tampered_payload_through() -> None:
    action = approved(waiting_for_a_person(builders.order(captured_minor=790_000)))
    with builders.past_the_triggers():
        RefundAction.objects.filter(pk=action.pk).update(payload=action.payload + " ")
    assert why_not(action) == "it was changed: the frozen request does not match its hash"
    assert builders.fresh(action).state == State.AUTHORIZED


def test_what_was_tampered_with_can_be_withdrawn() -> None:
    """As its case says: it would stand there for ever otherwise."""
    action = tampered_with(builders.action(builders.order()))
    why_not(action)
    assert isinstance(withdraw_refund(action_id=action.action_id, actor="person:x"), Withdrawn)
    assert builders.fresh(action).state == State.CANCELLED


def test_an_authorized_action_with_an_unresolved_attempt_is_a_bug() -> None:
    action = builders.action(builders.order())
    now = database_now()
    with builders.past_the_triggers():
        RefundAttempt.objects.create(
            action=action,
            number=1,
            generation=1,
            idempotency_key=action.action_id,
            worker="w",
            claimed_at=now,
            lease_until=now,
            closed_at=now,
        )
    with pytest.raises(Bug, match="unresolved"):
        try_claim(action)


def test_the_reservation_s_update_is_itself_the_check() -> None:
    action = builders.action(builders.order())
    with transaction.atomic():
        locked = REFUND.lock(action_id=action.action_id)
        assert locked is not None
        Order.objects.filter(pk=action.order_id).update(settled_otherwise_minor=12_101)
        assert REFUND.reserve(locked=locked) is False
    assert builders.fresh(action).order.reserved_minor == 0


def test_a_reservation_is_exact_to_the_last_minor_unit() -> None:
    action = builders.action(builders.order(captured_minor=7_900))
    assert isinstance(try_claim(action), Claimed)
    assert builders.fresh(action).order.refundable_minor == 0
