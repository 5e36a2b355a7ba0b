"""The dispatch sweep: a hint that was lost, repeated, or never taken loses nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.conf import settings

from effects.clock import database_now
from effects.models import SweepRun
from effects.states import State
from refunds import dispatch_due, hint
from refunds.dispatch_due import HINT_AGAIN_SECONDS, hint_due_actions
from refunds.kind import REFUND
from refunds.tasks import dispatch_action
from tests import builders

pytestmark = pytest.mark.django_db

Hints = Callable[..., list[str]]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Hints:
    """Watch what is published; `broker(down=True)` refuses it as an unreachable broker does."""

    def watch(*, down: bool = False) -> list[str]:
        published: list[str] = []

        def delay(action_id: str) -> None:
            if down:
                raise ConnectionError("the broker is down")
            published.append(action_id)

        monkeypatch.setattr(hint, "publish", delay)
        return published

    return watch


def after_the_sweep_s_wait() -> None:
    builders.skew_clock(settings.DISPATCH_SWEEP_SECONDS + 1)


def test_what_a_lost_hint_left_behind_is_found(broker: Hints) -> None:
    published = broker()
    action = builders.action(builders.order())
    assert hint_due_actions() == 0  # the hint after the commit has its time first
    after_the_sweep_s_wait()
    assert hint_due_actions() == 1
    assert published == [action.action_id]
    run = SweepRun.objects.get(name="refunds.dispatch_due")
    assert run.handled == 1


def test_what_was_hinted_is_not_hinted_again_at_once(broker: Hints) -> None:
    published = broker()
    builders.action(builders.order())
    after_the_sweep_s_wait()
    hint_due_actions()
    assert hint_due_actions() == 0
    builders.skew_clock(settings.DISPATCH_SWEEP_SECONDS + 2 + HINT_AGAIN_SECONDS)
    assert hint_due_actions() == 1
    assert len(published) == 2


def test_with_the_broker_down_it_stays_due(broker: Hints) -> None:
    broker(down=True)
    action = builders.action(builders.order())
    after_the_sweep_s_wait()
    assert hint_due_actions() == 1
    assert builders.due(action) <= database_now()
    published = broker()
    assert hint_due_actions() == 1
    assert published == [action.action_id]


def test_a_hint_that_cannot_be_given_is_said_and_never_raises(broker: Hints) -> None:
    broker(down=True)
    assert REFUND.hint(action_id="refund:order-1:request-1") is False
    broker()
    assert REFUND.hint(action_id="refund:order-1:request-1") is True


def test_only_what_is_authorized_and_due_is_hinted(broker: Hints) -> None:
    published = broker()
    waiting = builders.action(builders.order(), amount_minor=15_000)
    assert waiting.state == State.AWAITING_APPROVAL
    builders.claimed(builders.action(builders.order()))
    builders.skew_clock(settings.SUBMIT_LEASE_SECONDS + settings.APPROVAL_TTL_SECONDS)
    assert hint_due_actions() == 0
    assert published == []


def test_one_sweep_is_bounded_and_takes_the_oldest_first(
    broker: Hints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch_due, "BATCH_MAX", 2)
    published = broker()
    actions = [builders.action(builders.order()) for _ in range(3)]
    after_the_sweep_s_wait()
    assert hint_due_actions() == 2
    assert published == [action.action_id for action in actions[:2]]
    assert hint_due_actions() == 1


@pytest.mark.parametrize("forged", ["", "refund:order-1:request-none", "x" * 1_000, "'; DROP"])
def test_a_forged_message_does_no_harm(forged: str) -> None:
    assert "not" in dispatch_action(forged)
