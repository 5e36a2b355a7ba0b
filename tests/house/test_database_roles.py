"""docs/running.md, "Two database roles": what a role that owns no table can and cannot do."""

from __future__ import annotations

import re

import pytest
from django.db import DatabaseError, connection, transaction

from config.development import CHECKOUT

pytestmark = pytest.mark.django_db


@pytest.fixture
def as_the_application() -> None:
    """This transaction, continued under the role that the page makes."""
    page = (CHECKOUT / "docs" / "running.md").read_text()
    (statements,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    with connection.cursor() as cursor:
        cursor.execute(statements)
        cursor.execute("SET LOCAL ROLE refund_once_app")


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE refunds_refundaction DISABLE TRIGGER ALL",
        "SET session_replication_role = replica",
        "TRUNCATE refunds_refundevent",
        "DROP TABLE refunds_refundevent",
        "CREATE TABLE mine (id int)",
    ],
)
def test_it_cannot_switch_off_what_guards_history(as_the_application: None, statement: str) -> None:
    with (
        pytest.raises(DatabaseError, match=r"must be owner|permission denied"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)


def test_it_can_do_what_the_application_does(as_the_application: None) -> None:
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            quoted = connection.ops.quote_name(table)
            cursor.execute(f"SELECT count(*) FROM {quoted}")
            cursor.execute(
                "SELECT bool_and(has_table_privilege('refund_once_app', %s, wanted)) "
                "FROM unnest(ARRAY['INSERT', 'UPDATE', 'DELETE']) wanted",
                [quoted],
            )
            assert cursor.fetchone() == (True,), table
