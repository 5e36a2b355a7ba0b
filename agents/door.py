"""Around every address of the API: its request id, and a problem for whatever is not an answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.request import UnreadablePostError
from django.urls import URLPattern, URLResolver
from django.views.decorators.csrf import csrf_exempt
from ninja.errors import AuthenticationError, HttpError, ValidationError

from agents.elsewhere import record_elsewhere
from agents.problems import (
    CONTENT_TYPE,
    PROBLEMS_MAX,
    FieldProblem,
    Kind,
    ProblemFound,
    problem,
)
from agents.request_id import request_id
from agents.shapes import PATTERN_REASONS
from agents.strict_json import require_utf8
from kernel.errors import InvalidInput
from kernel.strict_json import shown_name

log = logging.getLogger(__name__)

View = Callable[..., HttpResponse]

# Read by models, too: it invites no call but one that reads. What a backend's code does is in
# docs/api.md.
_NOT_KNOWN = (
    "Whether anything was recorded is not known, and nothing happens twice. Read the refund first."
)


def around(view: View) -> View:
    """Give the view's answers their headers, and turn what it raises or cannot do into problems.

    HEAD is answered as GET is, without the body (RFC 9110, 9.3.2).
    """

    @wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        is_head = request.method == "HEAD"
        if is_head:
            request.method = "GET"
        try:
            require_utf8(request)
            response = view(request, *args, **kwargs)
        except Exception as error:
            response = problem_of(error)
        if response.status_code == 405 and response.get("Content-Type") != CONTENT_TYPE:
            allowed = response["Allow"]
            response = problem(
                Kind.METHOD_NOT_ALLOWED, detail=f"This address takes {allowed}. Nothing was done."
            )
            response["Allow"] = allowed
        response["X-Request-ID"] = request_id()
        if not response.has_header("Cache-Control"):
            response["Cache-Control"] = "no-store"
        if is_head:
            request.method = "HEAD"
            response["Content-Length"] = str(len(response.content))
            response.content = b""
        return response

    return wrapped


def around_all(patterns: list[URLPattern | URLResolver]) -> list[URLPattern | URLResolver]:
    """`around` for every view of these addresses."""
    for pattern in patterns:
        if isinstance(pattern, URLPattern):
            pattern.callback = around(pattern.callback)
    return patterns


@csrf_exempt
@around
def nothing_here(request: HttpRequest) -> HttpResponse:
    """Every address below the API that is none of its own."""
    record_elsewhere(request)
    raise Http404


def problem_of(error: Exception) -> HttpResponse:
    """The problem that an exception is to a caller. No text of the exception leaves."""
    if isinstance(error, HttpError) and isinstance(error.__cause__, ProblemFound):
        # Ninja wraps whatever its body parser raises.
        error = error.__cause__
    if isinstance(error, ProblemFound) and error.kind is Kind.INVALID_FIELD:
        return invalid(error.fields)
    if isinstance(error, ProblemFound):
        return problem(
            error.kind,
            detail=error.detail,
            fields=error.fields,
            retry_after_seconds=error.retry_after_seconds,
        )
    if isinstance(error, AuthenticationError):
        return problem(
            Kind.UNAUTHORIZED,
            detail="Send `Authorization: Bearer` and an agent key or a session's token that is "
            "neither revoked nor expired. Nothing was done.",
        )
    if isinstance(error, ValidationError):
        return invalid([field_problem(found) for found in error.errors[:PROBLEMS_MAX]])
    if isinstance(error, InvalidInput):
        return invalid([FieldProblem(field=error.field, reason=error.reason)])
    if isinstance(error, Http404):
        return problem(Kind.NOT_FOUND, detail="See /api/v1/docs. Nothing was done.")
    if isinstance(error, RequestDataTooBig):
        return problem(Kind.BODY_TOO_LARGE, detail="The body is too large. Nothing was done.")
    if isinstance(error, UnreadablePostError):
        return problem(
            Kind.MALFORMED_JSON, detail="The body ended before it was complete. Nothing was done."
        )
    if isinstance(error, SuspiciousOperation):
        return invalid([FieldProblem(field="query", reason="cannot be read")])
    if isinstance(error, (OperationalError, InterfaceError)):
        log.error(
            "The database could not be used.",
            exc_info=error,
            extra={"action": "api.database_unavailable"},
        )
        return problem(
            Kind.UNAVAILABLE,
            detail=f"The database could not be reached or was too busy. {_NOT_KNOWN}",
        )
    log.error("A request ended in a mistake.", exc_info=error, extra={"action": "api.mistake"})
    return problem(Kind.INTERNAL, detail=f"It is in the log under this request id. {_NOT_KNOWN}")


def invalid(fields: Sequence[FieldProblem]) -> HttpResponse:
    """422, naming the fields."""
    named = "; ".join(f"{found.field} {found.reason}" for found in fields[:3])
    return problem(Kind.INVALID_FIELD, detail=f"{named}. Nothing was done."[:500], fields=fields)


def refuse_unknown_parameters(request: HttpRequest, *known: str) -> None:
    """Raise ProblemFound (422) for a query parameter that is not known, or is given twice."""
    found = [
        FieldProblem(
            field=shown_name(name),
            reason="is given twice" if name in known else "is not a known parameter",
        )
        for name, values in request.GET.lists()
        if name not in known or len(values) > 1
    ]
    if found:
        raise ProblemFound(Kind.INVALID_FIELD, fields=found[:PROBLEMS_MAX])


_REASONS = {
    "missing": "is required",
    "extra_forbidden": "is not a known field",
    "int_type": "must be a JSON integer",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "string_too_long": "must have at most {max_length} characters",
    "too_long": "must have at most {max_length} entries",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}


def field_problem(found: dict[str, Any]) -> FieldProblem:
    """One error of pydantic as a field and a reason. Its input is never repeated."""
    source, *location = found["loc"]
    # The first part of a body's location is the name of the view's own argument.
    parts = location[1:] if source == "body" else location
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{shown_name(str(part))}"
    told = found.get("ctx", {})
    if found["type"] == "string_pattern_mismatch":
        reason = PATTERN_REASONS[told["pattern"]]
    elif found["type"] in _REASONS:
        reason = _REASONS[found["type"]].format(**told)
    else:
        reason = str(found["msg"])
    return FieldProblem(field=path.lstrip(".") or str(source), reason=reason)
