"""Every call, as steps (exchange.py). The blocking and the asyncio clients are made of these."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlencode

from refund_once_client import given
from refund_once_client.answers import (
    Action,
    ActionPage,
    CurrentSession,
    Explanation,
    OpenedSession,
    Order,
    Unreadable,
    read_json,
)
from refund_once_client.exchange import (
    Answer,
    GaveUp,
    Patience,
    Pause,
    Request,
    Steps,
    Window,
    insist,
    result_of,
)
from refund_once_client.given import Customer, OrderLine, Payment, RefundLine
from refund_once_client.propose import Content, propose

T = TypeVar("T")

# The service's shortest interval is 2 s; something between us that says 0 must not make a loop.
POLL_SECONDS_MIN = 0.5


class _Calls:
    """What calls under a key and under a session have in common."""

    def __init__(self, *, patience: Patience, clock: Callable[[], float] = time.monotonic) -> None:
        self.patience = patience
        self.clock = clock

    def _window(self, *, cut_at: float | None = None) -> Window:
        ends_at = self.clock() + self.patience.total_seconds
        if cut_at is not None:
            ends_at = min(ends_at, cut_at)
        return Window(patience=self.patience, clock=self.clock, ends_at=ends_at, cut_at=cut_at)

    def _insist(
        self, request: Request, read: Callable[[Answer], T], window: Window | None = None
    ) -> Steps[T]:
        return result_of((yield from insist(request, read, window or self._window())), request)

    def _propose(
        self,
        *,
        window: Window,
        content: Content,
        ids: dict[str, str],
        note: str,
        lines: Iterable[RefundLine],
        refunded_so_far_minor: int | None,
    ) -> Steps[Action]:
        believed = refunded_so_far_minor
        if believed is not None:
            given.amount(believed, field="refunded_so_far_minor", at_least=0)
        body = {
            **ids,
            "amount_minor": content.amount_minor,
            "currency": content.currency,
            "reason": content.reason,
            "note": given.text(note, field="note"),
            "lines": given.refund_lines(lines),
            "refunded_so_far_minor": believed,
        }
        return (
            yield from propose(
                request=_send(
                    "POST",
                    "/refunds",
                    given.without_none(body),
                    **{"Idempotency-Key": content.action_id},
                ),
                read_back=_get(f"/refunds/{content.action_id}"),
                content=content,
                window=window,
            )
        )

    def _wait_until_final(self, *, action_id: str, ends_at: float) -> Steps[Action]:
        seen: _Seen | None = None
        while True:
            request = _get(f"/refunds/{action_id}", etag=seen.etag if seen else None)
            outcome = yield from insist(
                request, _reader_of_seen(action_id, seen), self._window(cut_at=ends_at)
            )
            wait_seconds = POLL_SECONDS_MIN
            if isinstance(outcome, GaveUp) and seen is not None:
                # What was seen still is the best answer, and there may be time for another read.
                wait_seconds = max(wait_seconds, outcome.retry_after_seconds or 0)
            else:
                seen = result_of(outcome, request)
            action = seen.action
            if action.final or action.poll_after_seconds is None:
                return action
            wait_seconds = max(wait_seconds, action.poll_after_seconds)
            if self.clock() + wait_seconds > ends_at:
                return action
            yield Pause(seconds=wait_seconds)


class KeyCalls(_Calls):
    """The calls of a merchant's backend, under an agent key."""

    def put_order(
        self,
        order_id: str,
        *,
        currency: str,
        captured_minor: int,
        payment: Payment,
        customer: Customer,
        placed_at: datetime,
        delivered_at: datetime | None = None,
        shipping_minor: int | None = None,
        lines: Iterable[OrderLine] = (),
        source_version: int = 0,
    ) -> Steps[Order]:
        """State an order, whole. Sent again until it is answered: the same statement is one.

        `source_version` orders your own statements: an older one changes nothing.
        """
        path = f"/orders/{given.identifier_in_path(order_id, field='order_id')}"
        body = {
            "currency": given.currency(currency),
            "captured_minor": given.amount(captured_minor, field="captured_minor", at_least=0),
            "payment": given.payment(payment),
            "customer": given.customer(customer),
            "placed_at": given.time(placed_at, field="placed_at"),
            "delivered_at": None
            if delivered_at is None
            else given.time(delivered_at, field="delivered_at"),
            "shipping_minor": None
            if shipping_minor is None
            else given.amount(shipping_minor, field="shipping_minor", at_least=0),
            "lines": given.order_lines(lines),
            "source_version": given.amount(source_version, field="source_version", at_least=0),
        }
        return (
            yield from self._insist(
                _send("PUT", path, given.without_none(body)), _reader_of_order(order_id)
            )
        )

    def get_order(self, order_id: str) -> Steps[Order]:
        """An order's balances."""
        path = f"/orders/{given.identifier_in_path(order_id, field='order_id')}"
        return (yield from self._insist(_get(path), _reader_of_order(order_id)))

    def propose_refund(
        self,
        *,
        order_id: str,
        request_id: str,
        amount_minor: int,
        currency: str,
        reason: str,
        note: str = "",
        lines: Iterable[RefundLine] = (),
        refunded_so_far_minor: int | None = None,
    ) -> Steps[Action]:
        """Propose one refund, and answer its action, whatever the policy said to it.

        Both ids are your own systems' (the order number, the ticket), never a model's: together
        they are the refund's identity. When an answer is lost the action is read first, and only
        when it is not there is the identical request sent again. Raises Problem for a definite no,
        and OutcomeUnknown when that did not settle it; then call again with the same arguments.
        """
        return (
            yield from self._propose(
                window=self._window(),
                content=Content(
                    action_id=given.action_id_of(order_id=order_id, request_id=request_id),
                    amount_minor=given.amount(amount_minor),
                    currency=given.currency(currency),
                    reason=given.identifier(reason, field="reason"),
                ),
                ids={"order_id": order_id, "request_id": request_id},
                note=note,
                lines=lines,
                refunded_so_far_minor=refunded_so_far_minor,
            )
        )

    def get_refund(self, action_id: str) -> Steps[Action]:
        """One action: its state, and what to do next."""
        request = _get(f"/refunds/{given.action_id(action_id)}")
        return (yield from self._insist(request, _reader_of_action(action_id)))

    def page_of_refunds(
        self, *, order_id: str, cursor: str | None = None, limit: int | None = None
    ) -> Steps[ActionPage]:
        """One page of an order's actions, newest first. `list_refunds` reads them all."""
        query = {
            "order_id": given.identifier(order_id, field="order_id"),
            "cursor": None if cursor is None else given.text(cursor, field="cursor"),
            "limit": None if limit is None else given.amount(limit, field="limit"),
        }
        request = _get(f"/refunds?{urlencode(given.without_none(query))}")

        def read(answer: Answer) -> ActionPage:
            page = read_json(ActionPage, answer.body)
            if cursor is not None and page.next_cursor == cursor:
                raise Unreadable("the next page is the same one")
            return page

        return (yield from self._insist(request, read))

    def withdraw_refund(self, action_id: str) -> Steps[Action]:
        """Take a refund back before a worker has it. Sent again until answered: it is done once.

        Raises Problem "too-late", with the action, when it is under way.
        """
        request = _send("POST", f"/refunds/{given.action_id(action_id)}/withdraw", {})
        return (yield from self._insist(request, _reader_of_action(action_id)))

    def wait_until_final(self, action_id: str, *, timeout_seconds: float = 60.0) -> Steps[Action]:
        """The action once nothing more happens by itself, or as it was read last: see `final`.

        Reads as often as the service says that it is worth it, and ends within `timeout_seconds`.
        What waits for a person or for a bank takes longer: then it is answered at once, as it is.
        Reads that are not answered are passed over once the action was seen; raises NoAnswer when
        it never was, and Problem for a definite no.
        """
        ends_at = self.clock() + given.duration(timeout_seconds, field="timeout_seconds")
        return (
            yield from self._wait_until_final(action_id=given.action_id(action_id), ends_at=ends_at)
        )

    def explain(
        self,
        *,
        order_id: str,
        amount_minor: int,
        currency: str,
        reason: str,
        lines: Iterable[RefundLine] = (),
    ) -> Steps[Explanation]:
        """What the policy would say about a refund. Nothing is recorded."""
        body = {
            "order_id": given.identifier(order_id, field="order_id"),
            "amount_minor": given.amount(amount_minor),
            "currency": given.currency(currency),
            "reason": given.identifier(reason, field="reason"),
            "lines": given.refund_lines(lines),
        }
        return (
            yield from self._insist(
                _send("POST", "/policy/explain", body),
                lambda answer: read_json(Explanation, answer.body),
            )
        )

    def open_session(
        self,
        *,
        order_id: str,
        request_id: str,
        max_amount_minor: int | None = None,
        expires_in_seconds: int | None = None,
    ) -> Steps[OpenedSession]:
        """A short-lived token for a model's tools, bound to one order and one request.

        Sent again until it is answered, which is harmless: every session of one request leads to
        the same action, and one whose answer was lost is known to nobody and runs out.
        """
        action_id = given.action_id_of(order_id=order_id, request_id=request_id)
        body = {
            "order_id": order_id,
            "request_id": request_id,
            "max_amount_minor": None
            if max_amount_minor is None
            else given.amount(max_amount_minor, field="max_amount_minor"),
            "expires_in_seconds": None
            if expires_in_seconds is None
            else given.amount(expires_in_seconds, field="expires_in_seconds"),
        }

        def read(answer: Answer) -> OpenedSession:
            session = read_json(OpenedSession, answer.body)
            if session.action_id != action_id:
                raise Unreadable("the session is of another action")
            return session

        return (yield from self._insist(_send("POST", "/sessions", given.without_none(body)), read))

    def revoke_session(self, session_id: str) -> Steps[None]:
        """End a session, also one that has ended. `session_id` is the public id, not the token."""
        request = Request(method="DELETE", path=f"{_API}/sessions/{given.session_id(session_id)}")
        return (yield from self._insist(request, _read_nothing))


