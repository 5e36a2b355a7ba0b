"""One round after the other: what each look at the provider proves, and what it does not."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

import pytest
from django.conf import settings
from django.db import connection

from approvals.decide import approve
from effects.models import Breaker, Case
from effects.outcomes import Evidence, Succeeded
from effects.states import State
from providers.registry import override_provider
from providers.stripe.adapter import StripeProvider
from reconciliation import escalate, resolve
from reconciliation.sweep import sweep
from refunds.dispatch import dispatch
from refunds.models import ExternalRefund, RefundAttempt
from tests import builders
from tests.reconciliation import ways

pytestmark = pytest.mark.django_db(transaction=True)

# Past the default settle time of 120 s after the send.
SETTLED = 160


def test_a_lost_answer_is_found_by_the_first_round(sandbox):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)

    ways.sweep_at(31)

    action = builders.fresh(action)
    assert action.state == State.SUCCEEDED
    assert action.tries == 1
    assert action.order.refunded_minor == 7_900
    assert action.order.reserved_minor == 0
    assert ways.posts(sandbox) == 1
    (refund,) = sandbox.refunds()
    assert refund["id"] == action.provider_ref
    attempt = RefundAttempt.objects.get(action=action)
    assert (attempt.resolution, attempt.resolved_by) == ("executed", "reconciliation")
    (look,) = ways.looks(action)
    assert look["result"] == "found"
    assert look["try"] == 1
    assert look["refs"] == [refund["id"]]
    assert look["pages"] == 1


def test_a_repair_leaves_the_same_marks_as_the_straight_way(sandbox):
    repaired = ways.unknown(sandbox, fault=ways.EXECUTED)
    ways.sweep_at(31)
    straight = builders.action(builders.order(sandbox=sandbox))
    dispatch(action_id=straight.action_id)

    extra = {"refund.unknown", "refund.looked"}
    assert [kind for kind in ways.history(repaired) if kind not in extra] == ways.history(straight)
    for name in ("refunded_minor", "reserved_minor", "refundable_minor"):
        one, other = builders.fresh(repaired).order, builders.fresh(straight).order
        assert getattr(one, name) == getattr(other, name)


def test_no_round_starts_before_it_is_due(sandbox):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    reads = ways.reads(sandbox)

    ways.sweep_at(5)

    assert ways.reads(sandbox) == reads
    assert builders.fresh(action).tries == 0


def test_not_found_before_the_settle_time_proves_nothing(sandbox):
    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    claimed_at = RefundAttempt.objects.get(action=action).claimed_at

    ways.sweep_at(31)

    action = builders.fresh(action)
    assert action.state == State.UNKNOWN
    assert action.tries == 1
    (look,) = ways.looks(action)
    assert look["result"] == "inconclusive"
    assert "is not: did not happen" in look["remark"]
    assert "settle time" in look["why_inconclusive"]
    # The later tries wait until they can conclude.
    assert ways.due_at(action) >= claimed_at + timedelta(seconds=settings.SETTLE_SECONDS)


def test_later_tries_wait_for_the_settle_time(sandbox, settings):
    settings.RECONCILE_DELAYS_SECONDS = (1, 1, 1)
    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    ways.sweep_at(2)
    for seconds in (10, 60, 100):
        ways.sweep_at(seconds)
    assert builders.fresh(action).tries == 1

    ways.sweep_at(settings.SETTLE_SECONDS + 1)

    assert builders.fresh(action).tries == 2
    assert builders.fresh(action).state == State.AUTHORIZED


def test_not_found_after_the_settle_time_is_sent_again_under_the_same_key(sandbox):
    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)

    ways.sweep_at(SETTLED)

    action = builders.fresh(action)
    assert action.state == State.AUTHORIZED
    assert action.reserved_minor == 7_900
    attempt = RefundAttempt.objects.get(action=action)
    assert attempt.resolution == "not_executed"

    assert dispatch(action_id=action.action_id) == "succeeded"
    first, second = builders.refunds_on_the_wire(sandbox)
    assert first["idempotency_key"] == second["idempotency_key"] == action.action_id
    assert len(sandbox.refunds()) == 1
    assert builders.fresh(action).order.refunded_minor == 7_900


def test_a_request_that_was_delayed_meets_the_second_under_one_key(sandbox):
    """The provider executes the first request between our look and our second request."""
    action = ways.unknown(sandbox, fault="executed-late")
    ways.sweep_at(SETTLED)
    assert builders.fresh(action).state == State.AUTHORIZED
    sandbox.advance(5)  # now the delayed original is executed
    assert len(sandbox.refunds()) == 1

    dispatch(action_id=action.action_id)

    assert builders.fresh(action).state == State.SUCCEEDED
    assert len(sandbox.refunds()) == 1


def test_what_no_longer_fits_its_approval_goes_back_to_a_person(sandbox):
    order = builders.order(sandbox=sandbox, captured_minor=50_000)
    action = builders.action(order, amount_minor=20_000)
    assert action.state == State.AWAITING_APPROVAL
    approve(
        action_id=action.action_id,
        user=builders.person(),
        note="checked",
        seen=builders.seen(action),
    )
    action = ways.send_into(sandbox, builders.fresh(action), fault=ways.NOT_EXECUTED)
    # Another refund of the order goes through meanwhile: the approval was given on other facts.
    builders.allow_all()
    other = builders.action(order, amount_minor=3_000)
    assert dispatch(action_id=other.action_id) == "succeeded"

    ways.sweep_at(SETTLED)

    action = builders.fresh(action)
    assert action.state == State.AWAITING_APPROVAL
    assert action.reserved_minor == 20_000
    assert "did nothing" in ways.open_cases(action)[Case.Kind.STALE_APPROVAL].reason
    assert ways.posts(sandbox) == 2


def test_what_the_policy_would_not_allow_any_more_goes_to_a_person(sandbox):
    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    builders.policy(reasons=("goodwill",))

    ways.sweep_at(SETTLED)

    action = builders.fresh(action)
    assert action.state == State.AWAITING_APPROVAL
    assert action.due_at is not None
    assert "refund.needs_approval" in ways.history(action)


def test_a_kill_switch_does_not_stop_finding_out(sandbox):
    from effects.switches import turn_on

    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    turn_on(scope="global", reason="drill", actor="person:x")

    ways.sweep_at(SETTLED)

    assert builders.fresh(action).state == State.AUTHORIZED
    dispatch(action_id=action.action_id)
    assert ways.posts(sandbox) == 1


def test_a_refund_that_nobody_knows_is_not_paid_twice(sandbox):
    order = builders.order(sandbox=sandbox)
    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED, order=order)
    sandbox.refund_outside(order.payment_ref, amount=7_900)

    ways.sweep_at(SETTLED)

    action = builders.fresh(action)
    assert action.state == State.AWAITING_APPROVAL
    assert ExternalRefund.objects.get().amount_minor == 7_900
    assert action.order.refunded_minor == 7_900
    assert Case.Kind.FOUND_ELSEWHERE in ways.open_cases(action)


def test_three_tries_end_in_a_case_and_polling_stops(sandbox):
    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    sandbox.fault("list-unreadable", times=None)
    for seconds in (31, 31 + 121, 31 + 121 + 601):
        assert not ways.open_cases(action)
        ways.sweep_at(seconds)

    action = builders.fresh(action)
    assert (action.state, action.tries, action.due_at) == (State.UNKNOWN, 3, None)
    case = ways.open_cases(action)[Case.Kind.UNKNOWN_OUTCOME]
    assert case.owner == "case-owner"
    assert "3 tries" in case.reason
    assert "key" in case.reason
    assert case.evidence["last_look"]["result"] == "unreadable"
    assert [look["result"] for look in ways.looks(action)] == ["unreadable"] * 3
    reads = ways.reads(sandbox)
    ways.sweep_at(10_000)
    assert ways.reads(sandbox) == reads
    assert ways.posts(sandbox) == 1


def test_the_window_ends_it_however_many_tries_there_were(sandbox):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    reads = ways.reads(sandbox)

    ways.sweep_at(24 * 3600 + 1)

    action = builders.fresh(action)
    assert (action.state, action.tries, action.due_at) == (State.UNKNOWN, 0, None)
    assert "unknown since" in ways.open_cases(action)[Case.Kind.UNKNOWN_OUTCOME].reason
    assert ways.reads(sandbox) == reads


def test_tries_and_the_first_unknown_are_never_reset(sandbox):
    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    since = action.unknown_since
    ways.sweep_at(SETTLED)
    assert builders.fresh(action).state == State.AUTHORIZED

    action = ways.send_into(sandbox, builders.fresh(action), fault=ways.NOT_EXECUTED)

    assert action.tries == 1
    assert action.unknown_since == since


def test_a_key_past_its_limit_is_never_sent_again_and_ends_in_a_case(sandbox):
    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    late = 21 * 3600
    for seconds in (late, late + 121, late + 121 + 601):
        ways.sweep_at(seconds)
        dispatch(action_id=action.action_id)

    action = builders.fresh(action)
    assert (action.state, action.due_at) == (State.UNKNOWN, None)
    assert {look["why_inconclusive"] for look in ways.looks(action)} == {
        "its key is past the limit for sending again"
    }
    assert "nothing will be sent under it" in (
        ways.open_cases(action)[Case.Kind.UNKNOWN_OUTCOME].reason
    )
    assert ways.posts(sandbox) == 1
    assert sandbox.refunds() == []


def test_a_key_that_grew_too_old_before_the_resend_is_found_out_and_not_sent(sandbox):
    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    ways.sweep_at(SETTLED)
    assert builders.fresh(action).state == State.AUTHORIZED

    builders.skew_clock(21 * 3600)
    dispatch(action_id=action.action_id)

    assert builders.fresh(action).state == State.UNKNOWN
    for seconds in (121, 121 + 601, 3_000):
        ways.sweep_at(21 * 3600 + seconds)
    assert Case.Kind.UNKNOWN_OUTCOME in ways.open_cases(action)
    assert ways.posts(sandbox) == 1


def test_a_cached_500_proves_nothing_and_ends(sandbox):
    """The provider replays the stored 500 for ever; the refund was never made."""
    action = ways.unknown(sandbox, fault=ways.CACHED_500)
    seconds = SETTLED
    for _ in range(8):
        ways.sweep_at(seconds)
        dispatch(action_id=action.action_id)
        assert builders.fresh(action).state in (State.UNKNOWN, State.AUTHORIZED)
        seconds += 700

    action = builders.fresh(action)
    assert (action.state, action.due_at) == (State.UNKNOWN, None)
    assert Case.Kind.UNKNOWN_OUTCOME in ways.open_cases(action)
    assert sandbox.refunds() == []
    assert {request["idempotency_key"] for request in builders.refunds_on_the_wire(sandbox)} == {
        action.action_id
    }


def test_a_cached_500_that_did_it_is_found(sandbox):
    action = ways.unknown(sandbox, fault=ways.CACHED_500_EXECUTED)
    ways.sweep_at(31)
    assert builders.fresh(action).state == State.SUCCEEDED
    assert len(sandbox.refunds()) == 1


def test_a_refusal_that_needed_a_look_is_final_once_nothing_is_found(sandbox):
    action = ways.unknown(sandbox, fault="already-refunded-400")
    ways.sweep_at(1)
    assert builders.fresh(action).state == State.UNKNOWN

    ways.sweep_at(SETTLED)

    action = builders.fresh(action)
    assert action.state == State.FAILED_FINAL
    assert action.order.reserved_minor == 0
    assert Case.Kind.FAILED in ways.open_cases(action)
    assert ways.posts(sandbox) == 1


def test_two_live_refunds_of_one_action_are_an_incident(sandbox):
    order = builders.order(sandbox=sandbox)
    action = ways.unknown(sandbox, fault=ways.EXECUTED, order=order)
    (refund,) = sandbox.refunds()
    sandbox.refund_outside(order.payment_ref, amount=7_900, metadata=refund["metadata"])

    ways.sweep_at(31)

    action = builders.fresh(action)
    assert (action.state, action.provider_ref) == (State.UNKNOWN, "")
    case = ways.open_cases(action)[Case.Kind.INCIDENT]
    assert refund["id"] in case.reason
    # The order is paused: another refund of it is not sent.
    builders.allow_all()
    other = builders.action(order, amount_minor=100)
    assert "paused" in dispatch(action_id=other.action_id)


def test_another_amount_is_an_incident_and_is_not_adopted(sandbox):
    order = builders.order(sandbox=sandbox)
    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED, order=order)
    metadata = {"action_id": action.action_id, "instance": settings.INSTANCE}
    sandbox.refund_outside(order.payment_ref, amount=7_901, metadata=metadata)

    ways.sweep_at(SETTLED)

    action = builders.fresh(action)
    assert (action.state, action.provider_ref) == (State.UNKNOWN, "")
    assert "mismatch_amount" in ways.open_cases(action)[Case.Kind.INCIDENT].reason


def test_what_failed_at_the_provider_has_failed_and_is_owed(sandbox):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    (refund,) = sandbox.refunds()
    sandbox.fail_refund(refund["id"])

    ways.sweep_at(31)

    action = builders.fresh(action)
    assert (action.state, action.provider_ref) == (State.FAILED_FINAL, refund["id"])
    assert action.order.reserved_minor == 0
    assert Case.Kind.FAILED in ways.open_cases(action)
    assert RefundAttempt.objects.get(action=action).resolution == "executed"


class _Unsearchable(StripeProvider):
    """The same provider, which says that it cannot be searched."""

    @property
    def capabilities(self):
        from dataclasses import replace

        return replace(super().capabilities, searchable=False)


def test_a_provider_that_cannot_be_searched_is_a_case_at_once(sandbox):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    unsearchable = _Unsearchable(
        api_key=sandbox.api_key,
        api_base=sandbox.url,
        connect_timeout_seconds=1,
        read_timeout_seconds=1,
        total_timeout_seconds=2,
    )
    reads = ways.reads(sandbox)
    with override_provider("stripe", unsearchable):
        ways.sweep_at(31)

    action = builders.fresh(action)
    assert (action.state, action.tries, action.due_at) == (State.UNKNOWN, 0, None)
    assert "cannot be searched" in ways.open_cases(action)[Case.Kind.UNKNOWN_OUTCOME].reason
    assert ways.reads(sandbox) == reads


class _Killed(BaseException):
    """Stands for the end of the process at one named point."""


def _die_at(monkeypatch, point):
    def crash_point(name):
        if name == point:
            raise _Killed

    monkeypatch.setattr(resolve, "crash_point", crash_point)


@pytest.mark.parametrize("point", ["after-round-opened", "after-round-read", "during-round-record"])
def test_a_try_whose_process_died_is_counted_and_the_next_one_finds(sandbox, monkeypatch, point):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    with monkeypatch.context() as patch:
        _die_at(patch, point)
        with pytest.raises(_Killed):
            ways.sweep_at(31)
    action = builders.fresh(action)
    assert (action.state, action.tries) == (State.UNKNOWN, 1)
    assert ways.looks(action) == []

    ways.sweep_at(31 + 61)

    action = builders.fresh(action)
    assert (action.state, action.tries) == (State.SUCCEEDED, 2)
    assert len(sandbox.refunds()) == 1


def test_three_tries_that_died_go_to_a_person_without_another_read(sandbox, monkeypatch):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    with monkeypatch.context() as patch:
        _die_at(patch, "after-round-opened")
        for seconds in (31, 1_000, 2_000):
            with pytest.raises(_Killed):
                ways.sweep_at(seconds)
    reads = ways.reads(sandbox)

    ways.sweep_at(3_000)

    action = builders.fresh(action)
    assert (action.state, action.tries, action.due_at) == (State.UNKNOWN, 3, None)
    assert Case.Kind.UNKNOWN_OUTCOME in ways.open_cases(action)
    assert ways.reads(sandbox) == reads


def test_an_answer_that_comes_while_a_round_reads_wins(sandbox, monkeypatch):
    """The round saw nothing, past the settle time; then the late answer says: done."""
    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    token = RefundAttempt.objects.get(action=action).token

    def late_answer(name):
        if name == "after-round-read":
            effect = builders.effect(action)
            builders.answered(token, Succeeded(effect=effect, evidence=Evidence()))

    monkeypatch.setattr(resolve, "crash_point", late_answer)
    ways.sweep_at(SETTLED)

    assert builders.fresh(action).state == State.SUCCEEDED
    assert ways.open_cases(action) == {}
    assert ways.looks(action)[-1]["result"] == "overtaken"


def test_a_round_that_was_overtaken_by_a_newer_one_leaves_the_due_time_to_it(sandbox, monkeypatch):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    sandbox.fault("list-unreadable", times=None)
    entered: list[str] = []
    due: list[datetime] = []

    def newer_round(name):
        if name == "after-round-read" and not entered:
            entered.append(name)
            # Far past the lease of the first round, which is still reading.
            ways.sweep_at(1_000)
            due.append(ways.due_at(action))

    monkeypatch.setattr(resolve, "crash_point", newer_round)
    ways.sweep_at(31)

    assert builders.fresh(action).tries == 2
    assert [ways.due_at(action)] == due
    assert [look["try"] for look in ways.looks(action)] == [2, 1]


def test_another_effect_than_the_one_that_settled_it_meanwhile_is_an_incident(sandbox, monkeypatch):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    token = RefundAttempt.objects.get(action=action).token

    def late_answer(name):
        if name == "after-round-read":
            effect = builders.effect(action, ref="re_another")
            builders.answered(token, Succeeded(effect=effect, evidence=Evidence()))

    monkeypatch.setattr(resolve, "crash_point", late_answer)
    ways.sweep_at(31)

    action = builders.fresh(action)
    assert (action.state, action.provider_ref) == (State.SUCCEEDED, "re_another")
    assert "two effects" in ways.open_cases(action)[Case.Kind.INCIDENT].reason


def test_a_round_that_found_it_before_the_late_answer_leaves_nothing_to_add(sandbox):
    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    token = RefundAttempt.objects.get(action=action).token
    ways.sweep_at(31)
    action = builders.fresh(action)

    effect = builders.effect(action, ref=action.provider_ref)
    builders.answered(token, Succeeded(effect=effect, evidence=Evidence()))

    action = builders.fresh(action)
    assert action.state == State.SUCCEEDED
    assert action.order.refunded_minor == 7_900
    assert ways.open_cases(action) == {}


def test_the_breaker_opens_after_five_unreadable_reads_and_burns_no_try(sandbox):
    actions = [ways.unknown(sandbox, fault=ways.EXECUTED) for _ in range(6)]
    sandbox.fault("list-unreadable", times=None)

    ways.sweep_at(31)

    assert sorted(builders.fresh(action).tries for action in actions) == [0, 1, 1, 1, 1, 1]
    breaker = Breaker.objects.get(account="stripe:")
    assert breaker.failures == 5
    (spared,) = [row for row in map(builders.fresh, actions) if row.tries == 0]
    assert spared.due_at == breaker.open_until

    # Half open: one probe, and it closes again when the provider can be read.
    sandbox.clear_faults()
    reads = ways.reads(sandbox)
    ways.sweep_at(31 + 62)
    assert builders.fresh(spared).state == State.SUCCEEDED
    assert ways.reads(sandbox) == reads + 1
    breaker.refresh_from_db()
    assert (breaker.failures, breaker.open_until) == (0, None)


def test_half_open_lets_one_reader_through(sandbox):
    actions = [ways.unknown(sandbox, fault=ways.EXECUTED) for _ in range(7)]
    sandbox.fault("list-unreadable", times=None)
    ways.sweep_at(31)
    assert sorted(builders.fresh(action).tries for action in actions) == [0, 0, 1, 1, 1, 1, 1]

    ways.sweep_at(31 + 62)

    # One of the two was the probe, and what it brought keeps the breaker open for the other.
    assert sorted(builders.fresh(action).tries for action in actions)[:2] == [0, 1]


def test_an_open_breaker_does_not_stop_the_window(sandbox):
    from effects.clock import database_now

    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    builders.skew_clock(24 * 3600 - 30)
    Breaker.objects.create(
        account="stripe:", failures=5, open_until=database_now() + timedelta(hours=2)
    )
    ways.sweep_at(24 * 3600 - 30)
    assert action.unknown_since is not None
    assert ways.due_at(action) == action.unknown_since + timedelta(hours=24)

    ways.sweep_at(24 * 3600 + 1)

    assert Case.Kind.UNKNOWN_OUTCOME in ways.open_cases(action)


def test_a_key_the_provider_does_not_accept_pauses_the_account(sandbox):
    from effects.models import Switch

    action = ways.unknown(sandbox, fault=ways.EXECUTED)
    sandbox.fault("unauthorized-401", match={"method": "GET", "path": "/v1/refunds"})

    ways.sweep_at(31)

    assert builders.fresh(action).state == State.UNKNOWN
    assert Switch.objects.get().scope == "account:stripe:"
    assert Case.objects.get(closed_at__isnull=True).kind == Case.Kind.ACCOUNT_PAUSED


def test_a_round_costs_so_many_queries_and_no_more(sandbox, django_assert_num_queries):
    from effects.clock import database_now
    from refunds.kind import REFUND

    ways.unknown(sandbox, fault=ways.EXECUTED)
    builders.skew_clock(31)
    now = database_now()
    with django_assert_num_queries(20):
        resolve.resolve_one(kind=REFUND, now=now, seen=[])


def test_an_escalation_whose_process_died_is_made_by_the_next_sweep(sandbox, monkeypatch):
    def die(name):
        raise _Killed

    action = ways.unknown(sandbox, fault=ways.NOT_EXECUTED)
    sandbox.fault("list-unreadable", times=None)
    ways.sweep_at(31)
    ways.sweep_at(200)
    with monkeypatch.context() as patch:
        patch.setattr(escalate, "crash_point", die)
        with pytest.raises(_Killed):
            ways.sweep_at(1_000)
    # Case, event and the end of polling are one transaction: none of them, and the try is counted.
    assert (ways.open_cases(action), builders.fresh(action).tries) == ({}, 3)
    assert "refund.escalated" not in ways.history(action)
    reads = ways.reads(sandbox)

    ways.sweep_at(1_100)

    assert Case.Kind.UNKNOWN_OUTCOME in ways.open_cases(action)
    assert ways.history(action).count("refund.escalated") == 1
    assert builders.fresh(action).due_at is None
    assert ways.reads(sandbox) == reads


def test_late_answers_and_rounds_at_the_same_time_settle_each_action_once(sandbox):
    """Case T21: the one who finds out and the one who sent meet on the same rows."""
    actions = [ways.unknown(sandbox, fault=ways.EXECUTED) for _ in range(8)]
    refs = {refund["metadata"]["action_id"]: refund["id"] for refund in sandbox.refunds()}
    tokens = dict(RefundAttempt.objects.values_list("action_id", "token"))
    together = threading.Barrier(2)
    failures: list[BaseException] = []

    def in_a_thread(work):
        def run():
            try:
                builders.skew_clock(31)
                together.wait(timeout=30)
                work()
            except BaseException as error:
                failures.append(error)
            finally:
                connection.close()

        return threading.Thread(target=run)

    def answer():
        for action in reversed(actions):
            effect = builders.effect(action, ref=refs[action.action_id])
            builders.answered(tokens[action.pk], Succeeded(effect=effect, evidence=Evidence()))

    threads = [in_a_thread(sweep), in_a_thread(answer)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert failures == []
    for action in map(builders.fresh, actions):
        assert (action.state, action.order.refunded_minor) == (State.SUCCEEDED, 7_900)
        assert ways.history(action).count("refund.succeeded") == 1
        assert ways.open_cases(action) == {}
