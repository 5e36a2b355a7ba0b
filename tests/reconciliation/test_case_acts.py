"""What people may do about an unknown outcome: each act, and everything that refuses it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import DatabaseError, IntegrityError, connection, transaction

from approvals.models import CaseAct
from effects.clock import database_now
from effects.models import Case
from effects.outcomes import Evidence, Refused, Succeeded, Unknown
from effects.states import State
from providers.sandbox import Sandbox
from reconciliation.case_acts import (
    Done,
    NotDone,
    Result,
    SecondNeeded,
    Why,
    Word,
    allow_new_key,
    give_up,
    link_refund,
    send_again,
    withdraw,
)
from reconciliation.check_now import check_now
from reconciliation.circumstances import case_version
from reconciliation.possible_acts import CONSEQUENCES, Name, possible_acts
from refunds.dispatch import dispatch
from refunds.kind import REFUND
from refunds.models import RefundAction, RefundAttempt, RefundEvent
from tests import builders
from tests.reconciliation import ways

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600
# The window of 24 hours and the key's 20 are over.
ESCALATED = 24 * HOUR + 1
# Two look-ups, an hour apart.
FIRST_LOOK = 25 * HOUR
SECOND_LOOK = FIRST_LOOK + HOUR + 1
NOTE = "looked through the provider's dashboard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclear:
    """An unknown outcome in front of people, and how to act on it."""

    action: RefundAction
    case: Case

    def word(self, **fields: Any) -> Word:
        values: dict[str, Any] = {
            "reason": "provider_shows_nothing",
            "note": NOTE,
            "seen_version": case_version(kind=REFUND, action=self.action),
        }
        return Word(**(values | fields))

    def new_key(self, user: User, *, typed: str = "79.00", **fields: Any) -> Result:
        return allow_new_key(
            case_id=self.case.case_id, user=user, word=self.word(**fields), typed_amount=typed
        )

    def give_up(self, user: User, **fields: Any) -> Result:
        return give_up(case_id=self.case.case_id, user=user, word=self.word(**fields))

    def link(self, user: User, ref: str, **fields: Any) -> Result:
        return link_refund(
            case_id=self.case.case_id, user=user, word=self.word(**fields), provider_ref=ref
        )

    def send_again(self, user: User, **fields: Any) -> Result:
        return send_again(case_id=self.case.case_id, user=user, word=self.word(**fields))

    def withdraw(self, user: User, **fields: Any) -> Result:
        return withdraw(case_id=self.case.case_id, user=user, word=self.word(**fields))

    def now(self) -> RefundAction:
        return builders.fresh(self.action)

    def why_not(self, name: Name, user: User) -> str:
        acts = possible_acts(case=self.case, user=user, now=database_now())
        (act,) = (act for act in acts if act.name is name)
        assert act.enabled is (not act.why_not)
        return act.why_not


def member(name: str, *codenames: str) -> User:
    user = builders.person(name, may_decide=False)
    user.user_permissions.add(*Permission.objects.filter(codename__in=codenames))
    return User.objects.get(pk=user.pk)


@pytest.fixture
def grace() -> User:
    return member("grace", "settle_case", "declare_not_executed")


@pytest.fixture
def ada() -> User:
    return member("ada", "settle_case", "declare_not_executed")


def in_front_of_people(action: RefundAction) -> Unclear:
    """Bring an unknown outcome to its case by letting the window pass."""
    ways.sweep_at(ESCALATED)
    case = ways.open_cases(action)[Case.Kind.UNKNOWN_OUTCOME]
    return Unclear(action=action, case=case)


def unclear(sandbox: Sandbox, **fields: Any) -> Unclear:
    return in_front_of_people(ways.unknown(sandbox, fault=ways.NOT_EXECUTED, **fields))


def look_at(action: RefundAction, seconds: float) -> None:
    builders.skew_clock(seconds)
    assert check_now(action_id=action.action_id, actor="person:test").asked


def looked_twice(sandbox: Sandbox, **fields: Any) -> Unclear:
    found = unclear(sandbox, **fields)
    look_at(found.action, FIRST_LOOK)
    look_at(found.action, SECOND_LOOK)
    return found


def with_case(action: RefundAction, kind: str = Case.Kind.UNKNOWN_OUTCOME) -> Unclear:
    """An action with a case that a person opened, whatever its state."""
    now = database_now()
    case = Case.objects.create(
        kind=kind,
        effect="refund",
        action_id=action.action_id,
        resource=str(action.order),
        reason="nobody knows",
        owner="owner",
        opened_at=now,
        due_at=now,
    )
    return Unclear(action=action, case=case)


def ours(action: RefundAction) -> dict[str, str]:
    return {"action_id": action.action_id, "instance": action.instance}


def refused(result: Result, why: Why) -> str:
    assert isinstance(result, NotDone), result
    assert result.why is why, result
    return result.sentence


def done(result: Result) -> Done:
    assert isinstance(result, Done), result
    return result


# -- what every act demands -----------------------------------------------------------------------

ACTS = ["new_key", "give_up", "send_again", "withdraw"]


BAD_WORDS: list[tuple[dict[str, str], Why]] = [
    ({"reason": "because"}, Why.BAD_REASON),
    ({"reason": ""}, Why.BAD_REASON),
    ({"note": "too short"}, Why.BAD_NOTE),
    ({"note": "  too short                "}, Why.BAD_NOTE),
    ({"note": "\n" * 20}, Why.BAD_NOTE),
    ({"note": "a zero \x00 in a long note"}, Why.BAD_NOTE),
    ({"note": "half of a pair \ud800 in a long note"}, Why.BAD_NOTE),
    ({"note": "x" * 2_001}, Why.BAD_NOTE),
]


def test_an_act_needs_a_reason_and_a_note(sandbox, grace):
    found = looked_twice(sandbox)
    before = ways.history(found.action)
    for changed, why in BAD_WORDS:
        for act in ACTS:
            refused(getattr(found, act)(grace, **changed), why)
        refused(found.link(grace, "re_1", **changed), why)
    assert ways.history(found.action) == before


def test_an_act_needs_its_permission(sandbox):
    found = looked_twice(sandbox)
    nobody = member("nobody")
    for act in ACTS:
        assert "permission" in refused(getattr(found, act)(nobody), Why.NOT_PERMITTED)
    refused(found.link(nobody, "re_1"), Why.NOT_PERMITTED)


def test_who_may_settle_cases_may_not_declare_for_that_alone(sandbox):
    found = looked_twice(sandbox)
    clerk = member("clerk", "settle_case")
    refused(found.new_key(clerk), Why.NOT_PERMITTED)
    refused(found.give_up(clerk), Why.NOT_PERMITTED)
    assert CaseAct.objects.count() == 0


def test_an_old_page_does_nothing_and_says_how_old_it_is(sandbox, grace):
    found = looked_twice(sandbox)
    seen = case_version(kind=REFUND, action=found.action)
    look_at(found.action, SECOND_LOOK + 20)
    for act in ACTS:
        sentence = refused(getattr(found, act)(grace, seen_version=seen), Why.CHANGED_SINCE)
        assert sentence.startswith("3 new events since you opened this page.")
    refused(found.link(grace, "re_1", seen_version=seen), Why.CHANGED_SINCE)
    assert found.now().state == State.UNKNOWN


def test_a_version_from_the_future_is_no_version(sandbox, grace):
    found = looked_twice(sandbox)
    refused(found.give_up(grace, seen_version=10_000), Why.CHANGED_SINCE)


def test_a_case_that_does_not_exist_or_is_about_no_action_takes_no_act(sandbox, grace):
    import uuid

    word = Word(reason="other", note=NOTE, seen_version=0)
    refused(give_up(case_id=uuid.uuid4(), user=grace, word=word), Why.NO_CASE)
    now = database_now()
    case = Case.objects.create(
        kind=Case.Kind.ACCOUNT_PAUSED,
        resource="account:stripe:",
        reason="401",
        owner="owner",
        opened_at=now,
        due_at=now,
    )
    refused(give_up(case_id=case.case_id, user=grace, word=word), Why.NO_CASE)
    acts = possible_acts(case=case, user=grace, now=now)
    assert [(act.name, act.enabled) for act in acts] == [(Name.ASSIGN, True), (Name.SNOOZE, False)]
    assert "cannot be put off any more" in acts[1].why_not


def test_a_closed_case_takes_no_act(sandbox, grace):
    found = looked_twice(sandbox)
    Case.objects.update(closed_at=database_now(), closed_by="person:x", resolution="done")
    assert "closed" in refused(found.give_up(grace), Why.NOT_NOW)


# -- check now, in two ways -----------------------------------------------------------------------


def test_each_look_says_which_way_it_looked(sandbox):
    found = unclear(sandbox)
    look_at(found.action, FIRST_LOOK)
    totals = RefundEvent.objects.get(action=found.action, kind="refund.totals_read")
    assert (totals.data["method"], totals.data["absent"]) == ("totals", True)
    assert ways.looks(found.action)[-1]["method"] == "list"
    assert ways.looks(found.action)[-1]["absent"] is True


def test_money_that_the_list_does_not_explain_is_not_absent(sandbox, grace):
    found = looked_twice(sandbox)
    sandbox.fault("list-lags", seconds=3600)
    sandbox.refund_outside(found.action.order.payment_ref, amount=7_900)
    builders.skew_clock(SECOND_LOOK + 60)
    checked = check_now(action_id=found.action.action_id, actor="person:grace")
    assert "79.00 USD of what went back is in no refund that is listed" in checked.sentence
    assert "two look-ups" in refused(found.new_key(grace), Why.NOT_NOW)


# -- possible acts --------------------------------------------------------------------------------


def test_every_act_is_there_with_one_sentence_and_why_it_is_off(sandbox, grace):
    found = unclear(sandbox)
    acts = possible_acts(case=found.case, user=grace, now=database_now())
    assert [act.name for act in acts] == list(Name)
    for act in acts:
        assert act.consequence == CONSEQUENCES[act.name]
        assert act.enabled is (act.why_not == "")
    on = {act.name for act in acts if act.enabled}
    assert on == {Name.CHECK, Name.LINK, Name.ASSIGN, Name.SNOOZE}
    people = {act.name: act.people for act in acts}
    assert (people[Name.NEW_KEY], people[Name.GIVE_UP], people[Name.CHECK]) == (2, 2, 1)


def test_reading_what_is_possible_changes_nothing(sandbox, grace):
    found = looked_twice(sandbox)
    before, reads = ways.history(found.action), ways.reads(sandbox)
    possible_acts(case=found.case, user=grace, now=database_now())
    assert ways.history(found.action) == before
    assert ways.reads(sandbox) == reads


# -- link -----------------------------------------------------------------------------------------


def made_outside(sandbox: Sandbox, found: Unclear, **fields: Any) -> str:
    values: dict[str, Any] = {"amount": 7_900, "metadata": {}}
    made = sandbox.refund_outside(found.action.order.payment_ref, **(values | fields))
    return str(made["id"])


def test_a_refund_that_carries_our_id_is_linked_by_one_person(sandbox, grace):
    found = unclear(sandbox)
    ref = made_outside(sandbox, found, metadata=ours(found.action))

    result = done(found.link(grace, ref))

    assert result.state == State.SUCCEEDED
    action = found.now()
    assert (action.provider_ref, action.order.refunded_minor) == (ref, 7_900)
    assert ways.open_cases(action) == {}
    attempt = RefundAttempt.objects.get(action=action)
    assert (attempt.resolution, attempt.resolved_by) == ("executed", "person:grace")
    event = RefundEvent.objects.get(action=action, kind="refund.case_act")
    assert (event.data["act"], event.data["about"], event.data["note"]) == ("link", ref, NOTE)
    assert ways.posts(sandbox) == 1


def test_a_refund_without_our_id_is_linked_by_two_people(sandbox, grace, ada):
    found = unclear(sandbox)
    ref = made_outside(sandbox, found)

    assert isinstance(found.link(grace, ref), SecondNeeded)
    assert found.now().state == State.UNKNOWN
    assert "second person" in refused(found.link(grace, ref), Why.NOT_NOW)
    assert found.now().state == State.UNKNOWN

    assert done(found.link(ada, ref)).state == State.SUCCEEDED
    assert found.now().order.refunded_minor == 7_900
    rows = CaseAct.objects.order_by("pk").values_list("person__username", "place", "subject")
    assert list(rows) == [("grace", 1, ref), ("ada", 2, ref)]


def test_two_people_who_name_different_refunds_have_not_agreed(sandbox, grace, ada):
    found = unclear(sandbox)
    one, other = made_outside(sandbox, found), made_outside(sandbox, found)
    assert isinstance(found.link(grace, one), SecondNeeded)
    assert isinstance(found.link(ada, other), SecondNeeded)
    assert found.now().state == State.UNKNOWN


def test_a_refund_made_elsewhere_is_counted_once_when_it_is_linked(sandbox, grace, ada):
    found = unclear(sandbox)
    ref = made_outside(sandbox, found)
    look_at(found.action, FIRST_LOOK)  # it is booked as a stranger's
    assert found.now().order.refunded_minor == 7_900

    found.link(grace, ref)
    done(found.link(ada, ref))

    order = found.now().order
    assert (order.refunded_minor, order.reserved_minor) == (7_900, 0)


def test_a_strangers_refund_is_never_linked_and_the_attempt_to_is_remembered(sandbox, grace, ada):
    found = unclear(sandbox)
    stranger = builders.order(sandbox=sandbox)
    ref = str(sandbox.refund_outside(stranger.payment_ref, amount=7_900)["id"])

    for person in (grace, ada):
        sentence = refused(found.link(person, ref), Why.NOT_LINKED)
        assert "another payment" in sentence

    assert found.now().state == State.UNKNOWN
    assert CaseAct.objects.count() == 0
    event = RefundEvent.objects.filter(action=found.action, kind="refund.link_refused").first()
    assert event is not None
    assert (event.actor, event.data["about"]) == ("person:grace", ref)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"amount": 7_899}, "78.99 USD, not 79.00 USD"),
        ({"metadata": {"action_id": "refund:order-x:request-y"}}, "belongs to another refund"),
        ({"metadata": {"instance": "another-shop"}}, "belongs to another refund"),
    ],
)
def test_a_refund_that_differs_is_not_linked(sandbox, grace, fields, words):
    found = unclear(sandbox)
    ref = made_outside(sandbox, found, **fields)
    assert words in refused(found.link(grace, ref), Why.NOT_LINKED)


def test_a_failed_refund_is_not_linked(sandbox, grace):
    found = unclear(sandbox)
    ref = made_outside(sandbox, found)
    sandbox.fail_refund(ref)
    assert "failed" in refused(found.link(grace, ref), Why.NOT_LINKED)


def test_a_refund_of_another_action_is_not_linked(sandbox, grace):
    builders.allow_all()
    order = builders.order(sandbox=sandbox)
    sibling = builders.action(order, request_id="sibling")
    dispatch(action_id=sibling.action_id)
    action = builders.action(order)
    builders.claimed(action)
    action = builders.lease_over(action)
    found = with_case(action)
    ref = builders.fresh(sibling).provider_ref
    assert "another" in refused(found.link(grace, ref), Why.NOT_LINKED)


def test_what_is_no_id_never_reaches_the_provider(sandbox, grace):
    found = unclear(sandbox)
    asked = len(sandbox.requests(method="GET"))
    for ref in ("", "re_1/../../charges", "re_1?x=1", "x" * 81, "re 1", "r\u00e9_1", "re_1\n.."):
        refused(found.link(grace, ref), Why.BAD_REFERENCE)
    assert len(sandbox.requests(method="GET")) == asked


def test_an_id_that_the_provider_does_not_know_pauses_nothing(sandbox, grace):
    from effects.models import Switch

    found = unclear(sandbox)
    refused(found.link(grace, "re_unheard"), Why.UNREADABLE)
    assert not Switch.objects.exists()
    assert found.now().state == State.UNKNOWN


def test_a_link_is_for_what_is_in_question(sandbox, grace):
    action = builders.action(builders.order(sandbox=sandbox))
    dispatch(action_id=action.action_id)
    found = with_case(builders.fresh(action), Case.Kind.INCIDENT)
    assert "succeeded" in refused(found.link(grace, "re_1"), Why.NOT_NOW)


# -- send again -----------------------------------------------------------------------------------


def young_unknown(sandbox: Sandbox) -> Unclear:
    return with_case(ways.unknown(sandbox, fault=ways.NOT_EXECUTED))


def test_a_young_key_is_sent_again_after_a_look_that_showed_nothing(sandbox, grace):
    found = young_unknown(sandbox)
    look_at(found.action, 60)  # before the settle time: it proves nothing
    builders.skew_clock(130)

    assert done(found.send_again(grace)).state == State.AUTHORIZED

    assert dispatch(action_id=found.action.action_id) == "succeeded"
    first, second = builders.refunds_on_the_wire(sandbox)
    assert first["idempotency_key"] == second["idempotency_key"]
    assert len(sandbox.refunds()) == 1
    attempt = RefundAttempt.objects.get(action=found.action, number=1)
    assert (attempt.resolution, attempt.resolved_by) == ("not_executed", "person:grace")


def test_nothing_is_sent_again_before_the_settle_time(sandbox, grace):
    found = young_unknown(sandbox)
    look_at(found.action, 60)
    assert "still be on its way" in refused(found.send_again(grace), Why.NOT_NOW)


def test_nothing_is_sent_again_on_an_old_look(sandbox, grace):
    found = young_unknown(sandbox)
    assert "first" in refused(_at(found, 130).send_again(grace), Why.NOT_NOW)
    look_at(found.action, 60)
    assert "first" in refused(_at(found, 60 + 121).send_again(grace), Why.NOT_NOW)


def test_nothing_is_sent_again_under_an_old_key(sandbox, grace):
    found = unclear(sandbox)
    look_at(found.action, FIRST_LOOK)
    assert "may have forgotten it" in refused(found.send_again(grace), Why.NOT_NOW)


def test_what_the_last_look_before_a_repeat_finds_is_adopted(sandbox, grace):
    found = young_unknown(sandbox)
    look_at(found.action, 60)
    made_outside(sandbox, found, metadata=ours(found.action))
    builders.skew_clock(130)
    sentence = refused(found.send_again(grace), Why.SEEN_OTHERWISE)
    assert "The provider shows it." in sentence
    assert found.now().state == State.SUCCEEDED
    assert ways.posts(sandbox) == 1


def test_nothing_is_sent_again_while_the_provider_cannot_be_read(sandbox, grace):
    found = young_unknown(sandbox)
    look_at(found.action, 60)
    builders.skew_clock(130)
    sandbox.fault("list-unreadable")
    refused(found.send_again(grace), Why.UNREADABLE)
    assert found.now().state == State.UNKNOWN


def _at(found: Unclear, seconds: float) -> Unclear:
    builders.skew_clock(seconds)
    return found


# -- a new key ------------------------------------------------------------------------------------


def test_two_people_open_a_new_key_and_it_must_be_approved_anew(sandbox, grace, ada):
    found = looked_twice(sandbox)

    assert isinstance(found.new_key(grace), SecondNeeded)
    action = found.now()
    assert (action.state, action.generation) == (State.UNKNOWN, 1)

    assert done(found.new_key(ada)).state == State.AWAITING_APPROVAL

    action = found.now()
    assert (action.generation, action.key_first_used_at) == (2, None)
    assert (action.tries, action.unknown_since, action.reserved_minor) == (0, None, 7_900)
    attempt = RefundAttempt.objects.get(action=action)
    assert (attempt.resolution, attempt.resolved_by) == ("not_executed", "people:grace,ada")
    assert Case.Kind.UNKNOWN_OUTCOME not in ways.open_cases(action)
    acts = RefundEvent.objects.filter(action=action, kind="refund.case_act").order_by("pk")
    assert [(e.actor, e.data["stage"], e.data["after"]) for e in acts] == [
        ("person:grace", "asked for a second person", ""),
        ("person:ada", "done", "grace"),
    ]
    assert ways.posts(sandbox) == 1


def with_new_key(sandbox: Sandbox, grace: User, ada: User) -> Unclear:
    found = looked_twice(sandbox)
    found.new_key(grace)
    done(found.new_key(ada))
    return found


def test_a_new_key_is_sent_once_and_under_its_own_name(sandbox, grace, ada):
    builders.allow_all()
    found = with_new_key(sandbox, grace, ada)
    builders.approved(found.now())

    assert dispatch(action_id=found.action.action_id) == "succeeded"

    first, second = builders.refunds_on_the_wire(sandbox)
    assert first["idempotency_key"] == found.action.action_id
    assert second["idempotency_key"] == f"{found.action.action_id}:g2"
    assert found.now().order.refunded_minor == 7_900
    assert len(sandbox.refunds()) == 1


def test_the_look_before_the_new_keys_send_finds_a_late_success_of_the_old(sandbox, grace, ada):
    builders.allow_all()
    found = with_new_key(sandbox, grace, ada)
    made_outside(sandbox, found, metadata=ours(found.action))
    builders.approved(found.now())

    assert dispatch(action_id=found.action.action_id) == "succeeded"

    assert ways.posts(sandbox) == 1
    assert found.now().order.refunded_minor == 7_900
    assert len(sandbox.refunds()) == 1


def late_success(action: RefundAction) -> str:
    """The frozen worker of the old key wakes up with the provider's yes."""
    attempt = RefundAttempt.objects.get(action=action, number=1)
    effect = builders.effect(action, ref="re_late")
    builders.answered(attempt.token, Succeeded(effect=effect, evidence=builders.NO_EVIDENCE))
    return effect.ref


