"""Statements that go past Django, and what Postgres says to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction


@contextmanager
def refused(words: str) -> Iterator[None]:
    """What is done inside is refused by the database, for this reason, and leaves nothing."""
    with pytest.raises(DatabaseError, match=words), transaction.atomic():
        yield


def sql(text: str, *values: Any) -> int:
    """One statement as written; how many rows it changed."""
    with connection.cursor() as cursor:
        cursor.execute(text, values or None)
        return int(cursor.rowcount)
