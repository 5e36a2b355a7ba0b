"""One suite, two providers: the sandbox always, Stripe itself when a test key is given."""

import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import stripe

from providers.sandbox import Sandbox

stripe.enable_telemetry = False

KEY_VARIABLE = "STRIPE_CONTRACT_KEY"
API_VERSION = "2026-10-28.endive"
# Stripe's own time for test refunds and events to move is not documented; minutes have been seen.
EVENTUALLY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Provider:
    """What a case may use: SDK calls that mean the same on both sides, and patience."""

    name: str
    client: stripe.StripeClient
    wrong_key_client: stripe.StripeClient
    run: str
    pass_time: Callable[[], object]
    count: "itertools.count[int]"

    def key(self) -> str:
        """A new idempotency key: a test account remembers those of earlier runs."""
        return f"contract:{self.run}:{next(self.count)}"

    def paid(
        self, amount: int = 7900, *, method: str = "pm_card_visa", **more: Any
    ) -> stripe.PaymentIntent:
        params: Any = {
            "amount": amount,
            "currency": "usd",
            "payment_method": method,
            "confirm": True,
            "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"},
            **more,
        }
        return self.client.v1.payment_intents.create(params)

    def refund(self, payment: str, amount: object, key: str | None = None, **more: Any) -> Any:
        params: Any = {"payment_intent": payment, "amount": amount, **more}
        return self.client.v1.refunds.create(params, {"idempotency_key": key or self.key()})

    def customer(self) -> str:
        return self.client.v1.customers.create({"description": f"contract {self.run}"}).id

    def credit(
        self, customer: str, amount: int, key: str | None = None, currency: str = "usd", **more: Any
    ) -> Any:
        params: Any = {"amount": amount, "currency": currency, **more}
        return self.client.v1.customers.balance_transactions.create(
            customer, params, {"idempotency_key": key or self.key()}
        )

    def eventually(self, look: Callable[[], Any]) -> Any:
        """The first answer of `look` that is true, giving the provider time in between."""
        deadline = time.monotonic() + EVENTUALLY_SECONDS
        while not (found := look()) and time.monotonic() < deadline:
            self.pass_time()
        assert found
        return found


def _client(key: str, url: str | None) -> stripe.StripeClient:
    more: Any = {"base_addresses": {"api": url}} if url else {}
    return stripe.StripeClient(
        key,
        stripe_version=API_VERSION,
        max_network_retries=0,
        http_client=stripe.RequestsClient(timeout=(5, 30)),
        **more,
    )


@pytest.fixture(scope="session", params=["sandbox", "stripe"])
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    run, count = uuid.uuid4().hex[:12], itertools.count(1)
    wrong_key = "sk_test_" + "0" * 24
    if request.param == "sandbox":
        with Sandbox() as sandbox:
            # So that requests made at once really overlap, as they do at Stripe.
            sandbox.latency(10)
            yield Provider(
                "sandbox",
                _client(sandbox.api_key, sandbox.url),
                _client(wrong_key, sandbox.url),
                run,
                lambda: sandbox.advance(10),
                count,
            )
        return
    key = os.environ.get(KEY_VARIABLE, "")
    if not key:
        pytest.skip(f"Not run against Stripe: {KEY_VARIABLE} is not set (a test key, sk_test_…).")
    if not key.startswith(("sk_test_", "rk_test_")):
        pytest.fail(f"{KEY_VARIABLE} is not a test key. Nothing was sent: this suite moves money.")
    yield Provider(
        "stripe", _client(key, None), _client(wrong_key, None), run, lambda: time.sleep(2), count
    )
