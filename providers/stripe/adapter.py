"""Stripe behind the provider port: one request, its answer, an outcome."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import stripe

from effects.outcomes import (
    Evidence,
    Listing,
    LookUp,
    Misconfigured,
    Outcome,
    ProviderEffect,
    Unreadable,
)
from kernel.errors import Bug
from providers.port import (
    Capabilities,
    CustomerTotals,
    PaymentPage,
    PaymentTotals,
    SendRequest,
)
from providers.stripe import customer_object
from providers.stripe import payload as payloads
from providers.stripe.accounts import Credentials, credentials_for
from providers.stripe.capabilities import CREDITS, REFUNDS
from providers.stripe.classify import Seen, classify, evidence_of, failed_read
from providers.stripe.client import build_client
from providers.stripe.effect_object import NotReadable, parse_json
from providers.stripe.objects import CREDIT, REFUND, STRIPE_ID, ObjectKind
from providers.stripe.payload import Payload, parse_payload
from providers.stripe.payment_object import EXPAND, EXPAND_LISTED, read_listed, read_totals
from providers.stripe.wire import Answer, WireCall

logger = logging.getLogger(__name__)

# A newline, a leading space or an emoji in a key fails inside the HTTP library and looks like the
# network there; these characters never do.
KEY_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,255}")

PAGE_SIZE = 100  # Stripe's largest. https://docs.stripe.com/api/refunds/list
# 2,000 effects in one list are a mistake somewhere, and reading on would not settle it.
PAGES_MAX = 20


class StripeProvider:
    """The provider port for Stripe. Safe for threads, and for processes that fork.

    `api_base` is None for Stripe itself. `more_api_keys` are the keys of further platform
    accounts by alias (see `providers.stripe.accounts` for what an `account` may be). All timeouts
    are in seconds: connect, each read, and the whole call, which for a list includes every page.
    """

    def __init__(
        self,
        *,
        api_key: str,
        api_base: str | None,
        connect_timeout_seconds: float,
        read_timeout_seconds: float,
        total_timeout_seconds: float,
        more_api_keys: Mapping[str, str] | None = None,
    ) -> None:
        if not api_key:
            raise Bug("Stripe needs an API key: set STRIPE_API_KEY")
        self._api_key = api_key
        self._more_api_keys = dict(more_api_keys or {})
        self._api_base = api_base
        self._connect_timeout_seconds = connect_timeout_seconds
        self._read_timeout_seconds = read_timeout_seconds
        self._total_timeout_seconds = total_timeout_seconds
        self._built: tuple[int, stripe.StripeClient] | None = None

    @property
    def capabilities(self) -> Capabilities:
        return REFUNDS

    @property
    def credit_capabilities(self) -> Capabilities:
        return CREDITS

    def refund_payload(
        self,
        *,
        account: str,
        payment_ref: str,
        amount_minor: int,
        currency: str,
        reason: str,
        action_id: str,
        instance: str,
        order_id: str,
        request_id: str,
    ) -> dict[str, Any]:
        """The request to be frozen. See the port."""
        return payloads.refund_payload(
            account=account,
            payment_intent=payment_ref,
            amount_minor=amount_minor,
            currency=currency,
            reason_code=reason,
            action_id=action_id,
            instance=instance,
            order_id=order_id,
            request_id=request_id,
        )

    def credit_payload(
        self,
        *,
        account: str,
        customer_ref: str,
        amount_minor: int,
        currency: str,
        action_id: str,
        instance: str,
        order_id: str,
        request_id: str,
    ) -> dict[str, Any]:
        """The request to be frozen. See the port."""
        return payloads.credit_payload(
            account=account,
            customer=customer_ref,
            amount_minor=amount_minor,
            currency=currency,
            action_id=action_id,
            instance=instance,
            order_id=order_id,
            request_id=request_id,
        )

    def send_refund(
        self, *, request: SendRequest, before_bytes_leave: Callable[[], bool] | None = None
    ) -> Outcome:
        """Send one refund, once. See the port."""
        return self._send(REFUND, request=request, before_bytes_leave=before_bytes_leave)

    def send_credit(
        self, *, request: SendRequest, before_bytes_leave: Callable[[], bool] | None = None
    ) -> Outcome:
        """Send one store credit, once. See the port."""
        return self._send(CREDIT, request=request, before_bytes_leave=before_bytes_leave)

    def list_refunds(self, *, payment_ref: str, account: str = "") -> LookUp:
        """Every refund of one payment, newest first. See the port."""
        return self._list(REFUND, belongs_to=payment_ref, account=account)

    def list_credits(self, *, customer_ref: str, account: str = "") -> LookUp:
        """Every change of a customer's balance, newest first. See the port."""
        return self._list(CREDIT, belongs_to=customer_ref, account=account)

    def retrieve_refund(self, *, refund_ref: str, account: str = "") -> ProviderEffect | Unreadable:
        """One refund by Stripe's id. See the port."""
        return self._retrieve(REFUND, ref=refund_ref, belongs_to="", account=account)

    def retrieve_credit(
        self, *, credit_ref: str, customer_ref: str, account: str = ""
    ) -> ProviderEffect | Unreadable:
        """One store credit by Stripe's id and its customer. See the port."""
        _require_reference(customer_ref)
        return self._retrieve(CREDIT, ref=credit_ref, belongs_to=customer_ref, account=account)

    def read_payment(self, *, payment_ref: str, account: str = "") -> PaymentTotals | Unreadable:
        """A payment's totals, off its latest charge: at most one charge of it succeeds. See the
        port.
        """
        _require_reference(payment_ref)
        credentials = self._credentials(account)
        if credentials is None:
            return _unknown_account(account)

        def read(client: stripe.StripeClient, options: dict[str, Any], call: WireCall) -> None:
            client.v1.payment_intents.retrieve(payment_ref, EXPAND, options)  # type: ignore[arg-type]

        seen = self._call(read, credentials=credentials)
        if seen.error is not None or seen.answer is None:
            return _unreadable(seen)
        try:
            totals = read_totals(parse_json(seen.answer.body), evidence=evidence_of(seen))
        except NotReadable:
            return _unreadable(seen)
        if totals.payment_ref == payment_ref:
            return totals
        return Unreadable(reason="answer_mismatch", evidence=evidence_of(seen))

    def list_payments(
        self, *, since: datetime, until: datetime, account: str = "", cursor: str = ""
    ) -> PaymentPage | Unreadable:
        """One page of the account's PaymentIntents, newest first. See the port."""
        if cursor:
            _require_reference(cursor)
        credentials = self._credentials(account)
        if credentials is None:
            return _unknown_account(account)
        params: dict[str, Any] = {
            # Whole seconds, as Stripe counts them: none is lost or read twice between two windows.
            "created": {"gte": math.ceil(since.timestamp()), "lt": math.ceil(until.timestamp())},
            "limit": PAGE_SIZE,
            **EXPAND_LISTED,
        }
        if cursor:
            params["starting_after"] = cursor

        def read(client: stripe.StripeClient, options: dict[str, Any], call: WireCall) -> None:
            client.v1.payment_intents.list(params, options)  # type: ignore[arg-type]

        seen = self._call(read, credentials=credentials)
        if seen.error is not None or seen.answer is None:
            return _unreadable(seen)
        try:
            items, has_more = _read_items(seen.answer)
            listed = tuple(read_listed(item) for item in items)
        except NotReadable as error:
            logger.warning("A page of payments could not be read: %s", error)
            return _unreadable(seen)
        return PaymentPage(
            payments=listed,
            next_cursor=listed[-1].totals.payment_ref if has_more else "",
            evidence=evidence_of(seen),
        )

    def read_customer(self, *, customer_ref: str, account: str = "") -> CustomerTotals | Unreadable:
        """A customer's balances, off the customer. See the port."""
        _require_reference(customer_ref)
        credentials = self._credentials(account)
        if credentials is None:
            return _unknown_account(account)

        def read(client: stripe.StripeClient, options: dict[str, Any], call: WireCall) -> None:
            client.v1.customers.retrieve(customer_ref, customer_object.EXPAND, options)  # type: ignore[arg-type]

        seen = self._call(read, credentials=credentials)
        if seen.error is not None or seen.answer is None:
            return _unreadable(seen)
        try:
            totals = customer_object.read_customer(
                parse_json(seen.answer.body), evidence=evidence_of(seen)
            )
        except NotReadable:
            return _unreadable(seen)
        if totals.customer_ref == customer_ref:
            return totals
        return Unreadable(reason="answer_mismatch", evidence=evidence_of(seen))

    def _send(
        self,
        kind: ObjectKind,
        *,
        request: SendRequest,
        before_bytes_leave: Callable[[], bool] | None,
    ) -> Outcome:
        """Make one object, once. See `providers.port.PaymentProvider.send_refund`.

        1. Check what was frozen; a payload or key that cannot be sent raises Bug.
        2. Send it, with the fence asked just before the first byte.
        3. Classify what came back: one table, the answer compared with what was sent.
        """
        payload = parse_payload(kind, request.payload)
        if payload.account != request.account:
            raise Bug("the request names another account than its frozen payload")
        if not KEY_PATTERN.fullmatch(request.idempotency_key):
            raise Bug(f"not an idempotency key: {request.idempotency_key!r}")
        credentials = self._credentials(request.account)
        if credentials is None:
            return Misconfigured(reason="unknown_account", evidence=_no_key_for(request.account))

        def send(client: stripe.StripeClient, options: dict[str, Any], call: WireCall) -> None:
            options = options | {"idempotency_key": request.idempotency_key}
            kind.create(client, payload.belongs_to, payload.params, options)

        seen = self._call(
            send,
            credentials=credentials,
            before_bytes_leave=before_bytes_leave,
            payload=payload,
            sent_key=request.idempotency_key,
        )
        return classify(seen)

    def _list(self, kind: ObjectKind, *, belongs_to: str, account: str) -> LookUp:
        """All pages of a list. All of it must belong to what was asked for, or it is unreadable."""
        _require_reference(belongs_to)
        credentials = self._credentials(account)
        if credentials is None:
            return _unknown_account(account)
        effects: dict[str, ProviderEffect] = {}
        pages = 0
        complete = False

        def read(client: stripe.StripeClient, options: dict[str, Any], call: WireCall) -> None:
            nonlocal pages, complete
            params: dict[str, Any] = {"limit": PAGE_SIZE}
            while not complete and pages < PAGES_MAX:
                kind.list(client, belongs_to, params, options)
                page, has_more = _read_page(kind, call.answer, belongs_to=belongs_to)
                effects.update({effect.ref: effect for effect in page})
                pages += 1
                complete = not has_more
                if has_more:
                    params = params | {"starting_after": page[-1].ref}

        seen = self._call(read, credentials=credentials)
        if complete:
            return Listing(effects=tuple(effects.values()), evidence=evidence_of(seen), pages=pages)
        if seen.error is None:
            return Unreadable(reason="too_many_pages", evidence=evidence_of(seen))
        return _unreadable(seen)

    def _retrieve(
        self, kind: ObjectKind, *, ref: str, belongs_to: str, account: str
    ) -> ProviderEffect | Unreadable:
        """One object by its id, and by what it belongs to where that is known ("": it is not)."""
        _require_reference(ref)
        credentials = self._credentials(account)
        if credentials is None:
            return _unknown_account(account)

        def read(client: stripe.StripeClient, options: dict[str, Any], call: WireCall) -> None:
            kind.retrieve(client, belongs_to, ref, options)

        seen = self._call(read, credentials=credentials)
        if seen.error is not None or seen.answer is None:
            return _unreadable(seen)
        try:
            effect = kind.read(parse_json(seen.answer.body))
        except NotReadable:
            return _unreadable(seen)
        if effect.ref == ref and belongs_to in ("", effect.payment_ref):
            return effect
        return Unreadable(reason="answer_mismatch", evidence=evidence_of(seen))

    def _call(
        self,
        work: Callable[[stripe.StripeClient, dict[str, Any], WireCall], None],
        *,
        credentials: Credentials,
        before_bytes_leave: Callable[[], bool] | None = None,
        payload: Payload | None = None,
        sent_key: str = "",
    ) -> Seen:
        """Run one SDK call within the total deadline, and keep everything that is known of it.

        This is the one place where any exception becomes part of the evidence. Once bytes may have
        left, an exception of any kind (a task's time limit among them) must not hide that.
        """
        client = self._client()
        options: dict[str, Any] = {"api_key": credentials.api_key, "max_network_retries": 0}
        if credentials.stripe_account:
            options["stripe_account"] = credentials.stripe_account
        error: Exception | None = None
        with WireCall(
            total_timeout_seconds=self._total_timeout_seconds,
            before_bytes_leave=before_bytes_leave,
        ) as call:
            try:
                work(client, options, call)
            except Exception as raised:
                error = raised
                logger.info(
                    "A call to Stripe did not end with a usable answer: %s", type(raised).__name__
                )
        return Seen(
            error=error,
            answer=call.answer,
            bytes_may_have_left=call.bytes_may_have_left,
            was_cut=call.was_cut,
            elapsed_ms=call.elapsed_ms,
            payload=payload,
            sent_key=sent_key,
        )

    def _client(self) -> stripe.StripeClient:
        """This process's client. After a fork the child builds its own.

        No lock: two threads may build one each, and a lock could be inherited while held.
        """
        built = self._built
        if built is None or built[0] != os.getpid():
            built = (
                os.getpid(),
                build_client(
                    api_key=self._api_key,
                    api_base=self._api_base,
                    connect_timeout_seconds=self._connect_timeout_seconds,
                    read_timeout_seconds=self._read_timeout_seconds,
                ),
            )
            self._built = built
        return built[1]

    def _credentials(self, account: str) -> Credentials | None:
        return credentials_for(account, api_key=self._api_key, more_api_keys=self._more_api_keys)


