"""JSON bodies read strictly: what two readers could take for two things is refused, by name.

Python's own `json` keeps the last of two equal names, reads `1e3` as 1000.0, takes `NaN`, and
raises ValueError for digit strings that are too long for an int. Here each of these is a problem
that names its field. The API has no fraction anywhere, so every number is an integer.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from ninja.parser import Parser

from agents.problems import PROBLEMS_MAX, FieldProblem, Kind, ProblemFound, shown_name

# An order with 200 lines takes 30 kB.
BODY_BYTES_MAX = 64 * 1024
# The deepest real body is an order's lines: object, list, object.
DEPTH_MAX = 8
INTEGER_MAX = 2**53 - 1

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,15}")


@dataclass(frozen=True, slots=True)
class _Number:
    """A number that is not a plain integer, as it was written."""

    text: str


class _Pairs(list[tuple[str, Any]]):
    """An object's members as they were written, repeated names and all."""


class StrictParser(Parser):
    """What Ninja reads request bodies with."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        """The body as an object. Raises ProblemFound: 400, 413, 415 or 422."""
        require_json(request)
        return parse_object(request.body)


def require_whole_body(request: HttpRequest) -> None:
    """Raise ProblemFound unless the body came as long as it was announced: 400, or 411 in chunks.

    Django takes a body without a length for an empty one, and one that was cut off for a whole one.
    """
    if "Transfer-Encoding" in request.headers:
        raise ProblemFound(
            Kind.LENGTH_REQUIRED,
            detail="A body in chunks is not read: send it with `Content-Length`. Nothing was done.",
        )
    announced = request.headers.get("Content-Length", "")
    if announced.isascii() and announced.isdigit() and len(request.body) < int(announced):
        raise _malformed("ended before it was complete")


def require_json(request: HttpRequest) -> None:
    """Raise ProblemFound (415) unless the body says that it is plain JSON in UTF-8."""
    charset = (request.content_params or {}).get("charset", "utf-8").lower()
    encoding = request.headers.get("Content-Encoding", "identity")
    if request.content_type != "application/json" or charset != "utf-8" or encoding != "identity":
        raise ProblemFound(
            Kind.UNSUPPORTED_MEDIA_TYPE,
            detail="The body must be JSON in UTF-8, not compressed: send "
            "`Content-Type: application/json`. Nothing was done.",
        )


def parse_object(body: bytes) -> dict[str, Any]:
    """The one object that a body is. Raises ProblemFound: 400, 413 or 422 naming the fields."""
    if len(body) > BODY_BYTES_MAX:
        raise ProblemFound(
            Kind.BODY_TOO_LARGE,
            detail=f"The body is larger than {BODY_BYTES_MAX} bytes. Nothing was done.",
        )
    try:
        # A byte order mark is not decoded away: json refuses it, as RFC 8259 allows.
        text = body.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_Pairs,
            parse_int=_integer,
            parse_float=_Number,
            parse_constant=_Number,
        )
    except RecursionError:
        raise _malformed("is nested too deeply") from None
    except UnicodeDecodeError:
        raise _malformed("is not UTF-8") from None
    except ValueError as error:
        where = f" (character {error.pos})" if isinstance(error, json.JSONDecodeError) else ""
        raise _malformed(f"is not one JSON value{where}") from None
    if not isinstance(value, _Pairs):
        raise _malformed("must be a JSON object")
    problems: list[FieldProblem] = []
    plain = _plain(value, path="", depth=1, problems=problems)
    if problems:
        raise ProblemFound(Kind.INVALID_FIELD, fields=problems[:PROBLEMS_MAX])
    if not isinstance(plain, dict):
        raise TypeError(type(plain))
    return plain


def _integer(text: str) -> int | _Number:
    return int(text) if _INTEGER.fullmatch(text) else _Number(text)


def _malformed(what: str) -> ProblemFound:
    return ProblemFound(
        Kind.MALFORMED_JSON,
        detail=f"The body {what}. Nothing was done.",
        fields=[FieldProblem(field="body", reason=what)],
    )


def _plain(value: Any, *, path: str, depth: int, problems: list[FieldProblem]) -> Any:
    """The value as dicts and lists; what cannot be accepted is added to the problems."""

    def wrong(reason: str) -> None:
        problems.append(FieldProblem(field=path or "body", reason=reason))

    if isinstance(value, (_Pairs, list)) and depth > DEPTH_MAX:
        wrong(f"is nested deeper than {DEPTH_MAX}")
    elif isinstance(value, _Pairs):
        found: dict[str, Any] = {}
        for name, inner in value:
            below = f"{path}.{shown_name(name)}" if path else shown_name(name)
            if name in found:
                problems.append(FieldProblem(field=below, reason="is given twice"))
            if not _is_text(name):
                problems.append(FieldProblem(field=below, reason="is not a possible name"))
            found[name] = _plain(inner, path=below, depth=depth + 1, problems=problems)
        return found
    elif isinstance(value, list):
        return [
            _plain(inner, path=f"{path}[{index}]", depth=depth + 1, problems=problems)
            for index, inner in enumerate(value)
        ]
    elif isinstance(value, str) and not _is_text(value):
        wrong("holds a NUL or half of a surrogate pair")
    elif isinstance(value, _Number):
        wrong("must be a JSON integer, written without fraction, exponent or minus zero")
    elif type(value) is int and abs(value) > INTEGER_MAX:
        wrong(f"must not be beyond {INTEGER_MAX}")
    return value


def _is_text(value: str) -> bool:
    """Whether Postgres and UTF-8 can hold this text."""
    return "\x00" not in value and not any("\ud800" <= c <= "\udfff" for c in value)
