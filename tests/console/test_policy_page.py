"""Policy drafts and versions on the staff site."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from policies.drafts import Content, Refused, Saved, Why, content_hash, save_draft
from policies.models import DecisionRecord, PolicyDraft, PolicyEvent, PolicyVersion
from policies.versions import DEFAULT_PARAMETERS, in_force, publish
from tests import builders
from tests.console.test_pages import HOSTILE, page, post, staff

pytestmark = pytest.mark.django_db

IN_FORCE = json.dumps(DEFAULT_PARAMETERS.as_json())


def add_page() -> str:
    return reverse("admin:policies_policydraft_add")


def shown_of(answer: Any) -> str:
    return html.unescape(answer.content.decode())


def typed(parameters: str, **fields: Any) -> dict[str, Any]:
    """What the form of a new draft posts."""
    version = in_force()
    return {
        "name": "side by side",
        "note": "it is normal here",
        "parameters": parameters,
        "compared_with": version.number if version else 0,
        "seen_hash": "",
    } | fields


def stored(**changed: Any) -> str:
    return json.dumps(DEFAULT_PARAMETERS.as_json() | changed)


def hidden(answer: Any, name: str) -> str:
    """The value of a hidden field of the page's form."""
    found = re.search(
        rf'<input type="hidden" name="{name}" value="([^"]*)"', answer.content.decode()
    )
    return found[1] if found else ""


def drafted(client: Client, **changed: Any) -> PolicyDraft:
    """A draft made by hand in the staff site."""
    values = {"review_beside_open": False} | changed
    assert post(client, add_page(), **typed(stored(**values))).status_code == 302
    return PolicyDraft.objects.latest("pk")


def test_a_draft_begins_as_the_version_in_force_and_is_saved_by_its_editor() -> None:
    client = staff("change_policydraft")
    answer = client.get(add_page())
    assert '"ceiling_minor": {' in shown_of(answer)
    assert "What each parameter means" in shown_of(answer)
    assert hidden(answer, "compared_with") == "1"
    draft = drafted(client)
    assert draft.parameters["review_beside_open"] is False
    assert (draft.name, draft.note, draft.state) == ("side by side", "it is normal here", "open")
    assert draft.editors == [draft.edited_by_id]
    assert PolicyVersion.objects.count() == 1
    assert PolicyEvent.objects.get(draft=draft).person == draft.edited_by


def test_without_the_permission_there_is_no_form_and_no_draft() -> None:
    assert post(staff(), add_page(), **typed(stored(review_beside_open=False))).status_code == 403
    draft = drafted(staff("change_policydraft"))
    for client in (staff(), staff("publish_policy")):
        answer = client.get(page(draft))
        assert answer.status_code == 200
        assert 'name="parameters"' not in answer.content.decode()
        assert post(client, page(draft), **typed(stored())).status_code == 403
        discard = reverse("admin:policies_draft_discard", args=[draft.pk])
        assert post(client, discard, seen_hash=content_hash(draft)).status_code == 403
    assert not PolicyDraft.objects.exclude(state="open").exists()


def test_a_version_is_published_from_a_draft_by_another_person_and_in_no_other_way() -> None:
    editor, publisher = staff("change_policydraft", "publish_policy"), staff("publish_policy")
    draft = drafted(editor)
    address = reverse("admin:policies_draft_publish", args=[draft.pk])
    answer = editor.get(page(draft))
    assert "You edited this draft, so somebody else publishes it." in shown_of(answer)
    assert "Publish this draft" not in shown_of(answer)
    post(editor, address, seen_hash=content_hash(draft))
    assert "Nothing was published." in shown_of(editor.get(page(draft)))
    assert post(staff(), address, seen_hash=content_hash(draft)).status_code == 403
    assert publisher.get(address).status_code == 405
    assert PolicyVersion.objects.count() == 1

    answer = publisher.get(page(draft))
    assert "Publish this draft" in shown_of(answer)
    assert post(publisher, address, seen_hash=hidden(answer, "seen_hash")).status_code == 302
    version = PolicyVersion.objects.latest("number")
    assert (version.number, version.draft, version.editor) == (2, draft, draft.edited_by)
    assert "It is version 2, in force" in shown_of(publisher.get(page(draft)))
    assert "It is the first one." in shown_of(publisher.get(page(draft.based_on)))
    shown = shown_of(publisher.get(page(version)))
    assert "review_beside_open" in shown
    assert f"edited by <strong>{draft.edited_by.get_username()}</strong>" in shown
    for client in (editor, publisher, staff(superuser=True)):
        assert client.get("/admin/policies/policyversion/add/").status_code == 403
        assert post(client, page(version), parameters="{}").status_code == 403


