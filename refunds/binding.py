"""What a decision about a refund is bound to, and what differs from it later. Reads no database."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from approvals.standing import Yes
from effects.states import State
from kernel.canonical import canonical_json, sha256_hex
from kernel.money import format_amount
from policies.facts import Facts, OtherAction
from refunds.facts import Beside
from refunds.models import Order, RefundAction

# A sentence names this many other refunds; the balances count all of them.
_NAMED_MAX = 5
_IN_FLIGHT = (State.SUBMITTING, State.UNKNOWN, State.PENDING)


def content_of(*, action: RefundAction, order: Order) -> dict[str, Any]:
    """What exactly is refunded, from the rows as they stand now."""
    return {
        "order_id": order.order_id,
        "request_id": action.request_id,
        "amount_minor": action.amount_minor,
        "currency": action.currency,
        "reason": action.reason,
        "provider": action.provider,
        "account": action.account,
        "payment_ref": order.payment_ref,
        "payload_hash": action.payload_hash,
    }


def hash_of(content: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of what `content_of` returns."""
    return sha256_hex(canonical_json(content))


def binding(*, action: RefundAction, order: Order, facts: Facts, beside: Beside) -> dict[str, Any]:
    """What a decision made now is bound to, as stored on the action and on an approval.

    `elsewhere` are the refunds made elsewhere that were known, `stated` hashes of what the merchant
    states beside money; the rest of the names are those of
    the facts. The order's version is kept beside it, in a column.
    """
    content = content_of(action=action, order=order)
    return {
        "content": content,
        "content_hash": hash_of(content),
        "refundable_minor": facts.refundable_minor,
        "refunded_minor": facts.refunded_minor,
        "in_flight_minor": facts.reserved_minor - facts.own_reservation_minor,
        "own_reservation_minor": facts.own_reservation_minor,
        "settled_otherwise_minor": facts.settled_otherwise_minor,
        "disputed_minor": facts.disputed_minor,
        "dispute_state": facts.dispute_state,
        "captured_minor": facts.captured_minor,
        "policy_version": beside.policy_number,
        "stated": _stated(order=order, facts=facts),
        "elsewhere": [other.action_id for other in beside.others if _is_elsewhere(other)],
    }


# What the merchant states beside money and policy rules look at, and how people call it.
_STATED = {
    "customer": "the order's customer",
    "risk": "the customer's risk",
    "lines": "the order's lines",
    "shipping": "the shipping",
    "placed": "the date of the order",
    "delivered": "the date of the delivery",
    "method": "the payment method",
}


def _stated(*, order: Order, facts: Facts) -> dict[str, str]:
    """Hashes of what the merchant states, to see later that one of them changed."""
    lines = facts.order_lines
    values: dict[str, Any] = {
        "customer": order.customer_ref,
        "risk": facts.customer_risk,
        "lines": None if lines is None else [asdict(line) for line in lines],
        "shipping": facts.shipping_minor,
        "placed": facts.placed_at,
        "delivered": facts.delivered_at,
        "method": facts.payment_method,
    }
    return {name: sha256_hex(canonical_json(value)) for name, value in values.items()}


def what_was_tampered_with(
    *, action: RefundAction, order: Order, bound: tuple[dict[str, Any], ...]
) -> str:
    """What is not what was decided on although no code of ours changes it; "" when nothing is.

    `bound` are the bindings of the decision that is in force. Triggers forbid every one of these
    changes, so whoever made it went round them.
    """
    if sha256_hex(action.payload) != action.payload_hash:
        return "the frozen request does not match its hash"
    wrong = [
        f"the order's {name} is {getattr(order, name)!r}, not {getattr(action, name)!r}"
        for name in ("currency", "provider", "account")
        if getattr(order, name) != getattr(action, name)
    ]
    content = content_of(action=action, order=order)
    now = hash_of(content)
    for one in bound:
        if one.get("content_hash") in (now, None):
            continue
        before = one.get("content", {})
        wrong += [
            f"{name} is {value!r}, not {before.get(name)!r}"
            for name, value in content.items()
            if value != before.get(name)
        ] or ["its content is not what the decision names"]
    return "; ".join(dict.fromkeys(wrong))


