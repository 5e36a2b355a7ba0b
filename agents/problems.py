"""What went wrong, told as RFC 9457 problem details: stable types, plain words, nothing internal.

https://www.rfc-editor.org/rfc/rfc9457. Verdicts are not problems: a denial, a pause or a budget is
a recorded result and answered as the action.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from django.http import HttpResponse
from pydantic import BaseModel, Field

from agents.answers import ActionAnswer
from agents.request_id import request_id

CONTENT_TYPE = "application/problem+json"
# A database that is away is usually back, or failed over, within seconds.
RETRY_AFTER_SECONDS = 5
# More than these in one answer help nobody.
PROBLEMS_MAX = 20


class Kind(Enum):
    """Every problem: the end of its URI, its HTTP status and its title. Names stay."""

    UNAUTHORIZED = ("unauthorized", 401, "A valid agent key or session token is needed")
    FORBIDDEN = ("forbidden", 403, "This credential is not for this")
    ORDER_UNKNOWN = ("order-unknown", 404, "This order has not been mirrored")
    SESSION_UNKNOWN = ("session-unknown", 404, "There is no such session")
    ACTION_UNKNOWN = ("action-unknown", 404, "There is no such action")
    NOT_FOUND = ("not-found", 404, "There is nothing at this address")
    METHOD_NOT_ALLOWED = ("method-not-allowed", 405, "This address does not take this method")
    ACTION_CONFLICT = ("action-conflict", 409, "These ids were used before with other content")
    IDEMPOTENCY_CONFLICT = (
        "idempotency-conflict",
        422,
        "This Idempotency-Key belongs to another action",
    )
    TOO_LATE = ("too-late", 409, "It cannot be withdrawn any more")
    HOST_UNKNOWN = ("host-unknown", 400, "This service does not answer to this host name")
    LENGTH_REQUIRED = ("length-required", 411, "The length of the body must be stated")
    STALE_BALANCE = ("stale-balance", 412, "The order's refunded amount is another")
    BODY_TOO_LARGE = ("body-too-large", 413, "The body is too large")
    UNSUPPORTED_MEDIA_TYPE = ("unsupported-media-type", 415, "The body must be JSON")
    INVALID_FIELD = ("invalid-field", 422, "A field cannot be accepted")
    MALFORMED_JSON = ("malformed-json", 400, "The body is not well-formed JSON")
    RATE_LIMITED = ("rate-limited", 429, "This credential asks too often")
    INTERNAL = ("internal", 500, "This service could not answer this request")
    UNAVAILABLE = ("unavailable", 503, "This service cannot record anything right now")

    def __init__(self, name: str, status: int, title: str) -> None:
        self.uri = f"urn:refund-once:problem:{name}"
        self.status = status
        self.title = title


class FieldProblem(BaseModel):
    """One field, as a path like `payment.payment_intent` or `lines[0].amount_minor`."""

    field: str
    reason: str


class ProblemDetails(BaseModel):
    """RFC 9457. `field` is the first of `fields`; `action` is the action this is about."""

    type: str = Field(examples=[Kind.INVALID_FIELD.uri])
    title: str
    status: int
    detail: str
    instance: str = Field(description="urn:refund-once:request: and the X-Request-ID")
    field: str | None = None
    fields: list[FieldProblem] | None = None
    differing: list[str] | None = None
    action: ActionAnswer | None = None


class ProblemFound(Exception):
    """A request that is refused by what reads it, before anything was done.

    Of INVALID_FIELD the detail is made of the fields.
    """

    def __init__(
        self,
        kind: Kind,
        *,
        detail: str = "",
        fields: Sequence[FieldProblem] = (),
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(kind.uri)
        self.kind = kind
        self.detail = detail
        self.fields = fields
        self.retry_after_seconds = retry_after_seconds


def problem(
    kind: Kind,
    *,
    detail: str,
    fields: Sequence[FieldProblem] = (),
    differing: Sequence[str] = (),
    action: ActionAnswer | None = None,
    retry_after_seconds: int | None = None,
) -> HttpResponse:
    """The response that tells a problem."""
    details = ProblemDetails(
        type=kind.uri,
        title=kind.title,
        status=kind.status,
        detail=detail,
        instance=f"urn:refund-once:request:{request_id()}",
        field=fields[0].field if fields else None,
        fields=list(fields) or None,
        differing=list(differing) or None,
        action=action,
    )
    response = HttpResponse(
        # Only the problem's own members are left out when empty; the action is always whole.
        details.model_dump_json(exclude={n for n in _OPTIONAL if getattr(details, n) is None}),
        status=kind.status,
        content_type=CONTENT_TYPE,
    )
    if kind is Kind.UNAUTHORIZED:
        response["WWW-Authenticate"] = 'Bearer realm="refund-once"'
    if kind is Kind.UNAVAILABLE:
        retry_after_seconds = RETRY_AFTER_SECONDS
    if retry_after_seconds is not None:
        response["Retry-After"] = str(retry_after_seconds)
    return response


_OPTIONAL = ("field", "fields", "differing", "action")