def test_what_was_edited_meanwhile_is_not_published_unseen() -> None:
    editor, publisher = staff("change_policydraft"), staff("publish_policy")
    draft = drafted(editor)
    seen = hidden(publisher.get(page(draft)), "seen_hash")
    form = editor.get(page(draft))
    changed = typed(
        stored(review_beside_open=False, unsearchable_ceiling_minor=5),
        seen_hash=hidden(form, "seen_hash"),
    )
    assert post(editor, page(draft), **changed).status_code == 302
    post(publisher, reverse("admin:policies_draft_publish", args=[draft.pk]), seen_hash=seen)
    assert "changed the draft after you opened it" in shown_of(publisher.get(page(draft)))
    assert PolicyVersion.objects.count() == 1
    # Nor does an editor overwrite what they have not seen, and what they typed is still there.
    answer = post(editor, page(draft), **(changed | {"note": "and this"}))
    assert answer.status_code == 200
    assert "changed the draft after you opened it" in shown_of(answer)
    assert "and this" in shown_of(answer)


def test_a_draft_that_another_version_overtook_is_compared_and_saved_again() -> None:
    editor, publisher = staff("change_policydraft"), staff("publish_policy")
    draft = drafted(editor)
    publish(
        parameters=replace(DEFAULT_PARAMETERS, unsearchable_ceiling_minor=7), published_by="shell"
    )
    assert "version 2 is in force" in shown_of(publisher.get(page(draft)))
    form = editor.get(page(draft))
    # What the draft would take back is shown beside what it was made for.
    assert "unsearchable_ceiling_minor" in shown_of(form)
    assert hidden(form, "compared_with") == "2"
    again = typed(
        stored(review_beside_open=False, unsearchable_ceiling_minor=7),
        seen_hash=hidden(form, "seen_hash"),
        compared_with=2,
    )
    assert post(editor, page(draft), **again).status_code == 302
    assert "Publish this draft" in shown_of(publisher.get(page(draft)))


def test_a_discarded_draft_is_read_and_nothing_else() -> None:
    editor = staff("change_policydraft")
    draft = drafted(editor)
    address = reverse("admin:policies_draft_discard", args=[draft.pk])
    post(editor, address, seen_hash="0" * 64)
    assert "changed the draft" in shown_of(editor.get(page(draft)))
    post(editor, address, seen_hash=content_hash(draft))
    shown = shown_of(editor.get(page(draft)))
    assert "It was never in force." in shown
    assert 'name="parameters"' not in shown
    assert "Publish this draft" not in shown
    assert post(editor, page(draft), **typed(stored())).status_code == 403


def test_the_page_shows_what_would_change_for_examples_and_for_real_refunds() -> None:
    order = builders.order()
    action = builders.action(order, amount_minor=7_900)
    editor = staff("change_policydraft")
    draft = drafted(editor, ceiling_minor={"USD": 5_000})
    shown = shown_of(editor.get(page(draft)))
    assert "ceiling_minor.EUR" in shown
    assert "what it would say about imagined refunds".capitalize() in shown
    assert "REVIEW by 1 of tier 1" in shown
    assert "no rule asks for more" in shown
    assert action.action_id not in shown
    shown = shown_of(editor.get(f"{page(draft)}?days=7"))
    assert "<strong>1</strong> of 1 refunds of 7 days" in shown
    assert action.action_id in shown
    assert "79.00 USD" in shown


@pytest.mark.parametrize("days", ["0", "8", "-1", "x", "%00", "9" * 400, "7&days=%00"])
def test_another_number_of_days_is_not_replayed(days: str) -> None:
    draft = drafted(staff("change_policydraft"))
    answer = staff().get(f"{page(draft)}?days={days}")
    assert answer.status_code == 200
    assert "would be decided otherwise" not in shown_of(answer)


def test_a_long_replay_on_the_page_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.policy_page.REPLAY_DECISIONS_MAX", 1)
    order = builders.order()
    builders.action(order, amount_minor=100)
    builders.action(order, amount_minor=200)
    draft = drafted(staff("change_policydraft"))
    shown = shown_of(staff().get(f"{page(draft)}?days=1"))
    assert "of 1 refunds of 1 days" in shown
    assert f"manage.py policy replay --draft {draft.pk} --days 1" in shown


