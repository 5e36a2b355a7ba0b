"""The rules: pure functions from facts and parameters to a verdict.

No rule reads a database, a clock or a provider, and none sees a word that a model wrote. A rule
that is switched on and misses a fact asks a person. Rule ids are part of the API: agents and
people see the same code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from kernel.money import AMOUNT_MINOR_MAX, format_amount
from policies.components import SHIPPING, asked_by_line, left_by_line, split
from policies.decision import Decision, RuleResult, Verdict
from policies.facts import Facts, OrderLine, OtherAction, Usage
from policies.parameters import NEVER_A_REASON, Limit, Parameters, Tier
from policies.rates import base_amount, base_sum

# What may still pay, or has failed and left a debt open.
OPEN_STATES = (
    "AWAITING_APPROVAL",
    "HELD",
    "SUBMITTING",
    "UNKNOWN",
    "PENDING",
    "FAILED_FINAL",
)

# What these get adds up to one sum for one customer.
_ONE_RECEIVER = ("order", "customer")
_WHO = {
    "agent": "this agent",
    "customer": "this customer",
    "order": "this order",
    "total": "everybody together",
    "goodwill_agent": "this agent, for goodwill,",
    "goodwill_total": "everybody together, for goodwill,",
}
_WHEN = {
    "hour": "within an hour",
    "day": "within 24 hours",
    "30_days": "within 30 days",
    "365_days": "within 365 days",
    "ever": "in all",
}


class Said(NamedTuple):
    """What one rule says; `policies.decision.RuleResult` without the rule's name."""

    verdict: Verdict
    why: str
    tier: int = 0
    related: tuple[str, ...] = ()
    tag: str = ""


Rule = Callable[[Facts, Parameters], Said]


def _allow(why: str) -> Said:
    return Said(Verdict.ALLOW, why)


def _review(why: str, *, tier: int = 1, related: Iterable[OtherAction] = ()) -> Said:
    return Said(Verdict.REVIEW, why, tier, tuple(other.action_id for other in related))


def _hold(why: str) -> Said:
    return Said(Verdict.HOLD, why)


def _deny(why: str) -> Said:
    return Said(Verdict.DENY, why)


# -- the action, its agent and its payment --------------------------------------------------------


def kill_switch(facts: Facts, parameters: Parameters) -> Said:
    """A kill switch that covers the action holds it."""
    if facts.switches:
        return _hold(f"kill switch on: {', '.join(facts.switches)}")
    return _allow("no kill switch is on")


def agent_scope(facts: Facts, parameters: Parameters) -> Said:
    """An agent that is bound to accounts refunds payments of no other."""
    accounts = parameters.accounts_by_agent.get(facts.proposer)
    if accounts is None:
        return _allow("this agent is bound to no account")
    if not facts.account:
        return _review("it is not known which account was paid")
    if facts.account not in accounts:
        return _deny("this agent may not act on the account that was paid")
    return _allow("this agent may act on the account that was paid")


def amount_and_currency(facts: Facts, parameters: Parameters) -> Said:
    """The amount is a positive integer. (Its currency was compared when it was proposed.)"""
    if facts.amount_minor <= 0:
        return _deny("the amount is not positive")
    return _allow("the amount is explicit and in the order's currency")


def charge_state(facts: Facts, parameters: Parameters) -> Said:
    """Only what was captured can be refunded; an authorisation is cancelled instead."""
    if facts.captured_minor <= 0:
        return _deny("nothing was captured")
    return _allow("the payment was captured")


def headroom(facts: Facts, parameters: Parameters) -> Said:
    """Never more than captured minus disputed, refunded, in flight and settled otherwise."""
    if facts.amount_minor > facts.refundable_minor:
        in_flight = facts.reserved_minor - facts.own_reservation_minor
        return _deny(
            f"{facts.shown(facts.amount_minor)} is more than the "
            f"{facts.shown(max(facts.refundable_minor, 0))} left of "
            f"{facts.shown(facts.captured_minor)} captured "
            f"({facts.shown(facts.refunded_minor)} refunded, {facts.shown(in_flight)} in flight, "
            f"{facts.shown(facts.disputed_minor)} disputed, "
            f"{facts.shown(facts.settled_otherwise_minor)} settled otherwise)"
        )
    return _allow("it fits what is left of the captured amount")


