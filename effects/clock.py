"""The one clock that decides: the database's.

Leases, key ages, due times and expiries are compared by it, so that two machines whose clocks
differ cannot both be right. Tests move it with the session setting
`refund_once.clock_skew_seconds`; a boot check refuses that setting together with a live key.
"""

from __future__ import annotations

from datetime import datetime

from django.db import connection, models

_SQL = (
    "(clock_timestamp() + make_interval(secs => COALESCE(NULLIF("
    "current_setting('refund_once.clock_skew_seconds', true), '')::float8, 0)))"
)


class DatabaseNow(models.Func):
    """The database's wall clock at the moment this row of this statement is made."""

    template = _SQL
    output_field = models.DateTimeField()


def database_now() -> datetime:
    """Ask the database for the time. One query."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {_SQL}")
        (now,) = cursor.fetchone()
    if not isinstance(now, datetime):
        raise TypeError(now)
    return now
