"""A verdict and who must approve, as one value that two decisions are compared by."""

from __future__ import annotations

from policies.decision import Decision, Verdict


def outcome(decision: Decision) -> str:
    """`ALLOW`, `HOLD`, `DENY`, or who reviews: `REVIEW by 2 of tier 2`."""
    return outcome_of(verdict=decision.verdict.name, tier=decision.tier, people=decision.people)


def why(decision: Decision) -> str:
    """The sentences that made the verdict; of ALLOW, where all rules agree, that they do."""
    if decision.verdict is Verdict.ALLOW:
        return "no rule asks for more"
    return decision.why


def outcome_of(*, verdict: str, tier: int, people: int) -> str:
    """The same from the columns of a record. Who must approve is no part of other verdicts."""
    if verdict != Verdict.REVIEW.name:
        return verdict
    return f"REVIEW by {people} of tier {tier}"
