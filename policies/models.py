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
    """One evaluation of a policy version over facts, kept whole for the auditor.

    `facts` hold the rates of the day, `base_minor` what the amount was in `base_currency` by them.
    """

    effect = models.CharField(max_length=20)
    action_id = models.CharField(max_length=160)
    number = models.PositiveIntegerField()
    policy_version = models.PositiveIntegerField()
    policy_hash = models.CharField(max_length=64, blank=True, default="")
    tier = models.PositiveSmallIntegerField(default=1)
    people = models.PositiveSmallIntegerField(default=1)
    base_currency = models.CharField(max_length=3, blank=True, default="")
    base_minor = models.BigIntegerField(null=True, blank=True)
    tags = models.JSONField(default=list, blank=True)
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


class ReferenceRate(models.Model):
    """One currency's rate on one day, pinned: units of it for one unit of the reference currency.

    The reference is the currency whose rate is 1 (EUR where the European Central Bank's daily
    rates are imported). A day's rate is written once, so a decision can be computed again.
    """

    day = models.DateField()
    currency = models.CharField(max_length=3)
    rate = models.DecimalField(max_digits=20, decimal_places=10)
    source = models.CharField(max_length=80)
    imported_at = models.DateTimeField()

    class Meta:
        triggers: ClassVar[list[Any]] = append_only()
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(name="one_rate_a_day", fields=["day", "currency"]),
            models.CheckConstraint(name="rate_is_positive", condition=models.Q(rate__gt=0)),
        ]

    def __str__(self) -> str:
        return f"{self.rate} {self.currency} on {self.day}"