def test_a_late_success_of_the_old_key_wins_while_a_decision_is_awaited(sandbox, grace, ada):
    found = with_new_key(sandbox, grace, ada)

    ref = late_success(found.action)

    action = found.now()
    assert (action.state, action.provider_ref) == (State.SUCCEEDED, ref)
    assert (action.order.refunded_minor, action.order.reserved_minor) == (7_900, 0)
    assert Case.Kind.UNEXPECTED_SUCCESS in ways.open_cases(action)


def test_a_late_success_of_the_old_key_after_the_new_ones_is_an_incident_and_counted_once(
    sandbox, grace, ada
):
    builders.allow_all()
    found = with_new_key(sandbox, grace, ada)
    builders.approved(found.now())
    dispatch(action_id=found.action.action_id)
    known = found.now().provider_ref

    late_success(found.action)

    action = found.now()
    assert (action.state, action.provider_ref) == (State.SUCCEEDED, known)
    assert action.order.refunded_minor == 7_900
    assert "two effects" in ways.open_cases(action)[Case.Kind.INCIDENT].reason


def test_a_late_success_of_the_old_key_fences_off_the_new_one(sandbox, grace, ada):
    builders.allow_all()
    found = with_new_key(sandbox, grace, ada)
    builders.approved(found.now())
    claimed = builders.claimed(found.action)
    late_success(found.action)

    from effects.send import send

    builders.skew_clock(SECOND_LOOK + 5)
    send(kind=REFUND, claimed=claimed)

    assert ways.posts(sandbox) == 1
    assert found.now().order.refunded_minor == 7_900


