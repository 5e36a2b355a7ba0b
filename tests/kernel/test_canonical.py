"""Canonical JSON: one text for one value, and no text for what has none."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.canonical import canonical_json, sha256_hex
from kernel.errors import InvalidInput

SAFE = 2**53 - 1
text = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers(min_value=-SAFE, max_value=SAFE) | text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=20,
)


def reordered(value: Any) -> Any:
    """The same value with every object's keys the other way round."""
    if isinstance(value, dict):
        return {key: reordered(inner) for key, inner in reversed(value.items())}
    if isinstance(value, list):
        return [reordered(inner) for inner in value]
    return value


@given(values)
def test_the_text_says_the_value_and_nothing_else(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@given(values)
def test_the_text_is_stable(value: Any) -> None:
    once = canonical_json(value)
    assert canonical_json(json.loads(once)) == once
    assert canonical_json(reordered(value)) == once


@given(values, values)
def test_different_values_have_different_texts(one: Any, other: Any) -> None:
    # json tells True from 1, which Python's == does not
    assert (canonical_json(one) == canonical_json(other)) is (
        json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    )


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        float("-inf"),
        SAFE + 1,
        -SAFE - 1,
        "\ud800",
        "a\udfffb",
        {"\ud800": 1},
        {1: "a"},
        {None: "a"},
        {1, 2},
        b"bytes",
        object(),
    ],
)
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    for held in (value, [value], {"a": {"b": [value]}}):
        with pytest.raises(InvalidInput) as error:
            canonical_json(held)
        assert error.value.field == "payload"


def test_the_examples_of_rfc_8785() -> None:
    """Section 3.2.3: keys are sorted by UTF-16 code units, control characters in short forms."""
    value = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "ö": 7}
    keys = list(json.loads(canonical_json(value), object_pairs_hook=lambda pairs: dict(pairs)))
    assert keys == ["\r", "1", "\u0080", "ö", "\u20ac", "\U0001f600", "\ufb33"]
    assert canonical_json('\u0000\n/€"') == '"\\u0000\\n/€\\""'


def test_a_hash_is_of_the_bytes_of_the_text() -> None:
    assert sha256_hex("€") == hashlib.sha256(b"\xe2\x82\xac").hexdigest()
    assert len(sha256_hex("")) == 64
