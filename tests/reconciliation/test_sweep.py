"""The sweep: leases, held proposals, decisions whose time is over; two at once; bad rows."""

from __future__ import annotations

import threading

import pytest
from django.conf import settings
from django.db import connection

from approvals.decide import approve
from effects import claim
from effects.models import Case, SweepRun, Switch
from effects.states import State
from effects.switches import turn_off, turn_on
from reconciliation import leases, sweep
from refunds.dispatch import dispatch
from refunds.kind import REFUND
from refunds.models import RefundAction, RefundAttempt
from tests import builders
from tests.reconciliation import ways

pytestmark = pytest.mark.django_db(transaction=True)

TTL = settings.APPROVAL_TTL_SECONDS


def approved(order, *, amount_minor=20_000):
    action = builders.action(order, amount_minor=amount_minor)
    approve(
        action_id=action.action_id,
        user=builders.person(),
        note="checked",
        seen=builders.seen(action),
    )
    return builders.fresh(action)


def test_a_lease_that_is_over_makes_it_unknown_and_never_authorized(sandbox):
    action = builders.action(builders.order(sandbox=sandbox))
    builders.claimed(action)
    ways.sweep_at(settings.SUBMIT_LEASE_SECONDS - 5)
    assert builders.fresh(action).state == State.SUBMITTING

    ways.sweep_at(settings.SUBMIT_LEASE_SECONDS + 1)

    action = builders.fresh(action)
    assert action.state == State.UNKNOWN
    assert action.order.reserved_minor == 7_900
    assert action.unknown_since is not None
    attempt = RefundAttempt.objects.get(action=action)
    assert (attempt.outcome, attempt.resolution) == ("no_answer", "")
    assert attempt.closed_at is not None
    assert "refund.lease_over" in ways.history(action)


def test_a_worker_that_wakes_after_its_lease_sends_nothing(sandbox):
    from effects.send import send

    action = builders.action(builders.order(sandbox=sandbox))
    claimed = builders.claimed(action)
    ways.sweep_at(settings.SUBMIT_LEASE_SECONDS + 1)

    send(kind=REFUND, claimed=claimed)

    assert ways.posts(sandbox) == 0


def test_a_lease_swept_by_a_process_that_died_at_once_is_swept_once(sandbox, monkeypatch):
    class Killed(BaseException):
        pass

    def die(name):
        raise Killed

    action = builders.action(builders.order(sandbox=sandbox))
    builders.claimed(action)
    with monkeypatch.context() as patch:
        patch.setattr(leases, "crash_point", die)
        with pytest.raises(Killed):
            ways.sweep_at(61)
    ways.sweep_at(62)
    assert ways.history(action).count("refund.lease_over") == 1
    assert builders.fresh(action).tries == 0


def test_a_held_proposal_is_decided_once_the_switch_is_off(sandbox):
    turn_on(scope="global", reason="drill", actor="person:x")
    action = builders.action(builders.order(sandbox=sandbox))
    assert action.state == State.HELD
    due_at = ways.due_at(action)
    ways.sweep_at(20)
    held = builders.fresh(action)
    assert (held.state, held.decision_count) == (State.HELD, 1)
    assert ways.due_at(action) > due_at

    turn_off(switch_id=Switch.objects.get().pk, actor="person:x")
    ways.sweep_at(60)

    action = builders.fresh(action)
    assert (action.state, action.decision_count) == (State.AUTHORIZED, 2)
    assert dispatch(action_id=action.action_id) == "succeeded"


@pytest.mark.parametrize(
    ("reasons", "ceiling", "state"),
    [
        (("goodwill",), 10_000, State.REJECTED),
        (("requested_by_customer",), 100, State.AWAITING_APPROVAL),
    ],
)
def test_a_held_proposal_is_decided_by_the_policy_of_now(reasons, ceiling, state):
    turn_on(scope="global", reason="drill", actor="person:x")
    action = builders.action(builders.order())
    builders.policy(reasons=reasons, ceiling_minor={"USD": ceiling})
    turn_off(switch_id=Switch.objects.get().pk, actor="person:x")

    ways.sweep_at(60)

    assert builders.fresh(action).state == state


def test_a_proposal_held_too_long_is_told_to_a_person_once():
    turn_on(scope="global", reason="drill", actor="person:x")
    action = builders.action(builders.order())
    ways.sweep_at(TTL - 60)
    assert not Case.objects.exists()

    ways.sweep_at(TTL + 60)

    case = ways.open_cases(action)[Case.Kind.HELD_TOO_LONG]
    assert "kill switch" in case.reason
    Case.objects.update(closed_at=case.opened_at, closed_by="person:x")
    ways.sweep_at(TTL + 600)
    assert Case.objects.count() == 1
    assert builders.fresh(action).state == State.HELD


