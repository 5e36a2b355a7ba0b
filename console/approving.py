"""What a person reads before saying yes or no: who must, who has, on what, and to what exactly."""

from __future__ import annotations

from typing import Any

from django.db.models import Q

from approvals.decide import why_not_yours
from approvals.models import Approval
from approvals.standing import tier_of, yeses_of
from console.evidence import LINES_MAX
from console.words import STATE_COLOURS, in_words, page_of, visible
from effects.states import State
from kernel.money import format_amount
from policies.models import DecisionRecord
from policies.versions import in_force
from refunds.binding import content_of
from refunds.kind import REFUND
from refunds.models import ExternalRefund, Order, RefundAction


def decide_panel(*, action: RefundAction, user: Any) -> dict[str, Any]:
    """Everything about deciding this action, for its template. Reads only."""
    yeses = yeses_of(
        action_id=action.action_id,
        approval_round=action.approval_round,
        decide_permission=REFUND.decide_permission,
    )
    refusal = why_not_yours(kind=REFUND, action=action, user=user)
    return {
        "undecided": action.state == State.AWAITING_APPROVAL,
        "your_tier": tier_of(user, decide_permission=REFUND.decide_permission),
        "never_by_you": refusal.sentence if refusal else "",
        "have_approved": [yes.username for yes in yeses],
        "more_people": max(action.review_people - len(yeses), 0),
        "policy_version": _policy_version(),
        "frozen": _frozen(action),
        "stated": _stated(action.order),
        "approvals": _approvals(action),
        "related": _related(action),
    }


def _frozen(action: RefundAction) -> list[tuple[str, str]]:
    """What exactly is sent: the content that a decision is bound to, and the request itself."""
    content = content_of(action=action, order=action.order)
    return [*in_words(content), ("provider request", visible(action.payload))]


def _stated(order: Order) -> list[tuple[str, str]]:
    """What the merchant states about the order and rules look at: a person should, too."""
    return in_words(
        {
            "customer": order.customer_ref,
            "payment method": order.payment_method,
            "placed at": order.placed_at.isoformat() if order.placed_at else "",
            **order.details,
        },
        currency=order.currency,
    )


def _approvals(action: RefundAction) -> list[dict[str, Any]]:
    """What each person said, in which round, and what that person was shown."""
    rows = (
        Approval.objects.filter(action_id=action.action_id)
        .select_related("decided_by")
        .order_by("number")
    )
    return [{"row": row, "shown": shown_to(row, currency=action.currency)} for row in rows]


# Frozen elsewhere on the page, and hashes that say nothing to a person.
_NOT_SHOWN = ("content", "stated")


def shown_to(row: Approval, *, currency: str = "") -> list[tuple[str, str]]:
    """What a person was shown who decided, as (label, text)."""
    facts = {name: value for name, value in row.facts.items() if name not in _NOT_SHOWN}
    content = row.facts.get("content", {})
    return [
        ("order version", str(row.resource_version)),
        *in_words(facts, currency=currency or str(content.get("currency", ""))),
    ]


def _related(action: RefundAction) -> list[dict[str, Any]]:
    """This refund and those beside which a person must see it; [] when there are none.

    What its newest decision names, and what has the same amount now: that may have come since.
    """
    decision = DecisionRecord.objects.filter(action_id=action.action_id).order_by("-number").first()
    names: dict[str, list[str]] = {}
    for rule in decision.rules if decision else []:
        for name in rule.get("related", []):
            names.setdefault(name, []).append(rule["rule"])
    same_amount = action.order.actions.filter(amount_minor=action.amount_minor).exclude(
        Q(pk=action.pk) | Q(state__in=[State.REJECTED, State.CANCELLED, State.EXPIRED])
    )
    for name in same_amount.order_by("-pk").values_list("action_id", flat=True)[:LINES_MAX]:
        names.setdefault(name, ["the same amount"])
    if not names:
        return []
    ours = RefundAction.objects.filter(action_id__in=names).order_by("-pk")
    elsewhere = ExternalRefund.objects.filter(order=action.order, provider_ref__in=names)
    return [
        _beside(action, why=["this one"]),
        *(_beside(row, why=names[row.action_id]) for row in ours),
        *(_elsewhere(row, why=names[row.provider_ref]) for row in elsewhere.order_by("-pk")),
    ]


def _beside(row: RefundAction, *, why: list[str]) -> dict[str, Any]:
    return {
        "name": row.action_id,
        "page": page_of(row),
        "why": ", ".join(why),
        "amount": format_amount(row.amount_minor, row.currency),
        "reason": row.reason,
        "proposed_at": row.created_at,
        "since": row.state_since,
        "state_label": State(row.state).label,
        "state_colour": STATE_COLOURS[row.state],
        "lines": _lines(row),
    }


def _elsewhere(row: ExternalRefund, *, why: list[str]) -> dict[str, Any]:
    return {
        "name": row.provider_ref,
        "page": page_of(row),
        "why": ", ".join(why),
        "amount": format_amount(row.amount_minor, row.currency),
        "reason": "made elsewhere",
        "proposed_at": row.made_at or row.seen_at,
        "since": row.made_at or row.seen_at,
        "state_label": row.status,
        "state_colour": "default",
        "lines": "",
    }


def _lines(row: RefundAction) -> str:
    return ", ".join(
        f"{visible(str(line['line_id']))} {format_amount(line['amount_minor'], row.currency)}"
        for line in row.lines
    )


def _policy_version() -> int:
    policy = in_force()
    return policy.number if policy else 0
