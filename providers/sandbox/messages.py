"""A request as it arrived, and an answer with the way it is to be put on the wire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

JSON_TYPE = "application/json"
HTML_TYPE = "text/html"

REASON_PHRASES = {
    200: "OK",
    307: "Temporary Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    424: "Failed Dependency",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
}


@dataclass(frozen=True, slots=True)
class Request:
    """Header names are lower case. `query` and `body` are as sent."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Delivery:
    """How the bytes go out. `kind` is one of those that wire.py carries out."""

    kind: str = "whole"
    params: dict[str, Any] = field(default_factory=dict)


WHOLE = Delivery()


@dataclass(frozen=True, slots=True)
class Answer:
    """`Content-Length`, `Date` and `Connection` are added on the wire."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = (("Content-Type", JSON_TYPE),)
    delivery: Delivery = WHOLE
    after: Callable[[], None] | None = None

    def with_header(self, name: str, value: str | None) -> Answer:
        """The same answer with one header set, or with None taken away."""
        kept = tuple(pair for pair in self.headers if pair[0].lower() != name.lower())
        return replace(self, headers=kept if value is None else (*kept, (name, value)))

    def sent_by(self, kind: str, **params: Any) -> Answer:
        return replace(self, delivery=Delivery(kind, params))
