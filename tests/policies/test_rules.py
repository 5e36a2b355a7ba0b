"""The rules: each by a table, all together by properties."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decision import Verdict
from policies.facts import Facts, OtherAction
from policies.parameters import Parameters
from policies.rules import RULES, evaluate
from policies.versions import DEFAULT_PARAMETERS

FACTS = Facts(
    order_id="4821",
    order_version=1,
    currency="USD",
    amount_minor=7_900,
    reason="requested_by_customer",
    captured_minor=20_000,
    refunded_minor=0,
    reserved_minor=0,
    disputed_minor=0,
    settled_otherwise_minor=0,
    own_reservation_minor=0,
    dispute_state="none",
    provider_searchable=True,
    proposer="agent-1",
)
HOUR = 3600.0


def other(state: str, *, amount_minor: int = 100, age_seconds: float = HOUR) -> OtherAction:
    return OtherAction(
        action_id="refund:order-4821:request-0",
        state=state,
        amount_minor=amount_minor,
        age_seconds=age_seconds,
    )


ALLOW, REVIEW, HOLD, DENY = Verdict.ALLOW, Verdict.REVIEW, Verdict.HOLD, Verdict.DENY

TABLE: list[tuple[str, dict[str, Any], Verdict]] = [
    ("kill_switch", {}, ALLOW),
    ("kill_switch", {"switches": ("global",)}, HOLD),
    ("amount_explicit", {}, ALLOW),
    ("amount_explicit", {"amount_minor": 0}, DENY),
    ("amount_explicit", {"amount_minor": -1}, DENY),
    ("headroom", {"amount_minor": 20_000}, ALLOW),
    ("headroom", {"amount_minor": 20_001}, DENY),
    ("headroom", {"refunded_minor": 12_100}, ALLOW),
    ("headroom", {"refunded_minor": 12_101}, DENY),
    ("headroom", {"reserved_minor": 12_101}, DENY),
    ("headroom", {"reserved_minor": 20_000, "own_reservation_minor": 7_900}, ALLOW),
    ("headroom", {"disputed_minor": 12_101}, DENY),
    ("headroom", {"settled_otherwise_minor": 12_101}, DENY),
    ("headroom", {"captured_minor": 0}, DENY),
    ("dispute_block", {"dispute_state": "open"}, DENY),
    ("dispute_block", {"dispute_state": "lost"}, DENY),
    ("dispute_block", {"dispute_state": "inquiry"}, REVIEW),
    ("dispute_block", {"dispute_state": "won"}, ALLOW),
    ("per_refund_limit", {"amount_minor": 10_000}, ALLOW),
    ("per_refund_limit", {"amount_minor": 10_001}, REVIEW),
    ("per_refund_limit", {"currency": "SEK"}, REVIEW),
    ("reason_allowlist", {"reason": "damaged"}, ALLOW),
    ("reason_allowlist", {"reason": "because"}, DENY),
    ("reason_allowlist", {"reason": "fraudulent"}, DENY),
    ("provider_searchable", {"provider_searchable": None}, REVIEW),
    ("provider_searchable", {"provider_searchable": False}, REVIEW),
    ("open_action", {"others": (other("SUBMITTING"),)}, REVIEW),
    ("open_action", {"others": (other("UNKNOWN"),)}, REVIEW),
    ("open_action", {"others": (other("PENDING"),)}, REVIEW),
    ("open_action", {"others": (other("FAILED_FINAL"),)}, REVIEW),
    ("open_action", {"others": (other("SUCCEEDED"),)}, ALLOW),
    ("open_action", {"others": (other("AUTHORIZED"),)}, ALLOW),
    ("open_action", {"open_cases": 1}, REVIEW),
    ("duplicate_suspect", {"others": (other("SUCCEEDED", amount_minor=7_900),)}, REVIEW),
    ("duplicate_suspect", {"others": (other("SUCCEEDED", amount_minor=7_901),)}, ALLOW),
    (
        "duplicate_suspect",
        {"others": (other("SUCCEEDED", amount_minor=7_900, age_seconds=72 * HOUR - 1),)},
        REVIEW,
    ),
    (
        "duplicate_suspect",
        {"others": (other("SUCCEEDED", amount_minor=7_900, age_seconds=72 * HOUR),)},
        ALLOW,
    ),
]


@pytest.mark.parametrize(("rule", "changes", "verdict"), TABLE)
def test_what_a_rule_says(rule: str, changes: dict[str, Any], verdict: Verdict) -> None:
    said, why = RULES[rule](replace(FACTS, **changes), DEFAULT_PARAMETERS)
    assert said is verdict
    assert why


def test_every_rule_stands_in_the_table() -> None:
    assert {rule for rule, _, _ in TABLE} == set(RULES)


def test_ordinary_facts_are_allowed_with_every_rule_s_part_in_it() -> None:
    decision = evaluate(FACTS, DEFAULT_PARAMETERS)
    assert decision.verdict is ALLOW
    assert [result.rule for result in decision.rules] == list(RULES)


def test_a_merchant_may_allow_refunds_side_by_side_and_equal_ones() -> None:
    loose = replace(DEFAULT_PARAMETERS, review_beside_open=False, same_amount_window_seconds=0)
    facts = replace(
        FACTS, open_cases=1, others=(other("UNKNOWN"), other("SUCCEEDED", amount_minor=7_900))
    )
    assert evaluate(facts, loose).verdict is ALLOW


def test_why_names_only_what_made_the_verdict() -> None:
    decision = evaluate(replace(FACTS, reason="because", amount_minor=10_001), DEFAULT_PARAMETERS)
    assert decision.verdict is DENY
    assert "not on the list" in decision.why
    assert "ceiling" not in decision.why


def test_the_ceiling_of_an_unsearchable_provider_is_its_own() -> None:
    facts = replace(FACTS, provider_searchable=False)
    enough = replace(DEFAULT_PARAMETERS, unsearchable_ceiling_minor=7_900)
    assert evaluate(facts, enough).verdict is ALLOW
    assert evaluate(replace(facts, amount_minor=7_901), enough).verdict is REVIEW


# -- properties -----------------------------------------------------------------------------------

minor = st.integers(min_value=0, max_value=50_000)
others = st.builds(
    OtherAction,
    action_id=st.just("refund:order-4821:request-0"),
    state=st.sampled_from(
        ["AUTHORIZED", "SUBMITTING", "UNKNOWN", "PENDING", "SUCCEEDED", "FAILED_FINAL"]
    ),
    amount_minor=minor,
    age_seconds=st.floats(min_value=0, max_value=1e7),
)
facts_of_any_kind = st.builds(
    Facts,
    order_id=st.just("4821"),
    order_version=st.integers(min_value=1),
    currency=st.sampled_from(["USD", "JPY", "KWD", "SEK"]),
    amount_minor=st.integers(min_value=-10, max_value=50_000),
    reason=st.sampled_from(["damaged", "fraudulent", "because"]),
    captured_minor=minor,
    refunded_minor=minor,
    reserved_minor=minor,
    disputed_minor=minor,
    settled_otherwise_minor=minor,
    own_reservation_minor=st.just(0),
    dispute_state=st.sampled_from(["none", "inquiry", "open", "won", "lost"]),
    provider_searchable=st.sampled_from([True, False, None]),
    proposer=st.just("agent-1"),
    switches=st.sampled_from([(), ("global",)]),
    open_cases=st.integers(min_value=0, max_value=2),
    others=st.lists(others, max_size=3).map(tuple),
)
parameters_of_any_kind = st.builds(
    Parameters,
    ceiling_minor=st.dictionaries(st.sampled_from(["USD", "JPY", "KWD"]), minor),
    reasons=st.just(("damaged",)),
    review_beside_open=st.booleans(),
    same_amount_window_seconds=st.integers(min_value=0, max_value=10**7),
    unsearchable_ceiling_minor=minor,
)


@given(facts_of_any_kind, parameters_of_any_kind)
def test_the_most_restrictive_rule_wins(facts: Facts, parameters: Parameters) -> None:
    decision = evaluate(facts, parameters)
    assert decision.verdict == max(result.verdict for result in decision.rules)
    assert decision.why


@given(facts_of_any_kind, parameters_of_any_kind)
def test_the_same_facts_are_decided_the_same(facts: Facts, parameters: Parameters) -> None:
    assert evaluate(facts, parameters) == evaluate(facts, parameters)


# Not by the duplicate rule, which asks about one exact amount.
@given(
    facts_of_any_kind.map(lambda facts: replace(facts, others=())),
    parameters_of_any_kind,
    st.integers(min_value=1, max_value=50_000),
)
def test_more_money_is_never_decided_more_easily(
    facts: Facts, parameters: Parameters, more: int
) -> None:
    amount = max(facts.amount_minor, 1)
    less = evaluate(replace(facts, amount_minor=amount), parameters)
    most = evaluate(replace(facts, amount_minor=amount + more), parameters)
    assert most.verdict >= less.verdict


@given(facts_of_any_kind, parameters_of_any_kind)
def test_nothing_is_allowed_that_does_not_fit(facts: Facts, parameters: Parameters) -> None:
    if evaluate(facts, parameters).verdict in (ALLOW, REVIEW):
        assert 0 < facts.amount_minor <= facts.refundable_minor


@given(facts_of_any_kind, parameters_of_any_kind)
def test_a_switch_holds_or_worse(facts: Facts, parameters: Parameters) -> None:
    on = evaluate(replace(facts, switches=("global",)), parameters)
    assert on.verdict in (HOLD, DENY)


@given(facts_of_any_kind, parameters_of_any_kind)
def test_a_missing_fact_asks_a_person_at_least(facts: Facts, parameters: Parameters) -> None:
    assert evaluate(replace(facts, provider_searchable=None), parameters).verdict >= REVIEW
    unnamed = replace(parameters, ceiling_minor={})
    assert evaluate(facts, unnamed).verdict >= REVIEW


@given(parameters_of_any_kind)
def test_parameters_survive_being_stored(parameters: Parameters) -> None:
    assert Parameters.from_json(parameters.as_json()) == parameters


@given(facts_of_any_kind)
def test_facts_are_json(facts: Facts) -> None:
    assert json.loads(json.dumps(facts.as_json()))["amount_minor"] == facts.amount_minor
