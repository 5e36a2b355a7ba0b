"""Parameters are read strictly: what could be misread, or cannot be meant, is refused by name."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from kernel.errors import InvalidInput
from policies.parameters import Parameters, Tier
from policies.read_parameters import _READERS, read_parameters, require_valid
from policies.versions import DEFAULT_PARAMETERS


def plain(**changes: Any) -> dict[str, Any]:
    """The default policy as JSON gives it, with something changed."""
    return json.loads(json.dumps(DEFAULT_PARAMETERS.as_json())) | changes  # type: ignore[no-any-return]


def limit(**changes: Any) -> dict[str, Any]:
    return {
        "scope": "agent",
        "window": "hour",
        "review_count": 1,
        "review_base_minor": None,
        "hold_count": 2,
        "hold_base_minor": None,
    } | changes


def tier(number: Any, end: Any, people: Any = 1) -> dict[str, Any]:
    return {"tier": number, "up_to_base_minor": end, "people": people}


def refused(value: object) -> str:
    with pytest.raises(InvalidInput) as refusal:
        read_parameters(value)
    return str(refusal.value)


def test_every_parameter_has_a_reader() -> None:
    assert list(_READERS) == [item.name for item in fields(Parameters)]


def test_the_default_policy_is_valid_and_read_as_it_is() -> None:
    assert read_parameters(plain()) == DEFAULT_PARAMETERS
    assert require_valid(DEFAULT_PARAMETERS) == DEFAULT_PARAMETERS


@pytest.mark.parametrize("value", [None, [], "{}", 1, True])
def test_parameters_are_an_object(value: object) -> None:
    assert refused(value) == "parameters: must be an object"


@pytest.mark.parametrize("name", [item.name for item in fields(Parameters)])
def test_every_field_is_required(name: str) -> None:
    value = plain()
    del value[name]
    assert refused(value) == f"{name}: is required"


def test_no_other_field_is_accepted_and_a_long_name_is_cut() -> None:
    assert refused(plain(surprise=1)) == "surprise: is not a known parameter"
    assert len(refused(plain(**{"x" * 10_000: 1}))) < 200
    assert "is not a known parameter" in refused(plain() | {1: 1})


WHOLE = {
    "same_amount_window_seconds": (0, 2 * 366 * 24 * 3600),
    "unsearchable_ceiling_minor": (0, 2**53 - 1),
    "rate_max_age_days": (0, 31),
    "anomaly_factor": (0, 1000),
    "anomaly_floor_count": (1, 10**6),
    "window_days": (0, 3660),
    "probation_refunds": (0, 10**6),
    "order_max_age_seconds": (0, 2 * 366 * 24 * 3600),
    "sample_qa_per_mille": (0, 1000),
    "return_above_base_minor": (0, 2**53 - 1),
}


@pytest.mark.parametrize(("name", "smallest", "largest"), [(n, *e) for n, e in WHOLE.items()])
def test_a_number_is_a_whole_one_within_its_bounds(name: str, smallest: int, largest: int) -> None:
    for value in (smallest, largest):
        assert getattr(read_parameters(plain(**{name: value})), name) == value
    wrongs: tuple[Any, ...] = (smallest - 1, largest + 1, 1.0, 1.5, True, False, "1", [], {})
    for wrong in wrongs:
        assert refused(plain(**{name: wrong})) == (
            f"{name}: must be an integer from {smallest} to {largest}"
        )
    if name != "return_above_base_minor":
        assert "must be an integer" in refused(plain(**{name: None}))


@pytest.mark.parametrize("name", ["review_beside_open", "component_caps", "risk_required"])
def test_a_switch_is_true_or_false(name: str) -> None:
    for value in (True, False):
        assert getattr(read_parameters(plain(**{name: value})), name) is value
    wrongs: tuple[Any, ...] = (0, 1, "true", None, [])
    for wrong in wrongs:
        assert refused(plain(**{name: wrong})) == f"{name}: must be true or false"


@pytest.mark.parametrize(
    "name",
    ["ceiling_by_reason_base_minor", "ceiling_by_agent_base_minor", "ceiling_minor"],
)
def test_ceilings_are_amounts_by_name(name: str) -> None:
    key = "USD" if name == "ceiling_minor" else "damaged"
    assert getattr(read_parameters(plain(**{name: {key: 2**53 - 1}})), name) == {key: 2**53 - 1}
    assert getattr(read_parameters(plain(**{name: {key: 0}})), name) == {key: 0}
    wrongs: tuple[Any, ...] = (-1, 2**53, 1.5, True, "1", None)
    for wrong in wrongs:
        assert refused(plain(**{name: {key: wrong}})) == (
            f"{name}.{key}: must be an integer from 0 to 9007199254740991"
        )
    shapes: tuple[Any, ...] = ([], None, 1, {f"A{number}": 1 for number in range(201)})
    for wrong in shapes:
        assert (
            refused(plain(**{name: wrong})) == f"{name}: must be an object of at most 200 members"
        )


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("ceiling_minor", {"usd": 1}, "ceiling_minor: 'usd': use capitals"),
        (
            "ceiling_minor",
            {"US": 1},
            "ceiling_minor: must be a three-letter currency code, like USD",
        ),
        ("base_currency", "eur", "base_currency: 'eur': use capitals"),
        ("base_currency", 978, "base_currency: must be a three-letter currency code, like USD"),
        ("reasons", [], "reasons: must be a list of 1 to 200 items"),
        ("reasons", "damaged", "reasons: must be a list of 1 to 200 items"),
        ("reasons", ["late", "late"], "reasons: names something twice"),
        ("reasons", ["a b"], "reasons: must be 1 to 64 characters of A-Z a-z 0-9 _ . -"),
        ("reasons", [["late"]], "reasons: must be 1 to 64 characters of A-Z a-z 0-9 _ . -"),
        ("reasons", [True], "reasons: must be 1 to 64 characters of A-Z a-z 0-9 _ . -"),
        ("goodwill_reasons", None, "goodwill_reasons: must be a list of 0 to 200 items"),
        (
            "risk_deny",
            [f"r{number}" for number in range(201)],
            "risk_deny: must be a list of 0 to 200 items",
        ),
        ("risk_review", [1], "risk_review: must be 1 to 64 characters of A-Z a-z 0-9 _ . -"),
        (
            "ceiling_by_reason_base_minor",
            {"because": 1},
            "ceiling_by_reason_base_minor: 'because' is not one of the reasons",
        ),
        ("tier_by_reason", {"because": 1}, "tier_by_reason: 'because' is not one of the reasons"),
        ("tier_by_reason", {"late": 0}, "tier_by_reason.late: must be an integer from 1 to 3"),
        ("tier_by_reason", {"late": 4}, "tier_by_reason.late: must be an integer from 1 to 3"),
        ("return_reasons", ["because"], "return_reasons: 'because' is not one of the reasons"),
        (
            "reasons_by_agent",
            {"agent-1": ["late", "because"]},
            "reasons_by_agent.agent-1: 'because' is not one of the reasons",
        ),
        ("reasons_by_agent", {"agent-1": "late"}, "reasons_by_agent.agent-1: must be a list of 0"),
        ("reasons_by_agent", {"a 1": []}, "reasons_by_agent: must be 1 to 64 characters"),
        ("accounts_by_agent", {"agent-1": ["acct_1"]}, "accounts_by_agent.agent-1: must be an"),
        ("accounts_by_agent", {"agent-1": ["stripe"]}, "accounts_by_agent.agent-1: must be an"),
        ("accounts_by_agent", {"agent-1": ["stripe:x"]}, "accounts_by_agent.agent-1: must be an"),
        ("accounts_by_agent", {"agent-1": [1]}, "accounts_by_agent.agent-1: must be an account"),
        ("window_from", "paid", "window_from: must be one of placed, delivered"),
        ("window_from", None, "window_from: must be one of placed, delivered"),
        ("window_from", ["placed"], "window_from: must be one of placed, delivered"),
        ("final_sale_verdict", "HOLD", "final_sale_verdict: must be one of ALLOW, REVIEW, DENY"),
        ("final_sale_verdict", "review", "final_sale_verdict: must be one of ALLOW, REVIEW, DENY"),
        ("final_sale_verdict", 1, "final_sale_verdict: must be one of ALLOW, REVIEW, DENY"),
        ("time_zone", "Berlin", "time_zone: must be the name of a time zone, like Europe/Berlin"),
        ("time_zone", "../etc/passwd", "time_zone: must be the name of a time zone"),
        ("time_zone", "", "time_zone: must be the name of a time zone"),
        ("time_zone", 1, "time_zone: must be the name of a time zone"),
        ("method_window_days", {"fpx": 0}, "method_window_days.fpx: must be an integer from 1"),
        ("method_window_days", {"fpx": 3661}, "method_window_days.fpx: must be an integer from 1"),
        ("method_window_days", {"f x": 1}, "method_window_days: must be 1 to 64 characters"),
        ("tiers", [], "tiers: must end with a tier without an end (up_to_base_minor null)"),
        ("tiers", {}, "tiers: must be a list of at most 200 objects"),
        (
            "tiers",
            [None],
            "tiers[0]: must be an object with exactly tier, up_to_base_minor, people",
        ),
        ("tiers", [tier(1, 5)], "tiers: must end with a tier without an end"),
        ("tiers", [tier(1, None) | {"x": 1}], "tiers[0]: must be an object with exactly tier, up"),
        ("tiers", [{"tier": 1, "people": 1}], "tiers[0]: must be an object with exactly tier, up"),
        ("tiers", [tier(0, None)], "tiers[0].tier: must be an integer from 1 to 3"),
        ("tiers", [tier(4, None)], "tiers[0].tier: must be an integer from 1 to 3"),
        ("tiers", [tier(True, None)], "tiers[0].tier: must be an integer from 1 to 3"),
        ("tiers", [tier(1, None, 0)], "tiers[0].people: must be an integer from 1 to 3"),
        ("tiers", [tier(1, None, 4)], "tiers[0].people: must be an integer from 1 to 3"),
        ("tiers", [tier(1, 1.5), tier(2, None)], "tiers[0].up_to_base_minor: must be an integer"),
        ("tiers", [tier(1, None), tier(2, None)], "tiers: only the last tier is without an end"),
        ("tiers", [tier(1, 5), tier(1, None)], "tiers: each tier must be above the one before"),
        ("tiers", [tier(2, 5), tier(1, None)], "tiers: each tier must be above the one before"),
        ("tiers", [tier(1, 5, 2), tier(2, None, 1)], "tiers: each tier must be above the one"),
        (
            "tiers",
            [tier(1, 5), tier(2, 5), tier(3, None)],
            "tiers: up_to_base_minor must rise from tier to tier",
        ),
        (
            "tiers",
            [tier(1, 5), tier(2, 4), tier(3, None)],
            "tiers: up_to_base_minor must rise from tier to tier",
        ),
        ("velocity", None, "velocity: must be a list of at most 200 objects"),
        ("velocity", [limit()] * 201, "velocity: must be a list of at most 200 objects"),
        ("velocity", [[]], "velocity[0]: must be an object with exactly scope, window, review_co"),
        ("velocity", [limit(x=1)], "velocity[0]: must be an object with exactly scope, window"),
        ("velocity", [limit(scope="total")], "velocity[0].scope: must be one of agent, customer"),
        ("velocity", [limit(scope=1)], "velocity[0].scope: must be one of agent, customer, order"),
        ("velocity", [limit(window="week")], "velocity[0].window: must be one of 30_days, 365_day"),
        ("velocity", [limit(window="ever")], "velocity[0].window: agent is counted in hour, day"),
        ("budgets", [limit(scope="customer")], "budgets[0].scope: must be one of agent, total"),
        (
            "goodwill_budgets",
            [limit()],
            "goodwill_budgets[0].scope: must be one of goodwill_agent, goodwill_total",
        ),
        ("velocity", [limit(), limit()], "velocity[1]: this scope and window have a limit already"),
        (
            "velocity",
            [limit(review_count=None, hold_count=None)],
            "velocity[0]: limits nothing; leave it out",
        ),
        ("velocity", [limit(review_count=3)], "velocity[0]: the figure that holds must not be"),
        (
            "velocity",
            [limit(review_base_minor=3, hold_base_minor=2)],
            "velocity[0]: the figure that holds must not be below the one that asks",
        ),
        ("velocity", [limit(review_count=True)], "velocity[0].review_count: must be an integer"),
        ("velocity", [limit(review_count=-1)], "velocity[0].review_count: must be an integer from"),
        ("velocity", [limit(hold_count=1.0)], "velocity[0].hold_count: must be an integer from 0"),
        ("velocity", [limit(hold_count=10**6 + 1)], "velocity[0].hold_count: must be an integer"),
        (
            "velocity",
            [limit(review_base_minor="1")],
            "velocity[0].review_base_minor: must be an integer from 0 to 9007199254740991",
        ),
        (
            "velocity",
            [limit(hold_base_minor=2**53)],
            "velocity[0].hold_base_minor: must be an integer from 0 to 9007199254740991",
        ),
    ],
)
def test_what_the_rules_could_misread_is_refused_by_its_name(
    name: str, value: Any, told: str
) -> None:
    assert refused(plain(**{name: value})).startswith(told)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ceiling_minor", {}),
        ("base_currency", "JPY"),
        ("goodwill_reasons", []),
        ("reasons_by_agent", {"agent-1": [], "agent-2": ["late"]}),
        (
            "accounts_by_agent",
            {"agent-1": ["stripe:", "stripe:acct_1", "stripe:alias:EU", "stripe:alias:EU/acct_2"]},
        ),
        ("time_zone", "Asia/Kathmandu"),
        ("method_window_days", {"fpx": 1, "alipay": 3660}),
        ("final_sale_verdict", "DENY"),
        ("return_above_base_minor", None),
        ("tiers", [tier(2, None, 3)]),
        ("tiers", [tier(1, 0), tier(2, 1), tier(3, None)]),
        ("velocity", []),
        ("velocity", [limit(review_count=2)]),
        ("velocity", [limit(), limit(window="day"), limit(scope="order", window="ever")]),
        ("budgets", [limit(review_count=None, hold_count=None, hold_base_minor=0)]),
        ("tier_by_reason", {"late": 3}),
    ],
)
def test_what_can_be_meant_is_accepted(name: str, value: Any) -> None:
    parameters = read_parameters(plain(**{name: value}))
    assert json.loads(json.dumps(parameters.as_json()))[name] == value


def test_a_reason_s_tier_must_have_a_row() -> None:
    value = plain(tiers=[tier(1, 5), tier(3, None)], tier_by_reason={"late": 2})
    assert refused(value) == "tier_by_reason.late: there is no tier 2 in tiers"


def test_parameters_made_in_code_are_as_strictly_valid() -> None:
    wrong = replace(DEFAULT_PARAMETERS, tiers=(Tier(tier=1, up_to_base_minor=5),))
    with pytest.raises(InvalidInput, match="tiers: must end with a tier without an end"):
        require_valid(wrong)
    with pytest.raises(InvalidInput, match="reasons: must be a list"):
        require_valid(replace(DEFAULT_PARAMETERS, reasons=()))
