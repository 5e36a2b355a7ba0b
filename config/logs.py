"""One JSON object a line, with request_id and action_id. No personal data, no keys."""

from __future__ import annotations

import re
from typing import Any

import structlog
from django.http import HttpRequest
from structlog.typing import EventDict, Processor, WrappedLogger

# Keys whose values are never written, whoever logs them: credentials, and what names a customer.
NEVER_WRITTEN = re.compile(
    r"(?:^|_)(?:authorization|cookie|csrf\w*|password|secret|token|api_key|key_hash|email|customer|phone|"
    r"address|ip|user_agent|card|note|database_url|redis_url|broker_url)(?:$|_)",
    re.IGNORECASE,
)
# What a secret or an e-mail address looks like inside a sentence or a traceback: Stripe keys and
# webhook secrets, passwords in URLs, bearer tokens, addresses.
_LOOKS_SECRET = re.compile(
    r"\b(?:sk|rk|pk|ro)_(?:test|live|session)_\w+|\bwhsec_\w+|(?<=://)[^\s/:@]*:[^\s/@]+(?=@)|(?i:bearer)\s+[\w.~+/=-]+"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
)
WITHHELD = "[withheld]"


def _withheld(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, dict):
        return {
            str(key): WITHHELD if NEVER_WRITTEN.search(str(key)) else _withheld(inner)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_withheld(inner) for inner in value]
    # Whatever else it is becomes text here, and not in the renderer behind this filter.
    return _LOOKS_SECRET.sub(WITHHELD, str(value))


def withhold(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Replace every value that a log must not carry. Runs last before rendering."""
    withheld: EventDict = _withheld(dict(event))
    return withheld


def _logger_fields(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Write a request as "GET /path", without its query: that can name anybody.

    It comes as text from django-structlog, as a request from `django.request`, and as a socket
    from `django.server`, which is of no use to anybody.
    """
    request = event.get("request")
    if isinstance(request, str):
        event["request"] = request.split("?", 1)[0]
    elif isinstance(request, HttpRequest):
        event["request"] = f"{request.method} {request.path}"
    elif request is not None:
        del event["request"]
    return event


def _strangers(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """What Django refuses for safety, as a warning in one line: strangers write these.

    Django logs them as errors, with a traceback: a host name of somebody else's, a form of a
    thousand fields. https://docs.djangoproject.com/en/5.2/ref/logging/#django-security
    """
    if str(event.get("logger", "")).startswith("django.security."):
        event["level"] = "warning"
        event.pop("exc_info", None)
    return event


# Processors of lines from structlog and of lines from the standard library alike.
_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    _strangers,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
    _logger_fields,
]


def logging_settings(level: str) -> dict[str, Any]:
    """Django's LOGGING; structlog is set up to go the same way: to stderr."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "json": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": _SHARED,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    withhold,
                    structlog.processors.JSONRenderer(),
                ],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Django's own handlers would write each line a second time, in another shape.
            "django": {"handlers": [], "level": level, "propagate": True},
            "django.server": {"handlers": [], "level": level, "propagate": True},
            # One line for each task received and one for each done, at a sweep every few seconds.
            "celery.worker.strategy": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},
            "celery.beat": {"level": "WARNING"},
            "django_structlog.celery": {"level": "WARNING"},
            "kombu": {"level": "WARNING"},
            # One line for each call, with what the model wrote.
            "django_mcpz.calls": {"level": "WARNING"},
            "stripe": {"level": "WARNING"},
            "urllib3": {"level": "WARNING"},
        },
    }