class SessionCalls(_Calls):
    """The calls of a model's tools, under a session token: none of them takes an id."""

    _bound: CurrentSession | None = None

    def current(self) -> Steps[CurrentSession]:
        """What the session is bound to, and what may still be refunded."""
        return (yield from self._current(self._window()))

    def _current(self, window: Window) -> Steps[CurrentSession]:
        request = _get("/sessions/current")
        self._bound = yield from self._insist(
            request, lambda answer: read_json(CurrentSession, answer.body), window
        )
        return self._bound

    def propose(
        self,
        *,
        amount_minor: int,
        reason: str,
        currency: str | None = None,
        note: str = "",
        lines: Iterable[RefundLine] = (),
        refunded_so_far_minor: int | None = None,
    ) -> Steps[Action]:
        """Propose the session's one refund; `currency` None is the order's.

        It can be proposed once: under a session another amount is a conflict, and a second refund
        needs another request of the backend's. What is raised, and what happens when an answer is
        lost, is as in `RefundOnce.propose_refund`.
        """
        given.amount(amount_minor)
        given.identifier(reason, field="reason")
        window = self._window()
        bound = self._bound or (yield from self._current(window))
        return (
            yield from self._propose(
                window=window,
                content=Content(
                    action_id=bound.action_id,
                    amount_minor=amount_minor,
                    currency=given.currency(bound.currency if currency is None else currency),
                    reason=reason,
                ),
                ids={},
                note=note,
                lines=lines,
                refunded_so_far_minor=refunded_so_far_minor,
            )
        )

    def status(self) -> Steps[Action | None]:
        """The session's refund, or None when nothing was proposed."""

        def read(answer: Answer) -> Action | None:
            return next(iter(read_json(ActionPage, answer.body).data), None)

        return (yield from self._insist(_get("/refunds"), read))

    def withdraw(self) -> Steps[Action]:
        """Take the session's refund back, as in `RefundOnce.withdraw_refund`."""
        return (
            yield from self._insist(
                _send("POST", "/refunds/withdraw", {}),
                lambda answer: read_json(Action, answer.body),
            )
        )

    def wait_until_final(self, *, timeout_seconds: float = 60.0) -> Steps[Action]:
        """The session's refund once nothing more happens, as in `RefundOnce.wait_until_final`."""
        ends_at = self.clock() + given.duration(timeout_seconds, field="timeout_seconds")
        bound = self._bound or (yield from self._current(self._window(cut_at=ends_at)))
        return (yield from self._wait_until_final(action_id=bound.action_id, ends_at=ends_at))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    action: Action
    etag: str | None


