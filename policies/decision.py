"""What the policy says: one verdict, and every rule's part in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class Verdict(IntEnum):
    """What a rule, or the whole policy, says. The greatest wins: the most restrictive."""

    ALLOW = 0
    REVIEW = 1
    HOLD = 2
    DENY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """What one rule said, in a word and in a sentence.

    `tier` is the least tier of reviewer that a REVIEW asks for (0: no REVIEW). `related` names the
    other actions it is about, for a person to see side by side; `tag` marks without deciding.
    """

    rule: str
    verdict: Verdict
    why: str
    tier: int = 0
    related: tuple[str, ...] = ()
    tag: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the API and the decision's record; what is empty is left out."""
        value: dict[str, Any] = {"rule": self.rule, "verdict": self.verdict.name, "why": self.why}
        if self.tier:
            value["tier"] = self.tier
        if self.related:
            value["related"] = list(self.related)
        if self.tag:
            value["tag"] = self.tag
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The whole evaluation: the verdict and every rule's part in it.

    `tier` and `people` say who must approve when it is REVIEW: how many distinct people, each of
    that tier or above. They are also there for other verdicts, for what a person might still do.
    `base_minor` is the amount in the policy's base currency (None: no rate of the day).
    """

    verdict: Verdict
    rules: tuple[RuleResult, ...] = field(default_factory=tuple)
    tier: int = 1
    people: int = 1
    base_minor: int | None = None
    base_currency: str = ""

    @property
    def why(self) -> str:
        """The sentences of the rules that made the verdict what it is."""
        return "; ".join(r.why for r in self.rules if r.verdict is self.verdict)

    @property
    def tags(self) -> tuple[str, ...]:
        """The marks that rules left on what policy allowed, like `qa_sample`.

        What a person decides, or nobody, is not sampled for a person to look at later.
        """
        if self.verdict is not Verdict.ALLOW:
            return ()
        return tuple(sorted({rule.tag for rule in self.rules if rule.tag}))
