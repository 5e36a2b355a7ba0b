"""A policy as a file: one way to write it, one way to read it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernel.errors import InvalidInput
from policies.differences import Difference, differences
from policies.models import PolicyVersion
from policies.policy_file import export_version, read_file
from policies.read_parameters import read_parameters
from policies.versions import DEFAULT_PARAMETERS

pytestmark = pytest.mark.django_db


def exported() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(export_version(PolicyVersion.objects.get()))
    return value


def as_bytes(value: object) -> bytes:
    return json.dumps(value).encode()


def test_what_is_exported_is_read_back() -> None:
    version = PolicyVersion.objects.get()
    text = export_version(version)
    assert text == export_version(PolicyVersion.objects.get())
    assert text.endswith("}\n")
    read = read_file(text.encode())
    assert (read.number, read.note) == (version.number, version.note)
    assert read_parameters(read.parameters) == DEFAULT_PARAMETERS


def test_a_file_that_was_changed_says_so_or_is_refused() -> None:
    changed = exported()
    changed["parameters"]["review_beside_open"] = False
    with pytest.raises(InvalidInput, match="take this line out"):
        read_file(as_bytes(changed))
    del changed["parameters_hash"]
    assert read_file(as_bytes(changed)).number == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"surprise": 1}, "surprise"),
        ({"number": -1}, "number"),
        ({"number": "1"}, "number"),
        ({"note": 5}, "note"),
        ({"parameters_hash": None}, "parameters_hash"),
    ],
)
def test_what_a_file_cannot_say_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_file(as_bytes(exported() | change))
    assert raised.value.field == field


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"\xff", b"{", b'{"parameters": 1, "parameters": 2}', b'{"number": 1}',
     b'{"parameters": {"x": 1.5}}'],
)  # fmt: skip
def test_what_is_no_file_of_a_policy_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_file(data)


def test_differences_are_named_by_their_place() -> None:
    before = {"a": {"USD": 1, "EUR": 2}, "b": [1, 2], "c": [{"x": 1}, {"x": 2}], "same": (1,)}
    after = {"a": {"USD": 3, "JPY": 4}, "b": [1], "c": [{"x": 1, "y": 5}], "same": [1]}
    assert differences(before, after) == [
        Difference(path="a.EUR", before="2", after=""),
        Difference(path="a.JPY", before="", after="4"),
        Difference(path="a.USD", before="1", after="3"),
        Difference(path="b", before="[1, 2]", after="[1]"),
        Difference(path="c[0].y", before="", after="5"),
        Difference(path="c[1]", before='{"x": 2}', after=""),
    ]
    assert differences(before, before) == []
