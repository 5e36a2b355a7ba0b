"""`manage.py policy`: every verb, what it prints where, and when it fails."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.core.management.base import CommandError

from effects.clock import database_now
from policies.models import DecisionRecord, PolicyDraft, PolicyEvent, PolicyVersion, ReferenceRate
from refunds.models import RefundAction
from tests import builders
from tests.policies.test_import_rates import ECB

pytestmark = pytest.mark.django_db


def run(*arguments: Any) -> tuple[str, str]:
    """What it said on stdout and on stderr."""
    out, err = StringIO(), StringIO()
    call_command("policy", *map(str, arguments), stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


@pytest.fixture
def ada() -> User:
    user = builders.person("ada", may_decide=False)
    user.user_permissions.add(Permission.objects.get(codename="change_policydraft"))
    return user


def changed_file(folder: Path, **changed: Any) -> Path:
    """The exported version in force, with some parameters changed by hand."""
    value = json.loads(run("export")[0])
    del value["parameters_hash"]
    value["parameters"] |= changed
    file = folder / "stricter.json"
    file.write_text(json.dumps(value))
    return file


def test_show_says_which_version_is_in_force_and_by_whom() -> None:
    builders.policy(review_beside_open=False)
    out, _ = run("show")
    assert "Version 2, in force, published" in out
    assert '"review_beside_open": false' in out
    out, _ = run("show", "--version", 1)
    assert out.startswith("Version 1, published")
    with pytest.raises(CommandError, match="no version 9"):
        run("show", "--version", 9)


def test_export_and_import_make_a_draft_of_the_person_and_publish_nothing(
    tmp_path: Path, ada: User
) -> None:
    out, err = run("export", "--output", tmp_path / "policy.json")
    assert (out, "was written" in err) == ("", True)
    assert (tmp_path / "policy.json").read_text() == run("export")[0]
    file = changed_file(tmp_path, review_beside_open=False)
    out, err = run("import", file, "--as", "ada")
    draft = PolicyDraft.objects.get()
    assert out == f"{draft.pk}\n"
    assert "somebody else publishes it" in err
    assert (draft.edited_by, draft.editors, draft.name) == (ada, [ada.pk], "stricter.json")
    assert draft.parameters["review_beside_open"] is False
    assert PolicyVersion.objects.count() == 1
    event = PolicyEvent.objects.get(draft=draft)
    assert (event.kind, event.data["imported_from"]) == ("policy.draft_imported", "stricter.json")


def test_import_tells_that_a_file_is_of_an_older_version(tmp_path: Path, ada: User) -> None:
    file = changed_file(tmp_path)
    builders.policy(review_beside_open=False)
    _, err = run("import", file, "--as", "ada", "--name", "back")
    assert "exported from version 1, and 2 is in force" in err
    assert PolicyDraft.objects.get().name == "back"


def test_import_refuses_strangers_and_what_cannot_be_read(tmp_path: Path, ada: User) -> None:
    builders.person("eve", may_decide=False)
    file = changed_file(tmp_path)
    bad = changed_file(tmp_path / "..", reasons=[])
    for arguments, told in (
        ((file, "--as", "nobody"), "no user 'nobody'"),
        ((file, "--as", "eve"), "needs the permission"),
        ((bad, "--as", "ada"), "reasons"),
        ((tmp_path / "missing.json", "--as", "ada"), "missing.json"),
        ((tmp_path, "--as", "ada"), "Nothing was imported"),
    ):
        with pytest.raises(CommandError, match=told):
            run("import", *arguments)
    assert not PolicyDraft.objects.exists()
    bad.unlink()


def test_explain_says_what_would_be_decided_and_records_nothing(tmp_path: Path, ada: User) -> None:
    order = builders.order()
    refund = (order.order_id, 7_900, "usd", "damaged")
    out, _ = run("explain", *refund)
    assert out.startswith("ALLOW, by version 1")
    run("import", changed_file(tmp_path, ceiling_minor={}), "--as", "ada")
    draft = PolicyDraft.objects.get().pk
    out, _ = run("explain", *refund, "--draft", draft)
    assert out.startswith("REVIEW")
    assert f"by draft {draft}: " in out
    assert "no ceiling is set" in out.splitlines()[0]
    answer = json.loads(run("explain", *refund, "--json")[0])
    assert (answer["verdict"], answer["policy_version"]) == ("ALLOW", 1)
    assert answer["facts"]["amount_minor"] == 7_900
    assert not RefundAction.objects.exists()
    assert not DecisionRecord.objects.exists()


def test_explain_without_an_order_shows_the_examples(tmp_path: Path, ada: User) -> None:
    out, _ = run("explain")
    assert "ALLOW" in out
    assert "->" not in out
    run("import", changed_file(tmp_path, ceiling_minor={}), "--as", "ada")
    draft = PolicyDraft.objects.get().pk
    out, _ = run("explain", "--draft", draft)
    assert "ALLOW -> REVIEW by 1 of tier 1" in out
    assert "Decided otherwise: " in out
    rows = json.loads(run("explain", "--draft", draft, "--json")[0])
    assert rows[0]["in_force"] == "ALLOW"
    assert rows[0]["draft"].startswith("REVIEW")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("4821", 100, "USD"), "Say all of"),
        (("4821", 100, "USD", "late"), "has not been mirrored"),
        (("a/b", 100, "USD", "late"), "order_id"),
        (("4821", 0, "USD", "late"), "amount_minor"),
        (("--draft", 7), "no draft 7"),
    ],
)
def test_explain_tells_a_person_what_is_wrong(arguments: tuple[Any, ...], told: str) -> None:
    with pytest.raises(CommandError, match=told):
        run("explain", *arguments)


def test_replay_shows_progress_on_stderr_and_fails_when_a_verdict_changed() -> None:
    order = builders.order()
    action = builders.action(order)
    out, err = run("replay")
    assert "Decisions of the last 30 days" in out
    assert "with: 1. Changed: 0." in out
    assert "1 of 1 decisions" in err
    with builders.past_the_triggers():
        DecisionRecord.objects.update(verdict="DENY")
    out_err = StringIO()
    with pytest.raises(CommandError, match="do not come out as they were recorded"):
        call_command("policy", "replay", stdout=out_err, stderr=StringIO())
    assert f"{action.action_id} (decision 1" in out_err.getvalue()
    assert "DENY -> ALLOW" in out_err.getvalue()


def test_replay_of_a_draft_or_a_file_shows_the_money(tmp_path: Path, ada: User) -> None:
    order = builders.order(captured_minor=20_000)
    builders.action(order, amount_minor=7_900)
    builders.action(order, amount_minor=100)
    file = changed_file(tmp_path, ceiling_minor={"USD": 5_000})
    run("import", file, "--as", "ada")
    by_draft, _ = run("replay", "--draft", PolicyDraft.objects.get().pk, "--days", 2)
    assert "by their first decision: 2. Decided otherwise: 1." in by_draft
    assert "ALLOW -> REVIEW by 1 of tier 1: 1, 79.00 USD" in by_draft
    assert "ALLOW, as before: 1, 1.00 USD" in by_draft
    assert "The largest changes:" in by_draft
    assert run("replay", "--file", file, "--days", 2)[0] == by_draft
    for arguments, told in (
        (("--days", 0), "from 1 to"),
        (("--draft", 1, "--file", file), "not both"),
        (("--draft", 999), "no draft 999"),
        (("--file", tmp_path / "none"), "Nothing was replayed"),
    ):
        with pytest.raises(CommandError, match=told):
            run("replay", *arguments)


def test_rates_are_pinned_once(tmp_path: Path) -> None:
    file = tmp_path / "eurofxref-daily.xml"
    file.write_bytes(ECB)
    out, _ = run("rates", file)
    assert "Pinned 4: 2025-01-15 EUR" in out
    out, _ = run("rates", file)
    assert "4 were there already, with the same rate. Nothing was changed." in out
    file.write_bytes(ECB.replace(b"1.0823", b"1.09"))
    with pytest.raises(CommandError, match="another rate: 2025-01-15 USD"):
        run("rates", file)
    file.write_bytes(b"nothing")
    with pytest.raises(CommandError, match=r"Nothing was imported\. file: "):
        run("rates", file)
    assert ReferenceRate.objects.count() == 4


def test_a_rate_far_from_the_day_before_is_pinned_only_when_told_to(tmp_path: Path) -> None:
    file = tmp_path / "rates.csv"
    file.write_text("day,currency,rate\n2025-01-15,EUR,1\n2025-01-15,JPY,164.27\n")
    run("rates", file)
    file.write_text(
        "day,currency,rate\n2025-01-16,EUR,1\n2025-01-16,JPY,16427\n2025-01-16,USD,1.08\n"
    )
    with pytest.raises(CommandError, match=r"JPY is 16427, and was 164\.27 on 2025-01-15"):
        run("rates", file)
    assert ReferenceRate.objects.count() == 2
    out, _ = run("rates", file, "--unusual-rates")
    assert "Pinned 3" in out


def test_pinned_rates_are_what_decisions_count_in(tmp_path: Path) -> None:
    file = tmp_path / "rates.csv"
    day = database_now().date()
    file.write_text(f"day,currency,rate\n{day},EUR,1\n{day},USD,1.1\n")
    run("rates", file)
    order = builders.order(currency="EUR", captured_minor=10_000)
    action = builders.action(order, amount_minor=1_000)
    record = DecisionRecord.objects.get(action_id=action.action_id)
    assert record.facts["rates"] == {"EUR": "1", "USD": "1.1"}
    assert (record.base_minor, record.base_currency) == (1_100, "USD")
