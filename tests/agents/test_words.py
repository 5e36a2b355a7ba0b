"""What a refusal over HTTP says fits a backend and a model: it invites no second proposal.

Read from the code: every `detail` of a problem, every title, and every reason of a field.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import door, shapes
from agents.idempotency_key import HEADER_REASON
from agents.problems import Kind
from config.development import CHECKOUT
from tests.agents.test_mcp import INVITES

# What would make another call of this one, by whoever reads it.
PROPOSES = re.compile(
    r"(?<!read it )\bagain\b|same ids|try\b|once more|propose (?:it|another)|"
    r"(?:new|another|other|different) (?:request |idempotency )?(?:ids?|keys?|requests?)\b",
    re.IGNORECASE,
)
# What says that it must not be.
FORBIDS = re.compile(r"[Dd]o not choose (?:another key or )?other ids to get round it")


def sentences(module: Path) -> Iterator[tuple[str, int, str]]:
    """Every text that a module of the door gives a problem: with the constants that it names."""
    names = vars(importlib.import_module(f"agents.{module.stem}"))
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in ("detail", "reason"):
                    yield module.name, node.lineno, text_of(keyword.value, names)


def text_of(node: ast.expr, names: dict[str, Any]) -> str:
    """The text of an expression, as far as it stands in the code; the rest is given by callers."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value, names) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return text_of(node.value, names)
    if isinstance(node, ast.Name):
        value = names.get(node.id)
        return value if isinstance(value, str) else "…"
    if isinstance(node, ast.Subscript):
        return text_of(node.value, names)
    return "…"


MODULES = [path for path in sorted((CHECKOUT / "agents").glob("*.py")) if path.stem != "mcp"]
TOLD = [
    *(one for module in MODULES for one in sentences(module)),
    *(("problems.py", 0, kind.title) for kind in Kind),
    *(("door.py", 0, reason) for reason in door._REASONS.values()),
    *(("shapes.py", 0, reason) for reason in (*shapes.PATTERN_REASONS.values(), HEADER_REASON)),
]


def test_all_of_them_are_found() -> None:
    texts = " ".join(text for *_, text in TOLD)
    for part in (
        "what was recorded before stands as it is",
        "The database could not be reached",
        "Whether anything was recorded is not known",
        "has not been mirrored",
        "was proposed by another agent",
        "Another action was recorded under this Idempotency-Key",
        "neither revoked nor expired",
        "The body is larger than",
        "names none of ALLOWED_HOSTS",
    ):
        assert part in texts, part
    assert len(TOLD) > 60


@pytest.mark.parametrize("told", TOLD, ids=lambda told: f"{told[0]}:{told[1]}")
def test_no_refusal_invites_a_second_proposal(told: tuple[str, int, str]) -> None:
    assert INVITES.search(told[2]) is None, told
    assert PROPOSES.search(FORBIDS.sub("", told[2])) is None, told


def test_the_word_list_would_notice() -> None:
    for sentence in (
        "Wait 3 s, then send exactly this one again, with the same ids.",
        "If this was a proposal, send the same one again.",
        "Choose a new request id.",
        "You may try once more.",
    ):
        assert PROPOSES.search(sentence), sentence
