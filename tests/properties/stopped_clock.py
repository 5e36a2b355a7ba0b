"""Time that moves only when told.

Hypothesis plays beginnings of older examples again, and must meet the same world there; a lease
that ran out because this machine was busy would be another. So the sessions of the machine find a
`clock_timestamp()` of their own before Postgres' one: a fixed beginning, a tick with every
question, and on top of it the product's own `refund_once.clock_skew_seconds`, by which time passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from django.db import connection

from providers.sandbox import Sandbox

BEGINNING = datetime(2027, 1, 4, 9, tzinfo=UTC)

_MAKE = f"""
CREATE SCHEMA stopped;
CREATE SEQUENCE stopped.tick;
CREATE FUNCTION stopped.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT '{BEGINNING.isoformat()}'::timestamptz
        + nextval('stopped.tick') * interval '100 microseconds'
$$;
"""


class StoppedClock:
    """The database's and the sandbox's clock. `passed_seconds` since the beginning."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.passed_seconds = 0.0
        self._sandbox = sandbox

    def begin(self) -> None:
        """Both clocks at the beginning."""
        self.passed_seconds = 0.0
        self._sandbox.call("clock", frozen=True, set=BEGINNING.timestamp())
        with connection.cursor() as cursor:
            cursor.execute("ALTER SEQUENCE stopped.tick RESTART")
        self.show()

    def advance(self, seconds: float) -> None:
        """Let time pass in both."""
        self.passed_seconds += seconds
        self._sandbox.advance(seconds)
        self.show()

    def show(self) -> None:
        """Show it to this thread's session, which may be a new one."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('search_path', 'stopped, public, pg_catalog', false),"
                " set_config('refund_once.clock_skew_seconds', %s, false)",
                [str(self.passed_seconds)],
            )


@contextmanager
def stopped_clock(sandbox: Sandbox) -> Iterator[StoppedClock]:
    """A stopped clock for this database, for as long as the block runs."""
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA IF EXISTS stopped CASCADE")
        cursor.execute(_MAKE)
    try:
        yield StoppedClock(sandbox)
    finally:
        connection.close()  # its settings end with it
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA stopped CASCADE")