def _read_page(
    kind: ObjectKind, answer: Answer | None, *, belongs_to: str
) -> tuple[list[ProviderEffect], bool]:
    """One page of effects: what is on it and whether there is more. Raises NotReadable."""
    items, has_more = _read_items(answer)
    page = [kind.read(item) for item in items]
    if any(effect.payment_ref != belongs_to for effect in page):
        raise NotReadable(f"the list holds a {kind.noun} of another {kind.belongs_to}")
    return page, has_more


def _read_items(answer: Answer | None) -> tuple[list[Any], bool]:
    """The items of one page of any list and whether there is more. Raises NotReadable."""
    value = parse_json(answer.body) if answer is not None else None
    if not isinstance(value, dict) or not isinstance(value.get("data"), list):
        raise NotReadable("not a list")
    items, has_more = value["data"], value.get("has_more")
    if type(has_more) is not bool:
        raise NotReadable("the list does not say whether there is more")
    if has_more and not items:
        raise NotReadable("an empty page that says there is more")
    return items, has_more


def _unreadable(seen: Seen) -> Unreadable:
    reason, misconfigured, evidence = failed_read(seen)
    return Unreadable(reason=reason, evidence=evidence, misconfigured=misconfigured)


def _unknown_account(account: str) -> Unreadable:
    return Unreadable(reason="unknown_account", evidence=_no_key_for(account), misconfigured=True)


def _no_key_for(account: str) -> Evidence:
    return Evidence(
        message=f"There is no Stripe API key for the account {account[:100]!r}. Nothing was sent. "
        "Set STRIPE_API_KEYS, or correct the order's account."
    )


def _require_reference(reference: str) -> None:
    # An empty payment would list every refund of the account, a slash would be another address.
    if not STRIPE_ID.fullmatch(reference):
        raise Bug(f"not a Stripe id: {reference!r}")
