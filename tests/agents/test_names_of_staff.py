"""What an agent reads of an action names nobody of the staff, whatever kind of case is open."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User

from agents.answers import read_answer
from approvals.decide import reject
from effects.clock import database_now
from effects.models import Case
from effects.outcomes import Evidence, NotSent
from effects.states import State
from effects.switches import turn_on
from providers.sandbox import Sandbox
from reconciliation.case_acts import Done, SecondNeeded
from refunds.dispatch import dispatch
from refunds.models import Order, RefundAction
from tests import builders
from tests.approvals.ways import awaiting, say_yes, tiered_policy
from tests.reconciliation import ways
from tests.reconciliation.test_case_acts import looked_twice

pytestmark = pytest.mark.django_db(transaction=True)

DAY = 24 * 3600
NAMES = ("ada.lovelace", "bob.kahn")
Story = Callable[[Sandbox, User, User], RefundAction]


def member(name: str) -> User:
    """Somebody who may do everything that is done here."""
    user = builders.person(name, tier=3)
    acts = Permission.objects.filter(codename__in=["settle_case", "declare_not_executed"])
    user.user_permissions.add(*acts)
    return User.objects.get(pk=user.pk)


def approved(of: Sandbox | Order, *people: User) -> RefundAction:
    tiered_policy()
    order = of if isinstance(of, Order) else builders.order(captured_minor=50_000, sandbox=of)
    action = awaiting(order=order)
    for person in people:
        say_yes(action, person)
    return builders.fresh(action)


def unknown(sandbox: Sandbox, ada: User, bob: User) -> RefundAction:
    found = looked_twice(sandbox)
    assert isinstance(found.give_up(ada), SecondNeeded)
    return found.now()


def given_up(sandbox: Sandbox, ada: User, bob: User) -> RefundAction:
    found = looked_twice(sandbox)
    assert isinstance(found.give_up(ada), SecondNeeded)
    assert isinstance(found.give_up(bob), Done)
    return found.now()


def new_key(sandbox: Sandbox, ada: User, bob: User) -> RefundAction:
    found = looked_twice(sandbox)
    assert isinstance(found.new_key(ada), SecondNeeded)
    assert isinstance(found.new_key(bob), Done)
    return found.now()


def stale(sandbox: Sandbox, ada: User, bob: User) -> RefundAction:
    action = approved(sandbox, ada, bob)
    User.objects.filter(pk=ada.pk).update(is_active=False)
    dispatch(action_id=action.action_id)
    return action


def expired(sandbox: Sandbox, ada: User, bob: User) -> RefundAction:
    action = approved(sandbox, ada)
    RefundAction.objects.filter(pk=action.pk).update(due_at=database_now())
    ways.sweep_at(1)
    return action


def held(sandbox: Sandbox, ada: User, bob: User) -> RefundAction:
    turn_on(scope="global", reason="drill", actor=f"person:{ada.username}")
    action = builders.action(builders.order())
    ways.sweep_at(30 * DAY)
    return action


def cannot_send(sandbox: Sandbox, ada: User, bob: User) -> RefundAction:
    action = approved(sandbox, ada, bob)
    for seconds in (0, 4_000):
        builders.skew_clock(seconds)
        token = builders.claimed(action).token
        builders.answered(token, NotSent(reason="connection_refused", evidence=Evidence()))
    return action


def pending(sandbox: Sandbox, ada: User, bob: User) -> RefundAction:
    sandbox.settings(pending_settles_after_seconds=None)
    order = builders.order(captured_minor=50_000)
    sandbox.payment(amount=50_000, id=order.payment_ref, behaviour="pending")
    action = approved(order, ada, bob)
    dispatch(action_id=action.action_id)
    ways.sweep_at(7 * DAY + 60)
    return action


def tampered_with(sandbox: Sandbox, ada: User, bob: User) -> RefundAction:
    action = approved(sandbox, ada, bob)
    with builders.past_the_triggers():
        RefundAction.objects.filter(pk=action.pk).update(reason="goodwill")
    dispatch(action_id=action.action_id)
    return action


def found_elsewhere(sandbox: Sandbox, ada: User, bob: User) -> RefundAction:
    action = approved(sandbox, ada, bob)
    sandbox.refund_outside(action.order.payment_ref, amount=3_000)
    dispatch(action_id=action.action_id)
    return action


def paid_after_a_no(sandbox: Sandbox, ada: User, bob: User) -> RefundAction:
    action = approved(sandbox)
    reject(action_id=action.action_id, user=ada, note="no", seen=builders.seen(action))
    return builders.stand_at(action, State.SUCCEEDED, provider_ref="re_1")


STORIES: dict[Case.Kind, Story] = {
    Case.Kind.UNKNOWN_OUTCOME: unknown,
    Case.Kind.FAILED: given_up,
    Case.Kind.STALE_APPROVAL: stale,
    Case.Kind.EXPIRED: expired,
    Case.Kind.HELD_TOO_LONG: held,
    Case.Kind.CANNOT_SEND: cannot_send,
    Case.Kind.PENDING_TOO_LONG: pending,
    Case.Kind.INCIDENT: tampered_with,
    Case.Kind.FOUND_ELSEWHERE: found_elsewhere,
    Case.Kind.UNEXPECTED_SUCCESS: paid_after_a_no,
}
# About no single action, so no answer holds one.
ABOUT_NO_ACTION = {
    Case.Kind.ACCOUNT_PAUSED,
    Case.Kind.CONTRADICTION,
    Case.Kind.LIMIT,
    Case.Kind.QUEUE,
}


def told(action: RefundAction, people: tuple[User, User]) -> str:
    """The case in the agent's answer, in which nobody is named."""
    answer = read_answer(action_id=action.action_id, proposer=action.proposed_by)
    assert answer is not None
    assert not re.search("|".join(re.escape(user.username) for user in people), str(answer))
    return answer.case.reason if answer.case else ""


@pytest.fixture
def people() -> tuple[User, User]:
    return member(NAMES[0]), member(NAMES[1])


@pytest.mark.parametrize("kind", STORIES)
def test_a_case_of_each_kind_names_no_staff_to_an_agent(
    sandbox: Sandbox, people: tuple[User, User], kind: Case.Kind
) -> None:
    action = STORIES[kind](sandbox, *people)
    assert kind in ways.open_cases(action)
    assert told(action, people)


def test_a_new_key_names_no_staff_to_an_agent(sandbox: Sandbox, people: tuple[User, User]) -> None:
    told(new_key(sandbox, *people), people)


def test_every_kind_of_case_about_an_action_has_its_story() -> None:
    assert set(Case.Kind) == set(STORIES) | ABOUT_NO_ACTION