def dispute(facts: Facts, parameters: Parameters) -> Said:
    """An open or lost dispute: answer the dispute instead. An inquiry: a person decides."""
    if facts.dispute_state in ("open", "lost"):
        return _deny(f"the payment's dispute is {facts.dispute_state}: answer that instead")
    if facts.dispute_state == "inquiry":
        return _review("the customer's bank has asked about this payment")
    if facts.dispute_state not in ("none", "won"):
        return _review("it is not known whether the payment is disputed")
    return _allow("no dispute is open")


def facts_reachable(facts: Facts, parameters: Parameters) -> Said:
    """While the provider cannot be read nothing is decided."""
    if not facts.provider_reachable:
        return _hold("the provider cannot be read now")
    return _allow("the provider can be read")


# -- how much -------------------------------------------------------------------------------------


def exchange_rate(facts: Facts, parameters: Parameters) -> Said:
    """What the policy counts in its base currency needs the day's rate; without one a person
    decides."""
    if not _counts_in_base(parameters):
        return _allow("nothing is counted in another currency")
    if base_amount(facts, parameters) is None:
        return _review(
            f"no rate of the last {parameters.rate_max_age_days} days from {facts.currency} "
            f"to {parameters.base_currency}"
        )
    return _allow(f"the amount is known in {parameters.base_currency}")


def _counts_in_base(parameters: Parameters) -> bool:
    limits = (*parameters.velocity, *parameters.budgets, *parameters.goodwill_budgets)
    return bool(
        len(parameters.tiers) > 1
        or parameters.ceiling_by_reason_base_minor
        or parameters.ceiling_by_agent_base_minor
        or parameters.return_above_base_minor is not None
        or any(_counts_money(limit) for limit in limits)
    )


def per_refund_ceiling(facts: Facts, parameters: Parameters) -> Said:
    """Above the ceiling of its currency, its reason or its agent a person decides."""
    tier = tier_of(facts, parameters).tier
    ceiling = parameters.ceiling_minor.get(facts.currency)
    if ceiling is None:
        return _review(f"no ceiling is set for {facts.currency}", tier=tier)
    if facts.amount_minor > ceiling:
        return _review(
            f"{facts.shown(facts.amount_minor)} is above the ceiling of {facts.shown(ceiling)}",
            tier=tier,
        )
    base_minor = base_amount(facts, parameters)
    for whose, ceiling_minor in (
        ("reason", parameters.ceiling_by_reason_base_minor.get(facts.reason)),
        ("agent", parameters.ceiling_by_agent_base_minor.get(facts.proposer)),
    ):
        if ceiling_minor is None:
            continue
        shown = format_amount(ceiling_minor, parameters.base_currency)
        if base_minor is None:
            return _review(
                f"it cannot be compared with the ceiling of {shown} of its {whose}", tier=tier
            )
        if base_minor > ceiling_minor:
            return _review(
                f"{format_amount(base_minor, parameters.base_currency)} is above the ceiling of "
                f"{shown} of its {whose}",
                tier=tier,
            )
    return _allow(f"it is within the ceiling of {facts.shown(ceiling)}")


def four_eyes(facts: Facts, parameters: Parameters) -> Said:
    """What two people must approve, no policy allows by itself."""
    tier = tier_of(facts, parameters)
    if tier.people > 1:
        return _review(f"{tier.people} people of tier {tier.tier} must approve it", tier=tier.tier)
    return _allow("one person would be enough")


def velocity(facts: Facts, parameters: Parameters) -> Said:
    """How many refunds, and of how much, an agent, a customer or an order may have in a while."""
    return _within_all(facts, parameters, parameters.velocity)


def budget(facts: Facts, parameters: Parameters) -> Said:
    """What one agent, and all together, may refund in a while."""
    return _within_all(facts, parameters, parameters.budgets)


def goodwill_budget(facts: Facts, parameters: Parameters) -> Said:
    """What may be given for goodwill in a while."""
    if facts.reason not in parameters.goodwill_reasons:
        return _allow("it is not given for goodwill")
    return _within_all(facts, parameters, parameters.goodwill_budgets)


