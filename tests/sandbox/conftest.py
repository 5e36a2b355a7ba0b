from collections.abc import Iterator

import pytest
import stripe

from providers.sandbox import Sandbox

from .calls import stripe_client


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as running:
        yield running


@pytest.fixture
def client(sandbox: Sandbox) -> stripe.StripeClient:
    return stripe_client(sandbox)