def test_a_late_doubt_about_the_old_key_is_an_incident_when_it_was_given_up(sandbox, grace, ada):
    found = looked_twice(sandbox)
    found.give_up(grace)
    done(found.give_up(ada))
    attempt = RefundAttempt.objects.get(action=found.action, number=1)
    builders.answered(attempt.token, Unknown(reason="deadline", evidence=builders.NO_EVIDENCE))
    assert Case.Kind.INCIDENT in ways.open_cases(found.action)


def test_the_typed_amount_must_be_the_actions(sandbox, grace):
    found = looked_twice(sandbox)
    for typed in ("", "79", "7900", "79.0", "79.00 EUR", "790.0", "-79.00", "\u0667\u0669.00"):
        assert "79.00 USD" in refused(found.new_key(grace, typed=typed), Why.BAD_AMOUNT)
    assert CaseAct.objects.count() == 0


@pytest.mark.parametrize("typed", ["79.00", " 79.00 ", "79.00 USD", "79.00usd"])
def test_the_typed_amount_may_name_its_currency(sandbox, grace, typed):
    assert isinstance(looked_twice(sandbox).new_key(grace, typed=typed), SecondNeeded)
    assert CaseAct.objects.get().typed_amount_minor == 7_900


def test_the_second_must_type_the_amount_as_well(sandbox, grace, ada):
    found = looked_twice(sandbox)
    found.new_key(grace)
    refused(found.new_key(ada, typed="97.00"), Why.BAD_AMOUNT)
    assert found.now().generation == 1


