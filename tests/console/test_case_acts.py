"""The acts on a case's page: every button is there, with what it does or why it does nothing."""

from __future__ import annotations

import html
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from approvals.models import CaseAct
from effects.models import Case
from effects.states import State
from reconciliation.circumstances import case_version
from reconciliation.possible_acts import CONSEQUENCES, Name
from refunds.kind import REFUND
from tests import builders
from tests.console.test_pages import open_case, page, post, staff, unknown
from tests.reconciliation.test_case_acts import Unclear, looked_twice

pytestmark = pytest.mark.django_db

DESK = ("settle_case", "declare_not_executed")
NOTE = "looked <b>everywhere</b>, found nothing"


def act(found: Unclear, name: Name) -> str:
    return reverse("admin:effects_case_act", args=[found.case.pk, name.value])


def said(found: Unclear, **fields: Any) -> dict[str, Any]:
    version = case_version(kind=REFUND, action=found.action)
    return {"reason": "other", "note": NOTE, "seen_version": str(version)} | fields


def text_of(client: Client, found: Unclear) -> str:
    return html.unescape(client.get(page(found.case)).content.decode())


@pytest.fixture
def lost() -> Unclear:
    action = unknown()
    return Unclear(action=action, case=open_case(action, Case.Kind.UNKNOWN_OUTCOME))


def test_every_act_is_shown_with_its_consequence_and_the_impossible_ones_with_the_reason(lost):
    text = text_of(staff(*DESK), lost)
    for name in (Name.CHECK, Name.LINK, Name.SEND_AGAIN, Name.NEW_KEY, Name.GIVE_UP, Name.WITHDRAW):
        assert CONSEQUENCES[name] in text, name
    assert act(lost, Name.LINK) in text
    for name in (Name.SEND_AGAIN, Name.NEW_KEY, Name.GIVE_UP, Name.WITHDRAW):
        assert act(lost, name) not in text, name
    assert "found out first" in text


def test_whoever_may_only_look_sees_the_acts_and_does_none(lost):
    client = staff()
    text = text_of(client, lost)
    assert CONSEQUENCES[Name.GIVE_UP] in text
    assert "This needs the permission" in text
    assert act(lost, Name.LINK) not in text
    assert post(client, act(lost, Name.WITHDRAW), **said(lost)).status_code == 403


def test_acts_are_done_by_post_with_a_token_and_a_version_and_have_known_names(lost):
    client = staff(superuser=True)
    assert client.get(act(lost, Name.GIVE_UP)).status_code == 405
    assert client.post(act(lost, Name.GIVE_UP), said(lost)).status_code == 403
    for seen in ("", "-1", "x", "\u0661", "9" * 10):
        bad = said(lost, seen_version=seen)
        assert post(client, act(lost, Name.GIVE_UP), **bad).status_code == 400, seen
    for name in ("check", "assign", "delete"):
        url = reverse("admin:effects_case_act", args=[lost.case.pk, name])
        assert post(client, url, **said(lost)).status_code == 404, name
    assert CaseAct.objects.count() == 0


def test_a_refund_is_withdrawn_on_the_page_of_its_case():
    action = builders.action(builders.order())
    found = Unclear(action=action, case=open_case(action, Case.Kind.CANNOT_SEND))
    client = staff("settle_case")
    assert act(found, Name.WITHDRAW) in text_of(client, found)
    post(client, act(found, Name.WITHDRAW), **said(found))
    assert found.now().state == State.CANCELLED
    assert "It is withdrawn." in text_of(client, found)


@pytest.mark.django_db(transaction=True)
def test_two_people_open_a_new_key_on_their_pages(sandbox):
    found = looked_twice(sandbox)
    one, other = staff(*DESK), staff(*DESK)
    first = User.objects.order_by("pk").first()
    assert first is not None
    old = said(found, typed_amount="79.00")

    post(one, act(found, Name.NEW_KEY), **old)
    assert "before a second person agrees" in text_of(one, found)
    post(one, act(found, Name.NEW_KEY), **said(found, typed_amount="79.00"))
    assert "You have asked for it already" in text_of(one, found)

    text = text_of(other, found)
    assert f"{first.username} asked for it at" in text
    assert "<b>everywhere</b>" not in other.get(page(found.case)).content.decode()
    post(other, act(found, Name.NEW_KEY), **old)
    assert "1 new event since you opened this page." in text_of(other, found)

    post(other, act(found, Name.NEW_KEY), **said(found, typed_amount="79.00"))
    assert "The old key is never used again." in text_of(other, found)
    action = found.now()
    assert (action.state, action.generation) == (State.AWAITING_APPROVAL, 2)
