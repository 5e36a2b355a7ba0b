"""Identities: plain enough for a header and a URL, never two pairs with one name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.errors import Bug, InvalidInput
from kernel.identity import (
    IDENTIFIER_PATTERN,
    idempotency_key,
    refund_action_id,
    require_identifier,
)

identifiers = st.from_regex(re.compile(f"^(?:{IDENTIFIER_PATTERN})$", re.ASCII), fullmatch=True)


@given(identifiers, identifiers, identifiers, identifiers)
def test_two_pairs_never_share_an_action_id(a: str, b: str, c: str, d: str) -> None:
    one = refund_action_id(order_id=a, request_id=b)
    other = refund_action_id(order_id=c, request_id=d)
    assert (one == other) is ((a, b) == (c, d))


@given(identifiers, identifiers, st.integers(min_value=1, max_value=99))
def test_a_key_fits_into_the_provider_s_header(order: str, request: str, generation: int) -> None:
    key = idempotency_key(
        action_id=refund_action_id(order_id=order, request_id=request), generation=generation
    )
    assert len(key) <= 160
    assert key.isascii()
    assert not re.search(r"\s", key)


def test_the_first_key_is_the_action_id_and_a_later_one_says_its_generation() -> None:
    action_id = refund_action_id(order_id="4821", request_id="r-1")
    assert action_id == "refund:order-4821:request-r-1"
    assert idempotency_key(action_id=action_id, generation=1) == action_id
    assert idempotency_key(action_id=action_id, generation=2) == f"{action_id}:g2"


@pytest.mark.parametrize("generation", [0, -1])
def test_a_generation_that_does_not_exist_is_a_bug(generation: int) -> None:
    with pytest.raises(Bug):
        idempotency_key(action_id="refund:order-1:request-1", generation=generation)


@pytest.mark.parametrize("action_id", ["", "a b", "a\n", "é", "x" * 256])
def test_what_cannot_be_a_key_is_a_bug(action_id: str) -> None:
    with pytest.raises(Bug):
        idempotency_key(action_id=action_id, generation=1)


@pytest.mark.parametrize(
    "value",
    ["", "a" * 65, "a:b", "a/b", "a b", "a\n", "\na", "é", "\uff11", "a\x00", None, 4821, b"a"],
)
def test_what_is_not_an_identifier_names_its_field(value: object) -> None:
    with pytest.raises(InvalidInput) as error:
        require_identifier(value, field="order_id")
    assert error.value.field == "order_id"
    assert str(error.value).startswith("order_id: ")


@pytest.mark.parametrize("value", ["4821", "a" * 64, "A-b_c.9", "0"])
def test_an_identifier_is_returned_as_it_is(value: str) -> None:
    assert require_identifier(value, field="order_id") == value