@pytest.mark.parametrize("act", ["new_key", "give_up"])
class TestADeclaration:
    def test_waits_until_the_key_is_past_its_limit(self, sandbox, grace, act):
        found = young_unknown(sandbox)
        builders.skew_clock(130)
        assert "cannot pay twice" in refused(getattr(found, act)(grace), Why.NOT_NOW)

    def test_needs_a_look_in_each_way(self, sandbox, grace, act):
        found = unclear(sandbox)
        sentence = refused(getattr(found, act)(grace), Why.NOT_NOW)
        assert "There are 0 by the list and 0 by the total" in sentence

    def test_needs_the_looks_spaced_apart(self, sandbox, grace, act):
        found = unclear(sandbox)
        look_at(found.action, FIRST_LOOK)
        look_at(found.action, FIRST_LOOK + HOUR - 60)
        sentence = refused(getattr(found, act)(grace), Why.NOT_NOW)
        assert "Check the provider again from" in sentence

    def test_believes_no_look_from_before_the_settle_time(self, sandbox, grace, act, settings):
        found = with_case(ways.unknown(sandbox, fault=ways.NOT_EXECUTED))
        look_at(found.action, 60)
        look_at(found.action, 60 + 15)
        settings.CASE_LOOKS_APART_SECONDS = 5
        builders.skew_clock(ESCALATED)
        sentence = refused(getattr(found, act)(grace), Why.NOT_NOW)
        assert "There are 0 by the list and 0 by the total" in sentence

    def test_is_not_made_twice_by_one_person(self, sandbox, grace, act):
        found = looked_twice(sandbox)
        assert isinstance(getattr(found, act)(grace), SecondNeeded)
        assert "already" in refused(getattr(found, act)(grace), Why.NOT_NOW)
        assert found.now().state == State.UNKNOWN

    def test_is_not_made_by_the_proposer(self, sandbox, act):
        agent = member("agent-1", "settle_case", "declare_not_executed")
        found = looked_twice(sandbox)
        assert "proposed it" in refused(getattr(found, act)(agent), Why.NOT_NOW)

    def test_is_not_made_by_whoever_answers_for_the_proposer(self, sandbox, grace, act):
        found = looked_twice(sandbox)
        with builders.past_the_triggers():
            RefundAction.objects.filter(pk=found.action.pk).update(proposer_owner=grace)
        assert "answers for" in refused(getattr(found, act)(grace), Why.NOT_NOW)

    def test_waits_for_the_case_of_a_refund_made_elsewhere(self, sandbox, grace, act):
        found = looked_twice(sandbox)
        with_case(found.action, Case.Kind.FOUND_ELSEWHERE)
        assert "refund made elsewhere" in refused(getattr(found, act)(grace), Why.NOT_NOW)

    def test_is_not_completed_when_a_refund_is_found_by_the_last_look(
        self, sandbox, grace, ada, act
    ):
        found = looked_twice(sandbox)
        getattr(found, act)(grace)
        made_outside(sandbox, found, metadata=ours(found.action))
        refused(getattr(found, act)(ada), Why.SEEN_OTHERWISE)
        action = found.now()
        assert (action.state, action.generation) == (State.SUCCEEDED, 1)

    def test_is_not_completed_when_a_stranger_refunded_meanwhile(self, sandbox, grace, ada, act):
        found = looked_twice(sandbox)
        getattr(found, act)(grace)
        made_outside(sandbox, found)
        assert "elsewhere" in refused(getattr(found, act)(ada), Why.NOT_NOW)
        action = found.now()
        assert (action.state, action.generation) == (State.UNKNOWN, 1)
        assert action.order.refunded_minor == 7_900

    def test_is_not_completed_while_the_provider_cannot_be_read(self, sandbox, grace, ada, act):
        found = looked_twice(sandbox)
        getattr(found, act)(grace)
        sandbox.fault("list-unreadable")
        refused(getattr(found, act)(ada), Why.UNREADABLE)
        assert found.now().state == State.UNKNOWN

        assert isinstance(getattr(found, act)(ada), Done)

    def test_is_not_completed_while_the_total_cannot_be_read(self, sandbox, grace, ada, act):
        found = looked_twice(sandbox)
        getattr(found, act)(grace)
        path = f"/v1/payment_intents/{found.action.order.payment_ref}"
        sandbox.fault("html-502", match={"method": "GET", "path": path})
        sentence = refused(getattr(found, act)(ada), Why.SEEN_OTHERWISE)
        assert "do not both show nothing" in sentence
        assert found.now().state == State.UNKNOWN

    def test_is_not_completed_by_a_word_of_long_ago(self, sandbox, grace, ada, act, settings):
        found = looked_twice(sandbox)
        getattr(found, act)(grace)
        builders.skew_clock(SECOND_LOOK + settings.APPROVAL_TTL_SECONDS + 1)
        assert isinstance(getattr(found, act)(ada), SecondNeeded)
        assert found.now().state == State.UNKNOWN
        assert [row.round for row in CaseAct.objects.order_by("pk")] == [1, 2]

    @pytest.mark.parametrize("lost", ["account", "permission"])
    def test_is_not_completed_on_the_word_of_who_may_no_longer(
        self, sandbox, grace, ada, act, lost
    ):
        found = looked_twice(sandbox)
        getattr(found, act)(grace)
        if lost == "account":
            User.objects.filter(pk=grace.pk).update(is_active=False)
        else:
            grace.user_permissions.clear()
        assert found.why_not(Name(act), ada) == ""
        assert isinstance(getattr(found, act)(ada), SecondNeeded)
        assert found.now().state == State.UNKNOWN
        assert "already" in refused(getattr(found, act)(ada), Why.NOT_NOW)

    def test_takes_one_person_beside_a_stored_refusal(self, sandbox, grace, act):
        action = builders.action(builders.order(sandbox=sandbox))
        claimed = builders.claimed(action)
        answer = Refused(code="already_refunded", evidence=Evidence(), read_first=True)
        builders.answered(claimed.token, answer)
        found = with_case(builders.fresh(action))
        builders.skew_clock(ESCALATED)

        acts = possible_acts(case=found.case, user=grace, now=database_now())
        assert {a.people for a in acts if a.name.value == act} == {1}
        done(getattr(found, act)(grace))

        attempt = RefundAttempt.objects.get(action=action)
        assert attempt.resolution == "not_executed"
        state = found.now().state
        assert state == (State.AWAITING_APPROVAL if act == "new_key" else State.FAILED_FINAL)
        # The provider's own no is the proof that a remedy may rest on.
        assert ("refund.failed" in ways.history(action)) is (act == "give_up")

    def test_waits_for_a_lease(self, sandbox, grace, act):
        action = builders.action(builders.order(sandbox=sandbox))
        claimed = builders.claimed(action)
        builders.answered(
            claimed.token, Unknown(reason="read_timeout", evidence=builders.NO_EVIDENCE)
        )
        found = with_case(builders.fresh(action))
        assert "lease" in refused(getattr(found, act)(grace), Why.NOT_NOW)


