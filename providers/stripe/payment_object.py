"""A payment as Stripe shows it: its totals, off the PaymentIntent and its latest charge."""

from __future__ import annotations

from typing import Any

from effects.outcomes import Evidence
from providers.port import PaymentTotals
from providers.stripe.effect_object import (
    NotReadable,
    optional_text,
    required_integer,
    required_object,
    required_text,
)

EXPAND = {"expand": ["latest_charge"]}


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
    return PaymentTotals(
        payment_ref=payment_ref,
        charge_ref=charge_ref,
        customer_ref=optional_text(intent, "customer"),
        currency=currency,
        captured_minor=captured_minor,
        refunded_minor=refunded_minor,
        disputed=disputed,
        evidence=evidence,
    )
