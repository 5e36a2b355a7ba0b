"""An action as callers see it: one shape everywhere, read by one query however many they are."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.db.models import F, OuterRef, QuerySet, Subquery
from django.db.models.functions import JSONObject
from pydantic import BaseModel, Field

from approvals.models import Approval
from effects.models import Case
from effects.states import FINAL_STATES, State
from policies.decision import Verdict
from policies.models import DecisionRecord
from refunds.explain import Explained
from refunds.models import RefundAction

# What the caller should do next, by state. Read by models: no sentence may invite a second
# proposal, and none uses a word that a tool loop takes for a reason to try again.
NEXT: dict[State, str] = {
    State.HELD: "Recorded and on hold; nothing was sent. It goes on by itself: tell the customer "
    "that it is being looked at, and read it later.",
    State.AWAITING_APPROVAL: "Recorded; a person decides. Nothing was sent. Tell the customer that "
    "it is being reviewed, and read it later.",
    State.AUTHORIZED: "Allowed, and about to be sent by itself. Tell the customer that it is in "
    "progress, and read it again soon.",
    State.SUBMITTING: "It is being sent. Do not propose it again, in this way or another. Tell "
    "the customer that it is in progress, and read it again soon.",
    State.UNKNOWN: "It was sent and its outcome is not known yet; it is being found out. Do not "
    "propose it again, in this way or another. Tell the customer that it is in progress, and "
    "read it later.",
    State.PENDING: "The payment provider has accepted it and not settled it yet. Do not propose it "
    "again. Tell the customer that it is on its way.",
    State.SUCCEEDED: "Refunded. There is nothing left to do; tell the customer that it is done.",
    State.FAILED_FINAL: "The payment provider could not carry it out. A person has it: do not "
    "propose it again, and tell the customer that somebody will write.",
    State.REJECTED: "Decided against; nothing was sent. Do not propose it again. Tell the customer "
    "what was decided, or hand over to a person.",
    State.EXPIRED: "Nobody decided in time; nothing was sent. A person has it: do not propose it "
    "again, and tell the customer that somebody will write.",
    State.CANCELLED: "Withdrawn; nothing was sent. There is nothing left to do.",
}

# What a rule is about is sometimes not the caller's: what other agents and sessions ask, what the
# staff has stopped. The staff reads which; an agent reads that. What is left of the order and its
# lines stays: the order is shared, and `GET /orders/{order_id}` tells its balances.
TOLD_OF_OTHERS = {
    "kill_switch": "refunds are paused",
    "velocity": "a limit of refunds is reached, or what counts in it is not known",
    "budget": "a budget is reached, or what counts in it is not known",
    "goodwill_budget": "a budget is reached, or what counts in it is not known",
    "anomaly": "refunds are asked for unusually often, or how often is not known",
    "agent_probation": "a person looks at the first refunds of an agent",
    "open_action": "another refund of this order, or a case, is open",
    "duplicate_suspect": "it is like another refund of this order",
}
# What the merchant believes of the customer is told by no word of it, not even a verdict.
NOT_TOLD = ("customer_risk",)

# What a case says is written for the staff: it names keys, other refunds and what to press. An
# agent reads why a person has it, and nothing that only the person can use.
TOLD_OF_CASES: dict[Case.Kind, str] = {
    Case.Kind.UNKNOWN_OUTCOME: "How it ended is not known, and a person is finding out.",
    Case.Kind.STALE_APPROVAL: "It was approved, and what it was approved on has changed since. "
    "Nothing is sent before people have decided anew.",
    Case.Kind.EXPIRED: "Nobody decided in time. A person has it now.",
    Case.Kind.HELD_TOO_LONG: "It has been on hold for long. A person is looking at why.",
    Case.Kind.CANNOT_SEND: "It is allowed and was not sent so far. A person is looking at why.",
    Case.Kind.PENDING_TOO_LONG: "The payment provider has not settled it for long. A person is "
    "looking at why.",
    Case.Kind.FAILED: "The payment provider could not carry it out. A person has it now.",
    Case.Kind.INCIDENT: "What is recorded of it does not fit together. A person is looking at it.",
    Case.Kind.FOUND_ELSEWHERE: "What its payment shows and what is recorded here differ. A person "
    "is looking at it.",
    Case.Kind.CONTRADICTION: "What was stated of its order and what its payment shows differ. A "
    "person is looking at it.",
    Case.Kind.ACCOUNT_PAUSED: "Refunds of its account wait for a person.",
    Case.Kind.LIMIT: "A limit is reached. A person is looking at it.",
    Case.Kind.UNEXPECTED_SUCCESS: "It was refunded after it had been over. A person is looking at "
    "it.",
    Case.Kind.QUEUE: "It waits longer for a decision than it should. A person is looking at why.",
}

# How soon another read can show something new, by who moves the state on.
POLL_AFTER_SECONDS: dict[State, int] = {
    State.HELD: 60,
    State.AWAITING_APPROVAL: 60,
    State.AUTHORIZED: 2,
    State.SUBMITTING: 5,
    State.UNKNOWN: 30,
    State.PENDING: 3600,
}


class RuleAnswer(BaseModel):
    """What one rule said."""

    rule: str
    verdict: Literal["ALLOW", "REVIEW", "HOLD", "DENY"]
    why: str
    tier: int | None = Field(
        default=None, description="of REVIEW: the least tier of who approves that this rule asks"
    )


class DecisionAnswer(BaseModel):
    """The newest run of the policy."""

    verdict: Literal["ALLOW", "REVIEW", "HOLD", "DENY"]
    policy_version: int
    rules: list[RuleAnswer] = Field(
        description="empty under a session: what they say and their limits are the backend's"
    )


class ExplainAnswer(BaseModel):
    """What the policy in force says about a refund that nobody proposed."""

    verdict: Literal["ALLOW", "REVIEW", "HOLD", "DENY"]
    tier: int | None = Field(description="of REVIEW: the least tier of who approves")
    people: int | None = Field(description="of REVIEW: how many different people approve")
    rules: list[RuleAnswer]
    policy_version: int = Field(description="the version in force; 0 before the first one")


class ApprovalAnswer(BaseModel):
    """The newest decision of a person, without the person."""

    approved: bool
    decided_at: datetime
    expires_at: datetime | None


class ProviderAnswer(BaseModel):
    """The payment provider's own name for it, once there is one."""

    name: str
    refund_id: str | None
    status: str | None


