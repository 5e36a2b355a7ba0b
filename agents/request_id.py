"""The id of the request that this thread answers: in every log line, answer and action."""

from __future__ import annotations

import re
import uuid

import structlog

_SHAPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def request_id() -> str:
    """The id that django-structlog bound: the caller's X-Request-ID, or a random one.

    A caller's text that is not an identifier is replaced, because it would end up in a header
    and in a column.
    """
    bound = structlog.contextvars.get_contextvars().get("request_id")
    if isinstance(bound, str) and _SHAPE.fullmatch(bound):
        return bound
    fresh = str(uuid.uuid4())
    structlog.contextvars.bind_contextvars(request_id=fresh)
    return fresh
