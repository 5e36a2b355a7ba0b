"""The send, step by step, with the real SDK against the sandbox: what keeps bytes from leaving."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.db import transaction

from effects.clock import database_now
from effects.models import Case
from effects.outcomes import (
    Misconfigured,
    NotSent,
    Outcome,
    Pending,
    Refused,
    Succeeded,
    Unknown,
)
from effects.send import Sent, send
from effects.states import State
from effects.switches import turn_on
from kernel.errors import Bug
from providers.sandbox import Sandbox
from refunds.dispatch import dispatch
from refunds.kind import REFUND
from refunds.models import ExternalRefund, Order, RefundAction, RefundAttempt
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)


def sent(claimed: Any) -> Sent:
    return send(kind=REFUND, claimed=claimed)


def recorded(claimed: Any) -> Outcome:
    """Send what was claimed and record what came back, as dispatch does."""
    what = sent(claimed)
    builders.answered(claimed.token, what.outcome, reading=what.reading)
    return what.outcome


def listings(sandbox: Sandbox) -> int:
    return len(sandbox.requests(method="GET", path="/v1/refunds"))


def its_metadata(action: RefundAction) -> dict[str, str]:
    return {"action_id": action.action_id, "instance": settings.INSTANCE}


@pytest.fixture
def order(sandbox: Sandbox) -> Order:
    return builders.order(sandbox=sandbox)


@pytest.fixture
def action(order: Order) -> RefundAction:
    return builders.action(order)


def test_one_request_with_the_frozen_payload_and_key(
    sandbox: Sandbox, action: RefundAction
) -> None:
    assert isinstance(sent(builders.claimed(action)).outcome, Succeeded)
    (request,) = builders.refunds_on_the_wire(sandbox)
    assert request["idempotency_key"] == action.action_id
    assert request["params"]["amount"] == "7900"
    (refund,) = sandbox.refunds()
    assert refund["metadata"]["action_id"] == action.action_id


def test_a_provider_is_never_called_inside_a_transaction(
    sandbox: Sandbox, action: RefundAction
) -> None:
    claimed = builders.claimed(action)
    with transaction.atomic():
        with pytest.raises(Bug, match="transaction"):
            sent(claimed)
        for door in (
            lambda: REFUND.look(action=claimed.action),
            lambda: REFUND.retrieve(action=claimed.action),
            lambda: REFUND.send(action=claimed.action, idempotency_key="k", fence=lambda: True),
        ):
            with pytest.raises(Bug, match="transaction"):
                door()
    assert sandbox.requests() == []


# -- look first -----------------------------------------------------------------------------------


def test_the_payment_is_read_before_the_first_send(sandbox: Sandbox, action: RefundAction) -> None:
    assert dispatch(action_id=action.action_id) == "succeeded"
    assert [line["method"] for line in sandbox.requests()] == ["GET", "POST"]
    assert builders.fresh(action).order.provider_read_at is not None


def test_a_payment_read_minutes_ago_is_not_read_again(sandbox: Sandbox, order: Order) -> None:
    builders.allow_all()
    for _ in range(2):
        dispatch(action_id=builders.action(order, amount_minor=500).action_id)
    assert listings(sandbox) == 1
    builders.skew_clock(settings.LOOK_FRESH_SECONDS + 1)
    dispatch(action_id=builders.action(order, amount_minor=500).action_id)
    assert listings(sandbox) == 2
    assert len(sandbox.refunds()) == 3


def test_our_own_effect_that_is_there_already_is_adopted(
    sandbox: Sandbox, action: RefundAction, order: Order
) -> None:
    made = sandbox.refund_outside(order.payment_ref, amount=7_900, metadata=its_metadata(action))
    assert isinstance(recorded(builders.claimed(action)), Succeeded)
    after = builders.fresh(action)
    assert (after.state, after.provider_ref) == (State.SUCCEEDED, made["id"])
    assert builders.refunds_on_the_wire(sandbox) == []
    assert not ExternalRefund.objects.exists()


def test_our_own_effect_with_another_amount_is_an_incident(
    sandbox: Sandbox, action: RefundAction, order: Order
) -> None:
    sandbox.refund_outside(order.payment_ref, amount=1_000, metadata=its_metadata(action))
    assert isinstance(recorded(builders.claimed(action)), Unknown)
    assert builders.fresh(action).state == State.UNKNOWN
    assert Case.objects.get(action_id=action.action_id).kind == Case.Kind.INCIDENT
    assert builders.refunds_on_the_wire(sandbox) == []


def test_two_live_effects_of_one_action_are_an_incident(
    sandbox: Sandbox, action: RefundAction, order: Order
) -> None:
    for _ in range(2):
        sandbox.refund_outside(order.payment_ref, amount=7_900, metadata=its_metadata(action))
    outcome = recorded(builders.claimed(action))
    assert isinstance(outcome, Unknown)
    assert outcome.incident
    assert builders.refunds_on_the_wire(sandbox) == []


def test_our_own_effect_that_failed_is_the_end_of_it(
    sandbox: Sandbox, action: RefundAction, order: Order
) -> None:
    made = sandbox.refund_outside(order.payment_ref, amount=7_900, metadata=its_metadata(action))
    sandbox.fail_refund(made["id"])
    assert isinstance(recorded(builders.claimed(action)), Refused)
    after = builders.fresh(action)
    assert (after.state, after.provider_ref) == (State.FAILED_FINAL, made["id"])
    assert builders.refunds_on_the_wire(sandbox) == []


def test_a_refund_that_nobody_knows_stops_the_send_and_then_a_person_decides(
    sandbox: Sandbox, action: RefundAction, order: Order
) -> None:
    made = sandbox.refund_outside(order.payment_ref, amount=7_900)
    assert dispatch(action_id=action.action_id) == "notsent"

    after = builders.fresh(action)
    assert after.state == State.AUTHORIZED
    assert after.order.refunded_minor == 7_900
    assert ExternalRefund.objects.get().provider_ref == made["id"]
    assert Case.objects.get(action_id=action.action_id).kind == Case.Kind.FOUND_ELSEWHERE

    assert "made elsewhere" in dispatch(action_id=action.action_id)
    assert builders.fresh(action).state == State.AWAITING_APPROVAL
    assert builders.refunds_on_the_wire(sandbox) == []


def test_a_payment_that_cannot_be_read_is_not_sent_to_and_comes_back_with_backoff(
    sandbox: Sandbox, action: RefundAction
) -> None:
    sandbox.fault("list-unreadable", times=2)
    for _ in range(2):
        outcome = recorded(builders.claimed(action))
        assert isinstance(outcome, NotSent)
        assert outcome.reason == "could_not_look"
        after = builders.fresh(action)
        assert after.state == State.AUTHORIZED
        assert builders.due(action) > after.state_since
    assert builders.refunds_on_the_wire(sandbox) == []
    # The second try looked again: that the first was claimed does not mean that it looked.
    assert listings(sandbox) == 2
    assert isinstance(recorded(builders.claimed(action)), Succeeded)
    assert listings(sandbox) == 3


def test_a_refund_found_after_a_look_that_failed_is_adopted_and_not_sent_again(
    sandbox: Sandbox, action: RefundAction, order: Order
) -> None:
    """A database restored from a backup, and a provider that cannot be read the first time."""
    sandbox.refund_outside(order.payment_ref, amount=7_900, metadata=its_metadata(action))
    sandbox.fault("list-unreadable")
    dispatch(action_id=action.action_id)
    assert dispatch(action_id=action.action_id) == "succeeded"
    assert len(sandbox.refunds()) == 1
    assert builders.refunds_on_the_wire(sandbox) == []


def test_credentials_that_cannot_read_pause_the_account(
    sandbox: Sandbox, action: RefundAction
) -> None:
    sandbox.fault("unauthorized-401", match={"method": "GET", "path": "/v1/refunds"})
    assert isinstance(recorded(builders.claimed(action)), Misconfigured)
    assert builders.fresh(action).state == State.AUTHORIZED
    assert "kill switch on: account:stripe:" in dispatch(action_id=action.action_id)
    assert builders.refunds_on_the_wire(sandbox) == []


def test_a_sibling_s_refund_that_is_still_being_found_out_is_no_stranger(
    sandbox: Sandbox, action: RefundAction, order: Order
) -> None:
    """It holds its amount as a reservation: counting it as made elsewhere takes it out twice."""
    builders.allow_all()
    sandbox.fault("reset-after-execution")
    assert dispatch(action_id=action.action_id) == "unknown"
    builders.skew_clock(settings.LOOK_FRESH_SECONDS + 1)

    assert dispatch(action_id=builders.action(order, amount_minor=500).action_id) == "succeeded"

    assert not ExternalRefund.objects.exists()
    after = builders.fresh(action).order
    assert (after.refunded_minor, after.reserved_minor) == (500, 7_900)


def test_another_installation_s_refund_with_the_same_ids_is_a_stranger(
    sandbox: Sandbox, action: RefundAction, order: Order
) -> None:
    sandbox.refund_outside(
        order.payment_ref,
        amount=7_900,
        metadata=its_metadata(action) | {"instance": "another"},
    )
    assert dispatch(action_id=action.action_id) == "notsent"
    assert ExternalRefund.objects.count() == 1


# -- the fence ------------------------------------------------------------------------------------


def assert_fenced(sandbox: Sandbox, claimed: Any) -> None:
    outcome = recorded(claimed)
    assert isinstance(outcome, NotSent), outcome
    assert outcome.reason == "fenced"
    assert builders.refunds_on_the_wire(sandbox) == []


def test_a_lease_that_does_not_outlast_the_call_lets_no_byte_leave(
    sandbox: Sandbox, action: RefundAction
) -> None:
    claimed = builders.claimed(action)
    left = settings.PROVIDER_TOTAL_TIMEOUT_SECONDS - 1
    builders.skew_clock(settings.SUBMIT_LEASE_SECONDS - left)
    assert_fenced(sandbox, claimed)
    after = builders.fresh(action)
    assert after.state == State.AUTHORIZED
    assert after.reserved_minor == 7_900


@pytest.mark.parametrize("scope", ["global", "kind:refund", "account:stripe:", "agent:agent-1"])
def test_a_switch_turned_on_while_the_provider_is_read_lets_no_byte_leave(
    sandbox: Sandbox, action: RefundAction, scope: str
) -> None:
    claimed = builders.claimed(action)
    turn_on(scope=scope, reason="drill", actor="test")
    assert_fenced(sandbox, claimed)
    assert builders.fresh(action).state == State.AUTHORIZED


def test_a_switch_on_something_else_stops_nothing(sandbox: Sandbox, action: RefundAction) -> None:
    claimed = builders.claimed(action)
    turn_on(scope="agent:another", reason="drill", actor="test")
    assert isinstance(recorded(claimed), Succeeded)


def test_a_lease_with_room_for_the_whole_call_is_enough(
    sandbox: Sandbox, action: RefundAction
) -> None:
    claimed = builders.claimed(action)
    left = settings.PROVIDER_TOTAL_TIMEOUT_SECONDS + 10
    builders.skew_clock(settings.SUBMIT_LEASE_SECONDS - left)
    assert isinstance(recorded(claimed), Succeeded)


def test_an_attempt_closed_by_the_sweep_meanwhile_lets_no_byte_leave(
    sandbox: Sandbox, action: RefundAction
) -> None:
    claimed = builders.claimed(action)
    builders.lease_over(action)
    assert_fenced(sandbox, claimed)
    # Proof that this attempt did nothing, and there is no other: back under the same key.
    assert builders.fresh(action).state == State.AUTHORIZED


def test_a_token_that_no_attempt_carries_lets_no_byte_leave(
    sandbox: Sandbox, action: RefundAction
) -> None:
    claimed = replace(builders.claimed(action), token=uuid4())
    outcome = sent(claimed).outcome
    assert isinstance(outcome, NotSent)
    assert builders.refunds_on_the_wire(sandbox) == []


def test_a_key_past_its_limit_lets_no_byte_leave_whatever_was_claimed(
    sandbox: Sandbox, action: RefundAction
) -> None:
    claimed = builders.claimed(action)
    old = database_now() - timedelta(seconds=settings.KEY_RESEND_SECONDS)
    RefundAction.objects.filter(pk=action.pk).update(key_first_used_at=old)
    assert_fenced(sandbox, claimed)


def test_an_action_settled_since_the_claim_lets_no_byte_leave(
    sandbox: Sandbox, action: RefundAction, order: Order
) -> None:
    """Two people opened a second key; then the answer under the first one came, late: success."""
    first = builders.claimed(action)
    builders.lease_over(action)
    builders.not_executed(action)
    with builders.past_the_triggers():  # which want the two people's rows
        builders.stand_at(
            action, State.AUTHORIZED, due_at=database_now(), generation=2, key_first_used_at=None
        )
    second = builders.claimed(action)
    assert second.idempotency_key == f"{action.action_id}:g2"
    made = sandbox.refund_outside(order.payment_ref, amount=7_900, metadata=its_metadata(action))
    builders.answered(
        first.token,
        Succeeded(
            effect=builders.effect(builders.fresh(action), ref=made["id"]),
            evidence=builders.NO_EVIDENCE,
        ),
    )
    assert builders.fresh(action).state == State.SUCCEEDED

    assert_fenced(sandbox, replace(second, look_first=False))
    after = builders.fresh(action)
    assert (after.state, after.order.refunded_minor) == (State.SUCCEEDED, 7_900)
    assert not RefundAttempt.objects.filter(action=action, closed_at__isnull=True).exists()
    assert len(sandbox.refunds()) == 1


# -- a replayed answer is old ---------------------------------------------------------------------


def answered_again(sandbox: Sandbox, action: RefundAction) -> Any:
    """The first answer was lost; the same key is sent again, and the look did not show it yet."""
    sandbox.fault("reset-after-execution")
    assert isinstance(recorded(builders.claimed(action)), Unknown)
    builders.not_executed(action)  # wrongly, as after a list that lagged
    builders.stand_at(action, State.AUTHORIZED, due_at=database_now())
    claimed = builders.claimed(action)
    assert claimed.look_first, "what was taken for undone is always looked for again"
    return replace(claimed, look_first=False)


def test_a_replayed_success_is_read_as_it_is_now(sandbox: Sandbox, action: RefundAction) -> None:
    outcome = recorded(answered_again(sandbox, action))
    assert isinstance(outcome, Succeeded)
    assert outcome.evidence.replayed
    assert builders.fresh(action).state == State.SUCCEEDED
    assert len(sandbox.refunds()) == 1


def test_a_replayed_success_that_failed_since_is_failed(
    sandbox: Sandbox, action: RefundAction
) -> None:
    claimed = answered_again(sandbox, action)
    (refund,) = sandbox.refunds()
    sandbox.fail_refund(refund["id"])
    assert isinstance(recorded(claimed), Refused)
    after = builders.fresh(action)
    assert (after.state, after.provider_ref) == (State.FAILED_FINAL, refund["id"])
    assert after.order.refunded_minor == 0
    assert Case.objects.filter(action_id=action.action_id, kind=Case.Kind.FAILED).exists()


def test_a_replayed_success_that_cannot_be_read_now_is_polled(
    sandbox: Sandbox, action: RefundAction
) -> None:
    claimed = answered_again(sandbox, action)
    (refund,) = sandbox.refunds()
    sandbox.fault("html-502", match={"method": "GET", "path": f"/v1/refunds/{refund['id']}"})
    outcome = recorded(claimed)
    assert isinstance(outcome, Pending)
    after = builders.fresh(action)
    assert (after.state, after.provider_ref) == (State.PENDING, refund["id"])
    assert after.due_at is not None
    assert after.reserved_minor == 7_900
