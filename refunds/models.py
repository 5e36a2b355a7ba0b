"""Orders and their balances, refund actions, their attempts and their history."""

from __future__ import annotations

from typing import Any, ClassVar

import pgtrigger
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce

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
from effects.states import State
from effects.triggers import (
    append_only,
    enough_people,
    frozen,
    no_delete,
    no_truncate,
)
from refunds.remedy_models import (
    CreditAction,
    CreditAttempt,
    CreditEvent,
    Remedy,
    no_remedy_waits,
)


def _payment_fixed_once_used() -> pgtrigger.Trigger:
    """Payment, account and currency stay once a refund was frozen with them."""
    return pgtrigger.Trigger(
        name="payment_fixed_once_used",
        when=pgtrigger.Before,
        operation=pgtrigger.Update,
        func="""
            IF (OLD.currency, OLD.provider, OLD.account, OLD.payment_ref)
                    IS DISTINCT FROM (NEW.currency, NEW.provider, NEW.account, NEW.payment_ref)
                AND EXISTS (SELECT 1 FROM refunds_refundaction a WHERE a.order_id = NEW.id) THEN
                RAISE EXCEPTION 'order % has refunds: its payment, account and currency stay',
                    NEW.order_id;
            END IF;
            IF NEW.version < OLD.version THEN
                RAISE EXCEPTION 'the version of order % never goes back', NEW.order_id;
            END IF;
            RETURN NEW;
        """,
    )


class Order(models.Model):
    """Our mirror of a merchant's order. Amounts are integer minor units of `currency`.

    `version` increases with every change of a money or status fact. The balances are never
    negative; that what is sent fits what is left is checked in the claim (I3), while an observed
    fact is never refused: an order may be overdrawn, and then blocks claims.
    `provider_read_at` is when this payment's refunds were last listed by this instance, `stated_at`
    when the merchant last stated the order, changed or not.

    `shown_…` are the payment's totals as the provider showed them at `shown_at`, NULL before that.
    They are compared with what is stated (`refunds.shown`) and change no balance. `compare_due_at`
    is when that is done next; NULL while nothing is due.
    """

    class DisputeState(models.TextChoices):
        """Where a dispute of the payment stands."""

        NONE = "none", "none"
        INQUIRY = "inquiry", "inquiry"
        OPEN = "open", "open"
        WON = "won", "won"
        LOST = "lost", "lost"

    order_id = models.CharField(max_length=64, unique=True)
    version = models.BigIntegerField(default=1)
    source_version = models.BigIntegerField(default=0)
    currency = models.CharField(max_length=3)
    captured_minor = models.BigIntegerField()
    refunded_minor = models.BigIntegerField(default=0)
    reserved_minor = models.BigIntegerField(default=0)
    disputed_minor = models.BigIntegerField(default=0)
    settled_otherwise_minor = models.BigIntegerField(default=0)
    shown_captured_minor = models.BigIntegerField(null=True, blank=True)
    shown_refunded_minor = models.BigIntegerField(null=True, blank=True)
    shown_currency = models.CharField(max_length=3, blank=True, default="")
    shown_at = models.DateTimeField(null=True, blank=True)
    compare_due_at = models.DateTimeField(null=True, blank=True)
    dispute_state = models.CharField(
        max_length=10, choices=DisputeState.choices, default=DisputeState.NONE
    )
    provider = models.CharField(max_length=40)
    account = models.CharField(max_length=80, blank=True, default="")
    payment_ref = models.CharField(max_length=80)
    payment_method = models.CharField(max_length=40, blank=True, default="")
    customer_ref = models.CharField(max_length=80, blank=True, default="")
    customer_email = models.CharField(max_length=254, blank=True, default="")
    details = models.JSONField(default=dict)
    placed_at = models.DateTimeField(null=True, blank=True)
    provider_read_at = models.DateTimeField(null=True, blank=True)
    stated_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                name=f"order_{name}_not_negative", condition=Q(**{f"{name}__gte": 0})
            )
            for name in (
                "captured_minor",
                "refunded_minor",
                "reserved_minor",
                "disputed_minor",
                "settled_otherwise_minor",
            )
        ]
        indexes: ClassVar[list[models.Index]] = [
            # "whose payment is pi_…?": staff search, and what the provider tells us
            models.Index(name="order_by_payment_ref", fields=["payment_ref"]),
            # what a customer got back lately
            models.Index(
                name="order_by_customer", fields=["customer_ref"], condition=~Q(customer_ref="")
            ),
            # what is to be compared with the provider
            models.Index(
                name="order_to_compare",
                fields=["compare_due_at"],
                condition=Q(compare_due_at__isnull=False),
            ),
        ]
        triggers: ClassVar[list[Any]] = [
            frozen("order_id"),
            _payment_fixed_once_used(),
            no_delete(),
            no_truncate(),
        ]

    def __str__(self) -> str:
        return f"order:{self.order_id}"

    @property
    def refundable_minor(self) -> int:
        """What may still be sent. Negative when an observed fact has overdrawn the order."""
        return (
            self.captured_minor
            - self.disputed_minor
            - self.refunded_minor
            - self.reserved_minor
            - self.settled_otherwise_minor
        )


