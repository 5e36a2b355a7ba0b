"""What follows from each answer, in every state it can arrive in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings

from effects.clock import database_now
from effects.kinds import Absent, Found, Reading
from effects.models import Case, Switch
from effects.outcomes import (
    Evidence,
    Misconfigured,
    NotSent,
    Outcome,
    Pending,
    RateLimited,
    Refused,
    Succeeded,
    Unknown,
)
from effects.record import CANNOT_SEND_CASE_SECONDS
from effects.states import State
from kernel.errors import Bug
from refunds.kind import REFUND
from refunds.models import ExternalRefund, Order, RefundAction, RefundAttempt, RefundEvent
from tests import builders

pytestmark = pytest.mark.django_db

SEEN = Evidence(http_status=200, request_id="req_1")
KNOWN = "re_known"


def succeeded(action: RefundAction) -> Outcome:
    return Succeeded(effect=builders.effect(action, ref=KNOWN), evidence=SEEN)


def pending(action: RefundAction) -> Outcome:
    return Pending(effect=builders.effect(action, ref=KNOWN, settlement="pending"), evidence=SEEN)


def refused(action: RefundAction) -> Outcome:
    return Refused(code="disputed", evidence=SEEN)


def read_first(action: RefundAction) -> Outcome:
    return Refused(code="already_refunded", evidence=SEEN, read_first=True)


def failed(action: RefundAction) -> Outcome:
    return Refused(
        code="failed",
        evidence=SEEN,
        effect=builders.effect(action, ref=KNOWN, settlement="failed", status="failed"),
    )


def not_sent(action: RefundAction) -> Outcome:
    return NotSent(reason="connect_timeout", evidence=SEEN)


def rate_limited(action: RefundAction) -> Outcome:
    return RateLimited(evidence=SEEN)


def misconfigured(action: RefundAction) -> Outcome:
    return Misconfigured(reason="unauthorized", evidence=SEEN)


def unknown(action: RefundAction) -> Outcome:
    return Unknown(reason="read_timeout", evidence=SEEN)


OUTCOMES: dict[str, Callable[[RefundAction], Outcome]] = {
    made.__name__: made
    for made in (
        succeeded,
        pending,
        refused,
        read_first,
        failed,
        not_sent,
        rate_limited,
        misconfigured,
        unknown,
    )
}

# How the action stands when the answer of its first attempt arrives, and how it came there.


def _unknown_state(action: RefundAction) -> RefundAction:
    return builders.lease_over(action)


def _proved_nothing(action: RefundAction, state: State) -> RefundAction:
    builders.lease_over(action)
    builders.not_executed(action)
    due = database_now() if state is State.AUTHORIZED else None
    return builders.stand_at(action, state, due_at=due)


def _over(state: State) -> Callable[[RefundAction], RefundAction]:
    def stand(action: RefundAction) -> RefundAction:
        _proved_nothing(action, State.AWAITING_APPROVAL)
        return builders.stand_at(action, state)

    return stand


def _second_attempt(action: RefundAction) -> RefundAction:
    _proved_nothing(action, State.AUTHORIZED)
    builders.claimed(action)
    return builders.fresh(action)


def _second_attempt_swept(action: RefundAction) -> RefundAction:
    return builders.lease_over(_second_attempt(action))


def _known(state: State) -> Callable[[RefundAction], RefundAction]:
    """The same effect was read at the provider meanwhile, in this state."""

    def stand(action: RefundAction) -> RefundAction:
        builders.lease_over(action)
        builders.not_executed(action)  # any resolution; the answer may not change it
        due = database_now() if state is State.PENDING else None
        return builders.stand_at(
            action, state, due_at=due, provider_ref=KNOWN, provider_status=state.lower()
        )

    return stand


ARRIVALS: dict[str, Callable[[RefundAction], RefundAction]] = {
    "SUBMITTING": builders.fresh,
    "UNKNOWN": _unknown_state,
    "AUTHORIZED": lambda action: _proved_nothing(action, State.AUTHORIZED),
    "AWAITING_APPROVAL": lambda action: _proved_nothing(action, State.AWAITING_APPROVAL),
    "REJECTED": _over(State.REJECTED),
    "EXPIRED": _over(State.EXPIRED),
    "CANCELLED": _over(State.CANCELLED),
    "PENDING": _known(State.PENDING),
    "SUCCEEDED": _known(State.SUCCEEDED),
    "FAILED_FINAL": _known(State.FAILED_FINAL),
    "SUBMITTING, another attempt open": _second_attempt,
    "UNKNOWN, another attempt unresolved": _second_attempt_swept,
}

_STAYS = {
    "AUTHORIZED": "AUTHORIZED",
    "AWAITING_APPROVAL": "AWAITING_APPROVAL",
    "REJECTED": "REJECTED",
    "EXPIRED": "EXPIRED",
    "CANCELLED": "CANCELLED",
    "PENDING": "PENDING",
    "SUCCEEDED": "SUCCEEDED",
    "FAILED_FINAL": "FAILED_FINAL",
    "SUBMITTING, another attempt open": "SUBMITTING",
    "UNKNOWN, another attempt unresolved": "UNKNOWN",
}


def _from_anywhere(target: str) -> dict[str, str]:
    """Every state but where the same effect is known already: what was read since is newer."""
    return dict.fromkeys(ARRIVALS, target) | {
        name: name for name in ("PENDING", "SUCCEEDED", "FAILED_FINAL")
    }


EXPECTED: dict[str, dict[str, str]] = {
    "succeeded": _from_anywhere("SUCCEEDED"),
    "pending": _from_anywhere("PENDING"),
    "refused": _STAYS | {"SUBMITTING": "FAILED_FINAL", "UNKNOWN": "FAILED_FINAL"},
    "failed": _STAYS | {"SUBMITTING": "FAILED_FINAL", "UNKNOWN": "FAILED_FINAL"},
    "read_first": _STAYS | {"SUBMITTING": "UNKNOWN", "UNKNOWN": "UNKNOWN"},
    "not_sent": _STAYS | {"SUBMITTING": "AUTHORIZED", "UNKNOWN": "AUTHORIZED"},
    "rate_limited": _STAYS | {"SUBMITTING": "AUTHORIZED", "UNKNOWN": "AUTHORIZED"},
    "misconfigured": _STAYS | {"SUBMITTING": "AUTHORIZED", "UNKNOWN": "AUTHORIZED"},
    "unknown": _STAYS | {"SUBMITTING": "UNKNOWN", "UNKNOWN": "UNKNOWN"},
}
RESOLUTION = {
    "succeeded": "executed",
    "pending": "executed",
    "failed": "executed",
    "refused": "not_executed",
    "read_first": "not_executed",
    "not_sent": "not_executed",
    "rate_limited": "not_executed",
    "misconfigured": "not_executed",
    "unknown": "",
}
IN_FLIGHT = ("SUBMITTING", "UNKNOWN", "PENDING")


def _history(action: RefundAction) -> list[str]:
    return list(
        RefundEvent.objects.filter(action=action).order_by("pk").values_list("kind", flat=True)
    )


def _open_cases(action: RefundAction) -> list[str]:
    return sorted(
        Case.objects.filter(action_id=action.action_id, closed_at__isnull=True).values_list(
            "kind", flat=True
        )
    )


@pytest.mark.parametrize("arrival", ARRIVALS)
@pytest.mark.parametrize("word", OUTCOMES)
def test_what_an_answer_makes_of_an_action(word: str, arrival: str) -> None:
    action = builders.action(builders.order())
    token = builders.claimed(action).token
    before = ARRIVALS[arrival](action)
    cases_before, events_before = _open_cases(action), _history(action)
    first_before = RefundAttempt.objects.get(token=token)
    others_before = {
        other.token: other.resolution
        for other in RefundAttempt.objects.filter(action=action).exclude(token=token)
    }
    balance = before.order.version, before.order.reserved_minor, before.order.refunded_minor

    builders.answered(token, OUTCOMES[word](before))

    after = builders.fresh(action)
    expected = EXPECTED[word][arrival]
    assert after.state == expected

    # Its own attempt is closed, and keeps what was known of it before.
    first = RefundAttempt.objects.get(token=token)
    assert first.closed_at is not None
    assert first.resolution == (first_before.resolution or RESOLUTION[word])
    if first_before.closed_at is not None:
        assert (first.outcome, first.closed_at) == (first_before.outcome, first_before.closed_at)

    # One key makes one effect: another attempt is resolved by proof of it, and by nothing else.
    adopted = word in ("succeeded", "pending") and arrival not in (
        "PENDING",
        "SUCCEEDED",
        "FAILED_FINAL",
    )
    for other in RefundAttempt.objects.filter(action=action).exclude(token=token):
        resolved = "executed" if adopted and not others_before[other.token] else None
        assert other.resolution == (resolved or others_before[other.token])

    # Money: in flight it is reserved, done it is refunded, over it is neither.
    keeps = expected in ("AUTHORIZED", "AWAITING_APPROVAL")
    reserved = 7_900 if expected in IN_FLIGHT else before.reserved_minor if keeps else 0
    assert after.reserved_minor == after.order.reserved_minor == reserved
    assert after.order.refunded_minor == (7_900 if expected == "SUCCEEDED" else 0)
    now = after.order.version, after.order.reserved_minor, after.order.refunded_minor
    assert (now[0] == balance[0]) is (now[1:] == balance[1:])
    assert now[0] >= balance[0]

    # History: a late answer is one line, a move is one line.
    new = _history(action)[len(events_before) :]
    assert ("refund.late_answer" in new) is (first_before.closed_at is not None)
    moved = [kind for kind in new if kind != "refund.late_answer"]
    assert len(moved) == (0 if after.state == before.state else 1)

    # Nobody is left alone: it is due, or over, or somebody's.
    if after.state not in ("REJECTED", "EXPIRED", "CANCELLED", "SUCCEEDED", "AWAITING_APPROVAL"):
        assert after.due_at is not None or _open_cases(action)
    opened = sorted(set(_open_cases(action)) - set(cases_before))
    if adopted and before.state in (
        "AUTHORIZED",
        "AWAITING_APPROVAL",
        "REJECTED",
        "EXPIRED",
        "CANCELLED",
    ):
        assert opened == ["unexpected-success"]
    elif after.state == "FAILED_FINAL" != before.state:
        assert opened == ["failed"]
    elif word == "unknown" and before.state in (
        "AUTHORIZED",
        "AWAITING_APPROVAL",
        "FAILED_FINAL",
        "REJECTED",
        "EXPIRED",
        "CANCELLED",
    ):
        # It was taken for undone, and now nobody knows.
        assert opened == ["incident"]
    else:
        assert opened == []


@pytest.mark.parametrize("word", OUTCOMES)
def test_an_answer_is_recorded_with_its_evidence(word: str) -> None:
    action = builders.fresh(builders.action(builders.order()))
    token = builders.claimed(action).token
    builders.answered(token, OUTCOMES[word](action))
    attempt = RefundAttempt.objects.get(token=token)
    assert attempt.outcome.partition(":")[0] == word.replace("read_first", "refused").replace(
        "failed", "refused"
    )
    assert attempt.evidence == {"http_status": 200, "request_id": "req_1", "replayed": False}


def test_a_token_that_no_attempt_carries_is_a_bug() -> None:
    with pytest.raises(Bug):
        builders.answered(uuid4(), Unknown(reason="x", evidence=SEEN))


def test_the_same_answer_recorded_twice_changes_nothing_more() -> None:
    action = builders.fresh(builders.action(builders.order()))
    token = builders.claimed(action).token
    builders.answered(token, succeeded(action))
    first = builders.fresh(action)
    builders.answered(token, succeeded(action))
    second = builders.fresh(action)
    assert (second.state, second.order.version, second.order.refunded_minor) == (
        first.state,
        first.order.version,
        7_900,
    )
    assert _history(action).count("refund.succeeded") == 1


@pytest.mark.parametrize("state", ["SUCCEEDED", "PENDING"])
def test_two_different_refunds_of_one_action_are_an_incident(state: str) -> None:
    action = builders.fresh(builders.action(builders.order()))
    token = builders.claimed(action).token
    _known(State(state))(action)
    other = Succeeded(effect=builders.effect(action, ref="re_second"), evidence=SEEN)

    builders.answered(token, other)

    after = builders.fresh(action)
    assert (after.state, after.provider_ref) == (state, KNOWN)
    assert _open_cases(action) == ["incident"]
    (case,) = Case.objects.filter(action_id=action.action_id, closed_at__isnull=True)
    assert KNOWN in case.reason
    assert "re_second" in case.reason
    assert "refund.incident" in _history(action)
    assert case.owner == settings.CASE_OWNER


def test_a_late_success_after_a_refusal_wins_with_a_case() -> None:
    action = builders.fresh(builders.action(builders.order()))
    token = builders.claimed(action).token
    builders.lease_over(action)
    builders.not_executed(action)
    builders.stand_at(action, State.FAILED_FINAL)  # refused: no effect is known
    builders.answered(token, succeeded(action))
    after = builders.fresh(action)
    assert after.state == State.SUCCEEDED
    assert "unexpected-success" in _open_cases(action)
    assert "failed" not in _open_cases(action)


@pytest.mark.parametrize("state", ["REJECTED", "EXPIRED", "CANCELLED"])
def test_a_late_doubt_about_what_is_over_is_an_incident_once_and_moves_nothing(state: str) -> None:
    action = builders.fresh(builders.action(builders.order()))
    token = builders.claimed(action).token
    before = _over(State(state))(action)
    for _ in range(2):
        builders.answered(token, unknown(action))
    after = builders.fresh(action)
    assert (after.state, after.order.version) == (state, before.order.version)
    assert after.due_at == builders.due(before), "it is read again, day by day"
    (case,) = Case.objects.filter(action_id=action.action_id)
    assert (case.kind, case.closed_at) == (Case.Kind.INCIDENT, None)
    assert "may have been executed after all" in case.reason
    assert "read_timeout" in case.reason
    assert case.evidence["outcome"] == "unknown:read_timeout"


def test_a_late_doubt_about_what_is_over_is_ended_by_proof() -> None:
    """What its case tells a person to look for: the refund is there, and is taken as it is."""
    action = builders.fresh(builders.action(builders.order()))
    token = builders.claimed(action).token
    _over(State.CANCELLED)(action)
    builders.answered(token, unknown(action))
    builders.answered(token, succeeded(action))
    after = builders.fresh(action)
    assert (after.state, after.order.refunded_minor) == (State.SUCCEEDED, 7_900)
    assert _open_cases(action) == ["incident", "unexpected-success"]


def test_a_refusal_that_may_be_our_own_shadow_is_read_at_once() -> None:
    action = builders.fresh(builders.action(builders.order()))
    token = builders.claimed(action).token
    builders.answered(token, read_first(action))
    after = builders.fresh(action)
    assert after.state == State.UNKNOWN
    assert builders.due(action) <= database_now()
    assert after.unknown_since is not None


def test_an_unknown_answer_is_looked_at_after_the_first_delay() -> None:
    action = builders.fresh(builders.action(builders.order()))
    token = builders.claimed(action).token
    builders.answered(token, unknown(action))
    after = builders.fresh(action)
    delay = builders.due(action) - after.state_since
    assert delay == timedelta(seconds=settings.RECONCILE_DELAYS_SECONDS[0])
    assert after.tries == 0


def test_a_mismatched_answer_is_unknown_and_an_incident_that_pauses_the_order() -> None:
    order = builders.order()
    builders.policy(review_beside_open=False, same_amount_window_seconds=0)
    action, sibling = builders.action(order), builders.action(order)
    token = builders.claimed(action).token
    builders.answered(token, Unknown(reason="answer_mismatch", evidence=SEEN, incident=True))
    assert builders.fresh(action).state == State.UNKNOWN
    assert _open_cases(action) == ["incident"]
    with pytest.raises(AssertionError, match="paused by an open incident"):
        builders.claimed(sibling)
    assert builders.fresh(sibling).state == State.AUTHORIZED


def test_turned_away_attempts_back_off_and_become_a_case_after_an_hour() -> None:
    action = builders.action(builders.order())
    pauses = []
    skew = 0.0
    while not Case.objects.filter(action_id=action.action_id).exists():
        token = builders.claimed(action).token
        builders.answered(token, not_sent(action))
        after = builders.fresh(action)
        assert after.state == State.AUTHORIZED
        pauses.append((builders.due(action) - after.state_since).total_seconds())
        assert after.waiting_since is not None
        waited = (after.state_since - after.waiting_since).total_seconds()
        assert bool(_open_cases(action)) is (waited >= CANNOT_SEND_CASE_SECONDS)
        skew += pauses[-1]
        builders.skew_clock(skew)
    assert pauses[0] == 2.0
    assert pauses == sorted(pauses)
    assert max(pauses) == 300.0
    assert len(pauses) < 30
    assert RefundAttempt.objects.filter(action=action, resolution="not_executed").count() == len(
        pauses
    )


def test_a_case_of_what_cannot_be_sent_stays_the_same_case_until_something_is_sent() -> None:
    action = builders.action(builders.order())
    builders.answered(builders.claimed(action).token, not_sent(action))
    for hours in (1, 2, 3):
        builders.skew_clock(hours * 3600.0)
        builders.answered(builders.claimed(action).token, not_sent(action))
    assert Case.objects.filter(action_id=action.action_id).count() == 1
    builders.answered(builders.claimed(action).token, succeeded(builders.fresh(action)))
    assert _open_cases(action) == []
    assert builders.fresh(action).waiting_since is None


def test_a_longer_retry_after_is_obeyed_up_to_five_minutes() -> None:
    for asked, given in ((1.0, 2.0), (60.0, 60.0), (86_400.0, 300.0)):
        action = builders.action(builders.order())
        token = builders.claimed(action).token
        builders.answered(token, RateLimited(evidence=SEEN, retry_after_seconds=asked))
        after = builders.fresh(action)
        assert (builders.due(action) - after.state_since).total_seconds() == given


def test_wrong_credentials_pause_the_account_with_one_case() -> None:
    action, other = builders.action(builders.order()), builders.action(builders.order())
    for row in (action, other):
        if builders.fresh(row) == action:
            builders.answered(builders.claimed(row).token, misconfigured(row))
    (switch,) = Switch.objects.filter(ended_at__isnull=True)
    assert switch.scope == "account:stripe:"
    (case,) = Case.objects.filter(kind="account-paused")
    assert case.resource == "account:stripe:"
    assert builders.fresh(action).state == State.AUTHORIZED
    with pytest.raises(AssertionError, match="kill switch on: account:stripe:"):
        builders.claimed(other)


def test_a_switch_that_ran_out_does_not_stand_in_the_way_of_a_pause() -> None:
    """One switch is on per scope; one whose time is over is off, though nobody ended it."""
    action = builders.action(builders.order())
    now = database_now()
    Switch.objects.create(
        scope="account:stripe:",
        reason="maintenance",
        set_by="operator",
        set_at=now - timedelta(hours=2),
        until=now - timedelta(hours=1),
    )
    builders.answered(builders.claimed(action).token, misconfigured(action))
    with pytest.raises(AssertionError, match="kill switch on"):
        builders.claimed(action)


def _look(
    action: RefundAction, *, strangers: tuple[Any, ...] = (), judgement: Any = None
) -> Reading:
    return Reading(
        judgement=judgement or Absent(),
        strangers=strangers,
        read_at=database_now(),
        evidence={"refunds_seen": len(strangers)},
    )


def test_a_look_that_went_well_is_remembered_on_the_order() -> None:
    action = builders.fresh(builders.action(builders.order()))
    reading = _look(action)
    builders.answered(builders.claimed(action).token, succeeded(action), reading=reading)
    assert builders.fresh(action).order.provider_read_at == reading.read_at


def test_a_refund_made_elsewhere_takes_up_balance_once_and_opens_a_case() -> None:
    action = builders.fresh(builders.action(builders.order()))
    stranger = builders.effect(action, ref="re_stranger", amount_minor=5_000, metadata={})
    version = builders.fresh(action).order.version
    for _ in range(2):
        token = builders.claimed(action).token
        builders.answered(
            token,
            NotSent(reason="unknown_effect_found", evidence=SEEN),
            reading=_look(action, strangers=(stranger,)),
        )
        after = builders.fresh(action)
        assert after.order.refunded_minor == 5_000
        Case.objects.filter(kind="found-elsewhere").update(closed_at=database_now())
    (external,) = ExternalRefund.objects.all()
    assert (external.provider_ref, external.amount_minor) == ("re_stranger", 5_000)
    # The reservation and the stranger, each once.
    assert builders.fresh(action).order.version == version + 2
    assert _history(action).count("order.external_refund_found") == 1


def test_an_overdrawn_order_is_recorded_with_an_incident() -> None:
    action = builders.fresh(builders.action(builders.order(captured_minor=8_000)))
    stranger = builders.effect(action, ref="re_big", amount_minor=8_000, metadata={})
    builders.answered(
        builders.claimed(action).token,
        NotSent(reason="unknown_effect_found", evidence=SEEN),
        reading=_look(action, strangers=(stranger,)),
    )
    order = Order.objects.get(pk=action.order_id)
    assert order.refundable_minor == -7_900
    assert _open_cases(action) == ["found-elsewhere", "incident"]


def test_what_the_look_before_the_send_found_is_adopted() -> None:
    action = builders.fresh(builders.action(builders.order()))
    effect = builders.effect(action, ref=KNOWN)
    builders.answered(
        builders.claimed(action).token,
        Succeeded(effect=effect, evidence=SEEN),
        reading=_look(action, judgement=Found(effect=effect)),
    )
    after = builders.fresh(action)
    assert (after.state, after.provider_ref) == (State.SUCCEEDED, KNOWN)


def test_the_next_refund_of_the_order_is_hinted_when_this_one_is_recorded(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    builders.allow_all()
    order = builders.order()
    action, sibling = builders.action(order), builders.action(order)
    hinted: list[str] = []
    monkeypatch.setattr(type(REFUND), "hint", lambda self, *, action_id: hinted.append(action_id))
    token = builders.claimed(action).token
    with django_capture_on_commit_callbacks(execute=True):
        builders.answered(token, succeeded(builders.fresh(action)))
    assert hinted == [sibling.action_id]
