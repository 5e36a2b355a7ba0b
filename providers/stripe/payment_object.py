"""A payment as Stripe shows it: its totals, off the PaymentIntent and its latest charge."""

from __future__ import annotations

from typing import Any

from effects.outcomes import Evidence
from providers.port import ListedPayment, PaymentTotals
from providers.stripe.effect_object import (
    NotReadable,
    optional_text,
    read_metadata,
    read_time,
    required_integer,
    required_object,
    required_text,
)

EXPAND = {"expand": ["latest_charge"]}
# Of a list. https://docs.stripe.com/expand#with-lists
EXPAND_LISTED = {"expand": ["data.latest_charge", "data.customer"]}


def read_totals(value: Any, *, evidence: Evidence) -> PaymentTotals:
    """A PaymentIntent with `latest_charge` expanded. Raises NotReadable.

    `amount_refunded` is a running total. Stripe does not say whether pending refunds are in it, nor
    whether it goes down when one fails late. https://docs.stripe.com/api/charges/object
    """
    intent = required_object(value, "payment_intent")
    payment_ref = required_text(intent, "id")
    currency = required_text(intent, "currency").upper()
    charge_ref, captured_minor, refunded_minor, disputed = "", 0, 0, False
    if intent.get("latest_charge") is not None:
        charge = required_object(intent["latest_charge"], "charge")
        if required_text(charge, "payment_intent") != payment_ref:
            raise NotReadable("the charge is of another payment")
        if required_text(charge, "currency").upper() != currency:
            raise NotReadable("the charge is in another currency than its payment")
        if type(charge.get("disputed")) is not bool:
            raise NotReadable("the charge does not say whether it is disputed")
        charge_ref = required_text(charge, "id")
        captured_minor = required_integer(charge, "amount_captured")
        refunded_minor = required_integer(charge, "amount_refunded")
        disputed = charge["disputed"]
    customer = intent.get("customer")
    return PaymentTotals(
        payment_ref=payment_ref,
        charge_ref=charge_ref,
        customer_ref=required_text(customer, "id")
        if isinstance(customer, dict)
        else optional_text(intent, "customer"),
        currency=currency,
        captured_minor=captured_minor,
        refunded_minor=refunded_minor,
        disputed=disputed,
        evidence=evidence,
    )


def read_listed(value: Any) -> ListedPayment:
    """A PaymentIntent of a list, with `latest_charge` and `customer` expanded. Raises NotReadable.

    The e-mail is the one that receipts go to, then the payer's own, then the customer's: Stripe
    keeps all three and none of them always.
    """
    totals = read_totals(value, evidence=Evidence())
    created_at = read_time(value.get("created"))
    if created_at is None:
        raise NotReadable("the payment does not say when it was made")
    charge = _inner(value, "latest_charge")
    emails = (
        optional_text(value, "receipt_email"),
        optional_text(_inner(charge, "billing_details"), "email"),
        # A deleted customer has no e-mail any more.
        optional_text(_inner(value, "customer"), "email"),
    )
    return ListedPayment(
        totals=totals,
        is_paid=required_text(value, "status") == "succeeded" and totals.captured_minor > 0,
        created_at=created_at,
        customer_email=next((email for email in emails if email), ""),
        method=optional_text(_inner(charge, "payment_method_details"), "type"),
        metadata=read_metadata(value),
    )


def _inner(value: dict[str, Any], field: str) -> dict[str, Any]:
    inner = value.get(field)
    return inner if isinstance(inner, dict) else {}
