"""Every operation of the API, as its own document tells it: what is added there is tested here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from agents.api import api
from tests import builders
from tests.agents.conftest import Caller, read

DOCUMENT: dict[str, Any] = json.loads(json.dumps(api.get_openapi_schema()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one address. `path` is below /api/v1; `body` is an example that is accepted."""

    operation_id: str
    method: str
    path: str
    about: dict[str, Any] = field(repr=False)

    @property
    def credentials(self) -> set[str]:
        """AgentKey, and Session where one is taken too."""
        return {name for one in self.about["security"] for name in one}

    @property
    def takes_content(self) -> bool:
        """Whether a body is looked at at all."""
        return self.method in ("POST", "PUT")

    @property
    def path_parameters(self) -> list[str]:
        return [one["name"] for one in self.about["parameters"] if one["in"] == "path"]

    @property
    def query_parameters(self) -> list[str]:
        return [one["name"] for one in self.about["parameters"] if one["in"] == "query"]

    def body(self, credential: str) -> Any:
        """The document's example of what this credential sends; None when no body is described."""
        content = self.about.get("requestBody", {}).get("content", {}).get("application/json", {})
        values = [example["value"] for example in content.get("examples", {}).values()]
        return deepcopy(values[-1 if credential == "Session" else 0]) if values else None


OPERATIONS = [
    Operation(
        operation_id=about["operationId"],
        method=method.upper(),
        path=path.removeprefix("/api/v1"),
        about=about,
    )
    for path, methods in DOCUMENT["paths"].items()
    for method, about in methods.items()
]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Rows that every operation can be about, and both kinds of callers. `ids` fill the paths."""

    callers: dict[str, Caller]
    ids: dict[str, str]

    def address(self, operation: Operation, **other: str) -> str:
        """The operation's address about these rows. KeyError: a new id that needs a row here."""
        return operation.path.format(**(self.ids | other))

    def ways(self, operation: Operation) -> Iterator[tuple[Caller, Any]]:
        """Everybody who may call it, each with a body that would be accepted from them."""
        for credential in sorted(operation.credentials):
            yield self.callers[credential], operation.body(credential)


def world(caller: Caller) -> World:
    """Order 4821, a refund of it that waits for a person, and a session of that refund's request.

    The document's examples are about order 4821 and request 3, and no other.
    """
    order = builders.order(order_id="4821")
    action = builders.action(
        order, request_id="7", amount_minor=15_000, proposer=caller.key.split("_")[2]
    )
    opened = read(caller.call("POST", "/sessions", {"order_id": "4821", "request_id": "7"}), 201)
    return World(
        callers={"AgentKey": caller, "Session": Caller(opened["token"])},
        ids={
            "order_id": "4821",
            "action_id": action.action_id,
            "session_id": opened["session_id"],
        },
    )
