"""A customer as Stripe shows them: what is on their balance, in every currency."""

from __future__ import annotations

from typing import Any

from effects.outcomes import Evidence
from providers.port import CustomerTotals
from providers.stripe.effect_object import NotReadable, required_object, required_text

# Not shown unless asked for. `balance` beside it is that of one currency alone.
# https://docs.stripe.com/api/customers/object#customer_object-invoice_credit_balance
EXPAND = {"expand": ["invoice_credit_balance"]}


def read_customer(value: Any, *, evidence: Evidence) -> CustomerTotals:
    """A customer with `invoice_credit_balance` expanded, in which a credit is above 0.

    Raises NotReadable, for a deleted customer as well: that one has no balance.
    """
    customer = required_object(value, "customer")
    balances = customer.get("invoice_credit_balance")
    if not isinstance(balances, dict) or any(type(each) is not int for each in balances.values()):
        raise NotReadable("the customer's balances are not numbers by currency")
    return CustomerTotals(
        customer_ref=required_text(customer, "id"),
        credit_minor={str(currency).upper(): balances[currency] for currency in balances},
        evidence=evidence,
    )
