"""JSON read strictly: what two readers could take for two things is refused, by name.

Python's own `json` keeps the last of two equal names, reads `1e3` as 1000.0, takes `NaN`, and
raises ValueError for digit strings that are too long for an int. Here each of these is refused and
its field named. No input of this product has a fraction, so every number is an integer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernel.text import is_text

# The deepest real input is an order's lines: object, list, object.
DEPTH_MAX = 8
INTEGER_MAX = 2**53 - 1
NAME_CHARACTERS_MAX = 80

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,15}")


class Malformed(ValueError):
    """The text is not one JSON object; `reason` says what it is instead, without a subject."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Wrong:
    """One thing that is refused: its path, like `lines[0].amount_minor`, empty for all; and why."""

    path: str
    reason: str


class NotStrict(ValueError):
    """The text is JSON that could be misread. Never without something in `wrongs`.

    `found` is the object as far as it was read: for saying what it was about, and nothing else.
    """

    def __init__(self, wrongs: Sequence[Wrong], *, found: dict[str, Any]) -> None:
        super().__init__("; ".join(f"{wrong.path} {wrong.reason}" for wrong in wrongs[:3]))
        self.wrongs = wrongs
        self.found = found


@dataclass(frozen=True, slots=True)
class _Number:
    """A number that is not a plain integer, as it was written."""

    text: str


class _Pairs(list[tuple[str, Any]]):
    """An object's members as they were written, repeated names and all."""


def read_object(data: bytes | str) -> dict[str, Any]:
    """The one object that the text is; bytes are UTF-8. Raises Malformed or NotStrict."""
    try:
        # A byte order mark is not decoded away: json refuses it, as RFC 8259 allows.
        value = json.loads(
            data.decode("utf-8") if isinstance(data, bytes) else data,
            object_pairs_hook=_Pairs,
            parse_int=_integer,
            parse_float=_Number,
            parse_constant=_Number,
        )
    except RecursionError:
        raise Malformed("is nested too deeply") from None
    except UnicodeDecodeError:
        raise Malformed("is not UTF-8") from None
    except ValueError as error:
        where = f" (character {error.pos})" if isinstance(error, json.JSONDecodeError) else ""
        raise Malformed(f"is not one JSON value{where}") from None
    if not isinstance(value, _Pairs):
        raise Malformed("must be a JSON object")
    wrongs: list[Wrong] = []
    plain: dict[str, Any] = _plain(value, path="", depth=1, wrongs=wrongs)
    if wrongs:
        raise NotStrict(wrongs, found=plain)
    return plain


def shown_name(name: str) -> str:
    """A name that somebody made up, fit for an answer: short, and encodable."""
    return name[:NAME_CHARACTERS_MAX].encode("utf-8", "backslashreplace").decode()


def _integer(text: str) -> int | _Number:
    return int(text) if _INTEGER.fullmatch(text) else _Number(text)


def _plain(value: Any, *, path: str, depth: int, wrongs: list[Wrong]) -> Any:
    """The value as dicts and lists; what cannot be accepted is added to the wrongs."""

    def wrong(reason: str) -> None:
        wrongs.append(Wrong(path, reason))

    if isinstance(value, (_Pairs, list)) and depth > DEPTH_MAX:
        wrong(f"is nested deeper than {DEPTH_MAX}")
    elif isinstance(value, _Pairs):
        found: dict[str, Any] = {}
        for name, inner in value:
            below = f"{path}.{shown_name(name)}" if path else shown_name(name)
            if name in found:
                wrongs.append(Wrong(below, "is given twice"))
            if not is_text(name):
                wrongs.append(Wrong(below, "is not a possible name"))
            found[name] = _plain(inner, path=below, depth=depth + 1, wrongs=wrongs)
        return found
    elif isinstance(value, list):
        return [
            _plain(inner, path=f"{path}[{index}]", depth=depth + 1, wrongs=wrongs)
            for index, inner in enumerate(value)
        ]
    elif isinstance(value, str) and not is_text(value):
        wrong("holds a NUL or half of a surrogate pair")
    elif isinstance(value, _Number):
        wrong("must be a JSON integer, written without fraction, exponent or minus zero")
    elif type(value) is int and abs(value) > INTEGER_MAX:
        wrong(f"must not be beyond {INTEGER_MAX}")
    return value
