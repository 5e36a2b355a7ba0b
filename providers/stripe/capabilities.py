"""What Stripe promises, as data. Sources beside each fact."""

from __future__ import annotations

from dataclasses import replace

from providers.port import Capabilities

REFUNDS = Capabilities(
    provider="stripe",
    # Keys may be removed once they are "at least 24 hours old"; a removed key is a new request.
    # https://docs.stripe.com/api/idempotent_requests
    key_life_seconds=24 * 3600,
    # "Stripe saves the status code and body of the first request [...] including 500 errors."
    # https://docs.stripe.com/api/idempotent_requests
    stores_server_errors=True,
    # GET /v1/refunds filters by payment_intent; there is no search over refunds, so we list and
    # match metadata. https://docs.stripe.com/api/refunds/list, https://docs.stripe.com/search
    searchable=True,
    # "Top-level lists are immediately consistent." https://docs.stripe.com/api-v2-overview
    list_is_immediately_consistent=True,
    # A card refund can go from succeeded to failed for up to about 30 days.
    # https://docs.stripe.com/refunds#failed-refunds
    success_can_be_undone_seconds=30 * 24 * 3600,
    # GET /v1/payment_intents filters by `created`.
    # https://docs.stripe.com/api/payment_intents/list
    lists_payments=True,
)

CREDITS = replace(
    REFUNDS,
    # "Some sublists are eventually consistent", and a customer's balance transactions are one:
    # absence from the list proves nothing. https://docs.stripe.com/api-v2-overview
    list_is_immediately_consistent=False,
    # "An immutable list of debit and credit transactions": done when made, never undone.
    # https://docs.stripe.com/billing/customer/balance
    success_can_be_undone_seconds=0,
)
