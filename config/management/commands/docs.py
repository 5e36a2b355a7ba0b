"""`manage.py docs`: write what the documentation takes from the code between its markers.

A page says where a part belongs:

    <!-- generated: states -->
    <!-- end generated -->

Whatever stands between the two lines is replaced. Whole files (`FILES`) are the code's alone.
`--check` writes nothing and fails when a page differs from the code.
"""

from __future__ import annotations

import inspect
import json
import re
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from agents.api import api
from agents.problems import Kind
from config.development import CHECKOUT
from config.environment import Environment, Timeouts
from effects.states import FINAL_STATES, MOVES, START_STATES, STATES
from policies.rules import RULES
from policies.versions import DEFAULT_PARAMETERS
from providers.stripe.classify import render_table
from reconciliation.possible_acts import BY_TWO, CONSEQUENCES, LABELS, WHEN, Name, permission_needed

PAGES = ("*.md", "docs/**/*.md")
_PART = re.compile(
    r"(?P<begin><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end generated -->)",
    re.DOTALL,
)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table; a `|` inside a cell is escaped."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def states() -> str:
    """Every state, what it means and who moves it on."""
    marks = dict.fromkeys(START_STATES, "start")
    for state in FINAL_STATES:
        marks[state] = "start, final" if state in marks else "final"
    rows = [
        (f"`{state}`", marks.get(state, ""), about.means, about.mover)
        for state, about in STATES.items()
    ]
    return _table(("state", "", "means", "who moves it on, and if that one dies"), rows)


def moves() -> str:
    """Every legal move; those on evidence alone are one line for each target."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for move in MOVES:
        by_reason.setdefault((move.target.value, move.when), []).append(f"`{move.source}`")
    rows = [
        (", ".join(sources), f"`{target}`", when) for (target, when), sources in by_reason.items()
    ]
    return _table(("from", "to", "when"), rows)


def rules() -> str:
    """Every policy rule in the order in which it is run."""
    return _table(
        ("rule", "says"),
        [(f"`{name}`", " ".join(inspect.getdoc(rule).split())) for name, rule in RULES.items()],  # type: ignore[union-attr]
    )


def default_policy() -> str:
    """The parameters of the policy that an installation begins with."""
    rows = []
    for name, value in DEFAULT_PARAMETERS.as_json().items():
        if isinstance(value, dict):
            shown = ", ".join(f"{key} {amount}" for key, amount in value.items())
        elif isinstance(value, (list, tuple)):
            shown = "; ".join(_row_shown(item) for item in value)
        else:
            shown = str(value)
        rows.append((f"`{name}`", shown))
    return _table(("parameter", "value"), rows)


def _row_shown(item: Any) -> str:
    """One item of a list: a code, or the fields of a row that say something."""
    if not isinstance(item, dict):
        return f"`{item}`"
    return " ".join(f"{name} `{part}`" for name, part in item.items() if part is not None)


def case_acts() -> str:
    """Every act on a case: what it does, when it is possible, who may, and how many it takes."""
    rows = [
        (
            LABELS[name],
            CONSEQUENCES[name],
            WHEN[name],
            f"`{permission_needed(name)}`",
            "2" if name in BY_TWO else "1",
        )
        for name in Name
    ]
    return _table(("act", "what happens", "possible when", "permission", "people"), rows)


def environment() -> str:
    """Every variable with its default and its meaning, in the order of the code."""
    rows = [
        (f"`{name.upper()}`", _default_of(name), meaning)
        for section in (Environment, Timeouts)
        for name, meaning in _commented_fields(section)
    ]
    return _table(("variable", "default", "meaning"), rows)


def _commented_fields(section: type[Timeouts]) -> Iterator[tuple[str, str]]:
    """The fields a class itself declares, each with the `#:` comment above it."""
    comment: list[str] = []
    for line in inspect.getsource(section).splitlines():
        text = line.strip()
        field = re.match(r"    (\w+): ", line)
        if text.startswith("#:"):
            comment.append(text.removeprefix("#:").strip())
        elif field and field[1] in section.model_fields:
            yield field[1], " ".join(comment)
            comment = []


def _default_of(name: str) -> str:
    """A field's default as one would write it in an environment; secrets have none."""
    field = Environment.model_fields[name]
    if field.is_required():
        return "must be set"
    value: Any = field.default
    if value is PydanticUndefined or value in (None, "", ()) or isinstance(value, SecretStr):
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return "`" + ",".join(str(part) for part in value) + "`"
    return f"`{value}`"


def api_calls() -> str:
    """Every call of the HTTP API: what it does, whose it is, and the statuses it alone can have."""
    document = api.get_openapi_schema()
    called = [
        (f"`{method.upper()} {path}`", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    every = set.intersection(*(set(operation["responses"]) for _, operation in called))
    rows = [
        (
            call,
            operation["summary"],
            operation["security"][0]["AgentKey"][0],
            "yes" if {"Session": []} in operation["security"] else "",
            ", ".join(sorted(set(operation["responses"]) - every)),
        )
        for call, operation in called
    ]
    told = ", ".join(sorted(every))
    head = ("call", "what it does", "scope of a key", "a session", "answers")
    return f"{_table(head, rows)}\nEach of them can also answer {told}.\n"


def problems() -> str:
    """Every problem that the HTTP API tells, by status."""
    rows = [
        (str(kind.status), f"`{kind.uri.rpartition(':')[2]}`", kind.title)
        for kind in sorted(Kind, key=lambda kind: kind.status)
    ]
    return _table(("status", "type", "means"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "api-calls": api_calls,
    "problems": problems,
    "states": states,
    "moves": moves,
    "rules": rules,
    "default-policy": default_policy,
    "environment": environment,
    "case-acts": case_acts,
    "stripe-answers": render_table,
}


def openapi() -> str:
    """The HTTP API's own document."""
    return json.dumps(api.get_openapi_schema(), indent=1, ensure_ascii=False) + "\n"


FILES: dict[str, Callable[[], str]] = {"docs/openapi.json": openapi}


def pages() -> list[Path]:
    """Every page that may hold a generated part."""
    return sorted({path for pattern in PAGES for path in CHECKOUT.glob(pattern)})


def files() -> list[Path]:
    """Every file that is made whole. A test sees to it that none of them is missing."""
    return [path for path in map(CHECKOUT.joinpath, FILES) if path.exists()]


def rendered(text: str) -> str:
    """A page with its generated parts made anew. Raises KeyError for a part that nobody makes."""
    return _PART.sub(lambda m: f"{m['begin']}\n{PARTS[m['name']]()}\n{m['end']}", text)


class Command(BaseCommand):
    """`manage.py docs [--check]`"""

    help = "Write the generated parts of the documentation (--check: only say what differs)"
    requires_system_checks: list[str] = []  # as Django declares it

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--check", action="store_true", help="write nothing; fail on a difference"
        )

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        differing = []
        for page in (*pages(), *files()):
            before = page.read_text(encoding="utf-8")
            name = str(page.relative_to(CHECKOUT))
            try:
                after = FILES[name]() if name in FILES else rendered(before)
            except KeyError as unknown:
                raise CommandError(f"{page.name}: nothing makes a part called {unknown}") from None
            if after != before:
                differing.append(name)
                if not check:
                    page.write_text(after, encoding="utf-8")
        if check and differing:
            raise CommandError(
                f"{', '.join(differing)} differ from the code. Nothing was written. "
                "Run: python manage.py docs"
            )
        self.stdout.write(f"{len(differing)} page(s) written." if differing else "Up to date.")