def _within_all(facts: Facts, parameters: Parameters, limits: tuple[Limit, ...]) -> Said:
    """The most restrictive of some limits, with every sentence of that verdict."""
    if not limits:
        return _allow("no limit is set")
    said = [one for limit in limits for one in _above(facts, parameters, limit)]
    if not said:
        return _allow("it is within every limit")
    verdict = max(one.verdict for one in said)
    why = "; ".join(one.why for one in said if one.verdict is verdict)
    if verdict is Verdict.HOLD:
        return _hold(why)
    return _review(why, tier=max(one.tier for one in said))


def _above(facts: Facts, parameters: Parameters, limit: Limit) -> list[Said]:
    """Which figures of one limit this refund would pass, or what is missing to say so."""
    used = f"{_WHO[limit.scope]} {_WHEN[limit.window]}"
    usage = _usage(facts, limit.scope, limit.window)
    if usage is None or (limit.scope == "customer" and not facts.customer_known):
        return [_review(f"it is not known what was refunded by or for {used}")]
    count = usage.count + 1
    said = _compared(
        count, limit.review_count, limit.hold_count, used=used, shown=lambda n: f"{n} refunds"
    )
    if not _counts_money(limit):
        return said
    amount = base_amount(facts, parameters)
    others = base_sum(usage.sums_minor, facts, parameters)
    if amount is None or others is None:
        return [*said, _review(f"no rate of the day for what was refunded by or for {used}")]
    money = _compared(
        amount + others,
        limit.review_base_minor,
        limit.hold_base_minor,
        used=used,
        shown=lambda minor: format_amount(minor, parameters.base_currency),
    )
    if limit.scope in _ONE_RECEIVER:
        # In parts or as one: whoever may not decide the sum may not decide its last part.
        tier = tier_for(base_minor=amount + others, reason=facts.reason, parameters=parameters).tier
        money = [one._replace(tier=tier) for one in money]
    return [*said, *money]


def _compared(
    value: int, review: int | None, hold: int | None, *, used: str, shown: Callable[[int], str]
) -> list[Said]:
    for limit, say in ((hold, _hold), (review, _review)):
        if limit is not None and value > limit:
            return [say(f"{shown(value)} of {used} are above the limit of {shown(limit)}")]
    return []


def _counts_money(limit: Limit) -> bool:
    return limit.review_base_minor is not None or limit.hold_base_minor is not None


def _usage(facts: Facts, scope: str, window: str) -> Usage | None:
    return next((u for u in facts.usage if u.scope == scope and u.window == window), None)


def anomaly(facts: Facts, parameters: Parameters) -> Said:
    """An agent whose last hour is far above its hours of the day before has gone wild: hold."""
    if not parameters.anomaly_factor:
        return _allow("no anomaly is looked for")
    hour, day = _usage(facts, "agent", "hour"), _usage(facts, "agent", "day")
    if hour is None or day is None:
        return _review("it is not known how much this agent proposed lately")
    now = hour.count + 1
    before = max(day.count - hour.count, 0)
    # The mean of the 23 hours before, compared without a division.
    if now >= parameters.anomaly_floor_count and now * 23 >= parameters.anomaly_factor * before:
        return _hold(
            f"this agent proposed {now} refunds within an hour and {before} in the 23 hours before"
        )
    return _allow("this agent proposes about as much as before")


# -- why, and when --------------------------------------------------------------------------------


def reason_allowed(facts: Facts, parameters: Parameters) -> Said:
    """Only reasons on the list, and on the agent's own where it has one. `fraudulent` puts the
    customer on block lists at Stripe."""
    if facts.reason == NEVER_A_REASON:
        return _deny("an agent may not call a customer fraudulent")
    if facts.reason not in parameters.reasons:
        return _deny(f"the reason {facts.reason!r} is not on the list")
    own = parameters.reasons_by_agent.get(facts.proposer)
    if own is not None and facts.reason not in own:
        return _deny(f"the reason {facts.reason!r} is not on this agent's list")
    return _allow("the reason is on the list")


