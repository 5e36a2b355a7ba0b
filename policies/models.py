"""Policy drafts, the versions they became, and the decisions made under them."""

from __future__ import annotations

from typing import Any, ClassVar

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import F, Q

from effects.triggers import append_only, frozen, no_delete, no_truncate


def _never_by_its_editors() -> pgtrigger.Trigger:
    """A version that people made is what an open draft says, published by none of its editors."""
    return pgtrigger.Trigger(
        name="never_by_its_editors",
        when=pgtrigger.Before,
        operation=pgtrigger.Insert,
        func="""
            IF NEW.draft_id IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM policies_policydraft d
                WHERE d.id = NEW.draft_id AND d.state = 'open'
                    AND d.edited_by_id = NEW.editor_id
                    AND d.parameters = NEW.parameters
                    AND NOT d.editors @> to_jsonb(NEW.publisher_id)
            ) THEN
                RAISE EXCEPTION 'policy % must be what an open draft says, published by somebody '
                    'who did not edit it', NEW.number;
            END IF;
            RETURN NEW;
        """,
    )


def _draft_remembers() -> pgtrigger.Trigger:
    """A draft remembers all of its editors, and stays as it is once it was published or dropped."""
    return pgtrigger.Trigger(
        name="draft_remembers",
        when=pgtrigger.Before,
        operation=pgtrigger.Insert | pgtrigger.Update,
        func="""
            IF NOT NEW.editors @> to_jsonb(NEW.edited_by_id) THEN
                RAISE EXCEPTION 'whoever edits a policy draft is one of its editors';
            END IF;
            IF TG_OP = 'INSERT' THEN
                IF NEW.state <> 'open' THEN
                    RAISE EXCEPTION 'a policy draft begins open';
                END IF;
                RETURN NEW;
            END IF;
            IF OLD.state <> 'open' THEN
                RAISE EXCEPTION 'policy draft % is % and stays as it is', OLD.id, OLD.state;
            END IF;
            IF NOT NEW.editors @> OLD.editors THEN
                RAISE EXCEPTION 'a policy draft forgets none of its editors';
            END IF;
            IF NEW.state = 'published' AND NOT EXISTS (
                SELECT 1 FROM policies_policyversion v WHERE v.draft_id = NEW.id
            ) THEN
                RAISE EXCEPTION 'policy draft % was not published', NEW.id;
            END IF;
            RETURN NEW;
        """,
    )


class PolicyVersion(models.Model):
    """One published set of parameters. The highest number is in force; none is ever edited.

    `editor` was the last to edit its draft, `publisher` put it in force; they are two people. Both
    are null where the installation or an operator's program published it (`published_by` says
    who): whoever holds the shell is not one of the site's people.
    """

    number = models.PositiveIntegerField(unique=True)
    parameters = models.JSONField()
    parameters_hash = models.CharField(max_length=64)
    published_by = models.CharField(max_length=80)
    published_at = models.DateTimeField()
    note = models.TextField(blank=True, default="")
    editor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    publisher = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    draft = models.OneToOneField(
        "PolicyDraft",
        on_delete=models.PROTECT,
        related_name="published_as",
        null=True,
        blank=True,
    )

    class Meta:
        triggers: ClassVar[list[Any]] = [_never_by_its_editors(), *append_only()]
        ordering: ClassVar[list[str]] = ["-number"]
        # It is published from a draft and in no other way, so nothing else can be permitted.
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                name="policy_published_by_another",
                condition=Q(editor__isnull=True, publisher__isnull=True, draft__isnull=True)
                | (
                    Q(editor__isnull=False, publisher__isnull=False, draft__isnull=False)
                    & ~Q(editor=F("publisher"))
                ),
            )
        ]

    def __str__(self) -> str:
        return f"policy {self.number}"


class PolicyDraft(models.Model):
    """What the policy might become. One person writes it, another one publishes it.

    `based_on` is the version that the last editor compared it with (null: there was none);
    `editors` are the ids of everybody who ever saved it, none of whom publishes it.
    """

    class State(models.TextChoices):
        """Whether it can still be edited."""

        OPEN = "open", "open"
        PUBLISHED = "published", "published"
        DISCARDED = "discarded", "discarded"

    name = models.CharField(max_length=80)
    state = models.CharField(max_length=10, choices=State.choices, default=State.OPEN)
    parameters = models.JSONField()
    parameters_hash = models.CharField(max_length=64)
    based_on = models.ForeignKey(
        PolicyVersion, on_delete=models.PROTECT, related_name="drafts", null=True, blank=True
    )
    note = models.TextField(blank=True, default="")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField()
    edited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+"
    )
    edited_at = models.DateTimeField()
    editors = models.JSONField()
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions: ClassVar[tuple[str, ...]] = ("change", "view")
        permissions: ClassVar[list[tuple[str, Any]]] = [
            ("publish_policy", "Can publish a policy that others drafted")
        ]
        triggers: ClassVar[list[Any]] = [
            _draft_remembers(),
            frozen("created_by", "created_at"),
            no_delete(),
            no_truncate(),
        ]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                name="policy_draft_open_or_closed",
                condition=Q(state="open", closed_at__isnull=True)
                | Q(state__in=["published", "discarded"], closed_at__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return f"policy draft {self.pk}: {self.name}"


class PolicyEvent(models.Model):
    """One line of a policy's history. `person` is null where a program acted."""

    class Kind(models.TextChoices):
        """What happened."""

        SAVED = "policy.draft_saved", "draft saved"
        IMPORTED = "policy.draft_imported", "draft imported from a file"
        DISCARDED = "policy.draft_discarded", "draft discarded"
        PUBLISHED = "policy.published", "published"

    kind = models.CharField(max_length=40, choices=Kind.choices)
    actor = models.CharField(max_length=80)
    person = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    at = models.DateTimeField()
    draft = models.ForeignKey(
        PolicyDraft, on_delete=models.PROTECT, related_name="events", null=True, blank=True
    )
    version = models.ForeignKey(
        PolicyVersion, on_delete=models.PROTECT, related_name="events", null=True, blank=True
    )
    data = models.JSONField(default=dict)

    class Meta:
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        triggers: ClassVar[list[Any]] = append_only()

    def __str__(self) -> str:
        return f"{self.kind} by {self.actor}"


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
        indexes: ClassVar[list[models.Index]] = [
            # replay: what was decided in the last days
            models.Index(name="decision_by_time", fields=["facts_read_at"])
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
