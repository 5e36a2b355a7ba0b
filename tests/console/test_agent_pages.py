"""Agents on the staff site: read, and a session ended by whoever may."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from agents.keys import create_key, rotate_key
from agents.models import AgentKey, AgentKeyEvent, AgentSession, SecurityEvent
from tests import builders
from tests.agents.conftest import Caller
from tests.console.test_pages import page, post, staff

pytestmark = pytest.mark.django_db


@pytest.fixture
def token() -> str:
    """A session's."""
    body = {"order_id": builders.order().order_id, "request_id": "7"}
    answer = Caller(create_key(name="shop").key).call("POST", "/sessions", body)
    return str(answer.json()["token"])


def works(token: str) -> bool:
    status: int = Caller(token).call("GET", "/sessions/current").status_code
    assert status in (200, 401)
    return status == 200


def end(client: Client, **fields: Any) -> Any:
    return post(client, page(AgentSession.objects.get(), "revoke"), **fields)


def test_a_person_who_may_ends_a_session_and_the_keys_history_says_who(token: str) -> None:
    client, address = staff("revoke_agentsession"), page(AgentSession.objects.get())
    assert "End it" in client.get(address).content.decode()
    assert end(client, confirmed="yes").status_code == 302
    assert not works(token)
    event = AgentKeyEvent.objects.get(kind="agent_session.revoked")
    assert event.actor.startswith("person:")
    assert event.data == {"session": AgentSession.objects.get().prefix}
    assert "End it" not in client.get(address).content.decode()
    end(client, confirmed="yes")
    assert AgentKeyEvent.objects.filter(kind="agent_session.revoked").count() == 1


def test_nobody_ends_one_without_the_right_the_token_of_the_form_or_a_tick(token: str) -> None:
    viewer, may = staff(), staff("revoke_agentsession")
    address = page(AgentSession.objects.get(), "revoke")
    assert "End it" not in viewer.get(page(AgentSession.objects.get())).content.decode()
    assert end(viewer, confirmed="yes").status_code == 403
    assert may.get(address).status_code == 405
    assert may.post(address, {"confirmed": "yes"}).status_code == 403
    assert end(may).status_code == 302
    assert Client().post(address, {"confirmed": "yes"}).status_code == 302
    assert works(token)
    assert post(may, address.replace(str(AgentSession.objects.get().pk), "0")).status_code == 404


def test_the_pages_show_no_secret_and_no_digest(token: str) -> None:
    key = AgentKey.objects.get()
    rotate_key(prefix=key.prefix, actor="operator:x")
    Client().get("/admin/", headers={"Authorization": f"Bearer {token}"})
    session, event = AgentSession.objects.get(), SecurityEvent.objects.get()
    digests = [session.secret_sha256, *key.secrets.values_list("sha256", flat=True)]
    client = staff(superuser=True)
    for row in (key, session, event, AgentKeyEvent.objects.order_by("pk")[0]):
        name = f"admin:{row._meta.app_label}_{row._meta.model_name}_changelist"
        for address in (page(row), reverse(name)):
            answer = client.get(address)
            assert answer.status_code == 200, address
            text = answer.content.decode()
            assert not [one for one in (*digests, token.rpartition("_")[2]) if one in text]
        assert post(client, page(row), kind="x").status_code == 403
        assert post(client, page(row, "delete"), post="yes").status_code == 403
    text = client.get(page(key)).content.decode()
    assert text.count("UTC, ends") == 1
    assert "no end" in text


def test_events_are_found_by_their_credential_and_narrowed_by_kind(token: str) -> None:
    Client().get("/admin/", headers={"Authorization": f"Bearer {token}"})
    event, client = SecurityEvent.objects.get(), staff()
    address = reverse("admin:agents_securityevent_changelist")
    for query, hits in (
        ({"q": event.credential}, 1),
        ({"q": event.actor}, 1),
        ({"q": "key:none"}, 0),
        ({"kind__exact": event.kind}, 1),
        ({"kind__exact": SecurityEvent.Kind.OVER.value}, 0),
    ):
        answer = client.get(address, query)
        assert len(answer.context["cl"].result_list) == hits, query
    assert User.objects.count() == 1
