"""Lists: newest first, cursors, limits; and objects as they go over the wire."""

from collections.abc import Callable, Sequence
from typing import Any

from . import errors, forms
from .forms import Params

Object = dict[str, Any]

LIMIT_DEFAULT = 10
LIMIT_MAX = 100
LIST_PARAMS = frozenset({"limit", "starting_after", "ending_before"})


def wire(obj: Object) -> Object:
    """The object without the sandbox's private fields."""
    return {name: value for name, value in obj.items() if not name.startswith("_")}


def in_range(value: float, bounds: dict[str, int]) -> bool:
    checks: dict[str, Callable[[int], bool]] = {
        "gt": lambda bound: value > bound,
        "gte": lambda bound: value >= bound,
        "lt": lambda bound: value < bound,
        "lte": lambda bound: value <= bound,
        "eq": lambda bound: value == bound,
    }
    return all(checks[op](bound) for op, bound in bounds.items())


def check_cursors(params: Params) -> None:
    forms.integer(params, "limit", minimum=1, maximum=LIMIT_MAX)
    forms.text(params, "starting_after")
    forms.text(params, "ending_before")
    if "starting_after" in params and "ending_before" in params:
        raise errors.invalid("You cannot parameterize both starting_after and ending_before.")


def page(
    oldest_first: Sequence[Object], params: Params, *, url: str, kind: str, known: dict[str, Object]
) -> Object:
    """One page, newest first. `known` is the whole table: a cursor must name an object that exists.

    Order is the order of creation, also within one second; it never changes.
    """
    limit = forms.integer(params, "limit", minimum=1, maximum=LIMIT_MAX) or LIMIT_DEFAULT
    newest_first = list(reversed(oldest_first))
    for cursor in ("starting_after", "ending_before"):
        if cursor in params and params[cursor] not in known:
            raise errors.missing(kind, params[cursor], param=cursor, status=400)
    if "starting_after" in params:
        newest_first = _behind(newest_first, params["starting_after"], known)
        shown, more = newest_first[:limit], len(newest_first) > limit
    elif "ending_before" in params:
        newest_first = _before(newest_first, params["ending_before"], known)
        shown, more = newest_first[-limit:], len(newest_first) > limit
    else:
        shown, more = newest_first[:limit], len(newest_first) > limit
    return {
        "object": "list",
        "data": [wire(obj) for obj in shown],
        "has_more": more,
        "url": url,
    }


def _behind(newest_first: list[Object], cursor: str, known: dict[str, Object]) -> list[Object]:
    at = _position(newest_first, cursor)
    if at is not None:
        return newest_first[at + 1 :]
    order = {id: n for n, id in enumerate(known)}
    return [obj for obj in newest_first if order[obj["id"]] < order[cursor]]


def _before(newest_first: list[Object], cursor: str, known: dict[str, Object]) -> list[Object]:
    at = _position(newest_first, cursor)
    if at is not None:
        return newest_first[:at]
    order = {id: n for n, id in enumerate(known)}
    return [obj for obj in newest_first if order[obj["id"]] > order[cursor]]


def _position(objects: list[Object], id: str) -> int | None:
    return next((n for n, obj in enumerate(objects) if obj["id"] == id), None)