def test_words_about_different_acts_do_not_add_up(sandbox, grace, ada):
    found = looked_twice(sandbox)
    assert isinstance(found.new_key(grace), SecondNeeded)
    assert isinstance(found.give_up(ada), SecondNeeded)
    assert found.now().state == State.UNKNOWN


def test_a_page_says_whose_word_waits_for_a_second_person(sandbox, grace, ada):
    found = looked_twice(sandbox)
    found.give_up(grace)
    acts = possible_acts(case=found.case, user=ada, now=database_now())
    (act,) = (act for act in acts if act.name is Name.GIVE_UP)
    assert act.enabled
    assert act.waits_for_second[0].startswith("grace asked for it at ")
    assert "already" in found.why_not(Name.GIVE_UP, grace)


# -- give up --------------------------------------------------------------------------------------


def test_two_people_give_up_and_nothing_is_ever_sent_again(sandbox, grace, ada):
    found = looked_twice(sandbox)
    found.give_up(grace)

    assert done(found.give_up(ada)).state == State.FAILED_FINAL

    action = found.now()
    assert (action.order.reserved_minor, action.order.refunded_minor) == (0, 0)
    assert "given up by two people" in ways.open_cases(action)[Case.Kind.FAILED].reason
    assert RefundAttempt.objects.get(action=action).resolved_by == "people:grace,ada"
    assert dispatch(action_id=action.action_id) != "succeeded"
    ways.sweep_at(SECOND_LOOK + 2 * HOUR)
    assert ways.posts(sandbox) == 1


