"""What one set of parameters says otherwise than another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place, like `ceiling_minor.USD` or `tiers[0].people`. Values are JSON, "" where none."""

    path: str
    before: str
    after: str


def differences(before: Any, after: Any, *, path: str = "") -> list[Difference]:
    """Every place where two JSON values differ, in the order of their names."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            found
            for name in sorted({*before, *after})
            for found in differences(
                before.get(name, _NOTHING),
                after.get(name, _NOTHING),
                path=f"{path}.{name}" if path else str(name),
            )
        ]
    if _is_of_objects(before) and _is_of_objects(after):
        return [
            found
            for index in range(max(len(before), len(after)))
            for found in differences(
                before[index] if index < len(before) else _NOTHING,
                after[index] if index < len(after) else _NOTHING,
                path=f"{path}[{index}]",
            )
        ]
    # What was just made has tuples where what was stored has lists.
    if _text(before) == _text(after):
        return []
    return [Difference(path=path, before=_text(before), after=_text(after))]


_NOTHING = object()


def _is_of_objects(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, dict) for item in value)


def _text(value: Any) -> str:
    return "" if value is _NOTHING else json.dumps(value, ensure_ascii=False, sort_keys=True)
