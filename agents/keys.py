"""Agent keys: `ro_live_<prefix>_<secret>`, compared in constant time, rotated, revoked.

The prefix is the agent, the secret only proves it: rotating changes nothing that anybody counts by.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q

from agents.models import AgentKey, AgentKeyEvent, AgentSecret, Scope, every_scope
from effects.clock import DatabaseNow, database_now
from kernel.canonical import sha256_hex
from kernel.errors import InvalidInput

NAME_CHARACTERS_MAX = 80
# 32 random bytes cannot be guessed, so a plain SHA-256 is enough and costs nothing per request.
SECRET_BYTES = 32
PREFIX_BYTES = 6
# While a rotation is under way there are two; a third would mean that nobody knows who uses which.
SECRETS_MAX = 2
# Long enough to bring the new secret to every machine of a backend, and known to be over tomorrow.
KEEP_DEFAULT = timedelta(hours=24)

# Hexadecimal: one double-click selects the whole key, and no separator can be part of it.
_KEY = re.compile(rf"ro_live_([0-9a-f]{{{2 * PREFIX_BYTES}}})_([0-9a-f]{{{2 * SECRET_BYTES}}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedKey:
    """A new key or a new secret of one. `key` is what a client sends, and exists nowhere else."""

    prefix: str
    key: str = field(repr=False)
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotated:
    """A key has a new secret, and every one before it ends at `older_end_at` at the latest."""

    created: CreatedKey
    older_end_at: datetime


class RotationRefused(Enum):
    """Why a key was not rotated. Nothing was changed."""

    NO_SUCH_KEY = "there is no such key"
    REVOKED = "the key is revoked"
    TWO_ARE_LIVE = "two of its secrets are live already"


def create_key(
    *,
    name: str,
    scope_note: str = "",
    owner: User | None = None,
    scopes: Iterable[str] | None = None,
    expires_in: timedelta | None = None,
    actor: str = "operator",
) -> CreatedKey:
    """Make an agent and its first secret; `owner` is the member of staff who answers for it.

    Raises InvalidInput for a name that is empty, too long or not printable, and for scopes that
    are none or not known.
    """
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise InvalidInput(
            field="name", reason=f"must be 1 to {NAME_CHARACTERS_MAX} printable characters"
        )
    wanted = every_scope() if scopes is None else sorted(set(scopes))
    if not wanted or not set(wanted) <= set(Scope.values):
        raise InvalidInput(field="scopes", reason=f"must be some of {', '.join(Scope.values)}")
    prefix = secrets.token_hex(PREFIX_BYTES)
    with transaction.atomic():
        key = AgentKey.objects.create(
            prefix=prefix,
            name=name,
            scope_note=scope_note,
            scopes=wanted,
            owner=owner,
            created_at=database_now(),
        )
        created = _add_secret(key=key, expires_in=expires_in)
        told = {
            "scopes": wanted,
            "owner": owner.get_username() if owner else "",
            "expires_at": _shown(created.expires_at),
        }
        _keep_event(key=key, kind="agent_key.created", actor=actor, data=told)
    return created


def _add_secret(*, key: AgentKey, expires_in: timedelta | None) -> CreatedKey:
    secret = secrets.token_hex(SECRET_BYTES)
    now = database_now()
    expires_at = None if expires_in is None else now + expires_in
    AgentSecret.objects.create(
        key=key, sha256=sha256_hex(secret), created_at=now, expires_at=expires_at
    )
    return CreatedKey(
        prefix=key.prefix, key=f"ro_live_{key.prefix}_{secret}", expires_at=expires_at
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedKey:
    """The agent whose secret a text holds. `is_over`: the key is revoked or the secret expired."""

    key: AgentKey
    is_over: bool
    today: date


def prove_key(text: str) -> ProvedKey | None:
    """Whose key this text is; None for text that is nobody's. One query, and nothing is written."""
    match = _KEY.fullmatch(text)
    if match is None:
        return None
    newest = (
        AgentSecret.objects.filter(key__prefix=match[1])
        .select_related("key")
        .annotate(now=DatabaseNow())
        .order_by("-pk")[:SECRETS_MAX]
    )
    digest = sha256_hex(match[2])
    secret = next((one for one in newest if hmac.compare_digest(one.sha256, digest)), None)
    if secret is None:
        return None
    expired = secret.expires_at is not None and secret.expires_at <= secret.now
    return ProvedKey(
        key=secret.key,
        is_over=expired or secret.key.revoked_at is not None,
        today=secret.now.astimezone(UTC).date(),
    )


