"""Mirroring a merchant's order: what was captured, with which payment, for whom."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import transaction

from effects.clock import database_now
from kernel.errors import InvalidInput
from kernel.identity import require_identifier
from kernel.money import AMOUNT_MINOR_MAX, require_currency
from refunds.models import Order, RefundEvent
from refunds.overdrawn import open_overdrawn_order

# What decisions are made on, so that a change of it makes them stale. The rest (an address) is for
# people to read.
_DECIDED_ON = ("captured_minor", "placed_at", "payment_method", "customer_ref", "details")
_IMMUTABLE_ONCE_USED = ("currency", "provider", "account", "payment_ref")
# Which payment it is: another one was never read.
_PAYMENT = ("provider", "account", "payment_ref")
_UNREAD: dict[str, Any] = {
    "shown_captured_minor": None,
    "shown_refunded_minor": None,
    "shown_currency": "",
    "shown_at": None,
}
# What the provider can contradict.
_COMPARED = ("captured_minor", *_IMMUTABLE_ONCE_USED)
# What the provider shows is no statement of the merchant, whose versions begin at 0: it never
# overwrites one, and any of them overwrites it.
SOURCE_VERSION_OF_PROVIDER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFacts:
    """One order as the merchant's system states it. Amounts are minor units of `currency`.

    `source_version` orders the merchant's own statements: an older one never overwrites a newer.
    `details` holds further facts (lines, shipping, risk) as JSON for the policy.
    """

    order_id: str
    currency: str
    captured_minor: int
    provider: str
    payment_ref: str
    account: str = ""
    payment_method: str = ""
    customer_ref: str = ""
    customer_email: str = ""
    placed_at: datetime | None = None
    source_version: int = 0
    details: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """The order as it stands now; `created` for a new one, `changed` when anything was written.

    `older`: nothing was, because a newer statement is there.
    """

    order: Order
    created: bool
    changed: bool
    older: bool = False


def mirror_order(*, facts: OrderFacts, actor: str) -> Mirrored:
    """Write what the merchant says about an order, idempotently. One transaction.

    1. Lock the order, or insert it.
    2. A statement older than the one we have changes nothing.
    3. Payment, account and currency are immutable once a refund of the order exists: another
       value raises InvalidInput and nothing is written.
    4. A change of what decisions are made on (money, lines, risk, dates, method, customer)
       increases the version, which makes older approvals stale; an unchanged statement does not,
       and is remembered as stated now.
    5. A captured amount below what is already refunded is an observed fact and is written: it
       opens an incident, and the claim sends no more.
    6. A statement of money, and any while the provider shows something else, is due to be compared
       with the provider (`refunds.shown`), by a sweep: no provider is called here.
    """
    require_identifier(facts.order_id, field="order_id")
    facts = replace(facts, currency=require_currency(facts.currency))
    if type(facts.captured_minor) is not int or not 0 <= facts.captured_minor <= AMOUNT_MINOR_MAX:
        raise InvalidInput(field="captured_minor", reason="must be an integer of minor units, >= 0")
    columns = _columns(facts)
    with transaction.atomic():
        now = database_now()
        order, created = Order.objects.select_for_update(no_key=True).get_or_create(
            order_id=facts.order_id,
            defaults={
                **columns,
                "created_at": now,
                "updated_at": now,
                "stated_at": now,
                "compare_due_at": now,
            },
        )
        if created:
            _history(order=order, kind="order.mirrored", actor=actor, now=now, data=_shown(columns))
            return Mirrored(order=order, created=True, changed=True)
        if facts.source_version < order.source_version:
            return Mirrored(order=order, created=False, changed=False, older=True)
        differing = {
            name: value for name, value in columns.items() if getattr(order, name) != value
        }
        if not differing:
            due = {} if order.compare_due_at is None else {"compare_due_at": now}
            Order.objects.filter(pk=order.pk).update(stated_at=now, **due)
            return Mirrored(order=order, created=False, changed=False)
        _refuse_another_payment(order=order, differing=differing)
        if any(name in differing for name in _PAYMENT):
            differing |= _UNREAD
        before = {name: getattr(order, name) for name in differing}
        if any(name in differing for name in (*_DECIDED_ON, *_IMMUTABLE_ONCE_USED)):
            differing["version"] = order.version + 1
        times = {"updated_at": now, "stated_at": now}
        if order.compare_due_at is not None or any(name in differing for name in _COMPARED):
            times["compare_due_at"] = now
        for name, value in {**differing, **times}.items():
            setattr(order, name, value)
        order.save(update_fields=[*differing, *times])
        _history(
            order=order,
            kind="order.changed",
            actor=actor,
            now=now,
            data={"before": _shown(before), "after": _shown(differing)},
        )
        if order.refundable_minor < 0 and "captured_minor" in differing:
            open_overdrawn_order(order=order, now=now)
        return Mirrored(order=order, created=False, changed=True)


def _columns(facts: OrderFacts) -> dict[str, Any]:
    return {
        "currency": facts.currency,
        "captured_minor": facts.captured_minor,
        "provider": facts.provider,
        "account": facts.account,
        "payment_ref": facts.payment_ref,
        "payment_method": facts.payment_method,
        "customer_ref": facts.customer_ref,
        "customer_email": facts.customer_email,
        "placed_at": facts.placed_at,
        "source_version": facts.source_version,
        "details": facts.details or {},
    }


def _refuse_another_payment(*, order: Order, differing: dict[str, Any]) -> None:
    touched = [name for name in _IMMUTABLE_ONCE_USED if name in differing]
    if touched and (order.actions.exists() or order.external_refunds.exists()):
        field = {"payment_ref": "payment.payment_intent", "account": "payment.account"}.get(
            touched[0], touched[0]
        )
        raise InvalidInput(
            field=field,
            reason="cannot change once a refund of this order exists; nothing was written",
        )


# Personal data stays in the order's own columns and never goes into history.
_PERSONAL = ("customer_email", "customer_ref", "details")


def _shown(columns: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in columns.items()
        if name not in _PERSONAL
    }


def _history(*, order: Order, kind: str, actor: str, now: datetime, data: dict[str, Any]) -> None:
    RefundEvent.objects.create(
        order=order,
        kind=kind,
        actor=actor[:80],
        at=now,
        data={"order_version": order.version, **data},
    )
