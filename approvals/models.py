"""Decisions of people. Append-only; who decided comes from the session and nothing else."""

from __future__ import annotations

from typing import Any, ClassVar

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import Q

from approvals.case_act import CaseAct
from effects.triggers import append_only

# Where the actions of each kind stand whose people decide by approvals.
_ACTION_TABLES = {"refund": "refunds_refundaction", "credit": "refunds_creditaction"}


def _decided_in_its_round() -> pgtrigger.Trigger:
    """A decision is about an action that awaits one, in its round, and of nobody who may not."""
    # Made of our own constants when the migration is written, never of anybody's input.
    actions = " UNION ALL ".join(
        "SELECT t.state, t.approval_round, t.proposed_by, t.proposer_owner_id "  # noqa: S608
        f"FROM {table} t WHERE t.action_id = NEW.action_id AND NEW.effect = '{effect}'"
        for effect, table in _ACTION_TABLES.items()
    )
    return pgtrigger.Trigger(
        name="decided_in_its_round",
        when=pgtrigger.Before,
        operation=pgtrigger.Insert,
        declare=[("action", "RECORD"), ("giver", "TEXT")],
        func=f"""
            SELECT * INTO action FROM ({actions}) a;
            IF NOT FOUND OR action.state <> 'AWAITING_APPROVAL'
                OR action.approval_round <> NEW.round THEN
                RAISE EXCEPTION 'a person decides about an action that awaits it, in its round';
            END IF;
            SELECT u.username INTO giver FROM auth_user u WHERE u.id = NEW.decided_by_id;
            IF action.proposed_by IN (giver, left('person:' || giver, 80)) THEN
                RAISE EXCEPTION 'whoever proposed % cannot decide it', NEW.action_id;
            END IF;
            IF NEW.approved AND action.proposer_owner_id = NEW.decided_by_id THEN
                RAISE EXCEPTION 'the owner of what proposed % cannot approve it', NEW.action_id;
            END IF;
            IF NEW.approved AND NEW.decided_by_id = (
                SELECT v.editor_id FROM policies_policyversion v ORDER BY v.number DESC LIMIT 1
            ) THEN
                RAISE EXCEPTION 'the last editor of the policy in force cannot approve %',
                    NEW.action_id;
            END IF;
            RETURN NEW;
        """,  # noqa: S608
    )


class Approval(models.Model):
    """One person's yes or no to one action, bound to exactly what that person was shown.

    A yes belongs to a `round` of its action and counts only beside others of that round. It holds
    while the content, the order's version, the balances, the dispute state and the policy are
    those in `facts`, while its giver may approve, and until `expires_at`. All of it is compared
    in the claim, with this row. `tier` is the giver's at the time. Round 0 are those given before
    there were rounds: they count for nothing.
    """

    effect = models.CharField(max_length=20)
    action_id = models.CharField(max_length=160)
    number = models.PositiveIntegerField()
    round = models.PositiveIntegerField()
    tier = models.PositiveSmallIntegerField()
    approved = models.BooleanField()
    decided_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT)
    decided_at = models.DateTimeField()
    payload_hash = models.CharField(max_length=64)
    resource_version = models.BigIntegerField()
    policy_version = models.PositiveIntegerField()
    facts = models.JSONField()
    expires_at = models.DateTimeField(null=True, blank=True)
    note = models.TextField(blank=True, default="")

    class Meta:
        triggers: ClassVar[list[Any]] = [_decided_in_its_round(), *append_only()]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(name="approval_numbered", fields=["action_id", "number"]),
            models.UniqueConstraint(
                name="approval_one_yes_per_person_and_round",
                fields=["action_id", "round", "decided_by"],
                condition=Q(approved=True, round__gt=0),
            ),
            models.CheckConstraint(
                name="approval_of_a_yes_expires",
                condition=Q(approved=False) | Q(expires_at__isnull=False),
            ),
        ]
        permissions: ClassVar[list[tuple[str, Any]]] = [
            ("approve_tier_2", "Can approve what needs tier 2"),
            ("approve_tier_3", "Can approve what needs tier 3"),
        ]

    def __str__(self) -> str:
        return f"{'approved' if self.approved else 'rejected'}: {self.action_id}"


# CaseAct stands in a module of its own.
__all__ = ["Approval", "CaseAct"]
