"""A policy as a file that people review: written in one way only, and read strictly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kernel.canonical import canonical_json, sha256_hex
from kernel.errors import InvalidInput
from kernel.strict_json import Malformed, NotStrict, read_object
from policies.models import PolicyVersion

_FIELDS = ("number", "parameters_hash", "published_at", "published_by", "note", "parameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFile:
    """What a file says. `number` is the version it was exported from, 0 where it names none.

    `parameters` are not yet read as parameters.
    """

    number: int
    note: str
    parameters: object


def export_version(version: PolicyVersion) -> str:
    """The file of a version. The same version gives the same bytes: sorted, two spaces, LF."""
    return (
        json.dumps(
            {
                "number": version.number,
                "parameters_hash": version.parameters_hash,
                "published_at": version.published_at.isoformat(),
                "published_by": version.published_by,
                "note": version.note,
                "parameters": version.parameters,
            },
            ensure_ascii=False,
            indent=2,
            sort_keys=True,
        )
        + "\n"
    )


def read_file(data: bytes) -> PolicyFile:
    """What a file says. Raises InvalidInput naming the field.

    A `parameters_hash` must be that of the parameters: whoever changes these takes it out, so that
    a file that was changed by accident is not taken for one that was reviewed.
    """
    try:
        value = read_object(data)
    except Malformed as error:
        raise InvalidInput(field="file", reason=error.reason) from None
    except NotStrict as error:
        wrong = error.wrongs[0]
        raise InvalidInput(field=wrong.path or "file", reason=wrong.reason) from None
    for name in sorted(set(value) - set(_FIELDS)):
        raise InvalidInput(field=name, reason="is not a known field")
    if "parameters" not in value:
        raise InvalidInput(field="parameters", reason="is required")
    _compare_hash(value)
    number, note = value.get("number", 0), value.get("note", "")
    if type(number) is not int or number < 0:
        raise InvalidInput(field="number", reason="must be the number of a version")
    if not isinstance(note, str):
        raise InvalidInput(field="note", reason="must be a string")
    return PolicyFile(number=number, note=note, parameters=value["parameters"])


def _compare_hash(value: dict[str, Any]) -> None:
    if "parameters_hash" not in value:
        return
    found = sha256_hex(canonical_json(value["parameters"]))
    if value["parameters_hash"] != found:
        raise InvalidInput(
            field="parameters_hash",
            reason="is not that of the parameters; if you changed them on purpose, take this "
            "line out",
        )
