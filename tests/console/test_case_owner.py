"""Whose a case is, on its page; and the staff who answer for the keys that propose."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from agents.keys import create_key
from agents.models import AgentKey
from effects.clock import database_now
from effects.models import Case, CaseEvent, Switch
from tests.approvals.test_case_owners import NOTE, open_case, settler
from tests.console.test_pages import page, post, staff

pytestmark = pytest.mark.django_db


def logged_in(user: User) -> Client:
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    return client


def said(case: Case, **more: Any) -> dict[str, Any]:
    return {"why": "other", "note": NOTE, "seen_version": case.version} | more


def test_a_case_is_given_to_a_colleague_on_its_page():
    case, client = open_case(), staff("settle_case")
    settler("ada")
    User.objects.create_user("cannot-settle", is_staff=True)
    text = client.get(page(case)).content.decode()
    assert '<option value="ada"' in text
    assert "cannot-settle" not in text
    post(client, page(case, "assign"), **said(case, to="ada", why="handover"))
    case.refresh_from_db()
    assert case.owner == "ada"
    shown = client.get(page(case)).content.decode()
    assert "case.assigned" in shown
    assert NOTE.split(",")[0].replace("'", "&#x27;") in shown
    post(client, page(case, "assign"), **said(case, to=""))
    case.refresh_from_db()
    assert case.assignee is None


@pytest.mark.parametrize("name", ["nobody", "a\x00"])
def test_a_case_is_not_given_to_nobody_by_a_forged_form(name):
    case, client = open_case(), staff("settle_case")
    post(client, page(case, "assign"), **said(case, to=name))
    assert "no such person" in client.get(page(case)).content.decode()
    assert not CaseEvent.objects.exists()


def test_an_old_page_changes_nothing_and_says_what_happened_meanwhile():
    case, client = open_case(), staff("settle_case")
    settler("ada")
    post(client, page(case, "assign"), **said(case, to="ada"))
    post(client, page(case, "assign"), **said(case, to=""))
    assert "has changed since you opened" in client.get(page(case)).content.decode()
    case.refresh_from_db()
    assert case.owner == "ada"


def test_a_case_is_put_off_on_its_page_in_utc():
    case, client = open_case(), staff("settle_case")
    until = (case.due_at - timedelta(minutes=1)).replace(second=0, microsecond=0)
    post(client, page(case, "snooze"), **said(case, until=f"{until:%Y-%m-%dT%H:%M}"))
    case.refresh_from_db()
    assert case.snoozed_until == until
    assert f"Put off until {until:%Y-%m-%d %H:%M} UTC" in client.get(page(case)).content.decode()


@pytest.mark.parametrize("until", ["", "soon", "2026-13-01T00:00", "a\x00"])
def test_a_snooze_without_a_usable_time_changes_nothing(until):
    case, client = open_case(), staff("settle_case")
    post(client, page(case, "snooze"), **said(case, until=until))
    assert "Say until when" in client.get(page(case)).content.decode()
    assert not CaseEvent.objects.exists()


@pytest.mark.parametrize("what", ["assign", "snooze"])
def test_owner_and_times_are_changed_by_post_with_a_token_and_a_permission(what):
    case = open_case()
    fields = said(case, to="", until="2026-01-01T00:00")
    everybody = staff(superuser=True)
    assert everybody.get(page(case, what)).status_code == 405
    assert everybody.post(page(case, what), fields).status_code == 403
    assert post(staff(), page(case, what), **fields).status_code == 403
    bad = fields | {"seen_version": "\u0661"}
    assert post(staff("settle_case"), page(case, what), **bad).status_code == 400
    assert not CaseEvent.objects.exists()


def test_a_switch_turned_on_at_the_desk_can_end_by_itself():
    client, lists = staff("flip_switch"), reverse("admin:effects_switch_changelist")
    on = {"scope": "global", "reason": "drill"}
    post(client, reverse("admin:effects_switch_on"), **on, until="soon")
    assert "Nothing was stopped: until" in client.get(lists).content.decode()
    until = (database_now() + timedelta(hours=1)).replace(second=0, microsecond=0)
    post(client, reverse("admin:effects_switch_on"), **on, until=f"{until:%Y-%m-%dT%H:%M}")
    assert Switch.objects.get().until == until
    post(client, reverse("admin:effects_switch_on"), **on, until=f"{until:%Y-%m-%dT%H:%M}")
    assert "on for that long already" in client.get(lists).content.decode()


def test_the_desk_shows_who_answers_for_a_key_and_not_its_digest():
    create_key(name="shop", owner=settler("ada"))
    key = AgentKey.objects.get()
    client = staff()
    for address in (reverse("admin:agents_agentkey_changelist"), page(key)):
        text = client.get(address).content.decode()
        assert key.prefix in text
        assert "ada" in text
        assert key.secrets.get().sha256 not in text