def window_days(facts: Facts, parameters: Parameters) -> Said:
    """A number of days of the merchant's calendar after the order, the last one included."""
    if not parameters.window_days:
        return _allow("no window is set")
    zone = ZoneInfo(parameters.time_zone)
    since = facts.delivered_at if parameters.window_from == "delivered" else facts.placed_at
    first, today = _day(since, zone), _day(facts.decided_at, zone)
    if first is None or today is None:
        return _review(f"it is not known when the order was {parameters.window_from}")
    days = (today - first).days
    if not 0 <= days <= parameters.window_days:
        return _review(
            f"the order was {parameters.window_from} {days} days ago, and the window is "
            f"{parameters.window_days} days"
        )
    return _allow(f"it is within {parameters.window_days} days")


def method_window(facts: Facts, parameters: Parameters) -> Said:
    """What the payment method's network no longer refunds needs another way."""
    if not parameters.method_window_days:
        return _allow("no payment method has a window")
    if not facts.payment_method:
        return _review("it is not known how the order was paid")
    days = parameters.method_window_days.get(facts.payment_method)
    if days is None:
        return _allow("this payment method has no window")
    placed, now = _moment(facts.placed_at), _moment(facts.decided_at)
    if placed is None or now is None:
        return _review("it is not known when the order was placed")
    if not timedelta() <= now - placed <= timedelta(days=days):
        return _review(f"{facts.payment_method} refunds for {days} days after the payment")
    return _allow("the payment method still refunds")


def _moment(text: str | None) -> datetime | None:
    """An RFC 3339 time; None where there is none or it has no offset."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _day(text: str | None, zone: ZoneInfo) -> date | None:
    """The calendar day of a moment in a zone."""
    moment = _moment(text)
    try:
        return moment.astimezone(zone).date() if moment else None
    except OverflowError:
        return None


# -- what, and for whom ---------------------------------------------------------------------------


def final_sale(facts: Facts, parameters: Parameters) -> Said:
    """Lines that were sold finally. Where a merchant marks no line of an order, none was."""
    verdict = Verdict[parameters.final_sale_verdict]
    if verdict is Verdict.ALLOW:
        return _allow("final sales are refunded like others")
    if all(line.final_sale is None for line in facts.order_lines or ()):
        return _allow("no line of the order is marked as sold finally or not")
    marks = [line.final_sale if line else None for line in _refunded_lines(facts)]
    if True in marks and facts.lines:
        return Said(verdict, "a line was sold finally", int(verdict is Verdict.REVIEW))
    if True in marks:
        return _review("a line of the order was sold finally, and the refund names no lines")
    if None in marks:
        return _review("it is not known of every line whether it was sold finally")
    return _allow("no line was sold finally")


def return_evidence(facts: Facts, parameters: Parameters) -> Said:
    """For some reasons, and above an amount, the goods come back first."""
    above = parameters.return_above_base_minor
    if above is None or facts.reason not in parameters.return_reasons:
        return _allow("nothing has to come back first")
    base_minor = base_amount(facts, parameters)
    if base_minor is not None and base_minor <= above:
        return _allow("for this amount nothing has to come back")
    marks = [line.returned if line else None for line in _refunded_lines(facts)]
    if False in marks:
        return _review("the goods have not come back")
    if None in marks or facts.order_lines is None:
        return _review("it is not known of every line whether it came back")
    return _allow("the goods have come back")


def _refunded_lines(facts: Facts) -> list[OrderLine | None]:
    """The order's lines that the refund is about: those it names (None: unknown), or all."""
    lines = {line.line_id: line for line in facts.order_lines or ()}
    if not facts.lines:
        return list(lines.values())
    return [lines.get(part.line_id) for part in facts.lines if part.line_id != SHIPPING]


