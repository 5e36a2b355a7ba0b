"""One person edits a policy, another one publishes it."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection

from policies.drafts import (
    Content,
    Discarded,
    Published,
    Refused,
    Saved,
    Why,
    content_hash,
    discard_draft,
    publish_draft,
    save_draft,
)
from policies.models import PolicyDraft, PolicyEvent, PolicyVersion
from policies.versions import DEFAULT_PARAMETERS, editor_in_force, in_force, publish
from tests import builders

pytestmark = pytest.mark.django_db


def someone(*permissions: str) -> User:
    """A member of staff with these permissions of this room."""
    user = builders.person(may_decide=False)
    user.user_permissions.add(
        *Permission.objects.filter(codename__in=permissions, content_type__app_label="policies")
    )
    return User.objects.get(pk=user.pk)


def drafter() -> User:
    return someone("change_policydraft")


def publisher() -> User:
    return someone("publish_policy")


def stored(**changed: Any) -> dict[str, Any]:
    """The default policy as it is stored, with some parameters changed."""
    value: dict[str, Any] = json.loads(json.dumps(DEFAULT_PARAMETERS.as_json()))
    return value | changed


def content(*, base: int | None = None, note: str = "why", **changed: Any) -> Content:
    version = in_force()
    number = base if base is not None else version.number if version else 0
    return Content(name="side by side", parameters=stored(**changed), note=note, based_on=number)


def saved(user: User, **fields: Any) -> Saved:
    result = save_draft(user=user, content=content(**({"review_beside_open": False} | fields)))
    assert isinstance(result, Saved), result
    return result


def test_a_draft_is_in_force_once_another_person_published_it() -> None:
    ada, grace = drafter(), publisher()
    draft = saved(ada)
    before = in_force()
    assert before is not None
    published = publish_draft(user=grace, draft_id=draft.draft_id, seen_hash=draft.seen_hash)
    assert published == Published(draft_id=draft.draft_id, number=before.number + 1)
    version = PolicyVersion.objects.get(number=before.number + 1)
    assert version == in_force()
    assert (version.editor, version.publisher, version.note) == (ada, grace, "why")
    assert version.published_by == f"person:{grace.get_username()}"
    assert version.parameters["review_beside_open"] is False
    assert editor_in_force() == ada.pk
    row = PolicyDraft.objects.get()
    assert (row.state, row.published_as) == ("published", version)
    action = builders.action(builders.order())
    assert action.state == "AUTHORIZED"


def test_what_a_program_published_has_no_editor() -> None:
    draft = saved(drafter())
    publish_draft(user=publisher(), draft_id=draft.draft_id, seen_hash=draft.seen_hash)
    publish(parameters=DEFAULT_PARAMETERS, published_by="operator")
    assert editor_in_force() is None


@pytest.mark.parametrize("last", [True, False])
def test_nobody_who_ever_edited_a_draft_publishes_it(last: bool) -> None:
    both, other = someone("change_policydraft", "publish_policy"), drafter()
    first, second = (other, both) if last else (both, other)
    draft = saved(first)
    again = save_draft(
        user=second,
        content=content(review_beside_open=False, note="better"),
        draft_id=draft.draft_id,
        seen_hash=draft.seen_hash,
    )
    assert isinstance(again, Saved)
    refused = publish_draft(user=both, draft_id=draft.draft_id, seen_hash=again.seen_hash)
    assert isinstance(refused, Refused)
    assert refused.why is Why.IS_EDITOR
    assert PolicyVersion.objects.count() == 1


def test_a_superuser_does_not_publish_their_own_draft_either() -> None:
    root = User.objects.create_superuser("root", password="x")
    draft = saved(root)
    refused = publish_draft(user=root, draft_id=draft.draft_id, seen_hash=draft.seen_hash)
    assert isinstance(refused, Refused)
    assert refused.why is Why.IS_EDITOR


def test_editing_and_publishing_need_their_own_permissions() -> None:
    nobody = someone()
    refused = save_draft(user=nobody, content=content(review_beside_open=False))
    assert isinstance(refused, Refused)
    assert refused.why is Why.NOT_PERMITTED
    draft = saved(drafter())
    for outcome in (
        publish_draft(user=drafter(), draft_id=draft.draft_id, seen_hash=draft.seen_hash),
        discard_draft(user=publisher(), draft_id=draft.draft_id, seen_hash=draft.seen_hash),
        save_draft(
            user=publisher(),
            content=content(),
            draft_id=draft.draft_id,
            seen_hash=draft.seen_hash,
        ),
    ):
        assert isinstance(outcome, Refused)
        assert outcome.why is Why.NOT_PERMITTED
    left = someone("publish_policy")
    left.is_active = False
    left.save()
    assert isinstance(
        publish_draft(user=left, draft_id=draft.draft_id, seen_hash=draft.seen_hash), Refused
    )
    assert PolicyVersion.objects.count() == 1
    assert PolicyDraft.objects.get().state == "open"


def test_a_draft_that_changed_since_it_was_looked_at_is_not_published() -> None:
    ada = drafter()
    draft = saved(ada)
    changes: list[dict[str, Any]] = [{"review_beside_open": False, "note": "another"}, {}]
    for changed in changes:
        seen = PolicyDraft.objects.get()
        save_draft(
            user=ada,
            content=content(**changed),
            draft_id=draft.draft_id,
            seen_hash=content_hash(seen),
        )
        for outcome in (
            publish_draft(user=publisher(), draft_id=draft.draft_id, seen_hash=draft.seen_hash),
            discard_draft(user=ada, draft_id=draft.draft_id, seen_hash=draft.seen_hash),
            save_draft(
                user=ada, content=content(), draft_id=draft.draft_id, seen_hash=draft.seen_hash
            ),
        ):
            assert isinstance(outcome, Refused)
            assert outcome.why is Why.CHANGED_SINCE
            assert ada.get_username() in outcome.sentence
    assert PolicyVersion.objects.count() == 1


def test_a_draft_of_an_older_version_is_not_published_until_it_was_compared_again() -> None:
    ada, grace = drafter(), publisher()
    draft = saved(ada)
    publish(parameters=replace(DEFAULT_PARAMETERS, reasons=("damaged",)), published_by="operator")
    refused = publish_draft(user=grace, draft_id=draft.draft_id, seen_hash=draft.seen_hash)
    assert isinstance(refused, Refused)
    assert refused.why is Why.OLD_BASE
    assert "version 2 is in force" in refused.sentence
    stale = save_draft(
        user=ada, content=content(base=1), draft_id=draft.draft_id, seen_hash=draft.seen_hash
    )
    assert isinstance(stale, Refused)
    assert stale.why is Why.OLD_BASE
    again = save_draft(
        user=ada,
        content=content(review_beside_open=False),
        draft_id=draft.draft_id,
        seen_hash=draft.seen_hash,
    )
    assert isinstance(again, Saved)
    assert isinstance(
        publish_draft(user=grace, draft_id=draft.draft_id, seen_hash=again.seen_hash), Published
    )


@pytest.mark.parametrize(
    ("fields", "why", "named"),
    [
        ({"surprise": 1}, Why.BAD_PARAMETERS, "surprise"),
        ({"ceiling_minor": {"USD": 1.5}}, Why.BAD_PARAMETERS, "ceiling_minor.USD"),
        ({"ceiling_minor": {"USD": 2**53}}, Why.BAD_PARAMETERS, "ceiling_minor.USD"),
        ({"reasons": []}, Why.BAD_PARAMETERS, "reasons"),
        ({"note": "\x00"}, Why.BAD_TEXT, "note"),
        ({"note": "x" * 2_001}, Why.BAD_TEXT, "note"),
        ({"base": 7}, Why.OLD_BASE, "version 7"),
    ],
)
def test_what_the_rules_could_misread_is_not_saved(
    fields: dict[str, Any], why: Why, named: str
) -> None:
    refused = save_draft(user=drafter(), content=content(**fields))
    assert isinstance(refused, Refused)
    assert refused.why is why
    assert named in refused.sentence
    assert not PolicyDraft.objects.exists()
    assert not PolicyEvent.objects.filter(draft__isnull=False).exists()


@pytest.mark.parametrize("name", ["", " ", "x" * 81, "two\nlines", "\u202e"])
def test_a_draft_has_a_name_that_can_be_read(name: str) -> None:
    refused = save_draft(user=drafter(), content=replace(content(), name=name))
    assert isinstance(refused, Refused)
    assert refused.why is Why.BAD_TEXT


def test_parameters_that_a_newer_program_cannot_read_are_not_published() -> None:
    draft = saved(drafter())
    row = PolicyDraft.objects.get()
    row.parameters = {"ceiling_minor": {}}
    row.save(update_fields=["parameters"])
    refused = publish_draft(user=publisher(), draft_id=draft.draft_id, seen_hash=draft.seen_hash)
    assert isinstance(refused, Refused)
    assert refused.why is Why.BAD_PARAMETERS
    assert "is required" in refused.sentence


def test_a_draft_that_says_what_is_in_force_is_not_published() -> None:
    version = in_force()
    assert version is not None
    publish(parameters=DEFAULT_PARAMETERS, published_by="operator")
    result = save_draft(user=drafter(), content=content())
    assert isinstance(result, Saved)
    refused = publish_draft(user=publisher(), draft_id=result.draft_id, seen_hash=result.seen_hash)
    assert isinstance(refused, Refused)
    assert refused.why is Why.CHANGES_NOTHING


def test_a_draft_that_is_over_stays_as_it_is() -> None:
    ada, grace = drafter(), publisher()
    thrown = saved(ada)
    assert discard_draft(
        user=ada, draft_id=thrown.draft_id, seen_hash=thrown.seen_hash
    ) == Discarded(draft_id=thrown.draft_id)
    done = saved(ada)
    publish_draft(user=grace, draft_id=done.draft_id, seen_hash=done.seen_hash)
    count = PolicyEvent.objects.count()
    for draft, word in ((thrown, "discarded"), (done, "published")):
        for outcome in (
            publish_draft(user=grace, draft_id=draft.draft_id, seen_hash=draft.seen_hash),
            discard_draft(user=ada, draft_id=draft.draft_id, seen_hash=draft.seen_hash),
            save_draft(
                user=ada, content=content(), draft_id=draft.draft_id, seen_hash=draft.seen_hash
            ),
        ):
            assert isinstance(outcome, Refused)
            assert outcome.why is Why.IS_OVER
            assert f"was {word} already" in outcome.sentence
    assert PolicyEvent.objects.count() == count


def test_there_is_no_draft_of_another_number() -> None:
    refused = publish_draft(user=publisher(), draft_id=7, seen_hash="")
    assert isinstance(refused, Refused)
    assert refused.why is Why.UNKNOWN_DRAFT


def test_each_act_is_an_event_with_who_and_what() -> None:
    ada, grace = drafter(), publisher()
    draft = saved(ada)
    publish_draft(user=grace, draft_id=draft.draft_id, seen_hash=draft.seen_hash)
    thrown = saved(ada, review_beside_open=True)
    discard_draft(user=ada, draft_id=thrown.draft_id, seen_hash=thrown.seen_hash)
    events = list(PolicyEvent.objects.filter(draft__isnull=False).order_by("pk"))
    assert [(event.kind, event.person) for event in events] == [
        ("policy.draft_saved", ada),
        ("policy.published", grace),
        ("policy.draft_saved", ada),
        ("policy.draft_discarded", ada),
    ]
    assert events[0].data["parameters"]["review_beside_open"] is False
    assert events[1].version == in_force()
    assert events[1].actor == f"person:{grace.get_username()}"


@pytest.mark.django_db(transaction=True)
def test_of_two_people_who_publish_at_once_one_does() -> None:
    drafts = [saved(drafter()), saved(drafter(), note="the other")]
    people = [publisher(), publisher()]
    together, outcomes = threading.Barrier(2), []

    def act(index: int) -> None:
        together.wait()
        try:
            outcomes.append(
                publish_draft(
                    user=people[index],
                    draft_id=drafts[index].draft_id,
                    seen_hash=drafts[index].seen_hash,
                )
            )
        finally:
            connection.close()

    threads = [threading.Thread(target=act, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Published", "Refused"]
    assert next(o.why for o in outcomes if isinstance(o, Refused)) is Why.OLD_BASE
    assert PolicyVersion.objects.filter(editor__isnull=False).count() == 1