def test_what_was_given_up_is_read_again_for_thirty_days(sandbox, grace, ada):
    found = looked_twice(sandbox)
    found.give_up(grace)
    done(found.give_up(ada))
    reads = ways.reads(sandbox)

    ways.sweep_at(SECOND_LOOK + 23 * HOUR)
    assert ways.reads(sandbox) == reads
    ways.sweep_at(SECOND_LOOK + 24 * HOUR + 60)
    assert ways.reads(sandbox) == reads + 1
    assert found.now().state == State.FAILED_FINAL

    made_outside(sandbox, found, metadata=ours(found.action))
    ways.sweep_at(SECOND_LOOK + 49 * HOUR)
    action = found.now()
    assert action.state == State.SUCCEEDED
    assert Case.Kind.UNEXPECTED_SUCCESS in ways.open_cases(action)


def test_the_watch_over_what_was_given_up_ends(sandbox, grace, ada):
    found = looked_twice(sandbox)
    found.give_up(grace)
    done(found.give_up(ada))
    reads = ways.reads(sandbox)
    ways.sweep_at(SECOND_LOOK + 31 * 24 * HOUR)
    assert ways.reads(sandbox) == reads
    assert found.now().due_at is None


def test_a_late_success_after_giving_up_wins_with_a_case(sandbox, grace, ada):
    found = looked_twice(sandbox)
    found.give_up(grace)
    done(found.give_up(ada))

    late_success(found.action)

    action = found.now()
    assert action.state == State.SUCCEEDED
    assert action.order.refunded_minor == 7_900
    assert Case.Kind.UNEXPECTED_SUCCESS in ways.open_cases(action)


