"""Rows that every kind of effect has, and the rows all kinds share.

`AbstractAction`, `AbstractAttempt` and `AbstractEvent` become tables of a kind (refunds have
theirs in `refunds.models`). `Case`, `Switch` and `Breaker` are shared.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django_fsm import FSMField, FSMModelMixin, transition

from effects.states import FINAL_STATES, State, sources_of
from effects.triggers import (
    append_only,
    frozen,
    legal_moves,
    new_key_by_people,
    no_delete,
    no_open_questions,
    no_truncate,
    only_while_submitting,
    resolved_by_two_people,
    start_states,
    written_once,
)


def _to(target: State) -> Callable[[Any], None]:
    """Declare the transition to one state, from wherever the one table allows it.

    The body is empty on purpose: money and history are moved by `effects.transitions.move`, the
    only caller.
    """

    def body(self: Any) -> None:
        return None

    body.__name__ = body.__qualname__ = f"to_{target.value.lower()}"
    declared: Callable[[Any], None] = transition(
        field="state", source=sources_of(target), target=target.value
    )(body)
    return declared


class AbstractAction(FSMModelMixin, models.Model):
    """One business action: one row, from proposal to end. The row is the queue.

    - `action_id`: public identity, made from the merchant's ids; generation 1 of the key.
    - `payload`, `payload_hash`: the exact provider request, frozen at the proposal.
    - `due_at`: when a sweep must look at this row next; NULL when nothing is due by itself.
    - `generation`, `key_first_used_at`: which key is in use, and since when (database time).
    - `tries`, `unknown_since`: reconciliation rounds and the first UNKNOWN of this generation.
    - `waiting_since`: since when attempts are turned away (not sent, 429) without a break.
    - `decided_by`: "policy" or "person"; a person's decision is compared in the claim, a
      policy's is made again.
    - `bound_*`: the facts that the decision was made on, after our own writes.
    - `authorized_at`: when it was last decided that it may be sent; what limits count by.
    - `approval_round`: grows whenever a person must decide (again); approvals belong to a round.
    - `review_tier`, `review_people`: who must approve it in this round, and how many of them.
    - `proposer_owner`: the member of staff who answers for the proposer, and cannot approve it.
    """

    action_id = models.CharField(max_length=160, unique=True)
    state = FSMField(max_length=20, choices=State.choices, protected=True)
    payload = models.TextField()
    payload_hash = models.CharField(max_length=64)
    provider = models.CharField(max_length=40)
    account = models.CharField(max_length=80, blank=True, default="")
    proposed_by = models.CharField(max_length=80)
    request_ref = models.CharField(max_length=80, blank=True, default="")

    generation = models.PositiveIntegerField(default=1)
    attempt_count = models.PositiveIntegerField(default=0)
    key_first_used_at = models.DateTimeField(null=True, blank=True)
    due_at = models.DateTimeField(null=True, blank=True)
    tries = models.PositiveIntegerField(default=0)
    unknown_since = models.DateTimeField(null=True, blank=True)
    waiting_since = models.DateTimeField(null=True, blank=True)

    decided_by = models.CharField(max_length=10)
    bound_version = models.BigIntegerField()
    bound_facts = models.JSONField(default=dict)
    bound_until = models.DateTimeField(null=True, blank=True)

    authorized_at = models.DateTimeField(null=True, blank=True)
    approval_round = models.PositiveIntegerField(default=1)
    review_tier = models.PositiveSmallIntegerField(default=1)
    review_people = models.PositiveSmallIntegerField(default=1)
    proposer_owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
    )

    provider_ref = models.CharField(max_length=80, blank=True, default="")
    provider_status = models.CharField(max_length=40, blank=True, default="")
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    state_since = models.DateTimeField()

    to_held = _to(State.HELD)
    to_awaiting_approval = _to(State.AWAITING_APPROVAL)
    to_authorized = _to(State.AUTHORIZED)
    to_submitting = _to(State.SUBMITTING)
    to_unknown = _to(State.UNKNOWN)
    to_pending = _to(State.PENDING)
    to_succeeded = _to(State.SUCCEEDED)
    to_failed_final = _to(State.FAILED_FINAL)
    to_rejected = _to(State.REJECTED)
    to_expired = _to(State.EXPIRED)
    to_cancelled = _to(State.CANCELLED)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.action_id

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens by itself."""
        return self.state in FINAL_STATES


