"""Bodies of requests: whole, JSON, small, and read strictly (kernel/strict_json.py)."""

from __future__ import annotations

import codecs
from typing import Any

from django.http import HttpRequest
from ninja.parser import Parser

from agents.problems import PROBLEMS_MAX, FieldProblem, Kind, ProblemFound
from kernel.strict_json import Malformed, NotStrict, read_object

# An order with 200 lines takes 30 kB.
BODY_BYTES_MAX = 64 * 1024


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


def require_utf8(request: HttpRequest) -> None:
    """Raise ProblemFound (415) when another encoding is named.

    Django would decode the parameters with it too, by any codec of Python's, even one that decodes
    no bytes, like rot13.
    """
    named = request.encoding
    if named and codecs.lookup(named).name != "utf-8":
        raise _not_plain_json()


def require_json(request: HttpRequest) -> None:
    """Raise ProblemFound (415) unless the body says that it is plain JSON in UTF-8."""
    charset = (request.content_params or {}).get("charset", "utf-8").lower()
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if request.content_type != "application/json" or charset != "utf-8" or encoding != "identity":
        raise _not_plain_json()


def _not_plain_json() -> ProblemFound:
    return ProblemFound(
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
        return read_object(body)
    except Malformed as error:
        raise _malformed(error.reason) from None
    except NotStrict as error:
        raise ProblemFound(
            Kind.INVALID_FIELD,
            fields=[
                FieldProblem(field=wrong.path or "body", reason=wrong.reason)
                for wrong in error.wrongs[:PROBLEMS_MAX]
            ],
        ) from None


def _malformed(what: str) -> ProblemFound:
    return ProblemFound(
        Kind.MALFORMED_JSON,
        detail=f"The body {what}. Nothing was done.",
        fields=[FieldProblem(field="body", reason=what)],
    )
