"""Agent keys: made, used, listed, revoked."""

from __future__ import annotations

import hashlib
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from agents.keys import create_key, revoke_key
from agents.models import AgentKey, AgentSecret
from refunds.models import RefundAction
from tests import builders
from tests.agents.conftest import Caller, read, refund_body

pytestmark = pytest.mark.django_db


def command(*arguments: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("agent_key", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_a_key_is_printed_once_and_alone_on_stdout() -> None:
    out, err = command("create", "shop", "--scope-note", "order desk")
    key = out.strip()
    row = AgentKey.objects.get()
    assert out == f"{key}\n"
    assert key.startswith(f"ro_live_{row.prefix}_")
    secret = key.rpartition("_")[2]
    assert len(bytes.fromhex(secret)) == 32
    assert row.secrets.get().sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in err
    assert (row.name, row.scope_note) == ("shop", "order desk")
    listed = command("list")[0]
    assert row.prefix in listed
    assert secret not in listed


def test_a_revoked_key_opens_nothing_from_the_next_request_on(caller: Caller) -> None:
    read(caller.call("GET", "/orders/x"), 404)
    prefix = AgentKey.objects.get().prefix
    command("revoke", prefix)
    answer = read(caller.call("GET", "/orders/x"), 401)
    assert answer["type"] == "urn:refund-once:problem:unauthorized"
    assert "was revoked before" in command("revoke", prefix)[1]


def test_revoking_what_does_not_exist_says_so() -> None:
    with pytest.raises(CommandError, match="There is no key 'nobody'"):
        command("revoke", "nobody")


@pytest.mark.parametrize("name", ["", "x" * 81, "two\nlines"])
def test_a_name_that_cannot_be_listed_makes_no_key(name: str) -> None:
    with pytest.raises(CommandError, match="No key was made"):
        command("create", name)
    assert AgentKey.objects.count() == 0


AUTHORIZATIONS = [
    "",
    "Bearer",
    "Bearer ",
    "Bearer nonsense",
    "Basic dXNlcjpwYXNz",
    "Bearer ro_live_000000000000_" + "0" * 64,
    "Bearer {key}x",
    "{key}",
    "Bearer {wrong}",
    "Bearer {KEY}",
    "Bearer \u00e9",
]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/orders/1"),
        ("GET", "/orders/1"),
        ("POST", "/refunds"),
        ("GET", "/refunds?order_id=1"),
        ("GET", "/refunds/refund:order-1:request-1"),
        ("POST", "/refunds/refund:order-1:request-1/withdraw"),
    ],
)
def test_without_a_valid_key_every_call_is_401(caller: Caller, method: str, path: str) -> None:
    wrong = caller.key[:-1] + ("0" if caller.key[-1] != "0" else "1")
    # Nothing of the request is looked at before the key: this body would be a 400.
    body = b"{" if method != "GET" else None
    for authorization in AUTHORIZATIONS:
        sent = authorization.format(key=caller.key, wrong=wrong, KEY=caller.key.upper())
        response = caller.call(method, path, body, Authorization=sent)
        answer = read(response, 401)
        assert answer["type"] == "urn:refund-once:problem:unauthorized"
        assert response["WWW-Authenticate"].startswith("Bearer")
        assert caller.key not in response.content.decode()


def test_a_key_in_the_query_opens_nothing(caller: Caller) -> None:
    read(caller.call("GET", f"/orders/1?key={caller.key}", Authorization=""), 401)


def test_using_a_key_costs_one_query_and_a_write_once_a_day() -> None:
    caller = Caller(create_key(name="shop").key)

    def cost() -> int:
        with CaptureQueriesContext(connection) as captured:
            read(caller.call("GET", "/sessions/current"), 404)
        return len(captured)

    assert [cost(), cost(), cost()] == [2, 1, 1]
    assert AgentKey.objects.get().last_used_on is not None


def test_a_key_never_becomes_another_one() -> None:
    create_key(name="shop")
    with pytest.raises(DatabaseError), transaction.atomic():
        AgentKey.objects.update(prefix="x")
    with pytest.raises(DatabaseError), transaction.atomic():
        AgentSecret.objects.update(sha256="0" * 64)


def test_a_key_is_revoked_and_never_deleted() -> None:
    prefix = create_key(name="shop").prefix
    with pytest.raises(DatabaseError), transaction.atomic():
        AgentKey.objects.all().delete()
    assert revoke_key(prefix=prefix, actor="operator:x") is True
    assert revoke_key(prefix=prefix, actor="operator:x") is False
    assert revoke_key(prefix="nobody", actor="operator:x") is None


def test_a_key_has_a_member_of_staff_who_answers_for_it() -> None:
    grace = User.objects.create_user("grace", is_staff=True)
    key = command("create", "shop", "--owner", "grace")[0].strip()
    row = AgentKey.objects.get(name="shop")
    assert row.owner == grace
    assert "owner grace" in command("list")[0]
    order = builders.order()
    read(Caller(key).call("POST", "/refunds", refund_body(order.order_id)), 201)
    action = RefundAction.objects.get()
    assert (action.proposed_by, action.proposer_owner) == (row.prefix, grace)


def test_another_owner_answers_from_the_next_proposal_on_and_the_history_says_who() -> None:
    for name in ("grace", "ada"):
        User.objects.create_user(name, is_staff=True)
    command("create", "shop", "--owner", "grace")
    row = AgentKey.objects.get()
    said = command("owner", row.prefix, "ada", "--by", "root")[1]
    assert "From now on ada answers" in said
    row.refresh_from_db()
    assert row.owner == User.objects.get(username="ada")
    event = row.events.get(kind="agent_key.owner_changed")
    assert event.actor == "operator:root"
    assert event.data == {"from": "grace", "to": "ada"}
    assert "nothing was changed" in command("owner", row.prefix, "ada", "--by", "root")[1]
    assert "nobody answers" in command("owner", row.prefix, "", "--by", "root")[1]
    row.refresh_from_db()
    assert row.owner is None
    assert row.events.filter(kind="agent_key.owner_changed").count() == 2


@pytest.mark.parametrize(
    ("username", "fields"),
    [("nobody", {}), ("gone", {"is_active": False, "is_staff": True}), ("customer", {})],
)
def test_only_an_active_member_of_staff_answers_for_a_key(
    username: str, fields: dict[str, Any]
) -> None:
    if username != "nobody":
        User.objects.create_user(username, **fields)
    with pytest.raises(CommandError, match="no active member of staff"):
        command("create", "shop", "--owner", username)
    assert not AgentKey.objects.exists()
    command("create", "shop")
    prefix = AgentKey.objects.get().prefix
    with pytest.raises(CommandError, match="no active member of staff"):
        command("owner", prefix, username, "--by", "root")


def test_an_owner_is_not_changed_by_nobody_nor_for_a_key_that_is_none() -> None:
    User.objects.create_user("grace", is_staff=True)
    command("create", "shop")
    prefix = AgentKey.objects.get().prefix
    with pytest.raises(CommandError, match="--by"):
        command("owner", prefix, "grace", "--by", " ")
    with pytest.raises(CommandError, match="There is no key 'nokey'"):
        command("owner", "nokey", "grace", "--by", "root")
    assert AgentKey.objects.get().owner is None