_API = "/api/v1"


def _get(path: str, *, etag: str | None = None) -> Request:
    return Request(method="GET", path=_API + path, headers={"If-None-Match": etag} if etag else {})


def _send(method: str, path: str, body: dict[str, Any], **headers: str) -> Request:
    # Made into bytes here and never again: what is sent twice is the same bytes twice.
    return Request(
        method=method,
        path=_API + path,
        body=json.dumps(body, separators=(",", ":")).encode(),
        headers={"Content-Type": "application/json", **headers},
    )


def _reader_of_order(order_id: str) -> Callable[[Answer], Order]:
    def read(answer: Answer) -> Order:
        order = read_json(Order, answer.body)
        if order.order_id != order_id:
            raise Unreadable("the order is another one")
        return order

    return read


def _reader_of_action(action_id: str) -> Callable[[Answer], Action]:
    def read(answer: Answer) -> Action:
        action = read_json(Action, answer.body)
        if action.action_id != action_id:
            raise Unreadable("the action is another one")
        return action

    return read


def _reader_of_seen(action_id: str, seen: _Seen | None) -> Callable[[Answer], _Seen]:
    """An answer to If-None-Match: what was seen before, or the action as it is now."""

    def read(answer: Answer) -> _Seen:
        if answer.status == 304 and seen is not None:
            return seen
        action = _reader_of_action(action_id)(answer)
        return _Seen(action=action, etag=answer.headers.get("etag"))

    return read


def _read_nothing(answer: Answer) -> None:
    if answer.status != 204:
        raise Unreadable("it should be a 204")
