"""Sessions: what a model's tools call with, bound by the merchant's backend to one request.

Under a session nothing takes an id: the order and the request are the backend's (invariant I5).
Opening another session for the same request makes another token and never another refund.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass, field
from datetime import timedelta

from django.db import transaction

from agents.models import AgentKey, AgentKeyEvent, AgentSession
from effects.clock import DatabaseNow, database_now
from kernel.canonical import sha256_hex
from kernel.errors import InvalidInput
from kernel.identity import refund_action_id, require_identifier
from kernel.money import require_amount
from refunds.models import Order
from refunds.propose import UnknownOrder

# A conversation with a customer; the backend opens another one when it goes on.
EXPIRES_IN_SECONDS_DEFAULT = 900
EXPIRES_IN_SECONDS_MIN, EXPIRES_IN_SECONDS_MAX = 60, 86_400
SECRET_BYTES = 32
# One for each conversation: at tens of millions of them two prefixes still do not meet.
PREFIX_BYTES = 9

_TOKEN = re.compile(
    rf"ro_session_([0-9a-f]{{{2 * PREFIX_BYTES}}})_([0-9a-f]{{{2 * SECRET_BYTES}}})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSession:
    """A new session. `token` is the whole text the tools send, and exists nowhere else."""

    session: AgentSession
    token: str = field(repr=False)


def open_session(
    *,
    key: AgentKey,
    order_id: str,
    request_id: str,
    max_amount_minor: int | None = None,
    expires_in_seconds: int = EXPIRES_IN_SECONDS_DEFAULT,
) -> OpenedSession | UnknownOrder:
    """Bind an order and a request of the merchant's systems to a new token.

    Raises InvalidInput naming a bad field. Nothing is written then, or for an unknown order.
    """
    require_identifier(order_id, field="order_id")
    require_identifier(request_id, field="request_id")
    if (
        type(expires_in_seconds) is not int
        or not EXPIRES_IN_SECONDS_MIN <= expires_in_seconds <= EXPIRES_IN_SECONDS_MAX
    ):
        raise InvalidInput(
            field="expires_in_seconds",
            reason=f"must be {EXPIRES_IN_SECONDS_MIN} to {EXPIRES_IN_SECONDS_MAX} seconds",
        )
    order = Order.objects.filter(order_id=order_id).first()
    if order is None:
        return UnknownOrder(order_id=order_id)
    if max_amount_minor is not None:
        require_amount(max_amount_minor, currency=order.currency, field="max_amount_minor")
    now = database_now()
    prefix, secret = secrets.token_hex(PREFIX_BYTES), secrets.token_hex(SECRET_BYTES)
    session = AgentSession.objects.create(
        prefix=prefix,
        secret_sha256=sha256_hex(secret),
        key=key,
        order=order,
        request_id=request_id,
        max_amount_minor=max_amount_minor,
        created_at=now,
        expires_at=now + timedelta(seconds=expires_in_seconds),
    )
    return OpenedSession(session=session, token=f"ro_session_{prefix}_{secret}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedSession:
    """The session whose token a text is. `is_over`: it, or its key, is revoked or has expired."""

    session: AgentSession
    is_over: bool


def prove_session(text: str) -> ProvedSession | None:
    """Whose token this text is, with its key and order; None for text that is nobody's.

    One query.
    """
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None
    session = (
        AgentSession.objects.filter(prefix=match[1])
        .select_related("key", "order")
        .annotate(now=DatabaseNow())
        .first()
    )
    if session is None or not hmac.compare_digest(session.secret_sha256, sha256_hex(match[2])):
        return None
    revoked = session.revoked_at is not None or session.key.revoked_at is not None
    return ProvedSession(session=session, is_over=revoked or session.expires_at <= session.now)


def revoke_session(*, session_id: str, actor: str, key: AgentKey | None = None) -> bool | None:
    """End a session from the next request on, and keep in its key's history who did.

    With `key`: only one of this agent's. False: it was revoked before. None: there is none such.
    """
    sessions = AgentSession.objects.filter(prefix=session_id)
    if key is not None:
        sessions = sessions.filter(key=key)
    with transaction.atomic():
        session = sessions.select_for_update(no_key=True).first()
        if session is None:
            return None
        if session.revoked_at is not None:
            return False
        now = database_now()
        sessions.update(revoked_at=now)
        AgentKeyEvent(
            key_id=session.key_id,
            kind="agent_session.revoked",
            actor=actor,
            at=now,
            data={"session": session.prefix},
        ).save(force_insert=True)
    return True


def action_id_of(session: AgentSession) -> str:
    """The one action that a session is about, whether it exists yet or not."""
    return refund_action_id(order_id=session.order.order_id, request_id=session.request_id)
