"""Hooks of schemathesis: what it makes up and could be true is pointed at rows that are there.

Only values that fit the document are touched, and by ones that fit it too, so that a call stays as
right or wrong as it was made. https://schemathesis.readthedocs.io/en/stable/guides/extending/
"""

from __future__ import annotations

import os
import re
from typing import Any

import schemathesis

from kernel.canonical import sha256_hex
from kernel.identity import IDENTIFIER_PATTERN

# Not the order of the document's examples, which are sent as they stand and state it anew.
ORDER_ID, REQUEST_ID = "4900", "3"
EXAMPLE_ORDER_ID = "4821"
PROPOSE = "POST /api/v1/refunds"
ONLY_THIS_REQUEST = "FUZZ_ONLY_THIS_REQUEST"

_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)
_CURRENCY = re.compile(r"[A-Za-z]{3}")


def _fits(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _as_integers(value: Any) -> Any:
    """7900.0 is an integer to JSON Schema and refused here, as the documentation says: 7900."""
    if isinstance(value, dict):
        return {name: _as_integers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_as_integers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """The order that there is, in its currency; under a session, the request that is its own.

    A proposal by a key has both ids, which only a session may leave out.
    """
    if not isinstance(body, dict):
        return body
    changed: dict[str, Any] = _as_integers(body)
    if context.operation.label == PROPOSE and not os.environ.get(ONLY_THIS_REQUEST):
        if changed.get("order_id") is None:
            changed["order_id"] = ORDER_ID
        if changed.get("request_id") is None:
            # Most are new requests; the same amount is the same one, and perhaps a conflict.
            changed["request_id"] = sha256_hex(repr(changed.get("amount_minor")))[:3]
        body = changed
    if _fits(_IDENTIFIER, body.get("order_id")):
        changed["order_id"] = ORDER_ID
    if os.environ.get(ONLY_THIS_REQUEST) and _fits(_IDENTIFIER, body.get("request_id")):
        changed["request_id"] = REQUEST_ID
    if _fits(_CURRENCY, body.get("currency")):
        changed["currency"] = "USD"
    return changed


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """Every second address is about the order or the action that there is."""
    changed = dict(path_parameters or {})
    order_id, action_id = changed.get("order_id"), changed.get("action_id")
    may_state = context.operation.method.upper() == "PUT"
    if not may_state and _fits(_IDENTIFIER, order_id) and len(str(order_id)) % 2:
        changed["order_id"] = ORDER_ID
    if isinstance(action_id, str) and len(action_id) % 2:
        made_up = re.compile(rf"refund:order-{IDENTIFIER_PATTERN}:request-{IDENTIFIER_PATTERN}")
        if made_up.fullmatch(action_id):
            changed["action_id"] = f"refund:order-{ORDER_ID}:request-{REQUEST_ID}"
    return changed


@schemathesis.hook
def map_headers(context: Any, headers: Any) -> Any:
    """Without the document's one example of a key: it belongs to the first action for ever."""
    changed = dict(headers or {})
    if changed.get("Idempotency-Key") == "ticket-88-refund-1":
        del changed["Idempotency-Key"]
    return changed
