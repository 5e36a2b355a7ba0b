"""Reading that cannot write: Postgres itself refuses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


@contextmanager
def read_only() -> Iterator[None]:
    """A transaction that writes nothing and locks no row, on one snapshot when it is the outermost.

    A write inside it, or `SELECT ... FOR UPDATE`, raises `django.db.Error`; nothing waits for it.
    """
    # The isolation of a transaction that has begun stays.
    snapshot = "" if connection.in_atomic_block else "ISOLATION LEVEL REPEATABLE READ "
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION {snapshot}READ ONLY")
        yield
