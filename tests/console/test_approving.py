"""The page on which people decide: who must, who has, on what, and what it may repeat."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from approvals.models import Approval
from effects.clock import database_now
from effects.states import State
from refunds.models import ExternalRefund, RefundAction
from refunds.propose import ProposalLine
from tests import builders
from tests.approvals.ways import awaiting, move_on, tiered_policy

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _tiers() -> None:
    tiered_policy()


def page(row: Any, what: str = "change") -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_{what}", args=[row.pk])


def browser(name: str, *, tier: int = 3) -> Client:
    """A person of that tier, logged in, who may see the pages."""
    user = builders.person(name, tier=tier)
    user.user_permissions.add(*Permission.objects.filter(codename__startswith="view_"))
    client = Client()
    client.force_login(User.objects.get(pk=user.pk))
    return client


def shown(client: Client, row: Any) -> str:
    answer = client.get(page(row))
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", answer.content.decode())


def press(client: Client, row: RefundAction, what: str = "approve", **changed: str) -> str:
    """Send the form as the page shows it; what the next page says."""
    fields = dict(re.findall(r'name="(seen_\w+)" value="([^"]*)"', shown(client, row)))
    assert set(fields) == {
        "seen_version", "seen_payload_hash", "seen_round", "seen_policy_version"
    }  # fmt: skip
    answer = client.post(page(row, what), {"note": "both are owed", **fields, **changed})
    assert answer.status_code == 302
    return client.get(answer["Location"]).content.decode()


def test_two_people_approve_one_after_the_other_and_each_sees_who_has():
    action, alice, bob = awaiting(), browser("alice"), browser("bob")
    text = shown(alice, action)
    assert "It needs 2 people of tier 3 or above." in text
    assert "You may decide up to tier 3." in text
    assert "Approved so far" not in text

    assert "Nothing is sent before 1 more person approves it" in press(alice, action)
    assert builders.fresh(action).state == State.AWAITING_APPROVAL
    text = shown(bob, action)
    assert "Approved so far by alice; 1 more is needed." in text
    assert "alice, tier 3" in text

    assert "Approved. A worker sends it." in press(bob, action)
    assert builders.fresh(action).state == State.AUTHORIZED
    assert "Decide" not in re.findall(r"<h2>(.*?)</h2>", shown(bob, action))


def test_the_second_press_of_one_person_is_told_apart():
    action, alice = awaiting(), browser("alice")
    press(alice, action)
    assert "needs somebody else as well" in press(alice, action)
    assert Approval.objects.count() == 1


def test_what_exactly_is_sent_is_on_the_page():
    action = awaiting(note="not this")
    text = shown(browser("alice"), action)
    for words in (
        action.order.payment_ref,
        action.payload_hash,
        "400.00 USD",
        "requested_by_customer",
        "&quot;amount&quot;:40000",
    ):
        assert words in text, words


def test_what_each_person_was_shown_stays_on_the_page():
    action, alice, bob = awaiting(), browser("alice"), browser("bob")
    press(alice, action)
    move_on(action.order, captured_minor=48_000)
    press(bob, action)
    text = shown(bob, action)
    first, second = text.index("alice, tier 3"), text.index("bob, tier 3")
    assert "500.00 USD" in text[first:second]
    assert "480.00 USD" in text[second:]
    assert "Approved so far by bob; 1 more is needed." in text
    assert "approvals_lapsed" in text


def test_a_tier_that_is_too_low_is_told_on_the_page():
    action, carol = awaiting(), browser("carol", tier=1)
    assert "You may decide up to tier 1." in shown(carol, action)
    assert "It needs approval of tier 3, and yours is tier 1" in press(carol, action)
    assert builders.fresh(action).state == State.AWAITING_APPROVAL


def test_whoever_answers_for_the_agent_reads_why_approve_is_not_theirs_and_may_reject():
    alice = browser("alice")
    action = awaiting(proposer_owner_id=User.objects.get(username="alice").pk)
    text = shown(alice, action)
    assert "You cannot approve it." in text
    assert "You answer for agent-1" in text
    assert re.search(r"<button formaction=[^>]*approve/[^>]* disabled>", text)
    assert "You answer for agent-1" in press(alice, action)
    assert "Rejected. Nothing is sent." in press(alice, action, "reject")


@pytest.mark.parametrize("name", ["seen_version", "seen_round", "seen_policy_version"])
@pytest.mark.parametrize("value", ["", "-1", "x", "1e3", "9" * 30, "\u0661"])
def test_a_form_that_cannot_say_what_was_shown_is_a_bad_request(name, value):
    action, alice = awaiting(), browser("alice")
    fields = dict(re.findall(r'name="(seen_\w+)" value="([^"]*)"', shown(alice, action)))
    answer = alice.post(page(action, "approve"), {**fields, name: value})
    assert answer.status_code == 400
    assert builders.fresh(action).state == State.AWAITING_APPROVAL
    assert not Approval.objects.exists()


def test_another_round_or_policy_than_the_one_shown_decides_nothing():
    action, alice = awaiting(), browser("alice")
    for changed in ({"seen_round": "2"}, {"seen_policy_version": "1"}):
        assert "Nothing was decided" in press(alice, action, **changed)
    assert not Approval.objects.exists()


# -- side by side ---------------------------------------------------------------------------------


def test_what_it_may_repeat_stands_beside_it():
    builders.policy()
    order = builders.order(captured_minor=50_000)
    first = builders.action(order, amount_minor=7_900)
    builders.claimed(first)
    builders.stand_at(first, State.SUCCEEDED, provider_ref="re_1")
    line = ProposalLine(line_id="lamp", amount_minor=7_900)
    second = builders.action(order, amount_minor=7_900, lines=(line,))
    assert second.state == State.AWAITING_APPROVAL
    text = shown(browser("alice"), second)
    table = text[text.index("Side by side with what it may repeat") :]
    table = table[: table.index("</table>")]
    assert table.count("<tr>") == 3
    assert table.index("this one") < table.index("duplicate_suspect")
    assert f'href="{page(first)}"' in table
    assert table.count("<td>79.00 USD</td>") == 2
    assert "succeeded" in table
    assert "lamp 79.00 USD" in table
    assert "none named" in table


def test_a_refund_made_elsewhere_stands_beside_it_as_well():
    builders.policy()
    order = builders.order(captured_minor=50_000)
    now = database_now()
    ExternalRefund.objects.create(
        order=order, provider_ref="re_dashboard", amount_minor=7_900, currency="USD",
        status="succeeded", seen_at=now, made_at=now,
    )  # fmt: skip
    action = builders.action(order, amount_minor=7_900)
    text = shown(browser("alice"), action)
    table = text[text.index("Side by side") :]
    assert "re_dashboard" in table[: table.index("</table>")]
    assert "made elsewhere" in table


def test_a_refund_that_repeats_nothing_has_no_such_table():
    assert "Side by side" not in shown(browser("alice"), awaiting())
