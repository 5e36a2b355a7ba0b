"""What a decision about a refund is made on, read under the order's lock.

A statement that waits for a row lock keeps the snapshot it began with for every other table, so
these facts are read by a second statement, after the locks are held.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Case as CaseWhen
from django.db.models import CharField, Exists, F, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce, Extract, JSONObject

from effects.clock import DatabaseNow
from effects.models import Breaker, Case, Switch
from effects.states import State
from effects.switches import scopes_covering
from policies.facts import Facts, OrderLine, OtherAction, RefundLine, Source
from policies.models import PolicyVersion
from providers.registry import payment_provider
from refunds.models import ExternalRefund, Order, RefundAction, RefundAttempt, Remedy
from refunds.remedy_models import LIVE_REMEDIES, RemedyState
from refunds.usage import UsedLately

# Other actions of the order that the rules look at: the newest, so that an order with thousands of
# refunds cannot make a decision slow. The balances count all of them anyway.
OTHERS_MAX = 200
_UNDECIDED = (State.AWAITING_APPROVAL, State.HELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptNow:
    """How an attempt of the locked action stands."""

    token: UUID
    generation: int
    is_closed: bool
    outcome: str
    resolution: str
    resolved_by: str


# What `attempts_now` reads, as a column of a statement.
ATTEMPT_NOW = JSONObject(
    token="token",  # noqa: S106  # a column, not a password
    generation="generation",
    closed_at="closed_at",
    outcome="outcome",
    resolution="resolution",
    resolved_by="resolved_by",
)


def attempts_now(found: list[dict[str, Any]]) -> tuple[AttemptNow, ...]:
    """The attempts that a statement found as `ATTEMPT_NOW`."""
    return tuple(
        AttemptNow(
            token=UUID(attempt["token"]),
            generation=attempt["generation"],
            is_closed=attempt["closed_at"] is not None,
            outcome=attempt["outcome"],
            resolution=attempt["resolution"],
            resolved_by=attempt["resolved_by"],
        )
        for attempt in found
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Everything read beside the locked rows, in one statement.

    `order_cases` counts open cases of the order's other actions, and any refund found elsewhere;
    `incidents` the open incidents, which block every claim of the order, and `found_elsewhere`
    those of refunds made elsewhere. `taken_for_undone`: an attempt of the order left, and
    reconciliation concluded from the provider's list that it did nothing. `breaker_open`: the
    account could not be read lately. `lines_refunded` is what the order's other live actions said
    they refund of each line.
    """

    now: datetime
    policy_number: int
    policy_hash: str
    switches: tuple[str, ...]
    order_cases: int
    incidents: int
    found_elsewhere: int
    taken_for_undone: bool
    breaker_open: bool
    lines_refunded: tuple[tuple[str, int], ...]
    others: tuple[OtherAction, ...]
    attempts: tuple[AttemptNow, ...]
    action_cases: int
    action_exists: bool

    @property
    def unresolved(self) -> tuple[UUID, ...]:
        """The tokens of the action's attempts whose outcome is not known."""
        return tuple(attempt.token for attempt in self.attempts if not attempt.resolution)

    @property
    def queued_sibling(self) -> str:
        """The oldest other action of the order that waits to be claimed, or ""."""
        queued = [o.action_id for o in self.others if o.state == State.AUTHORIZED]
        return queued[-1] if queued else ""


def scopes_of(*, provider: str, account: str, proposer: str) -> list[str]:
    """The kill-switch scopes that cover one refund."""
    return scopes_covering(effect="refund", provider=provider, account=account, agent=proposer)