class RefundAction(AbstractAction):
    """One business refund. See `effects.models.AbstractAction` for the protocol's columns.

    `reserved_minor` is 0 or the whole amount: what the order's balance holds for it.
    """

    order = models.ForeignKey(Order, on_delete=models.PROTECT, related_name="actions")
    request_id = models.CharField(max_length=64)
    amount_minor = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    reason = models.CharField(max_length=64)
    reserved_minor = models.BigIntegerField(default=0)
    decision_count = models.PositiveIntegerField(default=1)
    # What the caller said it is for: [{"line_id", "amount_minor"}]. Not part of the identity.
    lines = models.JSONField(default=list, blank=True)
    # Who we are in the frozen request's metadata: what its refund is recognised by, for ever.
    instance = models.CharField(max_length=40)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            *action_constraints("refund"),
            models.CheckConstraint(name="refund_amount_positive", condition=Q(amount_minor__gt=0)),
            models.CheckConstraint(
                name="refund_reserves_all_or_nothing",
                condition=Q(reserved_minor=0) | Q(reserved_minor=F("amount_minor")),
            ),
            models.CheckConstraint(
                # Only the claim reserves, and what it reserves for is an attempt or evidence.
                name="refund_reserves_for_an_attempt",
                condition=Q(reserved_minor=0) | Q(attempt_count__gt=0) | ~Q(provider_ref=""),
            ),
            models.CheckConstraint(
                name="refund_in_flight_is_reserved",
                condition=~Q(state__in=[State.SUBMITTING, State.UNKNOWN, State.PENDING])
                | Q(reserved_minor=F("amount_minor")),
            ),
            models.CheckConstraint(
                name="refund_over_reserves_nothing",
                condition=~Q(
                    state__in=[
                        State.SUCCEEDED,
                        State.FAILED_FINAL,
                        State.REJECTED,
                        State.EXPIRED,
                        State.CANCELLED,
                        State.HELD,
                    ]
                )
                | Q(reserved_minor=0),
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            # an agent's probation; velocity and budgets: what was proposed and allowed lately
            models.Index(
                F("proposed_by"), Coalesce("authorized_at", "created_at"), name="refund_by_agent"
            ),
            models.Index(Coalesce("authorized_at", "created_at"), name="refund_by_time"),
            models.Index(
                F("reason"), Coalesce("authorized_at", "created_at"), name="refund_by_reason"
            ),
            *action_indexes("refund"),
        ]
        triggers: ClassVar[list[Any]] = [
            *action_triggers(attempt_table="refunds_refundattempt", act_table="approvals_caseact"),
            enough_people(approval_table="approvals_approval"),
            no_remedy_waits(),
            frozen(
                "action_id",
                "order",
                "request_id",
                "amount_minor",
                "currency",
                "reason",
                "payload",
                "payload_hash",
                "provider",
                "account",
                "proposed_by",
                "proposer_owner",
                "lines",
                "instance",
                "created_at",
            ),
        ]
        permissions: ClassVar[list[tuple[str, Any]]] = [("decide_refund", "Can approve and reject")]


class RefundAttempt(AbstractAttempt):
    """One refund request on the wire."""

    action = models.ForeignKey(RefundAction, on_delete=models.PROTECT, related_name="attempts")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = attempt_constraints("refund")
        triggers: ClassVar[list[Any]] = attempt_triggers(
            action_table="refunds_refundaction", act_table="approvals_caseact"
        )


class RefundEvent(AbstractEvent):
    """One line of history of an order and, mostly, one of its actions."""

    order = models.ForeignKey(Order, on_delete=models.PROTECT, related_name="events")
    action = models.ForeignKey(
        RefundAction, on_delete=models.PROTECT, related_name="events", null=True, blank=True
    )

    class Meta:
        triggers: ClassVar[list[Any]] = append_only()


class AgentNote(models.Model):
    """What an agent wrote beside a proposal. Untrusted text: shown to people, never acted on.

    Kept apart from the action so that no word of it reaches an identity, a key, a decision or a
    message (I5), and so that it can be erased without touching history.
    """

    action = models.OneToOneField(RefundAction, on_delete=models.PROTECT, related_name="agent_note")
    text = models.TextField()

    def __str__(self) -> str:
        return "agent's note"


class ExternalRefund(models.Model):
    """A refund on one of our payments that belongs to no action of ours.

    Made in the provider's dashboard or by another system. It takes up the order's balance. When it
    turns out to be an action's own after all (a database that had forgotten that action), the
    action adopts it, `is_ours` says so, and its amount is counted there.
    """

    order = models.ForeignKey(Order, on_delete=models.PROTECT, related_name="external_refunds")
    provider_ref = models.CharField(max_length=80)
    amount_minor = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    status = models.CharField(max_length=40)
    is_ours = models.BooleanField(default=False)
    seen_at = models.DateTimeField()
    made_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            # Once for each order: two orders may have been paid with one payment.
            models.UniqueConstraint(
                name="external_refund_once_per_order", fields=["order", "provider_ref"]
            )
        ]
        triggers: ClassVar[list[Any]] = [
            frozen("order", "provider_ref", "amount_minor", "currency", "seen_at"),
            no_delete(),
            no_truncate(),
        ]

    def __str__(self) -> str:
        return f"{self.provider_ref}: {self.amount_minor} {self.currency}"


# Models of this room that stand in a module of their own.
__all__ = [
    "AgentNote",
    "CreditAction",
    "CreditAttempt",
    "CreditEvent",
    "ExternalRefund",
    "Order",
    "RefundAction",
    "RefundAttempt",
    "RefundEvent",
    "Remedy",
]
