"""Policy versions: appended, numbered, the highest in force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernel.canonical import canonical_json, sha256_hex
from kernel.errors import InvalidInput
from policies.models import DecisionRecord, PolicyVersion
from policies.versions import DEFAULT_PARAMETERS, first_parameters, parameters_of, publish
from tests import builders

pytestmark = pytest.mark.django_db


def test_an_installation_begins_with_the_default_policy() -> None:
    first = PolicyVersion.objects.get()
    assert first.parameters_hash == sha256_hex(canonical_json(DEFAULT_PARAMETERS.as_json()))
    assert (
        parameters_of(number=first.number, parameters_hash=first.parameters_hash)
        == DEFAULT_PARAMETERS
    )


@pytest.mark.parametrize("currency", ["EUR", "JPY", "KWD"])
def test_a_shop_that_sells_in_another_currency_begins_with_limits_in_its_own(currency: str) -> None:
    """Without a single rate: what it counts in is what it is paid in."""
    publish(parameters=first_parameters(base_currency=currency), published_by="installation")
    order = builders.order(currency=currency, captured_minor=100_000)
    small = builders.action(order, amount_minor=7_900)
    assert small.state == "AUTHORIZED"
    record = DecisionRecord.objects.get(action_id=small.action_id)
    assert (record.base_currency, record.base_minor) == (currency, 7_900)
    large = builders.action(
        builders.order(currency=currency, captured_minor=100_000), amount_minor=60_000
    )
    assert (large.state, large.review_tier, large.review_people) == ("AWAITING_APPROVAL", 2, 1)


def test_a_published_version_is_appended_and_in_force_at_once() -> None:
    before = PolicyVersion.objects.latest("number")
    version = publish(
        parameters=replace(DEFAULT_PARAMETERS, reasons=("damaged",)),
        published_by="grace",
        note="only what is broken",
    )
    assert version.number == before.number + 1
    assert (version.published_by, version.note) == ("grace", "only what is broken")
    action = builders.action(builders.order())
    assert action.state == "REJECTED"
    assert DecisionRecord.objects.get(action_id=action.action_id).policy_version == version.number
    before.refresh_from_db()
    assert "requested_by_customer" in before.parameters["reasons"]


def test_two_versions_with_equal_parameters_are_two_versions() -> None:
    first = publish(parameters=DEFAULT_PARAMETERS, published_by="t")
    second = publish(parameters=DEFAULT_PARAMETERS, published_by="t")
    assert second.number == first.number + 1
    assert second.parameters_hash == first.parameters_hash


def test_a_version_is_read_once_by_a_process(django_assert_num_queries: Any) -> None:
    version = publish(
        parameters=replace(DEFAULT_PARAMETERS, unsearchable_ceiling_minor=7), published_by="t"
    )
    with django_assert_num_queries(1):
        for _ in range(2):
            parameters_of(number=version.number, parameters_hash=version.parameters_hash)


def test_amounts_that_have_no_exact_form_are_not_published() -> None:
    before = PolicyVersion.objects.count()
    with pytest.raises(InvalidInput):
        publish(
            parameters=replace(DEFAULT_PARAMETERS, ceiling_minor={"USD": 2**53}), published_by="t"
        )
    assert PolicyVersion.objects.count() == before
