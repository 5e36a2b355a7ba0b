"""Running the policy over a refund's facts, and keeping the decision."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings

from effects import cases
from effects.models import Case
from effects.states import State
from policies.decision import Decision, RuleResult, Verdict
from policies.facts import Facts
from policies.models import DecisionRecord
from policies.parameters import Parameters
from policies.rules import evaluate
from policies.versions import parameters_of
from refunds.facts import Beside

STATE_FOR: dict[Verdict, State] = {
    Verdict.ALLOW: State.AUTHORIZED,
    Verdict.REVIEW: State.AWAITING_APPROVAL,
    Verdict.HOLD: State.HELD,
    Verdict.DENY: State.REJECTED,
}


# A limit that holds is somebody's business at once: an agent may have gone wild.
_LIMIT_RULES = ("velocity", "budget", "goodwill_budget", "anomaly")


def parameters_in_force(*, beside: Beside) -> Parameters | None:
    """The parameters of the policy in force; None: none was published."""
    if not beside.policy_number:
        return None
    return parameters_of(number=beside.policy_number, parameters_hash=beside.policy_hash)


def decide(*, facts: Facts, beside: Beside) -> Decision:
    """Evaluate the policy in force. Without any policy every refund needs a person."""
    parameters = parameters_in_force(beside=beside)
    if parameters is None:
        missing = RuleResult(
            rule="policy", verdict=Verdict.REVIEW, why="no policy has been published"
        )
        return Decision(verdict=Verdict.REVIEW, rules=(missing,))
    return evaluate(facts, parameters)


def keep_decision(
    *, action_id: str, number: int, facts: Facts, beside: Beside, decision: Decision
) -> DecisionRecord:
    """Append the decision's record: every rule's verdict, and the facts as they were read."""
    return DecisionRecord.objects.create(
        effect="refund",
        action_id=action_id,
        number=number,
        policy_version=beside.policy_number,
        policy_hash=beside.policy_hash,
        verdict=decision.verdict.name,
        tier=decision.tier,
        people=decision.people,
        base_currency=decision.base_currency,
        base_minor=decision.base_minor,
        tags=list(decision.tags),
        rules=[rule.as_json() for rule in decision.rules],
        facts=facts.as_json(),
        facts_read_at=beside.now,
    )


def who_must_approve(decision: Decision) -> dict[str, Any]:
    """The columns of an action that say who must approve it."""
    return {"review_tier": decision.tier, "review_people": decision.people}


def limits_that_hold(decision: Decision) -> list[str]:
    """The sentences of limits that were reached and hold; another HOLD ends by itself."""
    return [
        rule.why
        for rule in decision.rules
        if rule.verdict is Verdict.HOLD and rule.rule in _LIMIT_RULES
    ]


def call_somebody(*, facts: Facts, beside: Beside, decision: Decision) -> None:
    """Open the case of an agent that reached a limit that holds; one is enough.

    Whoever closes it has as long as any case has; what is held still is told of again then.
    """
    reached = limits_that_hold(decision)
    lately = beside.now - timedelta(seconds=settings.CASE_DUE_SECONDS)
    resource = f"agent:{facts.proposer}"
    if (
        not reached
        or Case.objects.filter(
            kind=Case.Kind.LIMIT, resource=resource, closed_at__gt=lately
        ).exists()
    ):
        return
    cases.open_resource_case(
        kind=Case.Kind.LIMIT,
        effect="refund",
        resource=resource,
        reason=(
            f"Refunds proposed by {facts.proposer} are held: {'; '.join(reached)}. Nothing was "
            "sent for them. Look at what it proposed; if that is not right, turn on its kill "
            "switch and revoke its key. They are decided again by themselves as time goes on."
        ),
        evidence={"first_held": facts.action_id},
        now=beside.now,
    )
