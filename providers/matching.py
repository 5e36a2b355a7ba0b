"""Which of the provider's effects is ours? Pure: a listing in, a judgement out.

Refunds of one payment, or store credits of one customer.

The match is by `metadata.action_id` and `metadata.instance`, whatever the key generation. The
instance is part of it because a second installation may share the provider's account. What people
linked carries neither, and is known by its id.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from effects.outcomes import Listing, ProviderEffect
from providers.port import CustomerTotals, PaymentTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """Nothing in the listing carries this action. What that proves is not decided here."""

    strangers: tuple[ProviderEffect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Exactly one match has not failed, and it is what was asked for."""

    effect: ProviderEffect
    strangers: tuple[ProviderEffect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOnly:
    """Every match failed or was cancelled, newest first as the provider listed them."""

    effects: tuple[ProviderEffect, ...]
    strangers: tuple[ProviderEffect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """An incident: a match is not what was asked for. `what`: "amount", "currency", "payment".

    "payment" is what it belongs to, which for a store credit is a customer.
    """

    effect: ProviderEffect
    what: str
    strangers: tuple[ProviderEffect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """An incident: more than one match has not failed. The customer may be paid twice."""

    effects: tuple[ProviderEffect, ...]
    strangers: tuple[ProviderEffect, ...] = ()


Judgement = Absent | Found | FailedOnly | Mismatch | Several


def judge(
    *,
    listing: Listing,
    action_id: str,
    instance: str,
    amount_minor: int,
    currency: str,
    payment_ref: str,
    known_refs: Set[str],
    own_ref: str = "",
    shared: bool = False,
) -> Judgement:
    """Judge one payment's refunds, or one customer's store credits, for one action.

    `payment_ref` is what the effect must belong to: the payment, or the customer. `own_ref` is the
    effect that the action is known by, which is its own whatever it carries; "" when none is.
    `known_refs` are the provider's ids that our records hold for any action of it. Strangers are
    effects that are neither this action's nor known, and have not failed: somebody else gave money
    back, or our records have forgotten that we did. In a `shared` listing, a customer's balance,
    other people's effects are everyday business: only what carries our instance is a stranger
    there.

    1. More than one live match is an incident, however well they match.
    2. One live match must have the amount, currency and payment asked for. An older failed
       generation beside it is history.
    3. With failed matches only, those must be what was asked for as well.
    """
    matches = tuple(
        effect
        for effect in listing.effects
        if (own_ref and effect.ref == own_ref)
        or (
            effect.metadata.get("action_id") == action_id
            and effect.metadata.get("instance") == instance
        )
    )
    strangers = tuple(
        effect
        for effect in listing.effects
        if effect not in matches
        and effect.ref not in known_refs
        and effect.settlement != "failed"
        and (not shared or effect.metadata.get("instance") == instance)
    )
    live = tuple(effect for effect in matches if effect.settlement != "failed")
    if len(live) > 1:
        return Several(effects=live, strangers=strangers)
    for effect in live or matches:
        what = _what_differs(
            effect, amount_minor=amount_minor, currency=currency, payment_ref=payment_ref
        )
        if what:
            return Mismatch(effect=effect, what=what, strangers=strangers)
    if live:
        return Found(effect=live[0], strangers=strangers)
    if matches:
        return FailedOnly(effects=matches, strangers=strangers)
    return Absent(strangers=strangers)


def _what_differs(
    effect: ProviderEffect, *, amount_minor: int, currency: str, payment_ref: str
) -> str:
    if effect.amount_minor != amount_minor:
        return "amount"
    if effect.currency.upper() != currency.upper():
        return "currency"
    if effect.payment_ref != payment_ref:
        return "payment"
    return ""


def unlisted_credit_minor(*, totals: CustomerTotals, listing: Listing, currency: str) -> int:
    """By how much a customer's balance in one currency is not what its listed changes add up to.

    0: the list is complete, since every change of the balance is in it; what it does not show had
    not happened when the balance was read. Anything else proves nothing.
    """
    listed_minor = sum(
        effect.amount_minor for effect in listing.effects if effect.currency.upper() == currency
    )
    return totals.credit_minor.get(currency, 0) - listed_minor


def unlisted_minor(*, totals: PaymentTotals, listing: Listing) -> int:
    """How much of a payment's refunded total no refund in its list explains, at least; 0: none.

    The second look-up: anything above 0 may be the refund that a list does not show. A total that
    still counts refunds that failed late looks the same, and is for a person too. It cannot see a
    pending refund where the provider leaves those out of the total.
    """
    listed_minor = sum(
        effect.amount_minor for effect in listing.effects if effect.settlement != "failed"
    )
    return max(0, totals.refunded_minor - listed_minor)