class CaseAnswer(BaseModel):
    """That a person has it, and until when."""

    reason: str = Field(
        description="one sentence for each kind of case; its details are the staff's"
    )
    due_at: datetime


class ActionAnswer(BaseModel):
    """One refund action. Amounts are integer minor units of `currency`."""

    action_id: str
    order_id: str
    request_id: str
    state: State
    amount_minor: int
    currency: str
    reason: str
    order_version: int = Field(description="the order's version that its decision is bound to")
    payload_hash: str
    decision: DecisionAnswer | None
    approval: ApprovalAnswer | None = Field(
        description="what a person said last: while it is AWAITING_APPROVAL, one yes of several, "
        "or one that no longer holds"
    )
    provider: ProviderAnswer
    attempts: int
    case: CaseAnswer | None = Field(description="the oldest open case, if a person has one")
    final: bool
    retry: Literal["never"]
    next: str = Field(description="one sentence: what to do now")
    poll_after_seconds: int | None
    created_at: datetime
    updated_at: datetime


class ActionPage(BaseModel):
    """Actions of one order, newest first."""

    data: list[ActionAnswer]
    next_cursor: str | None


def read_answers(actions: QuerySet[RefundAction]) -> list[tuple[int, ActionAnswer]]:
    """The answers of these actions, each with its primary key, in their order. One query."""
    rows = actions.values(*_COLUMNS, "pk", public_order_id=F("order__order_id"), **_beside())
    return [(row["pk"], _answer(row)) for row in rows]


def read_answer(*, action_id: str, proposer: str) -> ActionAnswer | None:
    """The answer of one of this agent's actions, or None when it has no such one. One query."""
    found = read_answers(RefundAction.objects.filter(action_id=action_id, proposed_by=proposer))
    return found[0][1] if found else None


def without_rules(answer: ActionAnswer) -> ActionAnswer:
    """The answer as a session gets it: a model that reads ceilings and counts stays below them."""
    decision = answer.decision
    if decision is None:
        return answer
    return answer.model_copy(update={"decision": decision.model_copy(update={"rules": []})})


def answer_of_new(*, action: RefundAction, decision: DecisionRecord) -> ActionAnswer:
    """The answer of an action that was just recorded, from what recording it gave. No query."""
    return _answer(
        {name: getattr(action, name) for name in _COLUMNS}
        | {
            "public_order_id": action.order.order_id,
            "newest_decision": {
                name: getattr(decision, name) for name in ("verdict", "policy_version", "rules")
            },
            "newest_approval": None,
            "open_case": None,
        }
    )


def explain_answer(explained: Explained) -> ExplainAnswer:
    """The answer of an explanation. Who approves is said where somebody does."""
    decision = explained.decision
    is_review = decision.verdict is Verdict.REVIEW
    return ExplainAnswer.model_validate(
        {
            "verdict": decision.verdict.name,
            "tier": decision.tier if is_review else None,
            "people": decision.people if is_review else None,
            "rules": _told_rules([rule.as_json() for rule in decision.rules]),
            "policy_version": explained.policy_version,
        }
    )


_COLUMNS = (
    "action_id",
    "request_id",
    "state",
    "amount_minor",
    "currency",
    "reason",
    "bound_version",
    "payload_hash",
    "provider",
    "provider_ref",
    "provider_status",
    "attempt_count",
    "created_at",
    "updated_at",
)


def _beside() -> dict[str, Subquery]:
    def newest(rows: QuerySet[Any], order_by: str, *names: str) -> Subquery:
        found = JSONObject(**{name: name for name in names})
        return Subquery(rows.order_by(order_by).values(found=found)[:1])

    same = OuterRef("action_id")
    return {
        "newest_decision": newest(
            DecisionRecord.objects.filter(action_id=same),
            "-number",
            *("verdict", "policy_version", "rules"),
        ),
        "newest_approval": newest(
            Approval.objects.filter(action_id=same),
            "-number",
            *("approved", "decided_at", "expires_at"),
        ),
        "open_case": newest(
            Case.objects.filter(action_id=same, closed_at__isnull=True),
            "opened_at",
            *("kind", "due_at"),
        ),
    }


def _told_decision(decision: dict[str, Any] | None) -> DecisionAnswer | None:
    if decision is None:
        return None
    return DecisionAnswer(**{**decision, "rules": _told_rules(decision["rules"])})


def _told_rules(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the rules said, without what is not the caller's to know."""
    return [
        {
            **{name: rule.get(name) for name in RuleAnswer.model_fields},
            "why": rule["why"]
            if rule["verdict"] == Verdict.ALLOW.name
            else TOLD_OF_OTHERS.get(rule["rule"], rule["why"]),
        }
        for rule in rules
        if rule["rule"] not in NOT_TOLD
    ]


def _told(case: dict[str, Any] | None) -> CaseAnswer | None:
    """A case as its caller hears of it."""
    if case is None:
        return None
    return CaseAnswer(reason=TOLD_OF_CASES[Case.Kind(case["kind"])], due_at=case["due_at"])


def _answer(row: dict[str, Any]) -> ActionAnswer:
    state = State(row["state"])
    return ActionAnswer(
        action_id=row["action_id"],
        order_id=row["public_order_id"],
        request_id=row["request_id"],
        state=state,
        amount_minor=row["amount_minor"],
        currency=row["currency"],
        reason=row["reason"],
        order_version=row["bound_version"],
        payload_hash=row["payload_hash"],
        decision=_told_decision(row["newest_decision"]),
        approval=row["newest_approval"],
        provider=ProviderAnswer(
            name=row["provider"],
            refund_id=row["provider_ref"] or None,
            status=row["provider_status"] or None,
        ),
        attempts=row["attempt_count"],
        case=_told(row["open_case"]),
        final=state in FINAL_STATES,
        retry="never",
        next=NEXT[state],
        poll_after_seconds=POLL_AFTER_SECONDS.get(state),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
