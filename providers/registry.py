"""Which provider a name means in this process, built from Django's settings.

| setting | meaning |
|---|---|
| `STRIPE_API_KEY` | the platform's own key |
| `STRIPE_API_KEYS` | optional: keys of further platform accounts, by alias |
| `STRIPE_API_BASE` | optional: talk there instead of to Stripe |
| `PROVIDER_CONNECT_TIMEOUT_SECONDS`, `PROVIDER_READ_TIMEOUT_SECONDS` | one connect, one read |
| `PROVIDER_TOTAL_TIMEOUT_SECONDS` | a whole call, whatever happens |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings

from kernel.errors import Bug
from providers.port import PaymentProvider
from providers.stripe.adapter import StripeProvider

_providers: dict[str, PaymentProvider] = {}


def payment_provider(name: str = "stripe") -> PaymentProvider:
    """The provider of that name, built once per process and shared by its threads.

    A provider holds no connection and looks at its process id itself, so one that was built
    before a fork may be used after it.
    """
    provider = _providers.get(name)
    if provider is None:
        provider = _providers[name] = _build(name)
    return provider


@contextmanager
def override_provider(name: str, provider: PaymentProvider) -> Iterator[None]:
    """Use another provider under a name, in all threads of this process, for a while (tests)."""
    before = _providers.get(name)
    _providers[name] = provider
    try:
        yield
    finally:
        if before is None:
            _providers.pop(name, None)
        else:
            _providers[name] = before


def _build(name: str) -> PaymentProvider:
    if name != "stripe":
        raise Bug(f"there is no payment provider called {name!r}")
    return StripeProvider(
        api_key=settings.STRIPE_API_KEY,
        api_base=settings.STRIPE_API_BASE or None,
        connect_timeout_seconds=settings.PROVIDER_CONNECT_TIMEOUT_SECONDS,
        read_timeout_seconds=settings.PROVIDER_READ_TIMEOUT_SECONDS,
        total_timeout_seconds=settings.PROVIDER_TOTAL_TIMEOUT_SECONDS,
        more_api_keys=getattr(settings, "STRIPE_API_KEYS", None),
    )
