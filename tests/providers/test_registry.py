"""The provider a name means, from settings."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from effects.outcomes import Listing
from kernel.errors import Bug
from providers import registry
from providers.registry import override_provider, payment_provider
from tests.providers.loopback import answers, loopback
from tests.providers.requests_made import a_provider


@pytest.fixture(autouse=True)
def nothing_built_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_providers", {})


def test_the_settings_say_where_and_with_which_keys(settings: Settings) -> None:
    empty = answers(200, {"object": "list", "data": [], "has_more": False})
    with loopback(empty) as server:
        settings.STRIPE_API_KEY = "sk_test_one"
        settings.STRIPE_API_KEYS = {"europe": "sk_test_two"}
        settings.STRIPE_API_BASE = server.base
        settings.PROVIDER_CONNECT_TIMEOUT_SECONDS = 1
        settings.PROVIDER_READ_TIMEOUT_SECONDS = 1
        settings.PROVIDER_TOTAL_TIMEOUT_SECONDS = 3
        for account in ("", "alias:europe"):
            read = payment_provider().list_refunds(payment_ref="pi_1", account=account)
            assert isinstance(read, Listing)
        assert [request.headers["authorization"] for request in server.requests] == [
            "Bearer sk_test_one",
            "Bearer sk_test_two",
        ]
        assert payment_provider("stripe") is payment_provider()


def test_a_provider_can_be_overridden_for_a_while() -> None:
    one, two = a_provider("http://127.0.0.1:1"), a_provider("http://127.0.0.1:2")
    with override_provider("stripe", one):
        with override_provider("stripe", two):
            assert payment_provider() is two
        assert payment_provider() is one


def test_an_unknown_name_is_a_bug() -> None:
    with pytest.raises(Bug, match="paypal"):
        payment_provider("paypal")
