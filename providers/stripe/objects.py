"""The two kinds of object this adapter makes, described: a refund, and a store credit.

A store credit is a customer balance transaction: a negative amount on the customer's balance, which
pays for what they buy next. It is immutable and done at once.
https://docs.stripe.com/billing/customer/balance
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import stripe

from effects.outcomes import ProviderEffect
from providers.stripe.effect_object import read_credit, read_refund

# A slash in an id would be another address, an empty one another endpoint.
STRIPE_ID = re.compile(r"[A-Za-z0-9_-]{1,255}")
_CURRENCY = re.compile(r"[A-Za-z]{3}")
_ANY_TEXT = re.compile(r".*", re.DOTALL)
# Ours, never a customer's or a model's words. The length is Stripe's limit.
_DESCRIPTION = re.compile(r"[ -~]{1,350}")
# Stripe's enum has a third word, `fraudulent`, which puts the customer's card and e-mail on block
# lists. It is never sent. https://docs.stripe.com/api/refunds/create
_REASON = re.compile(r"duplicate|requested_by_customer")

Params = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKind:
    """What the adapter has to know of one kind of object.

    - `noun`: for people
    - `belongs_to`: Stripe's field for what it is made on; its id stands in `payment_ref`
    - `sign`: of Stripe's amount when the customer gets money
    - `texts`: the text fields of its frozen payload, beside `amount` and `metadata`
    - `sent`: the fields that are parameters of the request, in the order they are sent
    - `read`: an object as Stripe shows it as a ProviderEffect; raises NotReadable
    - `create(client, id it belongs to, params, options)`, `list` alike
    - `retrieve(client, id it belongs to, its own id, options)`
    """

    noun: str
    belongs_to: str
    sign: int
    texts: Mapping[str, re.Pattern[str]]
    metadata_keys: frozenset[str]
    sent: tuple[str, ...]
    read: Callable[[Any], ProviderEffect]
    create: Callable[[stripe.StripeClient, str, Params, Params], object]
    list: Callable[[stripe.StripeClient, str, Params, Params], object]
    retrieve: Callable[[stripe.StripeClient, str, str, Params], object]


# As Any: the SDK types parameters and options more narrowly than what is computed can be.


def _refunds(client: stripe.StripeClient) -> Any:
    return client.v1.refunds


def _balance_transactions(client: stripe.StripeClient) -> Any:
    return client.v1.customers.balance_transactions


REFUND = ObjectKind(
    noun="refund",
    belongs_to="payment_intent",
    sign=1,
    texts={
        "account": _ANY_TEXT,
        # Not sent: it is what the answer must say.
        "currency": _CURRENCY,
        "payment_intent": STRIPE_ID,
        "reason": _REASON,
    },
    metadata_keys=frozenset({"action_id", "instance", "reason", "order_id", "request_id"}),
    sent=("payment_intent", "amount", "reason", "metadata"),
    read=read_refund,
    create=lambda client, _, params, options: _refunds(client).create(params, options),
    list=lambda client, payment, params, options: _refunds(client).list(
        {"payment_intent": payment, **params}, options
    ),
    retrieve=lambda client, _, ref, options: _refunds(client).retrieve(ref, None, options),
)

CREDIT = ObjectKind(
    noun="store credit",
    belongs_to="customer",
    sign=-1,
    texts={
        "account": _ANY_TEXT,
        "currency": _CURRENCY,
        "customer": STRIPE_ID,
        "description": _DESCRIPTION,
    },
    metadata_keys=frozenset({"action_id", "instance", "order_id", "request_id"}),
    sent=("amount", "currency", "description", "metadata"),
    read=read_credit,
    create=lambda client, customer, params, options: _balance_transactions(client).create(
        customer, params, options
    ),
    list=lambda client, customer, params, options: _balance_transactions(client).list(
        customer, params, options
    ),
    retrieve=lambda client, customer, ref, options: _balance_transactions(client).retrieve(
        customer, ref, None, options
    ),
)
