"""Decisions of people. Append-only; who decided comes from the session and nothing else."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from approvals.case_act import CaseAct
from effects.triggers import append_only


class Approval(models.Model):
    """One person's yes or no to one action, bound to exactly what that person was shown.

    A yes holds while the payload hash, the order's version, the refundable balance and the
    dispute state are the same, and until `expires_at`. All of it is compared in the claim.
    """

    effect = models.CharField(max_length=20)
    action_id = models.CharField(max_length=160)
    number = models.PositiveIntegerField()
    approved = models.BooleanField()
    decided_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT)
    decided_at = models.DateTimeField()
    payload_hash = models.CharField(max_length=64)
    resource_version = models.BigIntegerField()
    facts = models.JSONField()
    expires_at = models.DateTimeField(null=True, blank=True)
    note = models.TextField(blank=True, default="")

    class Meta:
        triggers: ClassVar[list[Any]] = append_only()
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(name="approval_numbered", fields=["action_id", "number"]),
            models.CheckConstraint(
                name="approval_of_a_yes_expires",
                condition=Q(approved=False) | Q(expires_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{'approved' if self.approved else 'rejected'}: {self.action_id}"


# CaseAct stands in a module of its own.
__all__ = ["Approval", "CaseAct"]
