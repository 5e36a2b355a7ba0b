"""Agent keys: `ro_live_<prefix>_<secret>`, made once, compared in constant time, revoked."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, timedelta

from django.contrib.auth.models import User
from django.db import transaction

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

# Hexadecimal: one double-click selects the whole key, and no separator can be part of it.
_KEY = re.compile(rf"ro_live_([0-9a-f]{{{2 * PREFIX_BYTES}}})_([0-9a-f]{{{2 * SECRET_BYTES}}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedKey:
    """A new key. `key` is the whole text a client sends, and exists nowhere else."""

    prefix: str
    key: str = field(repr=False)


def create_key(
    *,
    name: str,
    scope_note: str = "",
    owner: User | None = None,
    scopes: Iterable[str] | None = None,
    expires_in: timedelta | None = None,
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
        return _add_secret(key=key, expires_in=expires_in)


def _add_secret(*, key: AgentKey, expires_in: timedelta | None) -> CreatedKey:
    secret = secrets.token_hex(SECRET_BYTES)
    now = database_now()
    AgentSecret.objects.create(
        key=key,
        sha256=sha256_hex(secret),
        created_at=now,
        expires_at=None if expires_in is None else now + expires_in,
    )
    return CreatedKey(prefix=key.prefix, key=f"ro_live_{key.prefix}_{secret}")


def find_key(text: str) -> AgentKey | None:
    """The agent whose key this text is, unless it is revoked or the secret expired. One query.

    The first use on a day costs a second one, which writes the day down.
    """
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
    if secret is None or secret.key.revoked_at is not None:
        return None
    if secret.expires_at is not None and secret.expires_at <= secret.now:
        return None
    today = secret.now.astimezone(UTC).date()
    if secret.key.last_used_on != today:
        AgentKey.objects.filter(pk=secret.key.pk).update(last_used_on=today)
    return secret.key


def revoke_key(*, prefix: str) -> bool | None:
    """End a key from the next request on. False: it was revoked before. None: no such key."""
    changed = AgentKey.objects.filter(prefix=prefix, revoked_at__isnull=True).update(
        revoked_at=DatabaseNow()
    )
    if changed:
        return True
    return False if AgentKey.objects.filter(prefix=prefix).exists() else None


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
        AgentKeyEvent(
            key=key, kind="agent_key.owner_changed", actor=actor, at=database_now(), data=names
        ).save(force_insert=True)
    return True
