"""Credentials of merchants' backends."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.db import models

from effects.models import AbstractEvent, append_only
from effects.triggers import frozen, no_delete


class AgentKey(models.Model):
    """One key of a merchant's backend. The secret is shown once and only its digest is kept.

    `prefix` is the public part: it names the proposer in actions and in history, so a key is
    revoked and never deleted. `owner` is the member of staff who answers for what it proposes, and
    cannot approve that. `last_used_on` is a day, written at most once a day: a write with
    every request would make reads as dear as proposals.
    """

    prefix = models.CharField(max_length=20, unique=True)
    secret_sha256 = models.CharField(max_length=64)
    name = models.CharField(max_length=80)
    scope_note = models.TextField(blank=True, default="")
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
            frozen("prefix", "secret_sha256", "created_at"),
            no_delete(),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix})"


class AgentKeyEvent(AbstractEvent):
    """One line of a key's history: who answered for it, and since when."""

    key = models.ForeignKey(AgentKey, on_delete=models.PROTECT, related_name="events")

    class Meta:
        triggers: ClassVar[list[Any]] = append_only()
