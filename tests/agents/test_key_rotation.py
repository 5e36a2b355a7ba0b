"""Keys over their life: for less than everything, rotated without a gap, ended, counted by."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.core.management import CommandError
from django.db import DatabaseError, connection, transaction

from agents.keys import Rotated, RotationRefused, create_key, revoke_key, rotate_key
from agents.models import AgentKey, AgentSecret, Scope
from policies.parameters import Limit
from tests import builders
from tests.agents.conftest import Caller, read, refund_body
from tests.agents.test_keys import command
from tests.agents.test_sessions import opened

HOUR = 3_600


@contextmanager
def hours_later(hours: float) -> Iterator[None]:
    """The database's clock, that much later."""
    builders.skew_clock(hours * HOUR)
    yield
    builders.skew_clock(0)


def status(key: str) -> int:
    """What a key is answered where it needs nothing else: 404 for a good one, 401 for another."""
    found: int = Caller(key).call("GET", "/sessions/current").status_code
    return found


@pytest.mark.django_db
def test_a_rotation_gives_a_second_secret_and_the_older_one_ends_after_its_hours() -> None:
    old = command("create", "shop")[0].strip()
    prefix = AgentKey.objects.get().prefix
    out, err = command("rotate", prefix, "--keep-hours", "2", "--by", "grace")
    new = out.strip()
    assert out == f"{new}\n"
    assert new.startswith(f"ro_live_{prefix}_")
    assert new.rpartition("_")[2] not in err
    assert [status(old), status(new)] == [404, 404]
    with hours_later(1.9):
        assert [status(old), status(new)] == [404, 404]
    with hours_later(2.1):
        assert [status(old), status(new)] == [401, 404]
    listed = command("list")[0]
    assert listed.count("secret made") == 2
    assert listed.count("has no end") == 1
    (until,) = re.findall(r"works until (\S+ \S+ UTC)", err)
    assert f"ends {until}" in listed
    assert not {old.rpartition("_")[2], new.rpartition("_")[2]} & set(listed.split())


@pytest.mark.django_db
def test_at_most_two_secrets_are_live_and_a_leak_ends_all_at_once() -> None:
    first = create_key(name="shop")
    second = rotate_key(prefix=first.prefix, actor="operator:x")
    assert isinstance(second, Rotated)
    assert rotate_key(prefix=first.prefix, actor="operator:x") is RotationRefused.TWO_ARE_LIVE
    with pytest.raises(CommandError, match="Two secrets"):
        command("rotate", first.prefix)
    assert [status(first.key), status(second.created.key)] == [404, 404]
    third = command("rotate", first.prefix, "--keep-hours", "0")[0].strip()
    assert [status(first.key), status(second.created.key), status(third)] == [401, 401, 404]


@pytest.mark.django_db
def test_once_the_older_secret_ended_there_is_room_for_another() -> None:
    first = create_key(name="shop")
    rotate_key(prefix=first.prefix, actor="operator:x", keep=timedelta(hours=1))
    with hours_later(2):
        third = rotate_key(prefix=first.prefix, actor="operator:x", keep=timedelta(hours=1))
        assert isinstance(third, Rotated)
        assert status(third.created.key) == 404
    assert AgentSecret.objects.count() == 3


@pytest.mark.django_db
def test_a_rotation_never_keeps_a_secret_beyond_its_own_end() -> None:
    first = create_key(name="shop", expires_in=timedelta(hours=1))
    rotate_key(prefix=first.prefix, actor="operator:x", keep=timedelta(hours=5))
    with hours_later(2):
        assert status(first.key) == 401


@pytest.mark.django_db
def test_a_secret_ends_by_itself() -> None:
    out, err = command("create", "shop", "--expires-in-days", "1")
    key = out.strip()
    assert "It ends at" in err
    assert status(key) == 404
    with hours_later(25):
        assert status(key) == 401


@pytest.mark.django_db
def test_what_has_ended_stays_ended() -> None:
    create_key(name="shop", expires_in=timedelta(hours=1))
    secret = AgentSecret.objects.get()
    assert secret.expires_at is not None
    for later in (None, secret.expires_at + timedelta(seconds=1)):
        with pytest.raises(DatabaseError), transaction.atomic():
            AgentSecret.objects.update(expires_at=later)
    AgentSecret.objects.update(expires_at=secret.expires_at - timedelta(seconds=1))


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("rotate", "{prefix}", "--keep-hours", "721"), "--keep-hours must be"),
        (("rotate", "{prefix}", "--keep-hours", "-1"), "--keep-hours must be"),
        (("rotate", "{prefix}", "--expires-in-days", "0"), "--expires-in-days must be"),
        (("create", "other", "--expires-in-days", "3651"), "--expires-in-days must be"),
        (("create", "other", "--scope", "admin"), "invalid choice"),
        (("create", "other", "--by", " "), "Say who you are"),
        (("rotate", "nobody"), "There is no key"),
    ],
)
def test_what_cannot_be_is_said_and_changes_nothing(arguments: tuple[str, ...], told: str) -> None:
    prefix = create_key(name="shop").prefix
    with pytest.raises(CommandError, match=told):
        command(*(part.format(prefix=prefix) for part in arguments))
    assert AgentKey.objects.count() == AgentSecret.objects.count() == 1


@pytest.mark.django_db
def test_a_revoked_key_is_not_rotated() -> None:
    prefix = create_key(name="shop").prefix
    command("revoke", prefix)
    with pytest.raises(CommandError, match="is revoked, for good"):
        command("rotate", prefix)


