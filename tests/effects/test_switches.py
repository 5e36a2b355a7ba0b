"""Kill switches: on once, off once, and only for scopes that exist."""

from __future__ import annotations

from datetime import timedelta

import pytest

from effects.claim import NotClaimed, claim
from effects.clock import database_now
from effects.models import Switch
from effects.switches import turn_off, turn_on
from kernel.errors import InvalidInput
from refunds.kind import REFUND
from tests import builders

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("scope", ["global", "kind:refund", "account:stripe:", "agent:agent-1"])
def test_a_switch_that_is_on_stops_the_claim_until_it_is_off(scope):
    action = builders.action(builders.order())
    assert turn_on(scope=scope, reason="drill", actor="person:x")
    assert not turn_on(scope=scope, reason="drill again", actor="person:y")
    found = claim(kind=REFUND, action_id=action.action_id, worker="test")
    assert isinstance(found, NotClaimed)
    assert scope in found.reason
    switch = Switch.objects.get()
    assert turn_off(switch_id=switch.pk, actor="person:y")
    assert not turn_off(switch_id=switch.pk, actor="person:z")
    switch.refresh_from_db()
    assert (switch.set_by, switch.ended_by) == ("person:x", "person:y")
    assert not isinstance(claim(kind=REFUND, action_id=action.action_id, worker="test"), NotClaimed)


def test_a_switch_whose_time_is_over_can_be_turned_on_again():
    now = database_now()
    Switch.objects.create(scope="global", reason="over", set_by="x", set_at=now, until=now)
    assert turn_on(scope="global", reason="again", actor="person:x")
    assert Switch.objects.filter(ended_at__isnull=True).count() == 1


def test_a_longer_stop_follows_a_shorter_one_without_a_gap_and_never_the_other_way():
    soon = database_now() + timedelta(minutes=5)
    later = soon + timedelta(hours=1)
    assert turn_on(scope="global", reason="five minutes", actor="person:x", until=soon)
    assert not turn_on(scope="global", reason="one minute", actor="person:y", until=soon)
    assert turn_on(scope="global", reason="an hour", actor="person:y", until=later)
    assert turn_on(scope="global", reason="until I say so", actor="person:z")
    assert not turn_on(scope="global", reason="an hour", actor="person:x", until=later)
    found = list(Switch.objects.order_by("pk"))
    assert [switch.reason for switch in found] == ["five minutes", "an hour", "until I say so"]
    assert [switch.ended_at for switch in found] == [found[1].set_at, found[2].set_at, None]
    assert found[0].ended_by == "stopped for longer by person:y"


@pytest.mark.parametrize("actor", ["", " ", "x" * 81, "two\nlines", "a\x00"])
def test_nobody_flips_a_switch_without_saying_who(actor):
    with pytest.raises(InvalidInput, match="by: must say who you are"):
        turn_on(scope="global", reason="drill", actor=actor)
    assert not Switch.objects.exists()
    turn_on(scope="global", reason="drill", actor="person:x")
    switch = Switch.objects.get()
    with pytest.raises(InvalidInput, match="by: must say who you are"):
        turn_off(switch_id=switch.pk, actor=actor)
    switch.refresh_from_db()
    assert switch.ended_at is None


@pytest.mark.parametrize(
    "scope",
    ["", "everything", "global\n", "kind:", "agent:", "agent:a b", "account:stripe", "a\x00"],
)
def test_a_scope_that_would_stop_nothing_is_refused(scope):
    with pytest.raises(InvalidInput, match="scope"):
        turn_on(scope=scope, reason="drill", actor="person:x")
    assert not Switch.objects.exists()


def test_a_kind_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(InvalidInput, match="no kind 'refunds'; there is: refund"):
        turn_on(scope="kind:refunds", reason="drill", actor="person:x")
    assert not Switch.objects.exists()


@pytest.mark.parametrize("reason", ["", " ", "x" * 501, "a\x00"])
def test_a_switch_needs_a_reason(reason):
    with pytest.raises(InvalidInput, match="reason"):
        turn_on(scope="global", reason=reason, actor="person:x")