def test_what_nobody_decided_in_time_expires_with_a_case():
    action = builders.action(builders.order(captured_minor=50_000), amount_minor=20_000)
    ways.sweep_at(TTL - 60)
    assert builders.fresh(action).state == State.AWAITING_APPROVAL

    ways.sweep_at(TTL + 60)

    action = builders.fresh(action)
    assert (action.state, action.due_at) == (State.EXPIRED, None)
    assert "still expects an answer" in ways.open_cases(action)[Case.Kind.EXPIRED].reason


def test_an_approval_that_ends_before_it_was_sent_goes_back_to_a_person(sandbox):
    action = approved(builders.order(sandbox=sandbox, captured_minor=50_000))
    assert action.state == State.AUTHORIZED
    ways.sweep_at(TTL - 60)
    assert builders.fresh(action).state == State.AUTHORIZED

    ways.sweep_at(TTL + 60)

    action = builders.fresh(action)
    assert action.state == State.AWAITING_APPROVAL
    assert "expired" in ways.open_cases(action)[Case.Kind.STALE_APPROVAL].reason
    assert ways.posts(sandbox) == 0


def test_a_switch_that_is_on_does_not_keep_an_approval_alive(sandbox):
    action = approved(builders.order(sandbox=sandbox, captured_minor=50_000))
    turn_on(scope="global", reason="drill", actor="person:x")
    ways.sweep_at(TTL + 60)
    assert builders.fresh(action).state == State.AWAITING_APPROVAL


def test_the_claim_and_the_sweep_send_back_by_the_same_code():
    from reconciliation import decisions

    assert vars(decisions)["send_back"] is claim.send_back


def test_two_sweeps_at_once_are_harmless(sandbox):
    actions = [ways.unknown(sandbox, fault=ways.EXECUTED) for _ in range(6)]
    leased = [builders.action(builders.order(sandbox=sandbox)) for _ in range(4)]
    for action in leased:
        builders.claimed(action)
    reads = ways.reads(sandbox)
    together = threading.Barrier(3)
    failures = []

    def run():
        try:
            builders.skew_clock(61)
            together.wait(timeout=30)
            sweep.sweep()
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert failures == []
    for action in map(builders.fresh, actions):
        assert (action.state, action.tries) == (State.SUCCEEDED, 1)
        assert ways.history(action).count("refund.succeeded") == 1
    assert ways.reads(sandbox) == reads + len(actions)
    for action in map(builders.fresh, leased):
        assert action.state == State.UNKNOWN
        assert ways.history(action).count("refund.lease_over") == 1
    assert len(sandbox.refunds()) == len(actions)


def test_one_action_that_cannot_be_moved_does_not_keep_the_others_waiting(
    sandbox, monkeypatch, caplog
):
    bad = ways.unknown(sandbox, fault=ways.EXECUTED)
    good = ways.unknown(sandbox, fault=ways.EXECUTED)
    look = REFUND.look

    def fails_for_one(*, action):
        if action.action_id == bad.action_id:
            raise RuntimeError("a bug in one row")
        return look(action=action)

    monkeypatch.setattr(REFUND, "look", fails_for_one)
    ways.sweep_at(40)

    assert builders.fresh(good).state == State.SUCCEEDED
    assert builders.fresh(bad).state == State.UNKNOWN
    assert any(getattr(line, "action_id", "") == bad.action_id for line in caplog.records)


def test_leases_end_between_the_reads_of_one_sweep(sandbox, monkeypatch):
    """A lease that runs out while the provider is slow does not wait for the whole sweep."""
    first = ways.unknown(sandbox, fault=ways.EXECUTED)
    second = ways.unknown(sandbox, fault=ways.EXECUTED)
    leased = builders.action(builders.order(sandbox=sandbox))
    builders.claimed(leased)
    look = REFUND.look
    states = []

    def slow(*, action):
        states.append(builders.fresh(leased).state)
        builders.skew_clock(61)
        return look(action=action)

    monkeypatch.setattr(REFUND, "look", slow)
    ways.sweep_at(40)

    assert states == [State.SUBMITTING, State.UNKNOWN]
    assert {builders.fresh(row).state for row in (first, second)} == {State.SUCCEEDED}


def test_a_sweep_stops_reading_when_its_time_is_over(sandbox, settings):
    settings.RECONCILE_SWEEP_SECONDS = 0.05
    for _ in range(3):
        ways.unknown(sandbox, fault=ways.EXECUTED)
    sandbox.latency(100)
    ways.sweep_at(31)
    assert RefundAction.objects.filter(state=State.UNKNOWN).count() == 2


def test_a_sweep_writes_down_that_it_came_through():
    ways.sweep_at(0)
    assert SweepRun.objects.get(name="reconciliation.sweep").handled == 0


def test_the_beat_task_is_the_sweep(sandbox):
    from reconciliation.tasks import sweep_due

    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    builders.skew_clock(31)
    assert sweep_due.name == "reconciliation.sweep"
    assert sweep_due() == 1
    assert builders.fresh(action).state == State.SUCCEEDED