def read_beside(
    *, order: Order, action_id: str, proposer: str, action_pk: int | None = None
) -> Beside:
    """Read the facts beside a locked order, and its locked action if it exists. One query."""
    scopes = scopes_of(provider=order.provider, account=order.account, proposer=proposer)
    open_cases = Case.objects.filter(resource=str(order), closed_at__isnull=True)
    remedies = Remedy.objects.filter(debt=OuterRef("pk"))
    others: QuerySet[Any] = (
        RefundAction.objects.filter(order_id=OuterRef("pk"))
        .exclude(action_id=action_id)
        .filter(
            Q(
                state__in=[
                    State.AUTHORIZED,
                    State.SUBMITTING,
                    State.UNKNOWN,
                    State.PENDING,
                    State.SUCCEEDED,
                ]
            )
            # What still awaits a decision counts for whoever came after it, not for what it found.
            | (Q(state__in=_UNDECIDED) & (Q() if action_pk is None else Q(pk__lt=action_pk)))
            # A failed refund is open while its debt is: until its case is settled.
            | Q(
                Exists(
                    Case.objects.filter(
                        action_id=OuterRef("action_id"),
                        kind=Case.Kind.FAILED,
                        closed_at__isnull=True,
                    )
                )
                | Exists(remedies.filter(state__in=LIVE_REMEDIES)),
                state=State.FAILED_FINAL,
            )
        )
        # Settled another way is settled: the customer has the money.
        .annotate(
            stands=CaseWhen(
                When(
                    Exists(remedies.filter(state=RemedyState.ISSUED)),
                    state=State.FAILED_FINAL,
                    then=Value(State.SUCCEEDED.value),
                ),
                default=F("state"),
                output_field=CharField(),
            ),
            stands_since=Coalesce(
                Subquery(remedies.filter(state=RemedyState.ISSUED).values("state_since")[:1]),
                F("state_since"),
            ),
        )
        # What is open comes first: it must not hide behind many successes.
        .order_by(CaseWhen(When(stands=State.SUCCEEDED, then=1), default=0), "-pk")
    )
    row = (
        Order.objects.filter(pk=order.pk)
        .annotate(
            now=DatabaseNow(),
            policy=Subquery(
                PolicyVersion.objects.order_by("-number").values(
                    found=JSONObject(number="number", hash="parameters_hash")
                )[:1]
            ),
            switches=ArraySubquery(
                Switch.objects.filter(scope__in=scopes, ended_at__isnull=True)
                .filter(Q(until__isnull=True) | Q(until__gt=DatabaseNow()))
                .values("scope")
            ),
            cases=ArraySubquery(
                open_cases.values(found=JSONObject(kind="kind", action_id="action_id"))
            ),
            others=ArraySubquery(
                others.values(
                    found=JSONObject(
                        action_id="action_id",
                        state="stands",
                        amount_minor="amount_minor",
                        lines="lines",
                        age=_age_seconds(F("stands_since")),
                    )
                )[:OTHERS_MAX]
            ),
            elsewhere=ArraySubquery(
                ExternalRefund.objects.filter(order_id=OuterRef("pk"), is_ours=False)
                .exclude(status__in=["failed", "canceled"])
                .order_by("-pk")
                .values(
                    found=JSONObject(
                        ref="provider_ref",
                        amount_minor="amount_minor",
                        age=_age_seconds(Coalesce("made_at", "seen_at")),
                    )
                )[:OTHERS_MAX]
            ),
            attempts=ArraySubquery(
                RefundAttempt.objects.filter(action_id=action_pk).values(found=ATTEMPT_NOW)
            ),
            taken_for_undone=Exists(
                RefundAttempt.objects.filter(
                    action__order_id=OuterRef("pk"), resolution="not_executed"
                ).exclude(resolved_by="answer")
            ),
            breaker_open=Exists(
                Breaker.objects.filter(
                    account=f"{order.provider}:{order.account}", open_until__gt=DatabaseNow()
                )
            ),
            action_exists=Exists(RefundAction.objects.filter(action_id=action_id)),
        )
        .values(
            "now",
            "policy",
            "switches",
            "cases",
            "others",
            "elsewhere",
            "attempts",
            "taken_for_undone",
            "breaker_open",
            "action_exists",
        )
        .get()
    )
    policy = row["policy"] or {"number": 0, "hash": ""}
    return Beside(
        now=row["now"],
        policy_number=policy["number"],
        policy_hash=policy["hash"],
        switches=tuple(sorted(row["switches"])),
        order_cases=sum(
            1
            for case in row["cases"]
            if case["action_id"] != action_id or case["kind"] == Case.Kind.FOUND_ELSEWHERE
        ),
        incidents=sum(1 for case in row["cases"] if case["kind"] == Case.Kind.INCIDENT),
        found_elsewhere=sum(
            1 for case in row["cases"] if case["kind"] == Case.Kind.FOUND_ELSEWHERE
        ),
        taken_for_undone=row["taken_for_undone"],
        breaker_open=row["breaker_open"],
        lines_refunded=_by_line(row["others"]),
        others=tuple(
            OtherAction(
                action_id=other["action_id"],
                state=other["state"],
                amount_minor=other["amount_minor"],
                age_seconds=float(other["age"]),
                line_ids=tuple(line["line_id"] for line in other["lines"]),
            )
            for other in row["others"]
        )
        # Refunded in a dashboard is refunded: the rules ask about the same amount there, too.
        + tuple(
            OtherAction(
                action_id=refund["ref"],
                state=State.SUCCEEDED,
                amount_minor=refund["amount_minor"],
                age_seconds=float(refund["age"]),
            )
            for refund in row["elsewhere"]
        ),
        attempts=attempts_now(row["attempts"]),
        action_cases=sum(1 for case in row["cases"] if case["action_id"] == action_id),
        action_exists=row["action_exists"],
    )


