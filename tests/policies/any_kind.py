"""Facts and parameters of any kind, for properties: in and out of every rule's bounds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from policies.facts import SCOPES, Facts, OrderLine, OtherAction, RefundLine, Source, Usage
from policies.parameters import Limit, Parameters, Tier

# How long an example takes says something about the machine, and nothing about the rules.
on_any_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

CURRENCIES = ("USD", "EUR", "JPY", "KWD", "SEK")
REASONS = ("damaged", "goodwill", "late", "fraudulent", "because")
AGENTS = ("agent-1", "agent-2")
ACCOUNTS = ("stripe:", "stripe:acct_1")
RISKS = ("low", "high", "blocked")
LINES = ("lamp", "vase", "cup", "shipping")
METHODS = ("card", "fpx")

minor = st.integers(min_value=0, max_value=50_000)
few = st.integers(min_value=0, max_value=40)
currencies = st.sampled_from(CURRENCIES)
reasons = st.sampled_from(REASONS)
some_reasons = st.lists(reasons, unique=True, max_size=4).map(tuple)
times = st.one_of(
    st.none(),
    st.datetimes(
        # Hypothesis wants the bounds naive, and gives them a zone itself.
        min_value=datetime(2026, 1, 1),  # noqa: DTZ001
        max_value=datetime(2026, 4, 30),  # noqa: DTZ001
        timezones=st.just(UTC),
    ).map(datetime.isoformat),
)

others = st.lists(
    st.builds(
        OtherAction,
        action_id=st.sampled_from(["refund:order-4821:request-1", "re_1"]),
        state=st.sampled_from(
            ["AUTHORIZED", "SUBMITTING", "UNKNOWN", "PENDING", "SUCCEEDED", "FAILED_FINAL"]
        ),
        amount_minor=minor,
        age_seconds=st.floats(min_value=0, max_value=1e7),
        line_ids=st.lists(st.sampled_from(LINES), max_size=2).map(tuple),
    ),
    max_size=3,
).map(tuple)
order_lines = st.one_of(
    st.none(),
    st.lists(
        st.builds(
            OrderLine,
            line_id=st.sampled_from(LINES[:3]),
            amount_minor=minor,
            tax_minor=minor,
            final_sale=st.sampled_from([True, False, None]),
            returned=st.sampled_from([True, False, None]),
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda line: line.line_id,
    ).map(tuple),
)
refund_lines = st.lists(
    st.builds(RefundLine, line_id=st.sampled_from(LINES), amount_minor=minor), max_size=3
).map(tuple)
PAIRS = [(scope, window) for scope, windows in SCOPES.items() for window in windows]
pairs = st.sampled_from(PAIRS)


@st.composite
def usages(draw: st.DrawFn, *, missing_max: int) -> tuple[Usage, ...]:
    """Every scope and window but a few, with something used in a few of them."""
    missing = draw(st.sets(pairs, max_size=missing_max)) if missing_max else set()
    counts = draw(st.dictionaries(pairs, few, max_size=4))
    sums = draw(st.dictionaries(pairs, st.dictionaries(currencies, minor, max_size=2), max_size=3))
    return tuple(
        Usage(
            scope=scope,
            window=window,
            count=counts.get((scope, window), 0),
            sums_minor=sums.get((scope, window), {}),
        )
        for scope, window in PAIRS
        if (scope, window) not in missing
    )


facts_of_any_kind = st.builds(
    Facts,
    order_id=st.just("4821"),
    order_version=st.integers(min_value=1, max_value=9),
    currency=currencies,
    amount_minor=st.integers(min_value=-10, max_value=50_000),
    reason=reasons,
    captured_minor=minor,
    refunded_minor=minor,
    reserved_minor=minor,
    disputed_minor=minor,
    settled_otherwise_minor=minor,
    own_reservation_minor=st.just(0),
    dispute_state=st.sampled_from(["none", "inquiry", "open", "won", "lost", ""]),
    provider_searchable=st.sampled_from([True, False, None]),
    proposer=st.sampled_from(AGENTS),
    switches=st.sampled_from([(), ("global",)]),
    open_cases=st.integers(min_value=0, max_value=2),
    others=others,
    action_id=st.integers(min_value=0, max_value=99).map(lambda n: f"refund:order-1:request-{n}"),
    account=st.sampled_from(["", *ACCOUNTS]),
    decided_at=times.map(lambda time: time or ""),
    provider_reachable=st.booleans(),
    placed_at=times,
    delivered_at=times,
    payment_method=st.sampled_from(["", *METHODS]),
    customer_known=st.booleans(),
    customer_risk=st.sampled_from([None, *RISKS]),
    shipping_minor=st.one_of(st.none(), minor),
    order_lines=order_lines,
    lines=refund_lines,
    lines_refunded_minor=st.dictionaries(st.sampled_from(LINES), minor),
    agent_succeeded=st.one_of(st.none(), few),
    order_age_seconds=st.one_of(st.none(), st.floats(min_value=0, max_value=1e6)),
    usage=usages(missing_max=3),
    rates=st.dictionaries(currencies, st.sampled_from(["1", "1.25", "160", "0.385"])),
    rates_day=st.just("2026-03-03"),
    rates_age_days=st.one_of(st.none(), st.integers(min_value=0, max_value=9)),
    sources=st.just((Source(name="order", read_from="the merchant", age_seconds=1.0),)),
)

# Facts that a small shop's ordinary refund has, with a few things wrong at most: most of what is
# drawn from `facts_of_any_kind` is denied for some reason, and shows little of the other rules.
likely_facts = st.builds(
    Facts,
    order_id=st.just("4821"),
    order_version=st.just(1),
    currency=st.sampled_from(["USD", "USD", "JPY"]),
    amount_minor=st.integers(min_value=1, max_value=20_000),
    reason=st.sampled_from(["damaged", "goodwill"]),
    captured_minor=st.just(50_000),
    refunded_minor=st.just(0),
    reserved_minor=st.just(0),
    disputed_minor=st.just(0),
    settled_otherwise_minor=st.just(0),
    own_reservation_minor=st.just(0),
    dispute_state=st.just("none"),
    provider_searchable=st.sampled_from([True, True, False]),
    proposer=st.sampled_from(AGENTS),
    open_cases=st.sampled_from([0, 0, 0, 1]),
    others=st.one_of(st.just(()), others),
    action_id=st.just("refund:order-1:request-1"),
    account=st.sampled_from(ACCOUNTS),
    decided_at=st.just("2026-03-04T12:00:00+00:00"),
    placed_at=st.sampled_from(["2026-03-01T12:00:00+00:00", "2026-01-01T12:00:00+00:00"]),
    delivered_at=st.sampled_from([None, "2026-03-02T12:00:00+00:00"]),
    payment_method=st.sampled_from(METHODS),
    customer_risk=st.sampled_from([None, *RISKS]),
    shipping_minor=st.just(500),
    order_lines=order_lines,
    lines=st.one_of(st.just(()), refund_lines),
    agent_succeeded=few,
    order_age_seconds=st.floats(min_value=0, max_value=100),
    usage=usages(missing_max=0),
    rates=st.just({"USD": "1.25", "JPY": "160"}),
    rates_day=st.just("2026-03-03"),
    rates_age_days=st.just(1),
)


@st.composite
def tiers_of_any_kind(draw: st.DrawFn) -> tuple[Tier, ...]:
    """A table that rises: one to three rows."""
    numbers = sorted(draw(st.sets(st.sampled_from([1, 2, 3]), min_size=1)))
    ends = sorted(draw(st.sets(minor, min_size=len(numbers), max_size=len(numbers))))
    people = sorted(draw(st.integers(min_value=1, max_value=3)) for _ in numbers)
    return tuple(
        Tier(
            tier=number,
            up_to_base_minor=None if number == numbers[-1] else end,
            people=count,
        )
        for number, end, count in zip(numbers, ends, people, strict=True)
    )


def _figures(draw: st.DrawFn, values: st.SearchStrategy[int]) -> tuple[int | None, int | None]:
    review, hold = draw(st.one_of(st.none(), values)), draw(st.one_of(st.none(), values))
    if review is not None and hold is not None:
        return min(review, hold), max(review, hold)
    return review, hold


@st.composite
def limits_of(draw: st.DrawFn, *scopes: str) -> tuple[Limit, ...]:
    """Limits of some scopes, one for a window at most."""
    pairs = [(scope, window) for scope in scopes for window in SCOPES[scope]]
    limits = []
    for scope, window in draw(st.lists(st.sampled_from(pairs), unique=True, max_size=3)):
        review_count, hold_count = _figures(draw, few)
        review_base, hold_base = _figures(draw, minor)
        if (review_count, hold_count, review_base, hold_base) == (None, None, None, None):
            review_count = 7
        limits.append(
            Limit(
                scope=scope,
                window=window,
                review_count=review_count,
                review_base_minor=review_base,
                hold_count=hold_count,
                hold_base_minor=hold_base,
            )
        )
    return tuple(limits)


SWITCHES: dict[str, st.SearchStrategy[Any]] = {
    "review_beside_open": st.booleans(),
    "same_amount_window_seconds": st.integers(min_value=0, max_value=10**7),
    "unsearchable_ceiling_minor": minor,
    "base_currency": st.sampled_from(["USD", "JPY"]),
    "rate_max_age_days": st.integers(min_value=0, max_value=9),
    "ceiling_by_agent_base_minor": st.dictionaries(st.sampled_from(AGENTS), minor),
    "accounts_by_agent": st.dictionaries(
        st.sampled_from(AGENTS),
        st.lists(st.sampled_from(ACCOUNTS), unique=True).map(tuple),
        max_size=1,
    ),
    "velocity": limits_of("agent", "customer", "order"),
    "budgets": limits_of("agent", "total"),
    "goodwill_budgets": limits_of("goodwill_agent", "goodwill_total"),
    "goodwill_reasons": some_reasons,
    "anomaly_factor": st.integers(min_value=0, max_value=5),
    "anomaly_floor_count": st.integers(min_value=1, max_value=40),
    "window_days": st.integers(min_value=0, max_value=60),
    "window_from": st.sampled_from(["placed", "delivered"]),
    "time_zone": st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
    "method_window_days": st.dictionaries(
        st.sampled_from(METHODS), st.integers(min_value=1, max_value=60)
    ),
    "final_sale_verdict": st.sampled_from(["ALLOW", "REVIEW", "DENY"]),
    "return_above_base_minor": st.one_of(st.none(), minor),
    "component_caps": st.booleans(),
    "risk_review": st.lists(st.sampled_from(RISKS), unique=True).map(tuple),
    "risk_deny": st.lists(st.sampled_from(RISKS), unique=True).map(tuple),
    "risk_required": st.booleans(),
    "probation_refunds": few,
    "order_max_age_seconds": st.integers(min_value=0, max_value=10**6),
    "sample_qa_per_mille": st.integers(min_value=0, max_value=1000),
}


@st.composite
def parameters_of_any_kind(draw: st.DrawFn) -> Parameters:
    """Parameters that `policies.read_parameters` accepts, with a few rules switched on."""
    listed = draw(st.lists(reasons, unique=True, min_size=1).map(tuple))
    tiers = draw(tiers_of_any_kind())
    of_reason = draw(st.sampled_from(listed))
    values: dict[str, Any] = {
        "ceiling_minor": draw(st.dictionaries(currencies, minor)),
        "reasons": listed,
        "tiers": tiers,
    }
    by_reason: dict[str, st.SearchStrategy[Any]] = {
        "ceiling_by_reason_base_minor": st.fixed_dictionaries({of_reason: minor}),
        "tier_by_reason": st.fixed_dictionaries(
            {of_reason: st.sampled_from([tier.tier for tier in tiers])}
        ),
        "reasons_by_agent": st.fixed_dictionaries({"agent-1": st.just((of_reason,))}),
        "return_reasons": st.just((of_reason,)),
    }
    switches = SWITCHES | by_reason
    for name in sorted(draw(st.sets(st.sampled_from(sorted(switches)), max_size=8))):
        values[name] = draw(switches[name])
    return Parameters(**values)
