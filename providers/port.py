"""The port every payment provider is reached through: a request in, an outcome out.

A provider never raises for an expected outcome and never touches the database. Its
differences from other providers are data (`Capabilities`), not branches elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from effects.outcomes import Evidence, LookUp, Outcome, ProviderEffect, Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a provider promises about keys and reading. Facts carry their source in the adapter.

    - `key_life_seconds`: how long a repeated key is surely recognised; None: it has no keys.
    - `stores_server_errors`: a 5xx may be stored under the key and replayed for ever.
    - `searchable`: the effects of one payment can be listed and matched by our metadata.
    - `list_is_immediately_consistent`: an absent effect in the list had not happened when read.
    - `success_can_be_undone_seconds`: how long a success may still turn into a failure.
    - `lists_payments`: all payments of a time can be read, page by page.
    """

    provider: str
    key_life_seconds: int | None
    stores_server_errors: bool
    searchable: bool
    list_is_immediately_consistent: bool
    success_can_be_undone_seconds: int
    lists_payments: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """One effect to be sent.

    `payload` is the frozen canonical JSON text, as authorised; the adapter sends exactly its
    content. `idempotency_key` matches `[A-Za-z0-9_.:-]{1,255}`. `account` is "" for the platform's
    own account, else the provider's account id.
    """

    payload: str
    idempotency_key: str
    account: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentTotals:
    """What the provider shows of a payment as a whole: a second way to see whether money went back.

    - `captured_minor`, `refunded_minor`: running totals in `currency`, upper case. A total says
      nothing of one refund. Whether it counts refunds that have not settled, and whether a late
      failure lowers it, is not known; compare it by `providers.matching.unlisted_minor`.
    - `disputed`: the payment was ever disputed, also when that was won since.
    - `charge_ref`: "" when nothing was ever charged. `customer_ref`: the provider's customer who
      paid, to whom a store credit can be given; "" for a guest.
    """

    payment_ref: str
    charge_ref: str
    customer_ref: str
    currency: str
    captured_minor: int
    refunded_minor: int
    disputed: bool
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPayment:
    """One payment in a list of an account's payments.

    `is_paid`: it has gone through and was captured, as a whole or in part. `customer_email` and
    `method` (like `card`) are "" where the provider does not show them. `metadata` are the strings
    that the merchant's system put there.
    """

    totals: PaymentTotals
    is_paid: bool
    created_at: datetime
    customer_email: str
    method: str
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentPage:
    """One page of payments, newest first. `next_cursor` asks for the next; "" after the last."""

    payments: tuple[ListedPayment, ...]
    next_cursor: str
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerTotals:
    """What the provider shows of a customer's balance as a whole.

    `credit_minor` is what the customer has to use, by currency in upper case; below 0 where they
    owe. A currency that never changed is not in it.
    """

    customer_ref: str
    credit_minor: dict[str, int]
    evidence: Evidence


class PaymentProvider(Protocol):
    """One payment provider. Implementations are safe to call from many threads.

    It makes two kinds of effect: refunds of a payment, and store credits to a customer. Both are
    sent, classified and verified alike. A store credit is a `ProviderEffect` too: its `payment_ref`
    is the customer, and its `amount_minor` what the customer was given.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What is promised about refunds."""
        ...

    @property
    def credit_capabilities(self) -> Capabilities:
        """What is promised about store credits."""
        ...

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
        """The exact request of one refund as a JSON value, to be frozen when it is recorded.

        Nothing in it may change from one attempt to the next. Raises Bug for what cannot be sent.
        """
        ...

    def send_refund(
        self, *, request: SendRequest, before_bytes_leave: Callable[[], bool] | None = None
    ) -> Outcome:
        """Put one refund request on the wire, once, within the total deadline.

        `before_bytes_leave` is the fence: called once, as late as possible before the first
        byte is written (after the client is built and the request prepared). When it answers
        False nothing is sent and the outcome is `NotSent(reason="fenced")`.
        """
        ...

    def list_refunds(self, *, payment_ref: str, account: str = "") -> LookUp:
        """Read every refund of one payment, all pages. Reads only."""
        ...

    def retrieve_refund(self, *, refund_ref: str, account: str = "") -> ProviderEffect | Unreadable:
        """Read one refund by the provider's id. Reads only."""
        ...

    def read_payment(self, *, payment_ref: str, account: str = "") -> PaymentTotals | Unreadable:
        """Read a payment's running totals: captured, refunded, disputed. Reads only.

        Independent of `list_refunds`: another object, which does not go by our metadata.
        """
        ...

    def list_payments(
        self, *, since: datetime, until: datetime, account: str = "", cursor: str = ""
    ) -> PaymentPage | Unreadable:
        """Read one page of the payments made from `since` and before `until`. Reads only.

        Only where `Capabilities.lists_payments`. A page is a call of its own: however many there
        are, one is in memory, and one that could not be read is asked for again.
        """
        ...

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
        """The exact request of one store credit, as `refund_payload`. `amount_minor` is positive.

        `customer_ref` is the provider's customer (`PaymentTotals.customer_ref`), not the merchant's
        own. No customer's or model's words are in it. Raises Bug for what cannot be sent.
        """
        ...

    def send_credit(
        self, *, request: SendRequest, before_bytes_leave: Callable[[], bool] | None = None
    ) -> Outcome:
        """Put one store credit on the wire. All that `send_refund` says holds here."""
        ...

    def list_credits(self, *, customer_ref: str, account: str = "") -> LookUp:
        """Read everything that ever changed a customer's balance, all pages. Reads only.

        That includes what is no store credit of ours: other people's, and invoices that used some
        up (a negative `amount_minor`).
        """
        ...

    def retrieve_credit(
        self, *, credit_ref: str, customer_ref: str, account: str = ""
    ) -> ProviderEffect | Unreadable:
        """Read one store credit by the provider's id and its customer. Reads only."""
        ...

    def read_customer(self, *, customer_ref: str, account: str = "") -> CustomerTotals | Unreadable:
        """Read what is on a customer's balance, as a whole. Reads only.

        Independent of `list_credits`: another object, in which no change can be missing alone.
        """
        ...
