"""The way of a refund, in process: real Postgres, the real SDK, the sandbox over HTTP."""

from __future__ import annotations

import pytest

from effects.clock import database_now
from effects.models import Case, Switch
from effects.states import State
from providers.sandbox import Sandbox
from refunds.dispatch import dispatch
from refunds.models import ExternalRefund, RefundAction, RefundAttempt, RefundEvent
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_allowed_refund_is_sent_once_and_recorded(sandbox):
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)
    assert action.state == State.AUTHORIZED

    assert dispatch(action_id=action.action_id) == "succeeded"

    action = builders.fresh(action)
    assert action.state == State.SUCCEEDED
    assert action.order.refunded_minor == 7_900
    assert action.order.reserved_minor == 0
    (refund,) = sandbox.refunds(order.payment_ref)
    assert refund["amount"] == 7_900
    assert refund["id"] == action.provider_ref
    kinds = list(
        RefundEvent.objects.filter(action=action).order_by("pk").values_list("kind", flat=True)
    )
    assert kinds == ["refund.proposed", "refund.decided", "refund.claimed", "refund.succeeded"]


def test_a_second_delivery_finds_that_another_worker_got_there_first(sandbox):
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)
    dispatch(action_id=action.action_id)
    assert "got there first" in dispatch(action_id=action.action_id)
    assert len(sandbox.refunds(order.payment_ref)) == 1


def open_cases(action: RefundAction) -> list[str]:
    found = Case.objects.filter(action_id=action.action_id, closed_at__isnull=True)
    return sorted(found.values_list("kind", flat=True))


def test_a_404_stored_under_the_key_ends_failed_and_does_not_pause_the_account_again(
    sandbox: Sandbox,
) -> None:
    """Stripe keeps a 404 under its key: what is repaired since, this key never sees."""
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)
    sandbox.fault("not-found-404", match={"method": "POST", "path": "/v1/refunds"})

    assert dispatch(action_id=action.action_id) == "misconfigured"

    assert builders.fresh(action).state == State.AUTHORIZED
    assert "kill switch on: account:stripe:" in dispatch(action_id=action.action_id)
    assert len(builders.refunds_on_the_wire(sandbox)) == 1
    # A person repairs what was wrong (the fault is over) and turns the switch off.
    assert Switch.objects.filter(ended_at__isnull=True).update(ended_at=database_now()) == 1

    assert dispatch(action_id=action.action_id) == "refused"

    after = builders.fresh(action)
    assert (after.state, after.due_at, after.provider_ref) == (State.FAILED_FINAL, None, "")
    assert (after.order.reserved_minor, after.order.refunded_minor) == (0, 0)
    assert open_cases(action) == ["failed"]
    assert not Switch.objects.filter(ended_at__isnull=True).exists()
    first, second = RefundAttempt.objects.filter(action=action).order_by("number")
    assert first.idempotency_key == second.idempotency_key
    assert [first.outcome, second.outcome] == ["misconfigured:not_found", "refused:not_found"]
    assert first.evidence is not None
    assert second.evidence is not None
    assert (first.evidence["replayed"], second.evidence["replayed"]) == (False, True)
    assert {first.resolution, second.resolution} == {"not_executed"}
    assert sandbox.refunds(order.payment_ref) == []
    # The customer is owed, and a new request of the merchant's is a new key.
    again = builders.action(order)
    assert again.state == State.AWAITING_APPROVAL


def test_two_refunds_made_elsewhere_are_both_counted_and_both_told(sandbox: Sandbox) -> None:
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)
    refs = {
        sandbox.refund_outside(order.payment_ref, amount=amount)["id"]: amount
        for amount in (3_000, 2_000)
    }

    assert dispatch(action_id=action.action_id) == "notsent"

    after = builders.fresh(action)
    assert after.order.refunded_minor == 5_000
    found = ExternalRefund.objects.filter(order=order)
    assert dict(found.values_list("provider_ref", "amount_minor")) == refs
    events = RefundEvent.objects.filter(action=action, kind="order.external_refund_found")
    assert {event.data["provider_ref"]: event.data["amount_minor"] for event in events} == refs
    (case,) = Case.objects.filter(action_id=action.action_id)
    assert case.kind == Case.Kind.FOUND_ELSEWHERE
    for ref, amount in zip(refs, ("30.00 USD", "20.00 USD"), strict=True):
        assert f"{amount} ({ref}" in case.reason
        assert case.evidence[ref]["amount_minor"] == refs[ref]
    assert builders.refunds_on_the_wire(sandbox) == []
