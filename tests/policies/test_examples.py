"""Examples: what a draft would say, beside what the version in force says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.decision import Verdict
from policies.examples import examples, explain_examples
from policies.rules import RULES, evaluate
from policies.versions import DEFAULT_PARAMETERS


def test_the_same_policy_says_the_same() -> None:
    lines = explain_examples(before=DEFAULT_PARAMETERS, after=DEFAULT_PARAMETERS)
    assert not [line.name for line in lines if line.changed]


def test_an_ordinary_small_refund_is_allowed_and_every_verdict_is_shown() -> None:
    lines = {
        line.name: line
        for line in explain_examples(before=DEFAULT_PARAMETERS, after=DEFAULT_PARAMETERS)
    }
    assert lines["small"].after.verdict is Verdict.ALLOW, lines["small"].after.why
    assert {line.after.verdict for line in lines.values()} == set(Verdict)
    assert lines["of the usual ceiling"].outcome_after == "ALLOW"
    assert lines["a little above it"].outcome_after.startswith("REVIEW")


def test_a_stricter_draft_is_seen_in_the_table() -> None:
    stricter = replace(DEFAULT_PARAMETERS, ceiling_minor={"USD": 1_000})
    lines = explain_examples(before=DEFAULT_PARAMETERS, after=stricter)
    changed = {line.name for line in lines if line.changed}
    assert "small" in changed
    assert "while the payment is disputed" not in changed


def test_without_a_version_in_force_a_person_decided_everything() -> None:
    small = explain_examples(before=None, after=DEFAULT_PARAMETERS)[0]
    assert (small.outcome_before, small.outcome_after) == ("REVIEW by 1 of tier 1", "ALLOW")


@pytest.mark.parametrize("currency", ["EUR", "JPY", "KWD"])
def test_examples_are_in_the_policy_s_own_currency(currency: str) -> None:
    own = replace(DEFAULT_PARAMETERS, base_currency=currency, ceiling_minor={currency: 1_000_000})
    facts = {example.name: example.facts for example in examples(like=own)}
    assert facts["small"].currency == currency
    assert facts["another currency with a rate of the day"].currency != currency
    assert evaluate(facts["small"], own).verdict is Verdict.ALLOW


def test_most_rules_say_something_else_about_some_example() -> None:
    said = {
        result.rule
        for example in examples(like=DEFAULT_PARAMETERS)
        for result in evaluate(example.facts, DEFAULT_PARAMETERS).rules
        if result.verdict is not Verdict.ALLOW
    }
    assert len(said) >= len(RULES) // 2
