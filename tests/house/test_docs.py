"""What the documentation takes from the code is what the code says; its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from config.development import CHECKOUT
from config.environment import Environment
from config.management.commands import docs
from effects.states import LEGAL, STATES
from policies.rules import RULES

PAGES = [
    *docs.pages(),
    CHECKOUT / "examples" / "README.md",
    *(
        page
        for room in CHECKOUT.iterdir()
        for page in room.glob("*/README.md")
        if not room.name.startswith(".venv")
    ),
]


def test_the_generated_parts_are_those_of_the_code() -> None:
    call_command("docs", check=True)


def test_every_file_that_is_made_is_there() -> None:
    assert {str(path.relative_to(CHECKOUT)) for path in docs.files()} == set(docs.FILES)


def test_every_part_stands_on_some_page() -> None:
    written = "".join(page.read_text() for page in docs.pages())
    missing = [name for name in docs.PARTS if f"<!-- generated: {name} -->" not in written]
    assert missing == []


def test_a_part_that_is_out_of_date_is_told_and_then_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "PAGE.md"
    page.write_text(
        "before\n<!-- generated: rules -->\na stale line\n<!-- end generated -->\nafter\n"
    )
    monkeypatch.setattr(docs, "CHECKOUT", tmp_path)
    with pytest.raises(CommandError, match=r"PAGE\.md"):
        call_command("docs", check=True)
    assert "a stale line" in page.read_text()
    call_command("docs", check=False)
    text = page.read_text()
    assert "a stale line" not in text
    assert text.startswith("before\n<!-- generated: rules -->\n")
    assert text.endswith("<!-- end generated -->\nafter\n")
    call_command("docs", check=True)


def test_a_part_that_nobody_makes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "PAGE.md").write_text("<!-- generated: nothing -->\n<!-- end generated -->\n")
    monkeypatch.setattr(docs, "CHECKOUT", tmp_path)
    with pytest.raises(CommandError, match="nothing makes a part called 'nothing'"):
        call_command("docs", check=True)


def test_every_state_move_rule_and_variable_is_in_its_table() -> None:
    assert all(f"| `{state}` |" in docs.states() for state in STATES)
    assert all(f"| `{rule}` |" in docs.rules() for rule in RULES)
    shown = {
        (source, target)
        for sources, target in re.findall(r"^\| (.+?) \| `(\w+)` \|", docs.moves(), re.MULTILINE)
        for source in re.findall(r"\w+", sources)
    }
    assert shown == {(source.value, target.value) for source, target in LEGAL}
    rows = re.findall(r"^\| `([A-Z_]+)` \| .*? \| (.*) \|$", docs.environment(), re.MULTILINE)
    assert {name.lower() for name, _ in rows} == set(Environment.model_fields)
    assert [name for name, meaning in rows if not meaning] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }
