"""Running the policy over a refund's facts, and keeping the decision."""

from __future__ import annotations

from typing import Any

from effects.states import State
from policies.decision import Decision, RuleResult, Verdict
from policies.facts import Facts
from policies.models import DecisionRecord
from policies.rules import evaluate
from policies.versions import parameters_of
from refunds.facts import Beside

STATE_FOR: dict[Verdict, State] = {
    Verdict.ALLOW: State.AUTHORIZED,
    Verdict.REVIEW: State.AWAITING_APPROVAL,
    Verdict.HOLD: State.HELD,
    Verdict.DENY: State.REJECTED,
}


def decide(*, facts: Facts, beside: Beside) -> Decision:
    """Evaluate the policy in force. Without any policy every refund needs a person."""
    if not beside.policy_number:
        missing = RuleResult(
            rule="policy", verdict=Verdict.REVIEW, why="no policy has been published"
        )
        return Decision(verdict=Verdict.REVIEW, rules=(missing,))
    return evaluate(
        facts,
        parameters_of(number=beside.policy_number, parameters_hash=beside.policy_hash),
    )


def keep_decision(
    *, action_id: str, number: int, facts: Facts, beside: Beside, decision: Decision
) -> DecisionRecord:
    """Append the decision's record: every rule's verdict, and the facts as they were read."""
    return DecisionRecord.objects.create(
        effect="refund",
        action_id=action_id,
        number=number,
        policy_version=beside.policy_number,
        verdict=decision.verdict.name,
        rules=[rule.as_json() for rule in decision.rules],
        facts=facts.as_json(),
        facts_read_at=beside.now,
    )


def binding(*, facts: Facts, payload_hash: str, beside: Beside) -> dict[str, Any]:
    """The facts that a decision is bound to, as stored on the action and on an approval."""
    return {
        "payload_hash": payload_hash,
        "refundable_minor": facts.refundable_minor,
        "refunded_minor": facts.refunded_minor,
        "in_flight_minor": facts.reserved_minor - facts.own_reservation_minor,
        "disputed_minor": facts.disputed_minor,
        "dispute_state": facts.dispute_state,
        "captured_minor": facts.captured_minor,
        "policy_version": beside.policy_number,
    }
