"""Credentials: agents of a merchant's backend, their secrets, and sessions of a model's tools."""

from __future__ import annotations

from typing import Any, ClassVar

import pgtrigger
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from effects.models import AbstractEvent, append_only
from effects.triggers import frozen, no_delete, no_truncate, written_once
from refunds.models import Order, RefundAction


class Scope(models.TextChoices):
    """What a key may be used for."""

    ORDERS = "orders", "mirror and read orders"
    REFUNDS = "refunds", "propose, read and withdraw its own refunds; explain the policy"
    SESSIONS = "sessions", "open and revoke sessions for a model's tools"


def every_scope() -> list[str]:
    """What a key is made with unless less is asked for."""
    return [scope.value for scope in Scope]


class AgentKey(models.Model):
    """One agent of a merchant's backend, called by its key. `AgentSecret` holds what proves it.

    `prefix` is the public part: it names the proposer in actions and in history, so a key is
    revoked and never deleted, and rotating its secret changes nothing else: its actions, limits and
    history go on. `owner` is the member of staff who answers for what it proposes, and cannot
    approve that. `last_used_on` is a day, written at most once a day: a write with every request
    would make reads as dear as proposals.
    """

    prefix = models.CharField(max_length=20, unique=True)
    name = models.CharField(max_length=80)
    scope_note = models.TextField(blank=True, default="")
    scopes = ArrayField(models.CharField(max_length=20, choices=Scope.choices), default=every_scope)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
    )
    created_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_on = models.DateField(null=True, blank=True)

    class Meta:
        triggers: ClassVar[list[Any]] = [
            frozen("prefix", "created_at"),
            no_delete(),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix})"


class AgentSecret(models.Model):
    """What proves that a caller is an agent. Shown once; only its digest is kept.

    Two of one key live side by side while a rotation is under way. `expires_at` NULL: it has no
    end of its own. It may be moved nearer and never away: what has ended stays ended.
    """

    key = models.ForeignKey(AgentKey, on_delete=models.PROTECT, related_name="secrets")
    sha256 = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        triggers: ClassVar[list[Any]] = [
            frozen("key", "sha256", "created_at"),
            pgtrigger.Protect(
                name="ends_no_later",
                operation=pgtrigger.Update,
                condition=pgtrigger.Q(old__expires_at__lt=pgtrigger.F("new__expires_at"))
                | pgtrigger.Q(old__expires_at__isnull=False, new__expires_at__isnull=True),
            ),
            no_delete(),
        ]

    def __str__(self) -> str:
        return f"secret of {self.key_id}, made {self.created_at:%Y-%m-%d}"


class AgentSession(models.Model):
    """What a model's tools call with: one order, one request, an end, and nothing to choose.

    `prefix` is its public id. `max_amount_minor` is the most that may be proposed under it, in
    minor units of the order's currency; NULL: what the order and the policy allow. It is usable
    while its key is.
    """

    prefix = models.CharField(max_length=20, unique=True)
    secret_sha256 = models.CharField(max_length=64)
    key = models.ForeignKey(AgentKey, on_delete=models.PROTECT, related_name="sessions")
    order = models.ForeignKey(Order, on_delete=models.PROTECT, related_name="+")
    request_id = models.CharField(max_length=64)
    max_amount_minor = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        triggers: ClassVar[list[Any]] = [
            frozen(
                "prefix",
                "secret_sha256",
                "key",
                "order",
                "request_id",
                "max_amount_minor",
                "created_at",
                "expires_at",
            ),
            written_once("revoked_at"),
            no_delete(),
            no_truncate(),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(max_amount_minor__isnull=True) | Q(max_amount_minor__gt=0),
                name="agent_session_max_amount_positive",
            ),
        ]
        permissions = [("revoke_agentsession", "Can end a session of an agent")]

    def __str__(self) -> str:
        return f"session {self.prefix}"


class AgentKeyEvent(AbstractEvent):
    """One line of a key's history: made, rotated, revoked, given to another owner; by whom."""

    key = models.ForeignKey(AgentKey, on_delete=models.PROTECT, related_name="events")

    class Meta:
        triggers: ClassVar[list[Any]] = append_only()


class IdempotencyValue(models.Model):
    """A value of the `Idempotency-Key` header that an agent recorded an action under.

    It belongs to that action for ever: a second fence, and never the action's identity.
    """

    key = models.ForeignKey(AgentKey, on_delete=models.PROTECT, related_name="+")
    value = models.CharField(max_length=255)
    action = models.ForeignKey(RefundAction, on_delete=models.PROTECT, related_name="+")
    recorded_at = models.DateTimeField()

    class Meta:
        triggers: ClassVar[list[Any]] = append_only()
        constraints = [
            models.UniqueConstraint(
                fields=["key", "value"], name="idempotency_value_belongs_to_one_action"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.value} of {self.key_id}"


class SecurityEvent(models.Model):
    """Something that a real credential was used for and is not for. Append-only.

    - `actor`: the agent, as history names it; `credential`: what it called with, by its public
      part.
    - `address`: method and address as a template, `GET /api/v1/refunds/{action_id}`. Never what
      stood in it: the ids of others are not the caller's to write into our records, nor are
      queries and bodies.
    - `minute`: `at` without its seconds. One row for each credential, kind, address and minute,
      so that a storm writes few.
    - `request_id`: the first such request of that minute, in the log.
    """

    class Kind(models.TextChoices):
        """What was tried."""

        OUTSIDE_ITS_ORDER = "session.outside_its_order", "a session outside its order or request"
        OF_ANOTHER_AGENT = "object.of_another_agent", "an action or a session of another agent"
        NOT_FOR_THIS = "credential.not_for_this", "a call that the credential is not for"
        ELSEWHERE = "credential.elsewhere", "an address that is not for agents"
        OVER = "credential.over", "a credential that was revoked or has expired"

    kind = models.CharField(max_length=40, choices=Kind)
    actor = models.CharField(max_length=80)
    credential = models.CharField(max_length=40)
    address = models.CharField(max_length=160)
    at = models.DateTimeField()
    minute = models.DateTimeField()
    request_id = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        triggers: ClassVar[list[Any]] = append_only()
        constraints = [
            models.UniqueConstraint(
                fields=["credential", "kind", "address", "minute"], name="security_event_once"
            )
        ]
        indexes = [
            models.Index(fields=["at"], name="security_event_by_time"),
            models.Index(fields=["actor", "at"], name="security_event_by_actor"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} by {self.actor}"
