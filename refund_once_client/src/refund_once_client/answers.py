"""What the service answers, as frozen dataclasses. Amounts are integer minor units.

Fields that a later version of the service adds are ignored, and what may be None may be missing.
Anything else that is missing, or of another type, makes the whole answer unreadable: half an answer
is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one rule of the policy said: ALLOW, REVIEW, HOLD or DENY, and why."""

    rule: str
    verdict: str
    why: str
    tier: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The newest run of the policy."""

    verdict: str
    policy_version: int
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """The newest decision of a person."""

    approved: bool
    decided_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRefund:
    """The payment provider's own name for the refund, once there is one."""

    name: str
    refund_id: str | None
    status: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCase:
    """What waits for a person, and until when."""

    reason: str
    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One refund. `state` is what is proved, `next` one sentence on what to do now.

    `final`: nothing more happens by itself. `poll_after_seconds`: when reading again can show
    something new; None is never. `retry` is always "never".
    """

    action_id: str
    order_id: str
    request_id: str
    state: str
    amount_minor: int
    currency: str
    reason: str
    order_version: int
    payload_hash: str
    decision: Decision | None
    approval: Approval | None
    provider: ProviderRefund
    attempts: int
    case: OpenCase | None
    final: bool
    retry: str
    next: str
    poll_after_seconds: int | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPage:
    """Actions of one order, newest first. `next_cursor` None: there are no more."""

    data: tuple[Action, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order's balances. `refundable_minor` is what may still be sent; it can be negative."""

    order_id: str
    version: int
    source_version: int
    currency: str
    captured_minor: int
    refunded_minor: int
    reserved_minor: int
    disputed_minor: int
    settled_otherwise_minor: int
    refundable_minor: int
    dispute_state: str
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the policy in force says about a refund that nobody proposed.

    `tier` and `people` say who approves, where the verdict is REVIEW.
    """

    verdict: str
    tier: int | None
    people: int | None
    rules: tuple[Rule, ...]
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentSession:
    """What a session is bound to, and the balances of its order.

    `reasons` are those that may be given under it; None: no policy says which.
    """

    session_id: str
    order_id: str
    request_id: str
    action_id: str
    currency: str
    captured_minor: int
    refunded_minor: int
    refundable_minor: int
    max_amount_minor: int | None
    reasons: tuple[str, ...] | None
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSession(CurrentSession):
    """A new session. `token` is what a model's tools hold; it is told this once."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldProblem:
    """A field that cannot be accepted, as a path like `lines[0].amount_minor`, and why."""

    field: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemDetails:
    """RFC 9457, as the service tells it. Members that say nothing are left out there."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    fields: tuple[FieldProblem, ...] | None = None
    differing: tuple[str, ...] | None = None
    action: Action | None = None


class Unreadable(ValueError):
    """The bytes are not the answer they should be; says where."""


def read_json(kind: type[T], body: bytes) -> T:
    """The dataclass that a body is. Raises Unreadable."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Unreadable("it is not JSON") from None
    shape: Any = kind
    read: T = _reader(shape)(value, "it")
    return read


Reader = Callable[[Any, str], Any]


@cache
def _reader(kind: Any) -> Reader:
    """What reads a value of this type: `read(value, where)`."""
    if is_dataclass(kind):
        return _object_reader(kind)
    if get_origin(kind) in (Union, UnionType):
        (inner,) = (_reader(one) for one in get_args(kind) if one is not NoneType)
        return lambda value, where: None if value is None else inner(value, where)
    if get_origin(kind) is tuple:
        one = _reader(get_args(kind)[0])

        def read_list(value: Any, where: str) -> Any:
            if not isinstance(value, list):
                raise Unreadable(f"{where} is not a list")
            return tuple(one(each, f"{where}[{at}]") for at, each in enumerate(value))

        return read_list
    return _read_time if kind is datetime else _plain_reader(kind)


def _object_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = {each.name: _reader(hints[each.name]) for each in fields(kind)}
    required = {name for name, hint in hints.items() if NoneType not in get_args(hint)}

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise Unreadable(f"{where} is not an object")
        missing = required - value.keys()
        if missing:
            raise Unreadable(f"{where} lacks {', '.join(sorted(missing))}")
        found = {
            name: reader(value.get(name), f"{where}.{name}") for name, reader in readers.items()
        }
        return kind(**found)

    return read


def _plain_reader(kind: Any) -> Reader:
    def read(value: Any, where: str) -> Any:
        if type(value) is not kind:  # and not isinstance: True is no amount
            raise Unreadable(f"{where} is not of type {kind.__name__}")
        return value

    return read


def _read_time(value: Any, where: str) -> datetime:
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise Unreadable(f"{where} is not a time") from None
    if time.tzinfo is None:
        raise Unreadable(f"{where} has no zone")
    return time
