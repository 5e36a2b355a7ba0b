"""The rules: pure functions from facts and parameters to a verdict.

No rule reads a database, a clock or a provider, and none sees a word that a model wrote. Rule
ids are part of the API: agents and people see the same code.
"""

from __future__ import annotations

from collections.abc import Callable

from policies.decision import Decision, RuleResult, Verdict
from policies.facts import Facts
from policies.parameters import Parameters

Rule = Callable[[Facts, Parameters], tuple[Verdict, str]]


def kill_switch(facts: Facts, parameters: Parameters) -> tuple[Verdict, str]:
    """A kill switch that covers the action holds it."""
    if facts.switches:
        return Verdict.HOLD, f"kill switch on: {', '.join(facts.switches)}"
    return Verdict.ALLOW, "no kill switch is on"


def amount_and_currency(facts: Facts, parameters: Parameters) -> tuple[Verdict, str]:
    """The amount is a positive integer. (Its currency was compared when it was proposed.)"""
    if facts.amount_minor <= 0:
        return Verdict.DENY, "the amount is not positive"
    return Verdict.ALLOW, "the amount is explicit and in the order's currency"


def headroom(facts: Facts, parameters: Parameters) -> tuple[Verdict, str]:
    """Never more than captured minus disputed, refunded, in flight and settled otherwise."""
    if facts.amount_minor > facts.refundable_minor:
        in_flight = facts.reserved_minor - facts.own_reservation_minor
        return (
            Verdict.DENY,
            f"{facts.shown(facts.amount_minor)} is more than the "
            f"{facts.shown(max(facts.refundable_minor, 0))} left of "
            f"{facts.shown(facts.captured_minor)} captured "
            f"({facts.shown(facts.refunded_minor)} refunded, {facts.shown(in_flight)} in flight, "
            f"{facts.shown(facts.disputed_minor)} disputed, "
            f"{facts.shown(facts.settled_otherwise_minor)} settled otherwise)",
        )
    return Verdict.ALLOW, "it fits what is left of the captured amount"


def dispute(facts: Facts, parameters: Parameters) -> tuple[Verdict, str]:
    """An open or lost dispute: answer the dispute instead. An inquiry: a person decides."""
    if facts.dispute_state in ("open", "lost"):
        return Verdict.DENY, f"the payment's dispute is {facts.dispute_state}: answer that instead"
    if facts.dispute_state == "inquiry":
        return Verdict.REVIEW, "the customer's bank has asked about this payment"
    return Verdict.ALLOW, "no dispute is open"


def per_refund_ceiling(facts: Facts, parameters: Parameters) -> tuple[Verdict, str]:
    """Above the ceiling of its currency a person decides."""
    ceiling = parameters.ceiling_minor.get(facts.currency)
    if ceiling is None:
        return Verdict.REVIEW, f"no ceiling is set for {facts.currency}"
    if facts.amount_minor > ceiling:
        return Verdict.REVIEW, (
            f"{facts.shown(facts.amount_minor)} is above the ceiling of {facts.shown(ceiling)}"
        )
    return Verdict.ALLOW, f"it is within the ceiling of {facts.shown(ceiling)}"


def reason_allowed(facts: Facts, parameters: Parameters) -> tuple[Verdict, str]:
    """Only reasons on the list. `fraudulent` puts the customer on block lists at Stripe."""
    if facts.reason == "fraudulent":
        return Verdict.DENY, "an agent may not call a customer fraudulent"
    if facts.reason not in parameters.reasons:
        return Verdict.DENY, f"the reason {facts.reason!r} is not on the list"
    return Verdict.ALLOW, "the reason is on the list"


def provider_can_be_searched(facts: Facts, parameters: Parameters) -> tuple[Verdict, str]:
    """Where a lost answer cannot be found out, a person decides above a ceiling of its own."""
    if facts.provider_searchable is None:
        return Verdict.REVIEW, "it is not known whether the provider can be searched"
    if not facts.provider_searchable and facts.amount_minor > parameters.unsearchable_ceiling_minor:
        return Verdict.REVIEW, "a lost answer of this provider could not be found out"
    return Verdict.ALLOW, "a lost answer can be found out"


def beside_open_action(facts: Facts, parameters: Parameters) -> tuple[Verdict, str]:
    """A new request id beside an open action is the commonest way to pay twice."""
    if not parameters.review_beside_open:
        return Verdict.ALLOW, "the merchant allows refunds side by side"
    open_states = ("SUBMITTING", "UNKNOWN", "PENDING", "FAILED_FINAL")
    beside = [other for other in facts.others if other.state in open_states]
    if beside:
        named = ", ".join(f"{other.action_id} is {other.state}" for other in beside[:3])
        return Verdict.REVIEW, f"another refund of this order is open: {named}"
    if facts.open_cases:
        return Verdict.REVIEW, "a case is open on this order"
    return Verdict.ALLOW, "nothing else of this order is open"


def duplicate_suspect(facts: Facts, parameters: Parameters) -> tuple[Verdict, str]:
    """The same amount again soon: legitimate or a duplicate, and only a person can tell."""
    for other in facts.others:
        if (
            other.state == "SUCCEEDED"
            and other.amount_minor == facts.amount_minor
            and other.age_seconds < parameters.same_amount_window_seconds
        ):
            hours = other.age_seconds / 3600
            return (
                Verdict.REVIEW,
                f"{other.action_id} refunded the same amount {hours:.1f} hours ago",
            )
    return Verdict.ALLOW, "no refund of the same amount lately"


RULES: dict[str, Rule] = {
    "kill_switch": kill_switch,
    "amount_explicit": amount_and_currency,
    "headroom": headroom,
    "dispute_block": dispute,
    "per_refund_limit": per_refund_ceiling,
    "reason_allowlist": reason_allowed,
    "provider_searchable": provider_can_be_searched,
    "open_action": beside_open_action,
    "duplicate_suspect": duplicate_suspect,
}


def evaluate(facts: Facts, parameters: Parameters) -> Decision:
    """Run every rule; the most restrictive verdict wins. Pure and total."""
    results = []
    for rule_id, rule in RULES.items():
        verdict, why = rule(facts, parameters)
        results.append(RuleResult(rule=rule_id, verdict=verdict, why=why))
    return Decision(
        verdict=max((result.verdict for result in results), default=Verdict.REVIEW),
        rules=tuple(results),
    )