def note_use(proved: ProvedKey) -> None:
    """Write down the day of a key's last use. A query on the first use of a day, else none."""
    if proved.key.last_used_on != proved.today:
        AgentKey.objects.filter(pk=proved.key.pk).update(last_used_on=proved.today)


def rotate_key(
    *,
    prefix: str,
    actor: str,
    keep: timedelta = KEEP_DEFAULT,
    expires_in: timedelta | None = None,
) -> Rotated | RotationRefused:
    """Give a key a second secret; those before it end after `keep`, or earlier where they would.

    The agent stays who it is: its actions, limits and sessions go on. With `keep` of nothing the
    secrets before end now, which is also how a leaked one is ended without ending the agent.
    """
    with transaction.atomic():
        key = AgentKey.objects.select_for_update(no_key=True).filter(prefix=prefix).first()
        if key is None:
            return RotationRefused.NO_SUCH_KEY
        if key.revoked_at is not None:
            return RotationRefused.REVOKED
        now = database_now()
        live = key.secrets.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=now))
        if keep and live.count() >= SECRETS_MAX:
            return RotationRefused.TWO_ARE_LIVE
        ends_at = now + keep
        live.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=ends_at)).update(
            expires_at=ends_at
        )
        created = _add_secret(key=key, expires_in=expires_in)
        told = {"older_end_at": ends_at.isoformat(), "expires_at": _shown(created.expires_at)}
        _keep_event(key=key, kind="agent_key.rotated", actor=actor, data=told)
    return Rotated(created=created, older_end_at=ends_at)


def revoke_key(*, prefix: str, actor: str) -> bool | None:
    """End a key and its sessions from the next request on.

    False: it was revoked before. None: no such key.
    """
    with transaction.atomic():
        key = AgentKey.objects.select_for_update(no_key=True).filter(prefix=prefix).first()
        if key is None:
            return None
        if key.revoked_at is not None:
            return False
        AgentKey.objects.filter(pk=key.pk).update(revoked_at=DatabaseNow())
        _keep_event(key=key, kind="agent_key.revoked", actor=actor, data={})
    return True


def _keep_event(*, key: AgentKey, kind: str, actor: str, data: dict[str, Any]) -> None:
    AgentKeyEvent(key=key, kind=kind, actor=actor, at=database_now(), data=data).save(
        force_insert=True
    )


def _shown(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def change_owner(*, prefix: str, owner: User | None, actor: str) -> bool | None:
    """Let another member of staff answer for a key, from the next proposal on. One transaction.

    `actor` says who changes it, for the key's history. False: it was so before. None: no such key.
    What the key has proposed already stays with the owner of that time.
    """
    with transaction.atomic():
        key = (
            AgentKey.objects.select_for_update(no_key=True, of=("self",))
            .select_related("owner")
            .filter(prefix=prefix)
            .first()
        )
        if key is None:
            return None
        if key.owner == owner:
            return False
        names = {
            "from": key.owner.get_username() if key.owner else "",
            "to": owner.get_username() if owner else "",
        }
        AgentKey.objects.filter(pk=key.pk).update(owner=owner)
        _keep_event(key=key, kind="agent_key.owner_changed", actor=actor, data=names)
    return True
