"""What a merchant sets: typed parameters of the rules, no code and no templates in them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

# It puts the customer on block lists at Stripe: no list makes it a reason of an agent's.
NEVER_A_REASON = "fraudulent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Who decides up to which amount: `people` distinct people of `tier` or above.

    `up_to_base_minor` is in minor units of the base currency; None: without an end.
    """

    tier: int
    up_to_base_minor: int | None
    people: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit on one scope in one window (`policies.facts.SCOPES`), counting this action too.

    Above a `review_` figure a person decides, above a `hold_` figure nothing is decided and
    somebody is called. Sums are minor units of the base currency. None: no limit.
    """

    scope: str
    window: str
    review_count: int | None = None
    review_base_minor: int | None = None
    hold_count: int | None = None
    hold_base_minor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The parameters of every rule. `*_minor` by currency are minor units of that currency,
    `*_base_minor` minor units of `base_currency`.

    - `ceiling_minor`: the largest refund that needs no person; a currency that is not named
      has none, so every refund in it needs a person.
    - `reasons`: the reason codes an agent may give.
    - `review_beside_open`: ask a person while another action of the order is open.
    - `same_amount_window_seconds`: ask a person when the same amount went out this recently; 0
      switches the rule off.
    - `unsearchable_ceiling_minor`: the ceiling where the provider cannot be searched.
    - `base_currency`, `rate_max_age_days`: what limits are counted in, and how old a day's rate
      may be (a weekend and a holiday have none).
    - `ceiling_by_reason_base_minor`, `ceiling_by_agent_base_minor`: lower ceilings by name.
    - `tiers`, `tier_by_reason`: who decides; the last tier has no end.
    - `reasons_by_agent`, `accounts_by_agent`: what a named agent may give as a reason, and which
      accounts (`stripe:` is the platform's own, `stripe:acct_…` a connected one) it may act on.
    - `velocity`, `budgets`, `goodwill_budgets`: limits; `goodwill_reasons` what the last count.
    - `anomaly_factor`, `anomaly_floor_count`: hold an agent whose last hour has this many times
      its hourly mean of the day before, once the hour has the floor; 0 switches it off.
    - `window_days`, `window_from`, `time_zone`: how many days, the last one included, after
      `placed` or `delivered` a refund needs no person, counted in days of that zone; 0: off.
    - `method_window_days`: how long the provider refunds a payment method.
    - `final_sale_verdict`, `return_reasons`, `return_above_base_minor`: refunds of lines that are
      sold finally, and of goods that should have come back first (None: never asked for).
    - `component_caps`: each line, with its tax, and the shipping have a cap of their own.
    - `risk_review`, `risk_deny`, `risk_required`: what the customer's risk word means.
    - `probation_refunds`: an agent's first refunds all need a person.
    - `order_max_age_seconds`: an order that the merchant stated longer ago is no fact; 0: off.
    - `sample_qa_per_mille`: how many of a thousand allowed refunds are marked for a later look.
    """

    ceiling_minor: dict[str, int]
    reasons: tuple[str, ...]
    review_beside_open: bool = True
    same_amount_window_seconds: int = 72 * 3600
    unsearchable_ceiling_minor: int = 0
    base_currency: str = "USD"
    rate_max_age_days: int = 5
    ceiling_by_reason_base_minor: dict[str, int] = field(default_factory=dict)
    ceiling_by_agent_base_minor: dict[str, int] = field(default_factory=dict)
    tiers: tuple[Tier, ...] = (Tier(tier=1, up_to_base_minor=None),)
    tier_by_reason: dict[str, int] = field(default_factory=dict)
    reasons_by_agent: dict[str, tuple[str, ...]] = field(default_factory=dict)
    accounts_by_agent: dict[str, tuple[str, ...]] = field(default_factory=dict)
    velocity: tuple[Limit, ...] = ()
    budgets: tuple[Limit, ...] = ()
    goodwill_budgets: tuple[Limit, ...] = ()
    goodwill_reasons: tuple[str, ...] = ("goodwill",)
    anomaly_factor: int = 0
    anomaly_floor_count: int = 20
    window_days: int = 0
    window_from: str = "placed"
    time_zone: str = "UTC"
    method_window_days: dict[str, int] = field(default_factory=dict)
    final_sale_verdict: str = "ALLOW"
    return_reasons: tuple[str, ...] = ()
    return_above_base_minor: int | None = None
    component_caps: bool = False
    risk_review: tuple[str, ...] = ()
    risk_deny: tuple[str, ...] = ()
    risk_required: bool = False
    probation_refunds: int = 0
    order_max_age_seconds: int = 0
    sample_qa_per_mille: int = 0

    def reasons_for(self, agent: str) -> tuple[str, ...]:
        """The reasons that an agent may give, in the order of the list."""
        own = self.reasons_by_agent.get(agent, self.reasons)
        return tuple(
            reason for reason in self.reasons if reason in own and reason != NEVER_A_REASON
        )

    def as_json(self) -> dict[str, Any]:
        """Parameters as stored; `from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Parameters from their stored form; a rule that did not exist then is off.

        Raises TypeError or KeyError on other shapes.
        """
        known = {item.name for item in fields(cls)}
        plain: dict[str, Any] = {name: item for name, item in value.items() if name in known}
        if "tiers" in plain:
            plain["tiers"] = tuple(Tier(**item) for item in plain["tiers"])
        for name in ("velocity", "budgets", "goodwill_budgets"):
            if name in plain:
                plain[name] = tuple(Limit(**item) for item in plain[name])
        for name in ("reasons_by_agent", "accounts_by_agent"):
            if name in plain:
                plain[name] = {key: tuple(items) for key, items in plain[name].items()}
        for name in ("reasons", "goodwill_reasons", "return_reasons", "risk_review", "risk_deny"):
            if name in plain:
                plain[name] = tuple(plain[name])
        return cls(**plain)
