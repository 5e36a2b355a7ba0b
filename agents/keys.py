"""Agent keys: `ro_live_<prefix>_<secret>`, made once, compared in constant time, revoked."""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC

from django.contrib.auth.models import User
from django.db import transaction

from agents.models import AgentKey, AgentKeyEvent
from effects.clock import DatabaseNow, database_now
from kernel.canonical import sha256_hex
from kernel.errors import InvalidInput

NAME_CHARACTERS_MAX = 80
# 32 random bytes cannot be guessed, so a plain SHA-256 is enough and costs nothing per request.
SECRET_BYTES = 32
PREFIX_BYTES = 6

# Hexadecimal: one double-click selects the whole key, and no separator can be part of it.
_KEY = re.compile(rf"ro_live_([0-9a-f]{{{2 * PREFIX_BYTES}}})_([0-9a-f]{{{2 * SECRET_BYTES}}})")
# Compared with when the prefix is unknown, so that both ways take the same time. No secret has it.
_NO_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedKey:
    """A new key. `key` is the whole text a client sends, and exists nowhere else."""

    prefix: str
    key: str = field(repr=False)


def create_key(*, name: str, scope_note: str = "", owner: User | None = None) -> CreatedKey:
    """Make a key; `owner` is the member of staff who answers for what it proposes.

    Raises InvalidInput for a name that is empty, too long or not printable.
    """
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise InvalidInput(
            field="name", reason=f"must be 1 to {NAME_CHARACTERS_MAX} printable characters"
        )
    prefix, secret = secrets.token_hex(PREFIX_BYTES), secrets.token_hex(SECRET_BYTES)
    AgentKey.objects.create(
        prefix=prefix,
        secret_sha256=sha256_hex(secret),
        name=name,
        scope_note=scope_note,
        owner=owner,
        created_at=database_now(),
    )
    return CreatedKey(prefix=prefix, key=f"ro_live_{prefix}_{secret}")


def find_key(text: str) -> AgentKey | None:
    """The key that this text is, if it is one and is not revoked. One query.

    The first use on a day costs a second one, which writes the day down.
    """
    match = _KEY.fullmatch(text)
    if match is None:
        return None
    key = AgentKey.objects.filter(prefix=match[1]).annotate(now=DatabaseNow()).first()
    digest = key.secret_sha256 if key else _NO_DIGEST
    same = hmac.compare_digest(digest, sha256_hex(match[2]))
    if key is None or not same or key.revoked_at is not None:
        return None
    today = key.now.astimezone(UTC).date()
    if key.last_used_on != today:
        AgentKey.objects.filter(pk=key.pk).update(last_used_on=today)
    return key


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
