"""What real credentials were used for and are not for: recorded, and never in the way.

At most one row a minute for each credential, kind and address, and in all no more than the
credential may make requests: whoever calls this has counted the request before (agents/rates.py).
Text that is no credential of ours writes nothing here: anybody can send that, as much as they like.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from datetime import UTC, timedelta
from http import HTTPMethod

from django.db import Error, transaction
from django.db.models import Count
from django.db.models.functions import TruncMinute
from django.http import HttpRequest
from django.urls import Resolver404, resolve

from agents.callers import Caller
from agents.calls import may_touch
from agents.models import AgentSession, SecurityEvent
from agents.request_id import request_id
from effects.clock import DatabaseNow
from refunds.models import RefundAction

log = logging.getLogger(__name__)

Kind = SecurityEvent.Kind

NOWHERE = "(no such address)"
# What a person can look at while it matters; the rows stay.
LATELY = timedelta(hours=1)
# A part of an address as the list of addresses writes it: <action_id>, <path:object_id>.
_PART = re.compile(r"<(?:\w+:)?(\w+)>")


def record(*, kind: SecurityEvent.Kind, caller: Caller, address: str) -> None:
    """Write that this happened, at most once a minute for each credential, kind and address.

    `address` is a template: `address_of` a request, or a tool of MCP.
    In a transaction of its own: the caller has none open, and is refused whatever becomes of this.
    A database that cannot write it changes no answer. It is logged either way.
    """
    told = {"action": "security.event", "kind": kind.value, "actor": caller.actor, "where": address}
    event = SecurityEvent(
        kind=kind,
        actor=caller.actor,
        credential=caller.credential,
        address=address,
        at=DatabaseNow(),
        minute=TruncMinute(DatabaseNow(), tzinfo=UTC),
        request_id=request_id(),
    )
    try:
        with transaction.atomic():
            SecurityEvent.objects.bulk_create([event], ignore_conflicts=True)
    except Error:
        log.exception("A security event could not be written.", extra=told)
    else:
        log.warning("A credential was used for what it is not for.", extra=told)


def record_unknown_action(*, caller: Caller, request: HttpRequest, action_id: str) -> None:
    """An action was asked for that the caller has not: recorded if it is outside or another's.

    An id that nobody used is only a mistake.
    """
    if not may_touch(caller=caller, action_id=action_id):
        record(kind=Kind.OUTSIDE_ITS_ORDER, caller=caller, address=address_of(request))
    elif RefundAction.objects.filter(action_id=action_id).exists():
        record(kind=Kind.OF_ANOTHER_AGENT, caller=caller, address=address_of(request))


def record_unknown_session(*, caller: Caller, request: HttpRequest, session_id: str) -> None:
    """A session was to be ended that the caller has not: recorded if it is another agent's."""
    if AgentSession.objects.filter(prefix=session_id).exists():
        record(kind=Kind.OF_ANOTHER_AGENT, caller=caller, address=address_of(request))


def address_of(request: HttpRequest) -> str:
    """`GET /api/v1/refunds/{action_id}`: bounded in number, and nothing of what was sent in it."""
    match = request.resolver_match
    if match is None:
        try:
            match = resolve(request.path_info)
        except Resolver404:
            match = None
    known = request.method in HTTPMethod.__members__
    where = NOWHERE
    if match is not None and match.url_name != "nowhere":
        where = _PART.sub(r"{\1}", f"/{match.route}")
    return f"{request.method if known else 'OTHER'} {where}"[:160]


def counted_lately() -> Iterable[tuple[str, int]]:
    """How many rows of each kind the last hour has, also none. One query over an index."""
    found = dict(
        SecurityEvent.objects.filter(at__gt=DatabaseNow() - LATELY)
        .values_list("kind")
        .annotate(count=Count("pk"))
        .order_by()
    )
    return [(kind, found.get(kind, 0)) for kind in Kind.values]
