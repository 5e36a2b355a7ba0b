"""The id of the request that this thread answers: in every log line, answer and action."""

from __future__ import annotations

import structlog


def request_id() -> str:
    """The random id that django-structlog's middleware bound. A caller cannot choose it."""
    return str(structlog.contextvars.get_contextvars().get("request_id", ""))
