"""Whole stacks for acceptance tests: real processes, a database and a broker of their own.

    def test_a_killed_worker_loses_nothing(make_stack: MakeStack) -> None:
        stack = make_stack(workers=2)
        stack.kill("worker")

The servers are the test run's; each stack gets a fresh database, copied from one that was migrated
once, its own numbered broker database, its own sandbox, and timeouts of seconds.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import redis
from psycopg import sql

from config.development import CHECKOUT
from config.stack import Stack

#: Everything that takes seconds to minutes in production, in an order the boot check accepts.
#: Short enough that a lease runs out within a test, long enough that two busy cores keep up.
SHORT = {
    "PROVIDER_CONNECT_TIMEOUT_SECONDS": "0.5",
    "PROVIDER_READ_TIMEOUT_SECONDS": "1",
    "PROVIDER_TOTAL_TIMEOUT_SECONDS": "1.5",
    "SUBMIT_LEASE_SECONDS": "2.5",
    "SETTLE_SECONDS": "4.5",
    "TASK_SOFT_TIME_LIMIT_SECONDS": "10",
    "TASK_HARD_TIME_LIMIT_SECONDS": "15",
    "BROKER_VISIBILITY_TIMEOUT_SECONDS": "20",
    "DISPATCH_SWEEP_SECONDS": "0.5",
    "RECONCILE_SWEEP_SECONDS": "0.5",
    "RECONCILE_DELAYS_SECONDS": "0.3,0.6,1.2",
    "PENDING_POLL_SECONDS": "1",
    "LOG_LEVEL": "INFO",
    "WORKER_CONCURRENCY": "2",
    "WEB_WORKERS": "1",
}

#: One advisory lock for all test processes: only one makes the template. Any fixed number will do.
TEMPLATE_LOCK = 4_821_003


class MakeStack(Protocol):
    """Starts a stack with `Stack`'s own arguments; it is stopped when the test ends."""

    def __call__(self, **arguments: Any) -> Stack: ...


def with_path(url: str, path: str) -> str:
    """The same server's address with another database name or number."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{path}"))


@contextmanager
def _admin() -> Iterator[psycopg.Connection]:
    with psycopg.connect(
        with_path(os.environ["DATABASE_URL"], "postgres"), autocommit=True
    ) as connection:
        yield connection


def _template(connection: psycopg.Connection) -> str:
    """The name of a migrated, empty database; made by whichever test process comes first."""
    migrations = hashlib.sha256()
    for path in sorted(CHECKOUT.glob("*/migrations/*.py")):
        migrations.update(path.read_bytes())
    name = f"stack_template_{migrations.hexdigest()[:12]}"
    connection.execute("SELECT pg_advisory_lock(%s)", [TEMPLATE_LOCK])
    try:
        if not connection.execute(
            "SELECT 1 FROM pg_database WHERE datname = %s", [name]
        ).fetchone():
            making = f"{name}_{secrets.token_hex(3)}"
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(making)))
            url = with_path(os.environ["DATABASE_URL"], making)
            subprocess.run(
                [sys.executable, "manage.py", "migrate", "--noinput", "--verbosity", "0"],
                cwd=CHECKOUT,
                env=os.environ | {"DATABASE_URL": url},
                check=True,
            )
            connection.execute(
                sql.SQL("ALTER DATABASE {} RENAME TO {}").format(
                    sql.Identifier(making), sql.Identifier(name)
                )
            )
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", [TEMPLATE_LOCK])
    return name


@contextmanager
def fresh_database() -> Iterator[str]:
    """The address of a new, migrated, empty database; dropped afterwards."""
    name = f"stack_{secrets.token_hex(6)}"
    with _admin() as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(_template(connection))
            )
        )
    try:
        yield with_path(os.environ["DATABASE_URL"], name)
    finally:
        with _admin() as connection:
            connection.execute(
                sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
            )


@contextmanager
def fresh_broker() -> Iterator[str]:
    """The address of an empty numbered broker database that no other test uses; emptied after."""
    base = os.environ["REDIS_URL"]
    with redis.Redis.from_url(with_path(base, "0")) as counter:
        last = int(counter.config_get("databases")["databases"]) - 1
        number = (int(counter.incr("stack-number")) - 1) % last + 1
    url = with_path(base, str(number))
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url
        client.flushdb()


@contextmanager
def running_stack(*, env: dict[str, str] | None = None, **arguments: Any) -> Iterator[Stack]:
    """A running stack with a database and a broker of its own, stopped and emptied afterwards.

    `arguments` are those of `Stack`; `env` overrides the short timeouts.
    """
    folder = Path(tempfile.mkdtemp(prefix="refund-once-stack-"))
    crash_points = folder / "crash-points"
    crash_points.mkdir()
    inherited = {"STRIPE_API_BASE", "SECRET_KEY", "STRIPE_WEBHOOK_SECRETS", "STRIPE_API_KEY"}
    try:
        with fresh_database() as database, fresh_broker() as broker:
            with pytest.MonkeyPatch.context() as patch:
                # The in-process settings' placeholders are not this stack's.
                for name in inherited:
                    patch.delenv(name, raising=False)
                stack = Stack(
                    folder=folder,
                    migrate=False,
                    env=SHORT
                    | {"CRASH_POINTS_DIR": str(crash_points), "INSTANCE": "acceptance"}
                    | {"DATABASE_URL": database, "REDIS_URL": broker}
                    | (env or {}),
                    **arguments,
                )
            stack.start()
            try:
                yield stack
            finally:
                stack.stop(timeout_seconds=3)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def last_words(stack: Stack) -> str:
    """The ends of a stack's logs, for a test that failed."""
    return "\n".join(
        f"---- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-40:])
        for log in sorted(stack.folder.glob("*.log"))
    )


@pytest.fixture
def make_stack(request: pytest.FixtureRequest) -> Generator[MakeStack]:
    """A factory of running stacks. When the test fails, the ends of their logs are printed."""
    with ExitStack() as started:
        made: list[Stack] = []

        def make(**arguments: Any) -> Stack:
            stack = started.enter_context(running_stack(**arguments))
            made.append(stack)
            return stack

        yield make
        if getattr(request.node, "stack_test_failed", False):
            for stack in made:
                print(last_words(stack))


@pytest.fixture
def stack(make_stack: MakeStack) -> Stack:
    """One worker, one beat, one web process, one sandbox."""
    return make_stack()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        item.stack_test_failed = True  # type: ignore[attr-defined]  # read by make_stack above
    return report
