"""What every room's tests share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from django.core.management.commands import flush
from django.db import connection
from django.db.backends.base.operations import BaseDatabaseOperations
from django.db.backends.postgresql.operations import DatabaseOperations
from django.test import override_settings

from kernel.away import Away
from providers.sandbox import Sandbox
from refunds import hint
from tests.builders import stripe_at

# Made by the migrations and changed by no test.
KEPT_TABLES = ("auth_permission", "django_content_type")


@pytest.fixture(scope="session", autouse=True)
def _tables_can_be_emptied_between_tests() -> Iterator[None]:
    """Transactional tests end with TRUNCATE, which our triggers refuse: go round them, there only.

    `session_replication_role` needs a superuser, which the tests' private server gives them. DELETE
    empties a few rows much faster, and permissions stay: making them again after each of these
    tests took most of its end.
    """
    execute = DatabaseOperations.execute_sql_flush

    def execute_round_triggers(self: BaseDatabaseOperations, sql_list: Iterable[str]) -> None:
        around = [
            "SET session_replication_role = replica;",
            *sql_list,
            "SET session_replication_role = DEFAULT;",
        ]
        execute(self, around)

    def deletes(
        self: BaseDatabaseOperations, style: Any, tables: Sequence[str], **options: Any
    ) -> list[str]:
        emptied = [table for table in tables if table not in KEPT_TABLES]
        return [f"DELETE FROM {self.quote_name(table)};" for table in emptied]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "execute_sql_flush", execute_round_triggers)
        patch.setattr(DatabaseOperations, "sql_flush", deletes)
        patch.setattr(flush, "emit_post_migrate_signal", lambda *arguments: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _passwords_are_cheap() -> Iterator[None]:
    """Passwords of test users need not resist anybody: half a second each otherwise."""
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        yield


@pytest.fixture(autouse=True)
def _policy_and_clock(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each database test begins with the default policy and a right clock."""
    marker = request.node.get_closest_marker("django_db")
    transactional = "transactional_db" in request.fixturenames or bool(
        marker and marker.kwargs.get("transaction")
    )
    if marker is None and not transactional and "db" not in request.fixturenames:
        yield
        return
    request.getfixturevalue("transactional_db" if transactional else "db")
    from policies.models import PolicyVersion
    from policies.versions import DEFAULT_PARAMETERS, publish
    from tests.builders import skew_clock

    if not PolicyVersion.objects.exists():  # emptied by a transactional test
        publish(parameters=DEFAULT_PARAMETERS, published_by="installation")
    yield
    if connection.connection is not None:
        skew_clock(0)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """A stateful Stripe in this process, and every provider call of the test going to it."""
    with Sandbox() as running, stripe_at(running):
        yield running


@pytest.fixture(autouse=True)
def broker_that_nobody_has_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was away is asked again at once: tests do not wait for its return."""
    monkeypatch.setattr(hint, "_broker", Away(ask_again_seconds=0))