# -- withdraw -------------------------------------------------------------------------------------


def test_a_refund_that_was_never_sent_is_withdrawn(sandbox, grace):
    found = with_case(builders.action(builders.order(sandbox=sandbox)), kind=Case.Kind.CANNOT_SEND)
    assert done(found.withdraw(grace, reason="not_owed")).state == State.CANCELLED
    assert ways.open_cases(found.action) == {}
    assert RefundEvent.objects.get(kind="refund.case_act").data["reason_code"] == "not_owed"
    assert dispatch(action_id=found.action.action_id) != "succeeded"
    assert ways.posts(sandbox) == 0


def test_a_refund_that_was_sent_is_not_withdrawn_before_it_is_found_out(sandbox, grace):
    found = young_unknown(sandbox)
    assert "found out first" in refused(found.withdraw(grace), Why.NOT_NOW)
    claimed = builders.action(builders.order(sandbox=sandbox))
    builders.claimed(claimed)
    on_the_wire = with_case(builders.fresh(claimed))
    assert "found out first" in refused(on_the_wire.withdraw(grace), Why.NOT_NOW)


def test_a_refund_that_proved_not_executed_is_withdrawn(sandbox, grace, ada):
    found = with_new_key(sandbox, grace, ada)
    again = with_case(found.now(), kind=Case.Kind.CANNOT_SEND)
    assert done(again.withdraw(grace)).state == State.CANCELLED
    assert found.now().order.reserved_minor == 0


def test_what_is_over_is_not_withdrawn(sandbox, grace):
    action = builders.action(builders.order(sandbox=sandbox))
    dispatch(action_id=action.action_id)
    found = with_case(builders.fresh(action), Case.Kind.INCIDENT)
    assert "nothing to withdraw" in refused(found.withdraw(grace), Why.NOT_NOW)


# -- what the database itself refuses -------------------------------------------------------------


def row(found: Unclear, user: User, **fields: Any) -> CaseAct:
    values: dict[str, Any] = {
        "case": found.case,
        "action_id": found.action.action_id,
        "generation": 1,
        "act": "give_up",
        "round": 1,
        "place": 1,
        "person": user,
        "reason": "other",
        "note": NOTE,
        "seen_version": 1,
        "at": database_now(),
    }
    return CaseAct.objects.create(**(values | fields))


