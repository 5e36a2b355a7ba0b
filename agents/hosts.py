"""Host names that are not in ALLOWED_HOSTS: refused as a problem, and no error of ours."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

import structlog
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from agents.problems import Kind, problem
from agents.request_id import request_id

log = logging.getLogger(__name__)

Answer = Callable[[HttpRequest], HttpResponseBase]


def refuse_other_hosts(get_response: Answer) -> Answer:
    """Middleware: 400 for a request that names another host. The name is not logged: it is text."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        try:
            request.get_host()
        except DisallowedHost:
            # The middleware that gives requests their id is not reached.
            with structlog.contextvars.bound_contextvars(request_id=str(uuid.uuid4())):
                log.warning("Another host was asked for.", extra={"action": "host.unknown"})
                response = problem(
                    Kind.HOST_UNKNOWN,
                    detail="The Host header names none of ALLOWED_HOSTS. Nothing was done.",
                )
                response["X-Request-ID"] = request_id()
                response["Cache-Control"] = "no-store"
                return response
        return get_response(request)

    return middleware