def action_triggers(*, attempt_table: str, act_table: str) -> list[Any]:
    """The triggers of every action table; `act_table` has what people did about its cases."""
    return [
        legal_moves(),
        start_states(),
        no_open_questions(attempt_table=attempt_table),
        new_key_by_people(attempt_table=attempt_table, act_table=act_table),
        no_delete(),
        no_truncate(),
    ]


def action_constraints(prefix: str) -> list[models.BaseConstraint]:
    """The CHECKs of every action table."""
    return [
        models.CheckConstraint(
            name=f"{prefix}_done_names_its_effect",
            condition=~Q(state__in=[State.SUCCEEDED, State.PENDING]) | ~Q(provider_ref=""),
        ),
        models.CheckConstraint(
            name=f"{prefix}_unknown_has_a_beginning",
            condition=~Q(state=State.UNKNOWN) | Q(unknown_since__isnull=False),
        ),
        models.CheckConstraint(
            name=f"{prefix}_moving_states_are_due",
            condition=~Q(state__in=[State.SUBMITTING, State.AUTHORIZED, State.PENDING, State.HELD])
            | Q(due_at__isnull=False),
        ),
        models.CheckConstraint(
            name=f"{prefix}_known_decider", condition=Q(decided_by__in=["policy", "person"])
        ),
        models.CheckConstraint(
            name=f"{prefix}_asks_somebody",
            condition=Q(review_tier__gte=1, review_people__gte=1),
        ),
    ]


def action_indexes(prefix: str) -> list[models.Index]:
    """The indexes of every action table."""
    return [
        # every sweep: what is due, oldest first
        models.Index(
            name=f"{prefix}_due", fields=["state", "due_at"], condition=Q(due_at__isnull=False)
        ),
        # "whose effect is re_…?": staff search, and what the provider tells us
        models.Index(
            name=f"{prefix}_by_provider_ref",
            fields=["provider_ref"],
            condition=~Q(provider_ref=""),
        ),
        # metrics and `status`: how many, and the oldest, of each state that is not over
        models.Index(
            name=f"{prefix}_open_by_state",
            fields=["state", "state_since"],
            condition=~Q(state__in=["SUCCEEDED", "REJECTED", "EXPIRED", "CANCELLED"]),
        ),
    ]


class AbstractAttempt(models.Model):
    """One request on the wire. Written before it is sent, closed with what came back.

    `token` fences: an answer closes the attempt whose token it carries and no other. An attempt
    is *closed* once nobody waits for its answer, and *resolved* once its outcome is known:
    `resolution` is "" until then, "executed" or "not_executed" after.
    """

    token = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    number = models.PositiveIntegerField()
    generation = models.PositiveIntegerField()
    idempotency_key = models.CharField(max_length=255)
    worker = models.CharField(max_length=120)
    claimed_at = models.DateTimeField()
    lease_until = models.DateTimeField()
    closed_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=40, blank=True, default="")
    evidence = models.JSONField(null=True, blank=True)
    resolution = models.CharField(max_length=12, blank=True, default="")
    resolved_at = models.DateTimeField(null=True, blank=True)
    resolved_by = models.CharField(max_length=80, blank=True, default="")

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"attempt {self.number} under {self.idempotency_key}"


_ATTEMPT_FROZEN = (
    "action",
    "token",
    "number",
    "generation",
    "idempotency_key",
    "worker",
    "claimed_at",
    "lease_until",
)
_ATTEMPT_WRITTEN_ONCE = (
    "closed_at",
    "outcome",
    "evidence",
    "resolution",
    "resolved_at",
    "resolved_by",
)


