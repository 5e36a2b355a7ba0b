"""Who an action is. Identities come from the merchant's systems, never from a model (I5)."""

from __future__ import annotations

import re

from kernel.errors import Bug, InvalidInput

# Short enough that "refund:order-…:request-…:g99" stays below Stripe's 255 characters for a key,
# and plain enough that no header, URL or log changes it.
IDENTIFIER_PATTERN = r"[A-Za-z0-9_.-]{1,64}"
_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)
_REFUND_ACTION = re.compile(rf"refund:order-({IDENTIFIER_PATTERN}):request-{IDENTIFIER_PATTERN}")
_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,255}")


def require_identifier(value: object, *, field: str) -> str:
    """Return the value when it is 1 to 64 of `A-Z a-z 0-9 _ . -`; else raise InvalidInput."""
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
        raise InvalidInput(field=field, reason="must be 1 to 64 characters of A-Z a-z 0-9 _ . -")
    return value


def refund_action_id(*, order_id: str, request_id: str) -> str:
    """The public id of one business refund: `refund:order-{order_id}:request-{request_id}`.

    Both parts are the merchant's. They cannot hold a colon, so two different pairs never meet.
    """
    require_identifier(order_id, field="order_id")
    require_identifier(request_id, field="request_id")
    return f"refund:order-{order_id}:request-{request_id}"


def order_id_of(action_id: str) -> str:
    """The order's id in the public id of a refund; raises InvalidInput for any other text."""
    found = _REFUND_ACTION.fullmatch(action_id)
    if found is None:
        raise InvalidInput(
            field="action_id", reason="must be an action's id, like refund:order-4821:request-3"
        )
    return found[1]


def credit_action_id(*, order_id: str, request_id: str, number: int) -> str:
    """The public id of the store credit that is remedy `number` of one business refund.

    `credit:order-{order_id}:request-{request_id}:r{number}`
    """
    refund = refund_action_id(order_id=order_id, request_id=request_id)
    return f"credit:{refund.removeprefix('refund:')}:r{number}"


def idempotency_key(*, action_id: str, generation: int) -> str:
    """The provider's key for one generation of an action.

    Generation 1 is the action id itself; a later one exists only by a person's decision.
    """
    if generation < 1:
        raise Bug(f"generation {generation} of {action_id} does not exist")
    key = action_id if generation == 1 else f"{action_id}:g{generation}"
    if not _KEY.fullmatch(key):
        raise Bug(f"{key!r} cannot be an idempotency key")
    return key