def test_no_page_writes_and_hostile_words_stay_words() -> None:
    editor = staff("change_policydraft")
    post(editor, add_page(), **typed(stored(review_beside_open=False), name="a", note=HOSTILE))
    draft = PolicyDraft.objects.get()
    builders.action(builders.order())
    root = staff(superuser=True)
    for address in (
        page(draft),
        f"{page(draft)}?days=7",
        page(PolicyVersion.objects.get()),
        page(PolicyEvent.objects.get(draft=draft)),
        add_page(),
        reverse("admin:policies_policydraft_changelist"),
        reverse("admin:policies_policyversion_changelist"),
        reverse("admin:policies_policyevent_changelist"),
    ):
        with CaptureQueriesContext(connection) as queries:
            answer = root.get(address)
        assert answer.status_code == 200, address
        assert "<script>alert(1)" not in answer.content.decode()
        words = [query["sql"].split()[0] for query in queries]
        assert not {"INSERT", "UPDATE", "DELETE"} & set(words), address
    assert DecisionRecord.objects.count() == 1


def test_what_is_refused_at_the_last_moment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: Any) -> Refused:
        return Refused(why=Why.OLD_BASE, sentence="Another version came between.")

    client = staff("change_policydraft")
    monkeypatch.setattr("console.policy_page.save_draft", refused)
    assert post(client, add_page(), **typed(stored(review_beside_open=False))).status_code == 302
    assert "Another version came between." in shown_of(client.get(add_page()))
    assert not PolicyDraft.objects.exists()


def test_a_draft_that_is_older_than_a_rule_shows_the_rule_off() -> None:
    user = builders.person(may_decide=False)
    user.is_superuser = True
    user.save()
    content = Content(name="x", parameters=json.loads(stored()), note="", based_on=1)
    saved = save_draft(user=user, content=content)
    assert isinstance(saved, Saved)
    draft = PolicyDraft.objects.get()
    del draft.parameters["component_caps"]
    draft.save(update_fields=["parameters"])
    client = staff("change_policydraft", "publish_policy")
    shown = shown_of(client.get(page(draft)))
    assert '"component_caps": false' in shown
    assert "component_caps: is required" in shown


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ceiling_minor", {"USD": 100.5}),
        ("ceiling_minor", {"USD": True}),
        ("ceiling_minor", {"USD": -1}),
        ("ceiling_minor", {"usd": 1}),
        ("ceiling_minor", {"USD": "100"}),
        ("ceiling_minor", []),
        ("reasons", []),
        ("reasons", ["a b"]),
        ("reasons", "damaged"),
        ("review_beside_open", 1),
        ("same_amount_window_seconds", 1e3),
        ("unsearchable_ceiling_minor", None),
        ("surprise", 1),
    ],
)
def test_parameters_that_the_rules_could_misread_are_refused(field, value):
    parameters = DEFAULT_PARAMETERS.as_json() | {field: value}
    answer = post(staff("change_policydraft"), add_page(), **typed(json.dumps(parameters)))
    assert answer.status_code == 200
    assert not PolicyDraft.objects.exists()


IN_FORCE = json.dumps(DEFAULT_PARAMETERS.as_json())


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"USD": 10000', '"USD": 10000, "USD": 9999999', "ceiling_minor.USD: is given twice"),
        ('"USD": 10000', '"USD": ' + "9" * 5_000, "ceiling_minor.USD: must be a JSON integer"),
        ('"USD": 10000', '"USD": 1e4', "ceiling_minor.USD: must be a JSON integer"),
        ('"USD": 10000', '"USD": NaN', "ceiling_minor.USD: must be a JSON integer"),
        ('"USD": 10000', '"USD": -5', "ceiling_minor.USD: must be an integer from 0"),
        ('"damaged"', '"\\ud800"', "reasons[2]: holds a NUL or half of a surrogate"),
        ('"damaged"', '"\\u0000"', "reasons[2]: holds a NUL or half of a surrogate"),
        ('"ceiling_minor"', '"\\ud800"', "is not a possible name"),
        ('{"ceiling_minor"', '{"limit": 1, "ceiling_minor"', "limit: is not a known parameter"),
        ('"review_beside_open": true, ', "", "review_beside_open: is required"),
        ("259200", "2592000000", "same_amount_window_seconds: must be an integer from 0"),
        ("{", "[" * 50_000, "The text is nested too deeply"),
        ("{", "", "The text is not one JSON value"),
    ],
)
def test_policy_text_that_could_be_misread_is_refused_and_shown_as_typed(old, new, told):
    assert old in IN_FORCE
    text = IN_FORCE.replace(old, new, 1)
    answer = post(staff("change_policydraft"), add_page(), **typed(text))
    assert answer.status_code == 200
    shown = shown_of(answer)
    assert told in shown
    assert text in shown
    assert not PolicyDraft.objects.exists()