def test_the_database_lets_nobody_be_both_people(sandbox, grace):
    found = unclear(sandbox)
    row(found, grace)
    with pytest.raises(DatabaseError), transaction.atomic():
        row(found, grace, place=2)
    with pytest.raises(IntegrityError), transaction.atomic():
        row(found, grace)


def test_the_database_knows_no_second_without_a_first(sandbox, grace, ada):
    found = unclear(sandbox)
    row(found, grace)
    for fields in ({"round": 2}, {"act": "new_key", "typed_amount_minor": 1}, {"generation": 2}):
        with pytest.raises(DatabaseError, match="nobody else"), transaction.atomic():
            row(found, ada, place=2, **fields)
    row(found, ada, place=2)


def test_the_database_takes_no_word_that_says_nothing(sandbox, grace):
    found = unclear(sandbox)
    for fields in (
        {"note": "short"},
        {"note": "              short              "},
        {"reason": "because"},
        {"place": 3},
        {"act": "new_key"},
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            row(found, grace, **fields)


def test_the_database_changes_no_word(sandbox, grace):
    found = unclear(sandbox)
    row(found, grace)
    for sql in ("UPDATE approvals_caseact SET place = 2", "DELETE FROM approvals_caseact"):
        with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(sql)


def in_sql(sql: str, *parameters: Any) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql, parameters)


NEW_KEY_SQL = (
    "UPDATE refunds_refundaction SET state = 'AWAITING_APPROVAL', generation = generation + %s, "
    "key_first_used_at = NULL WHERE id = %s"
)
RESOLVE_SQL = (
    "UPDATE refunds_refundattempt SET resolution = 'not_executed', resolved_at = now(), "
    "resolved_by = %s WHERE action_id = %s"
)


def test_the_database_opens_no_key_without_two_people(sandbox, grace, ada):
    found = unclear(sandbox)
    pk = found.action.pk
    with pytest.raises(DatabaseError, match="cannot have a new key"):
        in_sql(NEW_KEY_SQL, 1, pk)  # its attempt is unresolved
    in_sql(RESOLVE_SQL, "reconciliation", pk)
    with pytest.raises(DatabaseError, match="needs two people"):
        in_sql(NEW_KEY_SQL, 1, pk)
    row(found, grace, act="new_key", typed_amount_minor=7_900)
    with pytest.raises(DatabaseError, match="needs two people"):
        in_sql(NEW_KEY_SQL, 1, pk)
    row(found, ada, act="new_key", typed_amount_minor=7_900, place=2)
    with pytest.raises(DatabaseError, match="cannot have a new key"):
        in_sql(NEW_KEY_SQL, 2, pk)
    in_sql(NEW_KEY_SQL, 1, pk)
    assert found.now().generation == 2


def test_the_database_counts_a_key_only_on_its_way_back_to_a_decision(sandbox, grace, ada):
    found = unclear(sandbox)
    in_sql(RESOLVE_SQL, "reconciliation", found.action.pk)
    row(found, grace, act="new_key", typed_amount_minor=7_900)
    row(found, ada, act="new_key", typed_amount_minor=7_900, place=2)
    for state in ("UNKNOWN", "FAILED_FINAL", "SUCCEEDED", "AUTHORIZED"):
        with pytest.raises(DatabaseError, match="cannot have a new key"):
            in_sql(
                "UPDATE refunds_refundaction SET state = %s, generation = 2, "
                "provider_ref = 're_1', key_first_used_at = NULL WHERE id = %s",
                state,
                found.action.pk,
            )


def test_the_database_calls_nothing_resolved_by_two_people_who_were_not(sandbox, grace, ada):
    found = unclear(sandbox)
    row(found, grace)
    with pytest.raises(DatabaseError, match="not resolved by two people"):
        in_sql(RESOLVE_SQL, "people:grace,ada", found.action.pk)
    row(found, ada, place=2)
    in_sql(RESOLVE_SQL, "people:grace,ada", found.action.pk)


def test_two_people_who_agree_at_once_are_one_agreement(sandbox, grace, ada):
    """The action's lock keeps them apart: the later one finds that the case has changed."""
    found = looked_twice(sandbox)
    found.give_up(grace)
    third = member("third", "settle_case", "declare_not_executed")
    word, together = found.word(), threading.Barrier(2)
    results: list[Result] = []

    def agree(user: User) -> None:
        try:
            builders.skew_clock(SECOND_LOOK + 10)
            together.wait(timeout=10)
            results.append(give_up(case_id=found.case.case_id, user=user, word=word))
        finally:
            connection.close()

    threads = [threading.Thread(target=agree, args=[user]) for user in (ada, third)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    agreed = [result for result in results if isinstance(result, Done)]
    late = [result for result in results if isinstance(result, NotDone)]
    assert (len(agreed), len(late)) == (1, 1)
    refused(late[0], Why.CHANGED_SINCE)
    assert CaseAct.objects.count() == 2
    assert RefundEvent.objects.filter(kind="refund.given_up").count() == 1
    assert found.now().order.reserved_minor == 0


def test_the_looks_must_be_as_far_apart_as_the_installation_says(sandbox, grace, settings):
    settings.CASE_LOOKS_APART_SECONDS = 15
    found = unclear(sandbox)
    look_at(found.action, FIRST_LOOK)
    look_at(found.action, FIRST_LOOK + 16)
    assert isinstance(found.give_up(grace), SecondNeeded)
