"""The one clock that decides: the database's.

Leases, key ages, due times and expiries are compared by it, so that two machines whose clocks
differ cannot both be right. Tests move it with the session setting
`refund_once.clock_skew_seconds`, which is not looked at where a live key is in use.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import connection, models

_RIGHT = "clock_timestamp()"
_MOVABLE = (
    "(clock_timestamp() + make_interval(secs => COALESCE(NULLIF("
    "current_setting('refund_once.clock_skew_seconds', true), '')::float8, 0)))"
)
# https://docs.stripe.com/keys: secret and restricted keys of live mode
_LIVE_KEYS = ("sk_live_", "rk_live_")


def clock_sql() -> str:
    """The SQL of the clock: one that tests can move, unless real money is at the other end."""
    return _RIGHT if settings.STRIPE_API_KEY.startswith(_LIVE_KEYS) else _MOVABLE


class DatabaseNow(models.Func):
    """The database's wall clock at the moment this row of this statement is made."""

    output_field = models.DateTimeField()

    def as_sql(self, compiler: Any, connection: Any, *_: Any, **__: Any) -> Any:
        """The clock's SQL; it has no parts that depend on the query."""
        return clock_sql(), []


def database_now() -> datetime:
    """Ask the database for the time. One query."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {clock_sql()}")
        (now,) = cursor.fetchone()
    if not isinstance(now, datetime):
        raise TypeError(now)
    return now
