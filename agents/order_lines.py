"""Orders as JSON lines: each line one order, read as strictly as the body of `PUT /orders`.

One line is in memory at a time, however long the file or a line of it is.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from pydantic import ValidationError

from agents.door import field_problem
from agents.problems import PROBLEMS_MAX, FieldProblem
from agents.shapes import Identifier, OrderIn
from agents.strict_json import BODY_BYTES_MAX
from kernel.errors import InvalidInput
from kernel.strict_json import Malformed, NotStrict, read_object
from refunds.orders import OrderFacts


class _OrderLineIn(OrderIn):
    """An order with its id beside the fields of `PUT /orders/{order_id}`."""

    order_id: Identifier


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderLine:
    """One line that was not empty. `facts` is None where it is refused; `problems` say why.

    `number` counts from 1, `size_bytes` with its end, `text` is at most as long as a line may be.
    `order_id` is "" where the line does not have one that can be used.
    """

    number: int
    size_bytes: int
    text: str
    order_id: str
    facts: OrderFacts | None
    problems: tuple[FieldProblem, ...] = ()


def read_order_lines(stream: BinaryIO) -> Iterator[OrderLine]:
    """Each line of the stream, in order. Empty lines are skipped, and a mark before the first.

    A line may be as long as the body of a request, whatever it ends with.
    """
    number = 0
    while data := stream.readline(len(BOM_UTF8) + BODY_BYTES_MAX + len(b"\r\n")):
        number += 1
        size_bytes = len(data)
        line = data.removeprefix(BOM_UTF8) if number == 1 else data
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        while not data.endswith(b"\n") and (data := stream.readline(BODY_BYTES_MAX)):
            size_bytes += len(data)  # more than a line may have: it is passed over
        if len(line) > BODY_BYTES_MAX:
            yield _refused(
                number,
                size_bytes,
                line[:BODY_BYTES_MAX],
                _wrong("line", f"is longer than {BODY_BYTES_MAX} bytes"),
            )
        elif line.strip():
            yield _read(number, size_bytes, line)


def require_addressable(order_id: str) -> None:
    """Raise InvalidInput for an id that no address can end in: HTTP takes both for folders."""
    if order_id in (".", ".."):
        raise InvalidInput(field="order_id", reason="must not be . or .., which end no address")


def _read(number: int, size_bytes: int, line: bytes) -> OrderLine:
    try:
        value = read_object(line)
    except Malformed as error:
        return _refused(number, size_bytes, line, _wrong("line", error.reason))
    except NotStrict as error:
        return _refused(
            number,
            size_bytes,
            line,
            *(_wrong(wrong.path or "line", wrong.reason) for wrong in error.wrongs),
        )
    named = value.get("order_id")
    order_id = named if isinstance(named, str) else ""
    try:
        order = _OrderLineIn.model_validate(value)
    except ValidationError as error:
        found: Any = error.errors(include_url=False, include_input=False)
        problems = (
            field_problem({**each, "loc": ("body", "order", *each["loc"])}) for each in found
        )
        return _refused(number, size_bytes, line, *problems, order_id=order_id)
    try:
        require_addressable(order.order_id)
    except InvalidInput as error:
        wrong = _wrong(error.field, error.reason)
        return _refused(number, size_bytes, line, wrong, order_id=order_id)
    return OrderLine(
        number=number,
        size_bytes=size_bytes,
        text=line.decode(),
        order_id=order.order_id,
        facts=order.facts(order_id=order.order_id),
    )


def _refused(
    number: int, size_bytes: int, line: bytes, *problems: FieldProblem, order_id: str = ""
) -> OrderLine:
    return OrderLine(
        number=number,
        size_bytes=size_bytes,
        text=line.decode("utf-8", "replace"),
        order_id=order_id,
        facts=None,
        problems=problems[:PROBLEMS_MAX],
    )


def _wrong(field: str, reason: str) -> FieldProblem:
    return FieldProblem(field=field, reason=reason)