def component_caps(facts: Facts, parameters: Parameters) -> Said:
    """No line, with its tax, and no shipping is refunded twice; the lines are the whole refund."""
    if not parameters.component_caps:
        return _allow("lines have no caps of their own")
    if not facts.lines:
        if facts.amount_minor == facts.refundable_minor:
            return _allow("it is all that is left of the order")
        return _review("it names no lines, and it is not all that is left of the order")
    asked, left = asked_by_line(facts), left_by_line(facts)
    if any(part.amount_minor <= 0 for part in facts.lines):
        return _deny("a line's amount is not positive")
    if sum(asked.values()) != facts.amount_minor:
        return _deny(
            f"its lines are {facts.shown(sum(asked.values()))} and not "
            f"{facts.shown(facts.amount_minor)}"
        )
    over = sorted(
        line_id for line_id in asked if line_id in left and asked[line_id] > left[line_id]
    )
    if over:
        return _deny(
            "; ".join(
                f"{facts.shown(asked[line_id])} is more than the "
                f"{facts.shown(max(left[line_id], 0))} left of line {line_id}"
                for line_id in sorted(over)
            )
        )
    if facts.order_lines is None:
        return _review("it is not known which lines the order has")
    unknown = asked.keys() - left.keys()
    if unknown - {SHIPPING}:
        return _deny("it names a line that the order does not have")
    if unknown:
        return _review("it is not known what the shipping was")
    parts = split(facts)
    return _allow(
        f"every line has it left: {facts.shown(sum(part.net_minor for part in parts))} and "
        f"{facts.shown(sum(part.tax_minor for part in parts))} tax"
    )


def customer_risk(facts: Facts, parameters: Parameters) -> Said:
    """What the merchant's own word about the customer's risk means."""
    if facts.customer_risk is None:
        if parameters.risk_required:
            return _review("the customer's risk is not known")
        return _allow("nothing is said about the customer's risk")
    if facts.customer_risk in parameters.risk_deny:
        return _deny(f"the customer's risk is {facts.customer_risk}")
    if facts.customer_risk in parameters.risk_review:
        return _review(f"the customer's risk is {facts.customer_risk}")
    return _allow("the customer's risk is accepted")


def agent_probation(facts: Facts, parameters: Parameters) -> Said:
    """An agent's first refunds all need a person."""
    if not parameters.probation_refunds:
        return _allow("agents have no probation")
    if facts.agent_succeeded is None:
        return _review("it is not known how many refunds of this agent succeeded")
    if facts.agent_succeeded < parameters.probation_refunds:
        return _review(
            f"{facts.agent_succeeded} refunds of this agent succeeded, of the first "
            f"{parameters.probation_refunds}"
        )
    return _allow("this agent's probation is over")


# -- what stands beside it ------------------------------------------------------------------------


def provider_can_be_searched(facts: Facts, parameters: Parameters) -> Said:
    """Where a lost answer cannot be found out, a person decides above a ceiling of its own."""
    if facts.provider_searchable is None:
        return _review("it is not known whether the provider can be searched")
    if not facts.provider_searchable and facts.amount_minor > parameters.unsearchable_ceiling_minor:
        return _review("a lost answer of this provider could not be found out")
    return _allow("a lost answer can be found out")


def beside_open_action(facts: Facts, parameters: Parameters) -> Said:
    """A new request id beside an open action is the commonest way to pay twice."""
    if not parameters.review_beside_open:
        return _allow("the merchant allows refunds side by side")
    beside = [other for other in facts.others if other.state in OPEN_STATES]
    if beside:
        named = ", ".join(f"{other.action_id} is {other.state}" for other in beside[:3])
        return _review(f"another refund of this order is open: {named}", related=beside)
    if facts.open_cases:
        return _review("a case is open on this order")
    return _allow("nothing else of this order is open")


def duplicate_suspect(facts: Facts, parameters: Parameters) -> Said:
    """The same amount, or the same line, again soon: legitimate or a duplicate, and only a person
    can tell."""
    window_seconds = parameters.same_amount_window_seconds
    named = {part.line_id for part in facts.lines}
    alike = [
        other
        for other in facts.others
        if (other.amount_minor == facts.amount_minor or not named.isdisjoint(other.line_ids))
        and window_seconds
        and (
            other.state in OPEN_STATES
            or (other.state == "SUCCEEDED" and other.age_seconds < window_seconds)
        )
    ]
    if not alike:
        return _allow("no refund of the same amount or line lately")
    first = alike[0]
    same = "same amount" if first.amount_minor == facts.amount_minor else "same line"
    if first.state == "SUCCEEDED":
        why = f"{first.action_id} refunded the {same} {first.age_seconds / 3600:.1f} hours ago"
    else:
        why = f"{first.action_id}, of the {same}, is {first.state}"
    return _review(why, related=alike)


