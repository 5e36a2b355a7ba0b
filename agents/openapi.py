"""What the OpenAPI document says beyond what Ninja reads from the views.

Credentials, headers, examples, and the few places where Ninja's document is not quite OpenAPI 3.1
(https://spec.openapis.org/oas/v3.1.0). docs/openapi.json is this document, and a test compares.
"""

from __future__ import annotations

from typing import Any

from agents.bearer import AgentBearer
from agents.conditional import CACHE_CONTROL
from agents.problems import CONTENT_TYPE

Operation = dict[str, Any]

SECURITY_SCHEMES = {
    "AgentKey": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "ro_live_…",
        "description": "A key of the merchant's backend, never of a model. Made and revoked with "
        "`manage.py agent_key`. What it must be for stands beside each operation.",
    },
    "Session": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "ro_session_…",
        "description": "A short-lived token for a model's tools, bound to one order and one "
        "request; opened with `POST /api/v1/sessions`.",
    },
}

_HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "X-Request-ID": ("Names this request in logs and history.", {"type": "string"}),
    "WWW-Authenticate": ("Bearer", {"type": "string"}),
    "Retry-After": ("Seconds to wait.", {"type": "integer", "minimum": 1}),
    "ETag": ("Names this answer; for `If-None-Match`.", {"type": "string"}),
    "Cache-Control": (CACHE_CONTROL, {"type": "string"}),
    "Idempotent-Replayed": (
        "`true`: the same proposal was here before, and this is its action.",
        {"type": "string", "enum": ["true"]},
    ),
}

_IF_NONE_MATCH = {
    "in": "header",
    "name": "If-None-Match",
    "required": False,
    "schema": {"type": "string"},
    "description": "The `ETag` of an answer that the caller still has: 304 when it is the same.",
}

# What a body looks like, by operation and by who sends it.
BODY_EXAMPLES: dict[str, dict[str, dict[str, Any]]] = {
    "mirror_order": {
        "an order": {
            "currency": "USD",
            "captured_minor": 20000,
            "payment": {
                "provider": "stripe",
                "payment_intent": "pi_3PxT0kL2eZvKYlo2",
                "method": "card",
            },
            "customer": {"ref": "cus_88", "email": "ada@example.com"},
            "placed_at": "2026-11-01T10:00:00Z",
            "lines": [{"line_id": "1", "amount_minor": 20000, "returned": True}],
            "source_version": 1,
        }
    },
    "open_session": {
        "a session": {
            "order_id": "4821",
            "request_id": "3",
            "max_amount_minor": 7900,
            "expires_in_seconds": 900,
        }
    },
    "propose_refund": {
        "with an agent key": {
            "order_id": "4821",
            "request_id": "3",
            "amount_minor": 7900,
            "currency": "USD",
            "reason": "requested_by_customer",
            "note": "The parcel came back unopened.",
            "lines": [{"line_id": "1", "amount_minor": 7900}],
            "refunded_so_far_minor": 0,
        },
        "with a session": {
            "amount_minor": 7900,
            "currency": "USD",
            "reason": "requested_by_customer",
            "note": "The parcel came back unopened.",
        },
    },
    "explain_policy": {
        "a refund": {
            "order_id": "4821",
            "amount_minor": 7900,
            "currency": "USD",
            "reason": "requested_by_customer",
            "lines": [{"line_id": "1", "amount_minor": 7900}],
        }
    },
}


def complete(document: Any, *, operations: dict[Any, Any]) -> None:
    """Finish Ninja's document in place; `operations` are Ninja's own, by operation id."""
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operation_id = operation["operationId"]
            operation["tags"] = [path.split("/")[3]]
            operation["security"] = _security(operations[operation_id])
            _parameters(operation)
            _responses(operation)
            if "requestBody" in operation:
                operation["requestBody"]["content"]["application/json"]["examples"] = {
                    name: {"value": value}
                    for name, value in BODY_EXAMPLES.get(operation_id, {}).items()
                }
    document["components"]["headers"] = {
        name: {"description": told, "schema": schema} for name, (told, schema) in _HEADERS.items()
    }
    document["components"]["securitySchemes"] = SECURITY_SCHEMES
    if not document["servers"]:
        del document["servers"]


def _security(operation: Any) -> list[dict[str, list[str]]]:
    """Either credential, one after the other; of a key, the scope that it must have."""
    (auth,) = operation.auth_callbacks
    if not isinstance(auth, AgentBearer):
        raise TypeError(type(auth))
    key: dict[str, list[str]] = {"AgentKey": [auth.scope.value]}
    return [key, {"Session": []}] if auth.sessions else [key]


def _parameters(operation: Operation) -> None:
    for parameter in operation["parameters"]:
        schema = parameter["schema"]
        # A parameter is there or not there, and never null.
        (one,) = [form for form in schema.pop("anyOf", [schema]) if form.get("type") != "null"]
        told = parameter.get("description") or one.get("description")
        # Ninja's list of examples is one of JSON Schema, and a parameter's is a map.
        parameter.pop("examples", None)
        parameter["schema"] = {
            name: value
            for name, value in one.items()
            if name not in ("title", "description") and not (name == "default" and value is None)
        }
        if told:
            parameter["description"] = told
    if "304" in map(str, operation["responses"]):
        operation["parameters"].append(_IF_NONE_MATCH)


def _responses(operation: Operation) -> None:
    described = {}
    can_be_unchanged = "304" in map(str, operation["responses"])
    for status, response in operation["responses"].items():
        headers = ["X-Request-ID"]
        if int(status) >= 400:
            response["content"] = {CONTENT_TYPE: response["content"]["application/json"]}
        if int(status) == 401:
            headers.append("WWW-Authenticate")
        if int(status) in (429, 503):
            headers.append("Retry-After")
        if can_be_unchanged and int(status) in (200, 304):
            headers += ["ETag", "Cache-Control"]
        if int(status) == 200 and operation["operationId"] == "propose_refund":
            headers.append("Idempotent-Replayed")
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in headers}
        described[str(status)] = response
    operation["responses"] = dict(sorted(described.items()))
