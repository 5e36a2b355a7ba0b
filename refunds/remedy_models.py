"""What is done instead of a refund that failed: remedies, and the store credits among them.

The models of `refunds.models` are named by their labels here, because that module imports this one.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import F, Q

from effects.models import (
    AbstractAction,
    AbstractAttempt,
    AbstractEvent,
    action_constraints,
    action_indexes,
    action_triggers,
    attempt_constraints,
    attempt_triggers,
)
from effects.triggers import (
    append_only,
    enough_people,
    frozen,
    no_delete,
    no_truncate,
    written_once,
)


class RemedyState(models.TextChoices):
    """Where a remedy stands. ISSUING is a store credit that is, or may be, on the wire."""

    PROPOSED = "PROPOSED", "proposed"
    AUTHORIZED = "AUTHORIZED", "authorized"
    ISSUING = "ISSUING", "being issued"
    ISSUED = "ISSUED", "issued"
    STOPPED = "STOPPED", "stopped"
    FAILED = "FAILED", "failed"


# These take up the order's balance. A debt has one of them at most.
LIVE_REMEDIES = (
    RemedyState.PROPOSED,
    RemedyState.AUTHORIZED,
    RemedyState.ISSUING,
    RemedyState.ISSUED,
)
# Nothing has left yet: these can be stopped.
STOPPABLE_REMEDIES = (RemedyState.PROPOSED, RemedyState.AUTHORIZED)

_R = RemedyState
REMEDY_MOVES: tuple[tuple[RemedyState, RemedyState], ...] = (
    (_R.PROPOSED, _R.AUTHORIZED),  # a second person agreed
    (_R.PROPOSED, _R.STOPPED),
    (_R.AUTHORIZED, _R.ISSUING),  # the credit was claimed by a worker
    (_R.AUTHORIZED, _R.ISSUED),  # a person recorded that it is out
    (_R.AUTHORIZED, _R.STOPPED),
    (_R.ISSUING, _R.AUTHORIZED),  # proof that the attempt did nothing
    (_R.ISSUING, _R.ISSUED),
    (_R.ISSUING, _R.FAILED),
    (_R.ISSUING, _R.STOPPED),  # proof that the attempt did nothing, and the debt is gone
    (_R.ISSUED, _R.FAILED),  # the provider undid it; a transfer bounced, a cheque was lost
    # What was out after all is an observed fact, and is never refused.
    (_R.STOPPED, _R.ISSUED),
    (_R.FAILED, _R.ISSUED),
)


def _born_in_its_place() -> pgtrigger.Trigger:
    """A remedy is for the whole of one failed refund, and begins before anybody agreed to it.

    One person is not enough for a refund whose failure the provider has not said (`failed_by`).
    """
    return pgtrigger.Trigger(
        name="born_in_its_place",
        when=pgtrigger.Before,
        operation=pgtrigger.Insert,
        declare=[("debt", "RECORD"), ("failed_by", "TEXT")],
        func="""
            SELECT amount_minor, currency INTO debt FROM refunds_refundaction
                WHERE id = NEW.debt_id;
            SELECT e.kind INTO failed_by FROM refunds_refundevent e
                WHERE e.action_id = NEW.debt_id AND e.data ->> 'to' = 'FAILED_FINAL'
                ORDER BY e.id DESC LIMIT 1;
            IF NEW.state <> (CASE WHEN NEW.people_needed > 1 THEN 'PROPOSED' ELSE 'AUTHORIZED' END)
                OR NEW.approved_by_id IS NOT NULL OR NEW.reference <> '' OR NEW.is_second THEN
                RAISE EXCEPTION 'a remedy cannot begin in state %', NEW.state;
            END IF;
            IF NEW.amount_minor <> debt.amount_minor OR NEW.currency <> debt.currency THEN
                RAISE EXCEPTION 'a remedy is for the whole debt';
            END IF;
            IF failed_by <> 'refund.failed' AND NEW.people_needed = 1 THEN
                RAISE EXCEPTION 'the refund was given up: its remedy needs two people';
            END IF;
            RETURN NEW;
        """,
    )


def _only_for_a_failed_refund() -> pgtrigger.Trigger:
    """Nothing is proposed, authorised or sent while the refund is anything but FAILED_FINAL.

    The refund's row is share-locked, so that it cannot succeed between the check and the commit.
    """
    return pgtrigger.Trigger(
        name="only_for_a_failed_refund",
        when=pgtrigger.Before,
        operation=pgtrigger.Insert | pgtrigger.Update,
        declare=[("debt_state", "TEXT")],
        func="""
            IF TG_OP = 'UPDATE' THEN
                IF NEW.state = OLD.state
                    OR NEW.state IN ('STOPPED', 'FAILED')
                    OR (NEW.state = 'ISSUED' AND OLD.state IN ('ISSUING', 'STOPPED', 'FAILED'))
                THEN
                    RETURN NEW;
                END IF;
            END IF;
            SELECT state INTO debt_state FROM refunds_refundaction
                WHERE id = NEW.debt_id FOR SHARE;
            IF debt_state <> 'FAILED_FINAL' THEN
                RAISE EXCEPTION 'the refund is %: a remedy is for one that has failed', debt_state;
            END IF;
            RETURN NEW;
        """,
    )


def _one_live_at_all() -> pgtrigger.Trigger:
    """Becoming live takes a debt without any live remedy; a second one, an incident that is open.

    The unique index says the same of those that are no second ones, and only of those. The refund
    is locked, so that no other remedy of it becomes live between the check and the commit.
    """
    return pgtrigger.Trigger(
        name="one_live_at_all",
        when=pgtrigger.Before,
        operation=pgtrigger.Insert | pgtrigger.Update,
        declare=[("others", "INTEGER")],
        func="""
            IF NEW.state NOT IN ('PROPOSED', 'AUTHORIZED', 'ISSUING', 'ISSUED') THEN
                RETURN NEW;
            END IF;
            IF TG_OP = 'UPDATE' THEN
                IF OLD.state IN ('PROPOSED', 'AUTHORIZED', 'ISSUING', 'ISSUED')
                    AND NEW.is_second = OLD.is_second THEN
                    RETURN NEW;
                END IF;
            END IF;
            PERFORM 1 FROM refunds_refundaction WHERE id = NEW.debt_id FOR NO KEY UPDATE;
            SELECT count(*) INTO others FROM refunds_remedy r
                WHERE r.debt_id = NEW.debt_id AND r.id <> NEW.id
                AND r.state IN ('PROPOSED', 'AUTHORIZED', 'ISSUING', 'ISSUED');
            IF NOT NEW.is_second AND others > 0 THEN
                RAISE EXCEPTION 'the debt has another live remedy';
            END IF;
            IF NEW.is_second AND (others = 0 OR NOT EXISTS (
                SELECT 1 FROM effects_case c
                JOIN refunds_order o ON c.resource = 'order:' || o.order_id
                JOIN refunds_refundaction a ON a.order_id = o.id
                WHERE a.id = NEW.debt_id AND c.kind = 'incident' AND c.closed_at IS NULL
            )) THEN
                RAISE EXCEPTION 'a second settlement is beside another, and an open incident';
            END IF;
            RETURN NEW;
        """,
    )


def _second_only_as_seen() -> pgtrigger.Trigger:
    """That a remedy is a second one is written when it turns out to be out, and never else."""
    return pgtrigger.Trigger(
        name="second_only_as_seen",
        when=pgtrigger.Before,
        operation=pgtrigger.Update,
        func="""
            IF NEW.is_second AND NOT OLD.is_second AND NOT (
                NEW.state = 'ISSUED' AND OLD.state IN ('ISSUING', 'STOPPED', 'FAILED')
            ) THEN
                RAISE EXCEPTION 'a second settlement is observed, never planned';
            END IF;
            RETURN NEW;
        """,
    )


def no_remedy_waits() -> pgtrigger.Trigger:
    """For refund actions: one does not leave FAILED_FINAL while a remedy of it could still go out.

    The application stops such remedies in the same transaction.
    """
    return pgtrigger.Trigger(
        name="no_remedy_waits",
        when=pgtrigger.Before,
        operation=pgtrigger.Update,
        condition=pgtrigger.Q(old__state="FAILED_FINAL") & ~pgtrigger.Q(new__state="FAILED_FINAL"),
        func="""
            IF EXISTS (SELECT 1 FROM refunds_remedy r WHERE r.debt_id = NEW.id
                       AND r.state IN ('PROPOSED', 'AUTHORIZED')) THEN
                RAISE EXCEPTION 'a remedy of % could still go out: stop it first', NEW.action_id;
            END IF;
            RETURN NEW;
        """,
    )


class Remedy(models.Model):
    """One settlement of one failed refund by another way: the whole amount, once.

    `debt` is the refund. `proof` says what it stands on that the customer is owed: "provider" (a
    refusal or a failed refund) or "people" (nobody but people says so). `people_needed` is how many
    people stand behind the remedy, the proposer among them, and `why_two` why it is more than one.
    `number` counts the remedies of the debt. `customer_ref` is the order's customer when it was
    proposed: the one who is paid.

    - A bank transfer or a cheque is made outside of this service, after it is AUTHORIZED, and is
      ISSUED when a person records its `reference`.
    - A store credit is an effect of its own, `credit`, sent like a refund.

    `is_second`: it is out, and so is another settlement of the debt. An incident, seen after the
    fact: the one way in which a debt can have two live rows.
    """

    class Kind(models.TextChoices):
        """How the customer gets the money."""

        STORE_CREDIT = "store_credit", "store credit"
        BANK_TRANSFER = "bank_transfer", "bank transfer"
        CHEQUE = "cheque", "cheque"

    class Proof(models.TextChoices):
        """What it stands on that the customer is owed."""

        PROVIDER = "provider", "the provider's answer"
        PEOPLE = "people", "the word of people"

    debt = models.ForeignKey(
        "refunds.RefundAction", on_delete=models.PROTECT, related_name="remedies"
    )
    number = models.PositiveIntegerField()
    kind = models.CharField(max_length=20, choices=Kind.choices)
    amount_minor = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    state = models.CharField(max_length=12, choices=RemedyState.choices)
    state_since = models.DateTimeField()
    proof = models.CharField(max_length=10, choices=Proof.choices)
    people_needed = models.PositiveSmallIntegerField()
    why_two = models.TextField(blank=True, default="")
    customer_ref = models.CharField(max_length=80, blank=True, default="")
    reason = models.CharField(max_length=64)
    note = models.TextField()
    proposed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+"
    )
    proposed_at = models.DateTimeField()
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    approved_at = models.DateTimeField(null=True, blank=True)
    # What the bank or the cheque book calls it; for a credit, the provider's id.
    reference = models.CharField(max_length=120, blank=True, default="")
    recorded_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    is_second = models.BooleanField(default=False)

    class Meta:
        verbose_name_plural = "remedies"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(name="remedy_numbered", fields=["debt", "number"]),
            models.UniqueConstraint(
                name="remedy_one_live_per_debt",
                fields=["debt"],
                condition=Q(state__in=LIVE_REMEDIES, is_second=False),
            ),
            models.CheckConstraint(name="remedy_amount_positive", condition=Q(amount_minor__gt=0)),
            models.CheckConstraint(
                name="remedy_known_words",
                condition=Q(
                    kind__in=["store_credit", "bank_transfer", "cheque"],
                    proof__in=["provider", "people"],
                    people_needed__in=[1, 2],
                ),
            ),
            models.CheckConstraint(
                name="remedy_without_proof_needs_two",
                condition=~Q(proof="people") | Q(people_needed=2),
            ),
            models.CheckConstraint(
                name="remedy_approver_is_another",
                condition=Q(approved_by__isnull=True) | ~Q(approved_by=F("proposed_by")),
            ),
            models.CheckConstraint(
                name="remedy_out_was_agreed",
                condition=~Q(state__in=["AUTHORIZED", "ISSUING", "ISSUED"])
                | Q(people_needed=1)
                | Q(approved_by__isnull=False),
            ),
            models.CheckConstraint(
                name="remedy_only_credits_are_sent",
                condition=~Q(state="ISSUING") | Q(kind="store_credit"),
            ),
            models.CheckConstraint(
                name="remedy_issued_has_a_reference",
                condition=~Q(state="ISSUED")
                | (~Q(reference="") & (Q(kind="store_credit") | Q(recorded_by__isnull=False))),
            ),
            models.CheckConstraint(
                name="remedy_second_is_out",
                condition=Q(is_second=False) | Q(state__in=["ISSUED", "FAILED"]),
            ),
        ]
        triggers: ClassVar[list[Any]] = [
            pgtrigger.FSM(
                name="legal_moves",
                field="state",
                transitions=[(source.value, target.value) for source, target in REMEDY_MOVES],
            ),
            _born_in_its_place(),
            _only_for_a_failed_refund(),
            _one_live_at_all(),
            _second_only_as_seen(),
            frozen(
                "debt",
                "number",
                "kind",
                "amount_minor",
                "currency",
                "proof",
                "people_needed",
                "why_two",
                "customer_ref",
                "reason",
                "note",
                "proposed_by",
                "proposed_at",
            ),
            written_once("approved_by_id", "approved_at", "reference", "recorded_by_id"),
            no_delete(),
            no_truncate(),
        ]
        permissions: ClassVar[list[tuple[str, Any]]] = [
            ("propose_remedy", "Can propose and stop a remedy"),
            ("approve_remedy", "Can be the second person behind a remedy"),
            ("record_remedy", "Can record that a bank transfer or a cheque is out, or came back"),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.number} for {self.debt}"


def _credit_of_an_authorized_remedy() -> pgtrigger.Trigger:
    """A credit begins with its remedy, and is on the wire only while that is being issued."""
    return pgtrigger.Trigger(
        name="only_with_its_remedy",
        when=pgtrigger.Before,
        operation=pgtrigger.Insert | pgtrigger.Update,
        func="""
            IF TG_OP = 'UPDATE' THEN
                IF NEW.state = OLD.state OR NEW.state <> 'SUBMITTING' THEN
                    RETURN NEW;
                END IF;
            END IF;
            IF NOT EXISTS (
                SELECT 1 FROM refunds_remedy r WHERE r.id = NEW.remedy_id
                AND r.kind = 'store_credit' AND r.amount_minor = NEW.amount_minor
                AND r.currency = NEW.currency AND r.customer_ref = NEW.customer_ref
                AND r.state = (CASE WHEN TG_OP = 'INSERT' THEN 'AUTHORIZED' ELSE 'ISSUING' END)
            ) THEN
                RAISE EXCEPTION 'credit % has no remedy that lets it be', NEW.action_id;
            END IF;
            RETURN NEW;
        """,
    )


class CreditAction(AbstractAction):
    """One store credit: a remedy as an effect with a key of its own.

    See `effects.models.AbstractAction` for the protocol's columns. Its money is held by the remedy,
    from its proposal on. `customer_ref` is the provider's customer whose balance is credited.
    """

    remedy = models.OneToOneField(Remedy, on_delete=models.PROTECT, related_name="credit")
    order = models.ForeignKey("refunds.Order", on_delete=models.PROTECT, related_name="credits")
    customer_ref = models.CharField(max_length=80)
    amount_minor = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    # Who we are in the frozen request's metadata: what its credit is recognised by, for ever.
    instance = models.CharField(max_length=40)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            *action_constraints("credit"),
            models.CheckConstraint(name="credit_amount_positive", condition=Q(amount_minor__gt=0)),
        ]
        indexes: ClassVar[list[models.Index]] = action_indexes("credit")
        triggers: ClassVar[list[Any]] = [
            *action_triggers(attempt_table="refunds_creditattempt", act_table="approvals_caseact"),
            _credit_of_an_authorized_remedy(),
            # Its first round is its remedy, which people authorized.
            enough_people(approval_table="approvals_approval", begins_by="person"),
            frozen(
                "action_id",
                "remedy",
                "order",
                "customer_ref",
                "amount_minor",
                "currency",
                "payload",
                "payload_hash",
                "provider",
                "account",
                "proposed_by",
                "proposer_owner",
                "instance",
                "created_at",
            ),
        ]


class CreditAttempt(AbstractAttempt):
    """One credit request on the wire."""

    action = models.ForeignKey(CreditAction, on_delete=models.PROTECT, related_name="attempts")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = attempt_constraints("credit")
        triggers: ClassVar[list[Any]] = attempt_triggers(
            action_table="refunds_creditaction", act_table="approvals_caseact"
        )


class CreditEvent(AbstractEvent):
    """One line of history of a credit. What it means for the refund stands in the refund's own."""

    order = models.ForeignKey(
        "refunds.Order", on_delete=models.PROTECT, related_name="credit_events"
    )
    action = models.ForeignKey(CreditAction, on_delete=models.PROTECT, related_name="events")

    class Meta:
        triggers: ClassVar[list[Any]] = append_only()


__all__ = [
    "LIVE_REMEDIES",
    "REMEDY_MOVES",
    "STOPPABLE_REMEDIES",
    "CreditAction",
    "CreditAttempt",
    "CreditEvent",
    "Remedy",
    "RemedyState",
    "no_remedy_waits",
]
