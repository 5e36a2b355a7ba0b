"""What Postgres itself refuses about policies, whatever a program says."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, IntegrityError, connection, transaction

from effects.clock import database_now
from policies.models import PolicyDraft, PolicyVersion
from policies.versions import DEFAULT_PARAMETERS
from tests import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada() -> User:
    return builders.person("ada")


@pytest.fixture
def grace() -> User:
    return builders.person("grace")


def draft_by(user: User, **columns: Any) -> PolicyDraft:
    """A draft as a row, past the service."""
    now = database_now()
    values: dict[str, Any] = {
        "name": "a draft",
        "parameters": DEFAULT_PARAMETERS.as_json(),
        "parameters_hash": "0" * 64,
        "created_by": user,
        "created_at": now,
        "edited_by": user,
        "edited_at": now,
        "editors": [user.pk],
    }
    return PolicyDraft.objects.create(**(values | columns))


def insert_version(
    *, editor: int | None, publisher: int | None, draft: int | None, parameters: str = ""
) -> None:
    """A version by SQL; without parameters, those of the draft or else of the version in force."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO policies_policyversion (number, parameters, parameters_hash, published_by,"
            " published_at, note, editor_id, publisher_id, draft_id) SELECT max(number) + 1,"
            " COALESCE(NULLIF(%s, '')::jsonb, (SELECT parameters FROM policies_policydraft"
            " WHERE id = %s), '{}'::jsonb), 'x', 'x', now(), '', %s, %s, %s"
            " FROM policies_policyversion",
            [parameters, draft, editor, publisher, draft],
        )


def test_no_sql_publishes_a_version_with_one_person_as_editor_and_publisher(ada: User) -> None:
    # An honest row of somebody else's draft, so that only the constraint can refuse it.
    draft = draft_by(ada)
    with builders.past_the_triggers(), pytest.raises(IntegrityError, match="published_by_another"):
        insert_version(editor=ada.pk, publisher=ada.pk, draft=draft.pk)
    with pytest.raises(DatabaseError, match="somebody who did not edit it"):
        insert_version(editor=ada.pk, publisher=ada.pk, draft=draft.pk)
    assert PolicyVersion.objects.count() == 1


def test_no_sql_publishes_with_an_editor_and_no_publisher_or_no_draft(
    ada: User, grace: User
) -> None:
    draft = draft_by(ada).pk
    for editor, publisher, of in (
        (ada.pk, None, draft),
        (None, grace.pk, draft),
        (ada.pk, grace.pk, None),
        (None, None, draft),
        (ada.pk, None, None),
    ):
        with pytest.raises(DatabaseError):
            insert_version(editor=editor, publisher=publisher, draft=of)
    assert PolicyVersion.objects.count() == 1


def test_no_sql_publishes_what_the_publisher_edited_earlier(ada: User, grace: User) -> None:
    draft = draft_by(ada, editors=[grace.pk, ada.pk])
    with pytest.raises(DatabaseError, match="somebody who did not edit it"):
        insert_version(editor=ada.pk, publisher=grace.pk, draft=draft.pk)


def test_no_sql_publishes_anything_but_what_the_draft_says(ada: User, grace: User) -> None:
    draft = draft_by(ada)
    with pytest.raises(DatabaseError, match="what an open draft says"):
        insert_version(editor=ada.pk, publisher=grace.pk, draft=draft.pk, parameters='{"x": 1}')
    insert_version(editor=ada.pk, publisher=grace.pk, draft=draft.pk)
    assert PolicyVersion.objects.latest("number").editor == ada


def test_a_draft_is_published_once(ada: User, grace: User) -> None:
    draft = draft_by(ada)
    insert_version(editor=ada.pk, publisher=grace.pk, draft=draft.pk)
    with pytest.raises(IntegrityError):
        insert_version(editor=ada.pk, publisher=grace.pk, draft=draft.pk)


def sql(statement: str, *values: Any) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement, values)


def test_a_draft_that_is_over_is_never_changed(ada: User, grace: User) -> None:
    discarded = draft_by(ada)
    close = "UPDATE policies_policydraft SET state = %s, closed_at = now() WHERE id = %s"
    with pytest.raises(DatabaseError, match="was not published"):
        sql(close, "published", discarded.pk)
    sql(close, "discarded", discarded.pk)
    published = draft_by(ada)
    insert_version(editor=ada.pk, publisher=grace.pk, draft=published.pk)
    sql(close, "published", published.pk)
    for over in (discarded, published):
        for change in (
            "note = 'x'",
            "state = 'open', closed_at = NULL",
            "parameters = '{}'",
            f"edited_by_id = {grace.pk}",
        ):
            with pytest.raises(DatabaseError, match=r"stays as it is|one of its editors"):
                sql(f"UPDATE policies_policydraft SET {change} WHERE id = %s", over.pk)


def test_a_draft_forgets_none_of_its_editors(ada: User, grace: User) -> None:
    draft = draft_by(ada)
    for change in (
        f"edited_by_id = {grace.pk}",
        f"edited_by_id = {grace.pk}, editors = '[{grace.pk}]'",
        "editors = '[]'",
        f"created_by_id = {grace.pk}",
    ):
        with pytest.raises(DatabaseError):
            sql(f"UPDATE policies_policydraft SET {change} WHERE id = %s", draft.pk)
    sql(
        "UPDATE policies_policydraft SET edited_by_id = %s, editors = editors || %s::jsonb"
        " WHERE id = %s",
        grace.pk,
        f"[{grace.pk}]",
        draft.pk,
    )


def test_a_draft_begins_open_and_is_never_deleted(ada: User) -> None:
    with pytest.raises(DatabaseError, match="begins open"), transaction.atomic():
        draft_by(ada, state="discarded", closed_at=database_now())
    draft = draft_by(ada)
    with pytest.raises(DatabaseError):
        sql("DELETE FROM policies_policydraft WHERE id = %s", draft.pk)
