"""Orders out of the provider's own payments: what was captured and refunded is what it shows.

It states nothing for the merchant: where the merchant has stated the order, only the totals are
compared with it, and nothing of what the merchant said is changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from django.conf import settings
from django.db import transaction

from effects.clock import database_now
from effects.outcomes import Listing, LookUp, Unreadable
from effects.send import refuse_open_transaction
from kernel.errors import InvalidInput
from providers.port import ListedPayment
from providers.registry import payment_provider
from refunds.elsewhere import book_elsewhere
from refunds.models import Order
from refunds.orders import SOURCE_VERSION_OF_PROVIDER, Mirrored, OrderFacts, mirror_order
from refunds.shown import write_shown

# What an order's columns hold. A customer's e-mail and method that do not fit are left out.
_EMAIL = re.compile(r"[^@\s\x00-\x1f\x7f]+@[^@\s\x00-\x1f\x7f]+")
_EMAIL_CHARACTERS_MAX = 254
_METHOD = re.compile(r"[A-Za-z0-9_.-]{1,40}")

Became = Literal["created", "changed", "unchanged", "older"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedPayment:
    """What became of a payment. `older`: the merchant has stated the order, and that stays.

    `differs`: what was stated is not what the provider shows; a case says so.
    """

    order: Order
    became: Became
    differs: bool


def import_payment(
    *,
    payment: ListedPayment,
    provider: str,
    account: str,
    order_id: str,
    read_at: datetime,
    actor: str,
) -> ImportedPayment | Unreadable:
    """Mirror the order that a payment was made for, and compare it. No transaction may be open.

    `read_at` is database time just before the payment was read. Where an order is new here and
    something of its payment went back before, the refunds are listed first and booked as made
    elsewhere; Unreadable: they could not be, nothing is written. Raises InvalidInput, and writes
    nothing, for an order id that is none, and for a second payment of an order: one order has one.
    """
    refuse_open_transaction()
    totals = payment.totals
    look: LookUp | None = None
    if totals.refunded_minor and not Order.objects.filter(order_id=order_id).exists():
        look = payment_provider(provider).list_refunds(
            payment_ref=totals.payment_ref, account=account
        )
        if isinstance(look, Unreadable):
            return look
    facts = OrderFacts(
        order_id=order_id,
        currency=totals.currency,
        captured_minor=totals.captured_minor,
        provider=provider,
        payment_ref=totals.payment_ref,
        account=account,
        payment_method=payment.method if _METHOD.fullmatch(payment.method) else "",
        customer_ref=totals.customer_ref[:80],
        customer_email=_email(payment.customer_email),
        placed_at=payment.created_at,
        source_version=SOURCE_VERSION_OF_PROVIDER,
    )
    with transaction.atomic():
        _refuse_second_payment(facts)
        mirrored = mirror_order(facts=facts, actor=actor)
        order, now = mirrored.order, database_now()
        if mirrored.created and isinstance(look, Listing):
            _book_past(order=order, look=look, now=now)
        differs = write_shown(order=order, totals=totals, read_at=read_at, now=now)
    return ImportedPayment(order=order, became=became(mirrored), differs=differs)


def _book_past(*, order: Order, look: Listing, now: datetime) -> None:
    """Count what went back before the order was known here.

    Not what this installation made itself, and a database has forgotten: its action adopts that
    when it is proposed again, and until then it is a difference, which is a person's. When the
    payment was read is not noted either, so that the first send looks.
    """
    past = [
        effect
        for effect in look.effects
        if effect.settlement != "failed" and effect.metadata.get("instance") != settings.INSTANCE
    ]
    if book_elsewhere(order=order, action=None, refunds=past, now=now):
        order.updated_at = now
        order.save(update_fields=["refunded_minor", "version", "updated_at"])


def became(mirrored: Mirrored) -> Became:
    """What a statement did, as one word."""
    if mirrored.created:
        return "created"
    if mirrored.older:
        return "older"
    return "changed" if mirrored.changed else "unchanged"


def _refuse_second_payment(facts: OrderFacts) -> None:
    """Raise InvalidInput where the order is there with another payment, and lock it."""
    order = (
        Order.objects.select_for_update(no_key=True)
        .filter(order_id=facts.order_id)
        .only("payment_ref", "account")
        .first()
    )
    if order is None or (order.payment_ref, order.account) == (facts.payment_ref, facts.account):
        return
    where = f" in the account {order.account}" if order.account else ""
    raise InvalidInput(
        field="order_id",
        reason=f"names order {order.order_id}, which was paid with {order.payment_ref}{where}; an "
        "order has one payment here",
    )


def _email(email: str) -> str:
    """The e-mail, if it is one that the door would take."""
    fits = len(email) <= _EMAIL_CHARACTERS_MAX and _EMAIL.fullmatch(email)
    return email if fits else ""