def _age_seconds(since: Any) -> Any:
    """Seconds since a moment, as SQL, so that no clock but one is asked."""
    return Extract(DatabaseNow() - since, "epoch")


def _by_line(others: list[dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    """What others refund of each line. One that failed gave it back, its open debt with it."""
    by_line: dict[str, int] = {}
    for other in others:
        if other["state"] not in (State.FAILED_FINAL, *_UNDECIDED):
            for line in other["lines"]:
                by_line[line["line_id"]] = by_line.get(line["line_id"], 0) + line["amount_minor"]
    return tuple(sorted(by_line.items()))


def facts_for(
    *,
    order: Order,
    beside: Beside,
    action_id: str,
    amount_minor: int,
    reason: str,
    proposer: str,
    lines: tuple[RefundLine, ...] = (),
    own_reservation_minor: int = 0,
    used: UsedLately | None = None,
) -> Facts:
    """Gather the policy's facts from the locked order and what was read beside it.

    Without `used` no limit can be judged: that is for comparing, not for deciding.
    """
    details = order.details
    used = used or UsedLately(at=beside.now)
    order_age = (beside.now - (order.stated_at or order.created_at)).total_seconds()
    read_at = order.provider_read_at
    return Facts(
        order_id=order.order_id,
        order_version=order.version,
        currency=order.currency,
        amount_minor=amount_minor,
        reason=reason,
        captured_minor=order.captured_minor,
        refunded_minor=order.refunded_minor,
        reserved_minor=order.reserved_minor,
        disputed_minor=order.disputed_minor,
        settled_otherwise_minor=order.settled_otherwise_minor,
        own_reservation_minor=own_reservation_minor,
        dispute_state=order.dispute_state,
        provider_searchable=payment_provider(order.provider).capabilities.searchable,
        proposer=proposer,
        switches=beside.switches,
        open_cases=beside.order_cases,
        others=beside.others,
        action_id=action_id,
        account=f"{order.provider}:{order.account}",
        decided_at=beside.now.isoformat(),
        provider_reachable=not beside.breaker_open,
        placed_at=order.placed_at.isoformat() if order.placed_at else None,
        delivered_at=details.get("delivered_at"),
        payment_method=order.payment_method,
        customer_known=bool(order.customer_ref),
        customer_risk=details.get("risk"),
        shipping_minor=details.get("shipping_minor"),
        order_lines=_order_lines(details.get("lines")),
        lines=lines,
        lines_refunded_minor=dict(beside.lines_refunded),
        agent_succeeded=used.agent_succeeded,
        order_age_seconds=order_age,
        usage=used.usage,
        rates=dict(used.rates),
        rates_day=used.rates_day,
        rates_age_days=used.rates_age_days,
        sources=(
            Source(name="order", read_from="the merchant's statement", age_seconds=order_age),
            Source(
                name="refunds at the provider",
                read_from="the provider's list, read again before the first send",
                age_seconds=(beside.now - read_at).total_seconds() if read_at else None,
            ),
            Source(name="balances, switches, usage", read_from="our own rows", age_seconds=0.0),
        ),
    )


def _order_lines(lines: list[dict[str, Any]] | None) -> tuple[OrderLine, ...] | None:
    """The order's lines as the merchant stated them; None: it has stated none."""
    if not lines:
        return None
    return tuple(
        OrderLine(
            line_id=line["line_id"],
            amount_minor=line["amount_minor"],
            tax_minor=line.get("tax_minor") or 0,
            final_sale=line.get("final_sale"),
            returned=line.get("returned"),
        )
        for line in lines
    )
