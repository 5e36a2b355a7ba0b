"""The Stripe SDK's client, set up for money: one API version, no retries, no telemetry."""

from __future__ import annotations

import os

import stripe

from providers.stripe.wire import OneShotHTTPClient

# The version stripe-python 16.1.0 was written for. Webhook endpoints are set to the same.
API_VERSION = "2026-10-28.endive"

# Read by the SDK after each answer. A notice is a Python warning there, and where warnings are
# errors a refund that happened would end in an exception.
os.environ.setdefault("STRIPE_SUPPRESS_NOTICES", "true")

# Telemetry sends timings of earlier requests and writes an id into the home folder.
stripe.enable_telemetry = False


def build_client(
    *,
    api_key: str,
    api_base: str | None,
    connect_timeout_seconds: float,
    read_timeout_seconds: float,
) -> stripe.StripeClient:
    """A new client. It opens no connection until it is used, and keeps none afterwards.

    `max_network_retries` is 0 because one SDK call must be one attempt: with retries the last
    error hides the earlier ones, and "connection refused" would be said of a refund that the
    first attempt made.
    """
    return stripe.StripeClient(
        api_key,
        stripe_version=API_VERSION,
        # A trailing slash would make the SDK ask for `//v1/refunds`.
        base_addresses={"api": api_base.rstrip("/")} if api_base else None,
        max_network_retries=0,
        http_client=OneShotHTTPClient(
            connect_timeout_seconds=connect_timeout_seconds,
            read_timeout_seconds=read_timeout_seconds,
        ),
    )