def stale_evidence(facts: Facts, parameters: Parameters) -> Said:
    """An order that the merchant stated too long ago is stated again before it is refunded."""
    if not parameters.order_max_age_seconds:
        return _allow("an order may have been stated at any time")
    if facts.order_age_seconds is None:
        return _review("it is not known when the merchant stated the order")
    if facts.order_age_seconds > parameters.order_max_age_seconds:
        return _review(
            f"the merchant stated the order {facts.order_age_seconds:.0f} seconds ago, more than "
            f"{parameters.order_max_age_seconds}"
        )
    return _allow("the merchant stated the order lately")


def sample_qa(facts: Facts, parameters: Parameters) -> Said:
    """Some refunds, the same whenever it is asked, are marked for a person to look at later."""
    digest = hashlib.sha256(facts.action_id.encode()).digest()
    if int.from_bytes(digest[:8]) % 1000 < parameters.sample_qa_per_mille:
        return Said(Verdict.ALLOW, "it is marked for a later look", tag="qa_sample")
    return _allow("it is not in the sample")


RULES: dict[str, Rule] = {
    "kill_switch": kill_switch,
    "agent_scope": agent_scope,
    "amount_explicit": amount_and_currency,
    "charge_state": charge_state,
    "headroom": headroom,
    "dispute_block": dispute,
    "facts_reachable": facts_reachable,
    "exchange_rate": exchange_rate,
    "per_refund_limit": per_refund_ceiling,
    "four_eyes": four_eyes,
    "velocity": velocity,
    "budget": budget,
    "goodwill_budget": goodwill_budget,
    "anomaly": anomaly,
    "reason_allowlist": reason_allowed,
    "window_days": window_days,
    "method_window": method_window,
    "final_sale": final_sale,
    "return_evidence": return_evidence,
    "component_caps": component_caps,
    "customer_risk": customer_risk,
    "agent_probation": agent_probation,
    "provider_searchable": provider_can_be_searched,
    "open_action": beside_open_action,
    "duplicate_suspect": duplicate_suspect,
    "stale_evidence": stale_evidence,
    "sample_qa": sample_qa,
}


def tier_for(*, base_minor: int | None, reason: str, parameters: Parameters) -> Tier:
    """Who decides about an amount for a reason. Without an amount: as about the largest."""
    by_amount = next(
        (
            tier
            for tier in parameters.tiers
            if tier.up_to_base_minor is None
            or (base_minor is not None and base_minor <= tier.up_to_base_minor)
        ),
        parameters.tiers[-1],
    )
    by_reason = parameters.tier_by_reason.get(reason, by_amount.tier)
    return _tier(max(by_amount.tier, by_reason), parameters)


def tier_of(facts: Facts, parameters: Parameters) -> Tier:
    """Who decides about a refund by its amount and reason alone."""
    return tier_for(
        base_minor=base_amount(facts, parameters), reason=facts.reason, parameters=parameters
    )


def _tier(number: int, parameters: Parameters) -> Tier:
    """The first row of the table that is enough; the last where none is."""
    return next((row for row in parameters.tiers if row.tier >= number), parameters.tiers[-1])


def evaluate(facts: Facts, parameters: Parameters) -> Decision:
    """Run every rule; the most restrictive verdict wins. Pure and total."""
    results = tuple(
        RuleResult(rule=rule_id, **rule(facts, parameters)._asdict())
        for rule_id, rule in RULES.items()
    )
    asked = max(result.tier for result in results)
    tier = _tier(max(asked, tier_of(facts, parameters).tier), parameters)
    base_minor = base_amount(facts, parameters)
    return Decision(
        verdict=max(result.verdict for result in results),
        rules=results,
        tier=tier.tier,
        people=tier.people,
        # Beyond this no figure is exact everywhere that it is shown.
        base_minor=None if base_minor is None or base_minor > AMOUNT_MINOR_MAX else base_minor,
        base_currency=parameters.base_currency,
    )
