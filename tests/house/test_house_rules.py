"""Rules of the house that no linter knows (CONTRIBUTING.md), read from the syntax of every room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from config.development import CHECKOUT
from effects import crashpoints

ROOMS = (
    *("kernel", "effects", "providers", "policies", "approvals", "refunds"),
    *("reconciliation", "agents", "console", "config"),
)


@cache
def _rooms() -> tuple[tuple[Path, ast.Module], ...]:
    return tuple(
        (path.relative_to(CHECKOUT), ast.parse(path.read_text()))
        for room in ROOMS
        for path in sorted((CHECKOUT / room).rglob("*.py"))
        if "migrations" not in path.parts
    )


def _nodes(*kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for path, tree in _rooms():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                yield path, node


def _where(path: Path, node: ast.AST) -> str:
    return f"{path}:{getattr(node, 'lineno', 0)}"


def test_no_message_waits_in_the_broker_for_its_time() -> None:
    """A delay beyond the visibility timeout runs a message on several workers (case T76)."""
    assert [
        _where(path, node)
        for path, node in _nodes(ast.keyword)
        if isinstance(node, ast.keyword) and node.arg in ("eta", "countdown")
    ] == []


def test_nothing_happens_by_signal() -> None:
    assert [
        _where(path, node)
        for path, node in _nodes(ast.ImportFrom)
        if isinstance(node, ast.ImportFrom)
        and (node.module in ("django.dispatch", "django.db.models.signals"))
    ] == []


def test_no_model_overrides_save_or_delete() -> None:
    assert [
        _where(path, method)
        for path, node in _nodes(ast.ClassDef)
        if isinstance(node, ast.ClassDef) and path.name == "models.py"
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name in ("save", "delete")
    ] == []


@pytest.mark.parametrize("room", ["kernel", "effects", "policies", "approvals", "refunds"])
def test_no_assert_guards_money(room: str) -> None:
    """`python -O` removes asserts; a broken promise raises Bug."""
    found = [_where(path, node) for path, node in _nodes(ast.Assert) if path.parts[0] == room]
    assert found == []


def test_each_crash_point_is_used_in_exactly_one_place() -> None:
    names = {
        name: value
        for name, value in vars(crashpoints).items()
        if name.isupper() and isinstance(value, str)
    }
    assert set(names.values()) == set(crashpoints.CRASH_POINTS)
    used = [
        node.args[0].attr
        for _, node in _nodes(ast.Call)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "crash_point"
        and isinstance(node.args[0], ast.Attribute)
    ]
    assert sorted(used) == sorted(names)


def test_no_file_is_named_for_being_useful() -> None:
    forbidden = ("utils.py", "helpers.py", "services.py", "selectors.py", "misc.py")
    assert [str(path) for path, _ in _rooms() if path.name.endswith(forbidden)] == []
