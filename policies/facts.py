"""What a decision is made on: plain values, kept whole in the decision's record and read back.

`None` means that a fact is missing, which is a person's business; `reachable=False` that it could
not be asked now, which holds the action. No word that a model wrote is among them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from kernel.money import format_amount

# The windows that usage is counted in. They are fixed, so that a decision's record holds all of
# them and a draft with other limits can be replayed on it.
WINDOWS_SECONDS: dict[str, int | None] = {
    "hour": 3600,
    "day": 24 * 3600,
    "30_days": 30 * 24 * 3600,
    "365_days": 365 * 24 * 3600,
    "ever": None,
}
# Which windows are counted for whom. (Nobody counts every refund of a year at each proposal.)
SCOPES: dict[str, tuple[str, ...]] = {
    "agent": ("hour", "day"),
    "customer": ("30_days", "365_days"),
    "order": ("ever",),
    "total": ("hour", "day"),
    "goodwill_agent": ("30_days",),
    "goodwill_total": ("30_days",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherAction:
    """Another action of the same order, as the rules need it. `age_seconds` since it ended."""

    action_id: str
    state: str
    amount_minor: int
    age_seconds: float
    line_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderLine:
    """One line of the order as the merchant states it. The amount is without its tax."""

    line_id: str
    amount_minor: int
    tax_minor: int = 0
    final_sale: bool | None = None
    returned: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundLine:
    """Which line a part of the refund is for; `shipping` is the order's shipping."""

    line_id: str
    amount_minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How much was used of one scope in one window, this action itself left out.

    `count` are proposals (not rejected, withdrawn or expired), `sums_minor` the money that was
    authorised and has not failed, reservations included, in minor units by currency.
    """

    scope: str
    window: str
    count: int
    sums_minor: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a group of facts comes from and how old it was when it was read."""

    name: str
    read_from: str
    age_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything a decision is made on, read in one transaction under the order's lock.

    Amounts are minor units of `currency`. `switches` are the scopes of kill switches that cover
    this action and are on. `decided_at`, `placed_at` and `delivered_at` are RFC 3339 times.
    `rates` gives units of each currency for one unit of the reference currency of `rates_day`
    (decimal text); `order_lines` is None when the merchant has named none.
    """

    order_id: str
    order_version: int
    currency: str
    amount_minor: int
    reason: str
    captured_minor: int
    refunded_minor: int
    reserved_minor: int
    disputed_minor: int
    settled_otherwise_minor: int
    own_reservation_minor: int
    dispute_state: str
    provider_searchable: bool | None
    proposer: str
    switches: tuple[str, ...] = ()
    open_cases: int = 0
    others: tuple[OtherAction, ...] = ()
    action_id: str = ""
    account: str = ""
    decided_at: str = ""
    provider_reachable: bool = True
    placed_at: str | None = None
    delivered_at: str | None = None
    payment_method: str = ""
    customer_known: bool = True
    customer_risk: str | None = None
    shipping_minor: int | None = None
    order_lines: tuple[OrderLine, ...] | None = None
    lines: tuple[RefundLine, ...] = ()
    lines_refunded_minor: dict[str, int] = field(default_factory=dict)
    agent_succeeded: int | None = None
    order_age_seconds: float | None = None
    usage: tuple[Usage, ...] = ()
    rates: dict[str, str] = field(default_factory=dict)
    rates_day: str = ""
    rates_age_days: int | None = None
    sources: tuple[Source, ...] = ()

    @property
    def refundable_minor(self) -> int:
        """What is left to send, this action's own reservation given back to it."""
        return (
            self.captured_minor
            - self.disputed_minor
            - self.refunded_minor
            - self.reserved_minor
            - self.settled_otherwise_minor
            + self.own_reservation_minor
        )

    def shown(self, amount_minor: int) -> str:
        """An amount as the people who read the decision write it."""
        return format_amount(amount_minor, self.currency)

    def as_json(self) -> dict[str, Any]:
        """The facts for the decision's record; `from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Facts out of a decision's record. What an older version did not record is missing.

        Raises TypeError or KeyError on other shapes.
        """
        known = {item.name for item in fields(cls)}
        plain: dict[str, Any] = {name: item for name, item in value.items() if name in known}
        plain["switches"] = tuple(plain.get("switches", ()))
        for name, of in (
            ("others", OtherAction),
            ("lines", RefundLine),
            ("usage", Usage),
            ("sources", Source),
            ("order_lines", OrderLine),
        ):
            if plain.get(name) is not None:
                plain[name] = tuple(_read(of, item) for item in plain[name])
        return cls(**plain)


def _read(of: type[Any], value: dict[str, Any]) -> Any:
    if of is OtherAction:
        value = {**value, "line_ids": tuple(value.get("line_ids", ()))}
    return of(**value)