def what_changed(
    *, yes: Yes, action: RefundAction, order: Order, facts: Facts, beside: Beside, tier: int
) -> tuple[str, ...]:
    """Everything that differs from what one person approved, as half sentences; () when nothing.

    Compared are the approval's own row and the locked rows, never what the action remembers of it.
    `tier` is what its giver must have.
    """
    differing = []
    if yes.payload_hash != action.payload_hash or "content_hash" not in yes.facts:
        differing.append(f"the approval of {yes.username} was given for another request")
    if yes.tier_now < tier:
        differing.append(f"approver {yes.username} may no longer approve")
    if beside.now >= yes.expires_at:
        differing.append(f"the approval of {yes.username} has expired")
    policy = yes.facts.get("policy_version", 0)
    if policy != beside.policy_number:
        differing.append(f"policy {beside.policy_number} is in force, not {policy}")
    moved = _order_moved(yes=yes, order=order, facts=facts, beside=beside)
    if moved:
        differing.append(moved)
    if facts.amount_minor > facts.refundable_minor:
        left = format_amount(max(facts.refundable_minor, 0), order.currency)
        differing.append(f"only {left} is left of order {order.order_id}")
    return tuple(differing)


def _order_moved(*, yes: Yes, order: Order, facts: Facts, beside: Beside) -> str:
    """How the order differs from the one that was approved."""
    bound = yes.facts
    # Our own reservation moved the version once since then, and changed nothing for anybody.
    own = int(bool(facts.own_reservation_minor) and not bound.get("own_reservation_minor"))
    expected = yes.resource_version + own
    differences = _differences(yes=yes, order=order, facts=facts, beside=beside)
    if order.version != expected:
        why = "; ".join(differences) or "a fact of the order changed"
        return f"order {order.order_id} is at version {order.version}, not {expected}: {why}"
    if differences:
        return f"order {order.order_id} has another balance: {'; '.join(differences)}"
    return ""


def _differences(*, yes: Yes, order: Order, facts: Facts, beside: Beside) -> list[str]:
    bound = yes.facts
    known = set(bound.get("elsewhere", ()))
    since = [
        other
        for other in beside.others
        if (
            other.action_id not in known
            if _is_elsewhere(other)
            else _at(other, now=beside.now) > yes.decided_at
        )
    ]
    refunded = [other for other in since if other.state == State.SUCCEEDED]
    in_flight = [other for other in since if other.state in _IN_FLIGHT]
    failed = [other for other in since if other.state == State.FAILED_FINAL]
    named = [
        _named(other, order=order, now=beside.now) for other in (*refunded, *in_flight, *failed)
    ]
    if len(named) > _NAMED_MAX:
        named[_NAMED_MAX:] = [f"and {len(named) - _NAMED_MAX} more"]
    # What those refunds do not explain is said as a sum, so that nothing goes unsaid.
    unexplained = {
        "refunded": sum(other.amount_minor for other in refunded),
        "in flight": sum(other.amount_minor for other in in_flight),
    }
    for words, before, now in (
        ("refunded", bound.get("refunded_minor", 0), facts.refunded_minor),
        (
            "in flight",
            bound.get("in_flight_minor", 0),
            facts.reserved_minor - facts.own_reservation_minor,
        ),
        (
            "settled otherwise",
            bound.get("settled_otherwise_minor", 0),
            facts.settled_otherwise_minor,
        ),
        ("disputed", bound.get("disputed_minor", 0), facts.disputed_minor),
        ("captured", bound.get("captured_minor", 0), facts.captured_minor),
    ):
        rest = now - before - unexplained.get(words, 0)
        if rest > 0:
            named.append(f"{words} since: {format_amount(rest, order.currency)}")
        elif rest < 0 and not (words == "in flight" and named):
            named.append(f"no longer {words}: {format_amount(-rest, order.currency)}")
    stated, stated_now = bound.get("stated", {}), _stated(order=order, facts=facts)
    named += [
        f"{words} changed"
        for name, words in _STATED.items()
        if stated.get(name) != stated_now[name]
    ]
    if bound.get("dispute_state") != facts.dispute_state:
        named.append(f"the dispute is now {facts.dispute_state}")
    return named


def _is_elsewhere(other: OtherAction) -> bool:
    """Whether a refund beside this one was made elsewhere: it bears the provider's id, not ours."""
    return not other.action_id.startswith("refund:")


def _at(other: OtherAction, *, now: datetime) -> datetime:
    return now - timedelta(seconds=other.age_seconds)


def _named(other: OtherAction, *, order: Order, now: datetime) -> str:
    """One other refund: how much, whose and when, like `30.00 USD refunded by request 2 at …`."""
    amount = format_amount(other.amount_minor, order.currency)
    at = _at(other, now=now)
    when = f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%H:%M} UTC of {at:%Y-%m-%d}"
    if _is_elsewhere(other):
        return f"{amount} refunded elsewhere ({other.action_id}) at {when}"
    request = other.action_id.rpartition(":request-")[2]
    if other.state == State.SUCCEEDED:
        return f"{amount} refunded by request {request} at {when}"
    if other.state == State.FAILED_FINAL:
        return f"{amount} of request {request} failed at {when}"
    return f"{amount} in flight for request {request} since {when}"