@pytest.mark.django_db
def test_the_history_says_what_was_done_with_a_key_and_by_whom() -> None:
    command("create", "shop", "--scope", "orders", "--by", "ada")
    prefix = AgentKey.objects.get().prefix
    command("rotate", prefix, "--by", "grace")
    command("revoke", prefix, "--by", "ada")
    events = AgentKey.objects.get().events.order_by("pk")
    assert [(e.kind, e.actor) for e in events] == [
        ("agent_key.created", "operator:ada"),
        ("agent_key.rotated", "operator:grace"),
        ("agent_key.revoked", "operator:ada"),
    ]
    assert events[0].data["scopes"] == ["orders"]


CALLS = {
    Scope.ORDERS: ("GET", "/orders/none"),
    Scope.REFUNDS: ("GET", "/refunds/refund:order-1:request-1"),
    Scope.SESSIONS: ("GET", "/sessions/current"),
}


@pytest.mark.django_db
@pytest.mark.parametrize("given", list(Scope))
def test_a_key_is_for_its_scopes_only(given: Scope) -> None:
    caller = Caller(command("create", "shop", "--scope", given)[0].strip())
    for scope, (method, path) in CALLS.items():
        read(caller.call(method, path), 404 if scope == given else 403)


@pytest.mark.django_db
def test_several_scopes_are_several_rights() -> None:
    caller = Caller(command("create", "s", "--scope", "orders", "--scope", "refunds")[0].strip())
    assert [caller.call(*call).status_code for call in CALLS.values()] == [404, 404, 403]


@pytest.mark.django_db
def test_rotating_changes_nothing_that_is_counted_or_owned() -> None:
    """The agent is its prefix: another secret is not another allowance."""
    builders.policy(velocity=(Limit(scope="agent", window="hour", review_count=1),))
    first = create_key(name="shop")
    order, other = builders.order(), builders.order()
    mine = read(Caller(first.key).call("POST", "/refunds", refund_body(order.order_id)), 201)
    assert mine["decision"]["verdict"] == "ALLOW"
    rotated = rotate_key(prefix=first.prefix, actor="operator:x", keep=timedelta())
    assert isinstance(rotated, Rotated)
    caller = Caller(rotated.created.key)
    second = read(caller.call("POST", "/refunds", refund_body(other.order_id)), 201)
    assert second["decision"]["verdict"] == "REVIEW"
    said = {rule["rule"]: rule["verdict"] for rule in second["decision"]["rules"]}
    assert said["velocity"] == "REVIEW"
    assert read(caller.call("GET", f"/refunds/{mine['action_id']}"), 200)
    # And a proposal that was lost in the rotation is the same proposal.
    again = caller.call("POST", "/refunds", refund_body(order.order_id))
    assert read(again, 200)["action_id"] == mine["action_id"]


@pytest.mark.django_db
def test_sessions_go_on_through_a_rotation_and_end_with_the_key() -> None:
    first = create_key(name="shop")
    order = builders.order()
    _, tools = opened(Caller(first.key), order)
    rotate_key(prefix=first.prefix, actor="operator:x", keep=timedelta())
    read(tools.call("GET", "/sessions/current"), 200)
    command("revoke", first.prefix)
    read(tools.call("GET", "/sessions/current"), 401)


@pytest.mark.django_db
def test_a_dump_of_the_database_holds_nothing_that_opens_anything() -> None:
    key = create_key(name="shop")
    session, tools = opened(Caller(key.key), builders.order())
    read(
        tools.call("POST", "/refunds", {"amount_minor": 100, "currency": "USD", "reason": "late"}),
        201,
    )
    rotated = rotate_key(prefix=key.prefix, actor="operator:x")
    assert isinstance(rotated, Rotated)
    with connection.cursor() as cursor:
        dump = ""
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT row_to_json(t)::text FROM {connection.ops.quote_name(table)} t")
            dump += "\n".join(row for (row,) in cursor.fetchall())
    assert key.prefix in dump
    for text in (key.key, rotated.created.key, session["token"]):
        assert text.rpartition("_")[2] not in dump
    assert "ro_live_" not in dump
    assert "ro_session_" not in dump
    # What is kept instead proves nothing.
    digest = AgentSecret.objects.first()
    assert digest is not None
    assert status(f"ro_live_{key.prefix}_{digest.sha256}") == 401


@pytest.mark.django_db(transaction=True)
def test_a_key_that_is_revoked_in_a_storm_opens_nothing_that_begins_after_it() -> None:
    key = create_key(name="shop")
    order = builders.order()
    session = read(
        Caller(key.key).call("POST", "/sessions", {"order_id": order.order_id, "request_id": "7"}),
        201,
    )
    texts = [key.key, session["token"]]
    revoked, enough = threading.Event(), threading.Event()

    def storm(number: int) -> list[tuple[bool, int]]:
        seen: list[tuple[bool, int]] = []
        caller = Caller(texts[number % 2])
        try:
            while sum(after for after, _ in seen) < 5:
                after = revoked.is_set()
                seen.append((after, caller.call("GET", f"/orders/{order.order_id}").status_code))
                if len(seen) == 3:
                    enough.set()
            return seen
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as threads:
        running = [threads.submit(storm, number) for number in range(6)]
        assert enough.wait(timeout=30)
        assert revoke_key(prefix=key.prefix, actor="operator:x")
        revoked.set()
        seen = [one for each in running for one in each.result(timeout=60)]
    assert {status for after, status in seen if after} == {401}
    assert {status for after, status in seen if not after} <= {200, 401}
    assert (False, 200) in seen