def attempt_triggers(*, action_table: str, act_table: str) -> list[Any]:
    """The triggers of every attempt table."""
    return [
        only_while_submitting(action_table=action_table),
        resolved_by_two_people(action_table=action_table, act_table=act_table),
        frozen(*_ATTEMPT_FROZEN),
        written_once(*_ATTEMPT_WRITTEN_ONCE),
        no_delete(),
        no_truncate(),
    ]


def attempt_constraints(prefix: str) -> list[models.BaseConstraint]:
    """The constraints of every attempt table; its foreign key is called `action`."""
    return [
        models.UniqueConstraint(name=f"{prefix}_attempt_numbered", fields=["action", "number"]),
        models.UniqueConstraint(
            name=f"{prefix}_one_open_attempt",
            fields=["action"],
            condition=Q(closed_at__isnull=True),
        ),
        models.CheckConstraint(
            name=f"{prefix}_attempt_known_resolution",
            condition=Q(resolution__in=["", "executed", "not_executed"]),
        ),
        models.CheckConstraint(
            name=f"{prefix}_attempt_resolved_is_closed",
            condition=Q(resolution="") | Q(closed_at__isnull=False),
        ),
    ]


class AbstractEvent(models.Model):
    """One line of history, append-only. `kind` is a dotted verb, `data` is JSON for people."""

    event_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    kind = models.CharField(max_length=60)
    actor = models.CharField(max_length=80)
    at = models.DateTimeField()
    data = models.JSONField(default=dict)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.kind} by {self.actor}"


# At its due time and again when twice that time is over. More of the same would tell nobody
# anything new; the alert on overdue cases goes on.
ESCALATIONS_MAX = 2


class Case(models.Model):
    """Something that a person must settle: an owner, a due time, evidence.

    - `effect`, `action_id`: the action it is about; "" when it is about an account or a queue.
    - `resource`: what else it blocks, like `order:4821` or `account:stripe`.
    - `evidence`: what was true when it was opened, and under `added` when its reason grew. What
      happened since is the action's history.
    - `owner`: the user name of who must settle it. `assignee` is that person once somebody was
      chosen; NULL while it is the installation's default owner's.
    - `due_at`: when it must be settled. Neither a snooze nor another owner changes it.
    - `snoozed_until`: asks nobody before this time; never past `due_at`.
    - `escalations`: how often it went over a due time and was given to the next in line.
    - `version`: grows with every change of owner or times; what a person saw is compared with it.
    """

    class Kind(models.TextChoices):
        """Why a person is needed."""

        UNKNOWN_OUTCOME = "unknown-outcome", "unknown outcome"
        STALE_APPROVAL = "stale-approval", "approval no longer holds"
        EXPIRED = "expired", "nobody decided in time"
        HELD_TOO_LONG = "held-too-long", "held too long"
        CANNOT_SEND = "cannot-send", "cannot be sent"
        PENDING_TOO_LONG = "pending-too-long", "pending too long"
        FAILED = "failed", "refund failed, customer still owed"
        INCIDENT = "incident", "incident"
        FOUND_ELSEWHERE = "found-elsewhere", "refund made elsewhere"
        CONTRADICTION = "contradiction", "order differs from the provider"
        ACCOUNT_PAUSED = "account-paused", "provider account paused"
        LIMIT = "limit-reached", "limit reached"
        UNEXPECTED_SUCCESS = "unexpected-success", "succeeded after it was over"
        QUEUE = "queue", "queue not drained"

    case_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    kind = models.CharField(max_length=30, choices=Kind.choices)
    effect = models.CharField(max_length=20, blank=True, default="")
    action_id = models.CharField(max_length=160, blank=True, default="")
    resource = models.CharField(max_length=120)
    reason = models.TextField()
    evidence = models.JSONField(default=dict)
    owner = models.CharField(max_length=150)
    assignee = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
    )
    opened_at = models.DateTimeField()
    due_at = models.DateTimeField()
    snoozed_until = models.DateTimeField(null=True, blank=True)
    escalations = models.PositiveSmallIntegerField(default=0)
    version = models.PositiveIntegerField(default=1)
    closed_at = models.DateTimeField(null=True, blank=True)
    closed_by = models.CharField(max_length=80, blank=True, default="")
    resolution = models.TextField(blank=True, default="")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                name="case_one_open_per_kind",
                fields=["kind", "resource", "action_id"],
                condition=Q(closed_at__isnull=True),
            ),
            models.CheckConstraint(name="case_has_an_owner", condition=~Q(owner="")),
            models.CheckConstraint(
                name="case_snooze_ends_in_time",
                condition=Q(snoozed_until__isnull=True) | Q(snoozed_until__lte=F("due_at")),
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            # "is there an open case on this order?" in the claim, and the queue of open cases
            models.Index(
                name="case_open", fields=["resource"], condition=Q(closed_at__isnull=True)
            ),
            models.Index(name="case_by_action", fields=["action_id"]),
            # what is over its due time and not escalated twice
            models.Index(
                name="case_by_due_time",
                fields=["due_at"],
                condition=Q(closed_at__isnull=True, escalations__lt=ESCALATIONS_MAX),
            ),
        ]
        triggers: ClassVar[list[Any]] = [no_delete(), no_truncate()]
        permissions: ClassVar[list[tuple[str, Any]]] = [("settle_case", "Can settle a case")]

    def __str__(self) -> str:
        return f"{self.get_kind_display()}: {self.action_id or self.resource}"


