"""Policy versions and the decisions made under them. Both append-only."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from effects.triggers import append_only


class PolicyVersion(models.Model):
    """One published set of parameters. The highest number is in force; none is ever edited."""

    number = models.PositiveIntegerField(unique=True)
    parameters = models.JSONField()
    parameters_hash = models.CharField(max_length=64)
    published_by = models.CharField(max_length=80)
    published_at = models.DateTimeField()
    note = models.TextField(blank=True, default="")

    class Meta:
        triggers: ClassVar[list[Any]] = append_only()
        ordering: ClassVar[list[str]] = ["-number"]

    def __str__(self) -> str:
        return f"policy {self.number}"


class DecisionRecord(models.Model):
    """One evaluation of a policy version over facts, kept whole for the auditor."""

    effect = models.CharField(max_length=20)
    action_id = models.CharField(max_length=160)
    number = models.PositiveIntegerField()
    policy_version = models.PositiveIntegerField()
    verdict = models.CharField(max_length=10)
    rules = models.JSONField()
    facts = models.JSONField()
    facts_read_at = models.DateTimeField()

    class Meta:
        triggers: ClassVar[list[Any]] = append_only()
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(name="decision_numbered", fields=["action_id", "number"])
        ]

    def __str__(self) -> str:
        return f"{self.verdict} for {self.action_id}"
