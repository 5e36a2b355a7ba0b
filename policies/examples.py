"""Refunds that never happened, to show what a policy would say about them.

They are the same for every policy but for its base currency and its first reason, so that a draft
and the version in force can be laid side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kernel.money import decimals
from policies.decision import Decision
from policies.facts import SCOPES, Facts, OrderLine, OtherAction, RefundLine, Usage
from policies.outcome import outcome, why
from policies.parameters import Parameters
from policies.rules import evaluate

_ACTION = "refund:order-example:request-2"
_OTHER = "refund:order-example:request-1"
# Rates to be imagined, not of any day.
_RATES = {"EUR": "1", "USD": "1.1", "GBP": "0.85", "CAD": "1.5", "AUD": "1.65", "CHF": "0.95",
          "JPY": "160", "SEK": "11"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One imagined refund and what it is an example of."""

    name: str
    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What two policies say about an example; `before` is None where no version is in force."""

    name: str
    amount: str
    before: Decision | None
    after: Decision

    @property
    def outcome_before(self) -> str:
        """In words."""
        return outcome(self.before) if self.before else "REVIEW by 1 of tier 1"

    @property
    def outcome_after(self) -> str:
        """In words."""
        return outcome(self.after)

    @property
    def because(self) -> str:
        """What made the verdict that it would be."""
        return why(self.after)

    @property
    def changed(self) -> bool:
        """Whether the verdict, or who must approve, is another."""
        return self.outcome_before != self.outcome_after


def explain_examples(*, before: Parameters | None, after: Parameters) -> list[Explained]:
    """Every example under both policies. Pure."""
    return [
        Explained(
            name=example.name,
            amount=example.facts.shown(example.facts.amount_minor),
            before=evaluate(example.facts, before) if before else None,
            after=evaluate(example.facts, after),
        )
        for example in examples(like=before or after)
    ]


def examples(*, like: Parameters) -> list[Example]:
    """The fixed set, in the base currency and with the first reason of `like`."""
    unit = 10 ** decimals(like.base_currency)
    usual = _usual(currency=like.base_currency, reason=like.reasons[0], unit=unit)

    def example(name: str, *, units: int | None = None, **facts: Any) -> Example:
        changed = replace(usual, **facts)
        if units is not None:
            changed = _of(changed, units * unit)
        return Example(name=name, facts=changed)

    other_currency = "USD" if like.base_currency == "EUR" else "EUR"
    succeeded = OtherAction(
        action_id=_OTHER, state="SUCCEEDED", amount_minor=usual.amount_minor, age_seconds=3600.0
    )
    return [
        example("small"),
        example("of the usual ceiling", units=100),
        example("a little above it", units=101),
        example("large", units=1_000),
        example("very large", units=10_000),
        example("more than is left", units=20_001),
        example("another currency with a rate of the day", currency=other_currency),
        example("a currency without a rate", currency="XTS"),
        example("when no rate of the last days is known", rates={}, rates_day="",
                rates_age_days=None),
        example("for a reason that is not on the list", reason="no-such-reason"),
        example("as goodwill", reason="goodwill"),
        example("the same amount as an hour ago", others=(succeeded,)),
        example("beside one whose outcome is unknown",
                others=(replace(succeeded, state="UNKNOWN", amount_minor=1),)),
        example("while a case of the order is open", open_cases=1),
        example("while the customer's bank asks", dispute_state="inquiry"),
        example("while the payment is disputed", dispute_state="open"),
        example("400 days after the order", placed_at="2025-05-12T10:00:00+00:00",
                delivered_at="2025-05-17T10:00:00+00:00"),
        example("of goods sold finally",
                order_lines=_lines(usual.captured_minor, final_sale=True)),
        example("of goods that have not come back",
                order_lines=_lines(usual.captured_minor, returned=False)),
        example("for a customer of high risk", customer_risk="high"),
        example("for a customer whose risk is not known", customer_risk=None),
        example("by an agent's first", agent_succeeded=0),
        example("by an agent after 1,000 within the hour",
                usage=_usage(1_000, like.base_currency, 1_000 * usual.amount_minor)),
        example("of a provider that cannot be searched", provider_searchable=False),
        example("while the provider cannot be reached", provider_reachable=False),
        example("while a kill switch is on", switches=("global",)),
    ]  # fmt: skip


def _usual(*, currency: str, reason: str, unit: int) -> Facts:
    """A small refund of an ordinary order, ten days old, by an agent of long standing."""
    captured = 20_000 * unit
    return _of(
        Facts(
            order_id="example",
            order_version=1,
            currency=currency,
            amount_minor=0,
            reason=reason,
            captured_minor=captured,
            refunded_minor=0,
            reserved_minor=0,
            disputed_minor=0,
            settled_otherwise_minor=0,
            own_reservation_minor=0,
            dispute_state="none",
            provider_searchable=True,
            proposer="example",
            action_id=_ACTION,
            account="stripe:",
            decided_at="2026-06-16T10:00:00+00:00",
            placed_at="2026-06-06T10:00:00+00:00",
            delivered_at="2026-06-11T10:00:00+00:00",
            payment_method="card",
            customer_risk="low",
            shipping_minor=0,
            order_lines=_lines(captured),
            agent_succeeded=1_000_000,
            order_age_seconds=60.0,
            usage=_usage(0, currency, 0),
            rates=_RATES,
            rates_day="2026-06-15",
            rates_age_days=1,
        ),
        20 * unit,
    )


def _of(facts: Facts, amount_minor: int) -> Facts:
    """The same facts for another amount, all of it for the order's one line."""
    lines = (RefundLine(line_id="line-1", amount_minor=amount_minor),)
    return replace(facts, amount_minor=amount_minor, lines=lines)


def _lines(amount_minor: int, **line: Any) -> tuple[OrderLine, ...]:
    known = {"final_sale": False, "returned": True} | line
    return (OrderLine(line_id="line-1", amount_minor=amount_minor, **known),)


def _usage(count: int, currency: str, sum_minor: int) -> tuple[Usage, ...]:
    sums = {currency: sum_minor} if sum_minor else {}
    return tuple(
        Usage(scope=scope, window=window, count=count, sums_minor=sums)
        for scope, windows in SCOPES.items()
        for window in windows
    )