class CaseEvent(AbstractEvent):
    """One line of a case's own history: whose it was, until when it slept, when it was too late.

    That it was opened and closed stands in the case itself.
    """

    case = models.ForeignKey(Case, on_delete=models.PROTECT, related_name="events")

    class Meta:
        triggers: ClassVar[list[Any]] = append_only()


class Switch(models.Model):
    """A kill switch. While it is on, the claim leaves what it covers where it is.

    `scope` is `global`, `kind:refund`, `kind:credit`, `account:<provider>:<account>` or
    `agent:<prefix>`. Switches stop sends; they never stop reconciliation. Turning one off sets
    `ended_at`.
    """

    scope = models.CharField(max_length=120)
    reason = models.TextField()
    set_by = models.CharField(max_length=80)
    set_at = models.DateTimeField()
    until = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=80, blank=True, default="")

    class Meta:
        verbose_name_plural = "switches"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                name="switch_one_on_per_scope",
                fields=["scope"],
                condition=Q(ended_at__isnull=True),
            )
        ]
        triggers: ClassVar[list[Any]] = [no_delete(), no_truncate()]
        permissions: ClassVar[list[tuple[str, Any]]] = [("flip_switch", "Can flip kill switches")]

    def __str__(self) -> str:
        return f"{self.scope}: {self.reason}"


class Breaker(models.Model):
    """Circuit breaker of one provider account: while it is open no reconciliation round starts."""

    account = models.CharField(max_length=120, unique=True)
    failures = models.PositiveIntegerField(default=0)
    open_until = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.account


class SweepRun(models.Model):
    """When a sweep last came through. One row per sweep, for metrics and readiness."""

    name = models.CharField(max_length=60, unique=True)
    finished_at = models.DateTimeField()
    handled = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return self.name


__all__ = [
    "ESCALATIONS_MAX",
    "AbstractAction",
    "AbstractAttempt",
    "AbstractEvent",
    "Breaker",
    "Case",
    "CaseEvent",
    "SweepRun",
    "Switch",
    "action_constraints",
    "action_indexes",
    "action_triggers",
    "append_only",
    "attempt_constraints",
    "attempt_triggers",
]
