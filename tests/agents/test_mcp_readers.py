"""What the strict reader lets on, django-mcpz's reader reads as the same: no tool hears another."""

from __future__ import annotations

import json
from typing import Any

from django_mcpz.jsonrpc import MessageError, decode_message
from hypothesis import example, given
from hypothesis import strategies as st

from agents.mcp import _may_hold_anything
from kernel.strict_json import Malformed, NotStrict, read_object

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["name", "arguments", "_meta", "cursor", "x"])


def member(name: str, value: Any, escapes: bool) -> str:
    """One member of an object, as text."""
    return f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=escapes)}"


PARAMS = st.lists(st.builds(member, NAMES, VALUES, st.booleans()), max_size=4).map(", ".join)


@given(params=PARAMS)
@example(params='"arguments": {"amount_minor": 1, "amount_minor": 2}')
@example(params='"arguments": {"a\\u0062": 1, "ab": 2}')
@example(params='"arguments": [1.5]')
@example(params='"_meta": {"a": 1, "a": 2}, "arguments": {"a": -0}')
@example(params='"arguments": {"a": 1e0}')
@example(params='"arguments": {"a": "\\ud83d\\ude00"}')
def test_both_readers_see_the_same_name_and_arguments(params: str) -> None:
    body = f'{{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {{{params}}}}}'.encode()
    try:
        ours = read_object(body)
    except Malformed:
        return
    except NotStrict as error:
        if not all(_may_hold_anything(wrong.path) for wrong in error.wrongs):
            return
        ours = error.found
    try:
        theirs = decode_message(body)
    except MessageError:
        return  # refused after all
    assert (theirs.id, theirs.method) == (ours["id"], ours["method"])
    assert isinstance(theirs.params, dict)
    for name in ("name", "arguments"):
        assert json.dumps(theirs.params.get(name)) == json.dumps(ours["params"].get(name))
