"""An agent's credential opens nothing outside the agents' door, however it is sent.

The staff site reads cookies and would ignore it; the monitoring asks nobody. Both are told apart
here instead, before anything else of this site looks at the request: whoever comes with an agent's
credential finds nothing, and if it is a real one, people hear of it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

import structlog
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from agents.bearer import prove, record_within_limit
from agents.models import SecurityEvent
from agents.problems import Kind, problem
from agents.request_id import request_id
from agents.security import log

# Where agents call, and what anybody may read. /healthz and /readyz are answered before this.
_THE_DOOR = re.compile(r"/(?:api/v1(?:/.*)?|mcp|\.well-known/oauth-protected-resource/mcp)", re.S)
# In any case, at any place, under any scheme, in one header of several that were joined.
_CREDENTIAL = re.compile(r"ro_(?:live|session)_[0-9a-f]+_[0-9a-f]+")
# A header has room for dozens, and each is a query.
_PROVED_MAX = 2

Answer = Callable[[HttpRequest], HttpResponseBase]


def refuse_agents_elsewhere(get_response: Answer) -> Answer:
    """Middleware: 404 for an agent's credential on an address that is not for agents.

    Stands before sessions and forms, so that nothing is read, set or begun. It costs what comes
    without such a credential one look at one header.
    """

    def middleware(request: HttpRequest) -> HttpResponseBase:
        if _THE_DOOR.fullmatch(request.path_info) or not _credentials(request):
            return get_response(request)
        # The middleware that gives requests their id is not reached.
        with structlog.contextvars.bound_contextvars(request_id=str(uuid.uuid4())):
            record_elsewhere(request)
            response = problem(Kind.NOT_FOUND, detail="See /api/v1/docs. Nothing was done.")
            response["X-Request-ID"] = request_id()
            response["Cache-Control"] = "no-store"
            return response

    return middleware


def record_elsewhere(request: HttpRequest) -> None:
    """Record whose credential came to an address that is none of the agents', within its limit."""
    try:
        for text in _credentials(request)[:_PROVED_MAX]:
            proof = prove(text)
            if proof is not None:
                record_within_limit(kind=SecurityEvent.Kind.ELSEWHERE, proof=proof, request=request)
    except (OperationalError, InterfaceError):
        log.exception("It could not be found out whose credential came to a wrong address.")


def _credentials(request: HttpRequest) -> list[str]:
    return _CREDENTIAL.findall(request.META.get("HTTP_AUTHORIZATION", "").lower())
