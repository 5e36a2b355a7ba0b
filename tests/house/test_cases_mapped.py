"""docs/cases.md names tests that exist, and every case of its sections."""

from __future__ import annotations

import ast
import re
from functools import cache

from config.development import CHECKOUT

PAGE = CHECKOUT / "docs" / "cases.md"
# Sections A to D, H, I, K and X. The others (webhooks, late failures, disputes, books) belong to
# parts of the product that are not there yet.
CASES = {
    *(f"T{n:02}" for n in (1, 2, 3, 5, 6, 7, 9, 10, 12)),
    *(f"T{n}" for n in (14, 15, 16, 17, 19, 21, 22, 23, 24, 26, 29, 30, 31, 32, 33)),
    *(f"T{n}" for n in (35, 36, 37, 39, 68, 69, 70, 72, 73, 75, 76, 77, 81, 82)),
    *(f"X{n}" for n in range(1, 10)),
}
# Nothing to test: there is no hash chain.
WITHOUT_TEST = {"X6"}
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def _rows() -> dict[str, str]:
    return dict(re.findall(r"^\| ([TX]\d+) \|(.*)$", PAGE.read_text(), re.MULTILINE))


@cache
def _tests_of(path: str) -> frozenset[str]:
    file = CHECKOUT / path
    if not file.exists():
        return frozenset()
    tree = ast.parse(file.read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def test_every_case_has_its_row() -> None:
    assert set(_rows()) == CASES


def test_every_named_test_exists() -> None:
    named = _NAMED.findall(PAGE.read_text())
    assert named
    assert [f"{path}::{name}" for path, name in named if name not in _tests_of(path)] == []


def test_every_case_is_kept_out_by_a_test() -> None:
    rows = _rows()
    assert {case for case, row in rows.items() if not _NAMED.search(row)} == WITHOUT_TEST
