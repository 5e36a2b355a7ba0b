"""What callers may send, and an order as they see it. Every field that is not named is refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from agents.idempotency_key import HEADER_PATTERN, HEADER_REASON, value_of_header
from agents.models import AgentSession
from agents.sessions import (
    EXPIRES_IN_SECONDS_DEFAULT,
    EXPIRES_IN_SECONDS_MAX,
    EXPIRES_IN_SECONDS_MIN,
    action_id_of,
)
from kernel.errors import InvalidInput
from kernel.identity import IDENTIFIER_PATTERN
from kernel.money import AMOUNT_MINOR_MAX, require_currency
from providers.stripe.accounts import ACCOUNT_PATTERN
from refunds.models import Order
from refunds.orders import OrderFacts
from refunds.propose import NOTE_CHARACTERS_MAX

LINES_MAX = 200
PAGE_MAX = 50
# A merchant's clock that is wrong by decades is a mistake, and a year 1 does not fit every zone.
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST = datetime(2100, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
# No control characters: these end up in headers, logs and on people's screens.
_ONE_LINE = r"^[^\x00-\x1f\x7f]+$"


def _time(value: object) -> datetime:
    try:
        if not isinstance(value, str) or not _RFC3339.fullmatch(value):
            raise ValueError
        time = datetime.fromisoformat(value.upper())
        if not _EARLIEST <= time <= _LATEST:
            raise ValueError
    except (ValueError, OverflowError):
        raise PydanticCustomError(
            "time",
            "must be a time with its zone between 2000 and 2100, like 2026-11-30T14:05:00Z",
        ) from None
    return time


def _currency(value: str) -> str:
    try:
        return require_currency(value)
    except InvalidInput as error:
        raise PydanticCustomError("currency", "{reason}", {"reason": error.reason}) from None


def _limit(value: object) -> int:
    """What a parameter says, as it is written in plain digits."""
    if not isinstance(value, str) or not _LIMIT.fullmatch(value):
        raise PydanticCustomError("limit", f"must be an integer of 1 to {PAGE_MAX}")
    return int(value)


_LIMIT = re.compile(r"[1-9]|[1-4][0-9]|50")
_SESSION_ID = "^[0-9a-f]{1,64}$"
_IDENTIFIER = f"^{IDENTIFIER_PATTERN}$"
_ACTION_ID = f"^refund:order-{IDENTIFIER_PATTERN}:request-{IDENTIFIER_PATTERN}$"
_CURSOR = r"^[1-9][0-9]{0,17}$"
_CURRENCY = "^[A-Za-z]{3}$"
_PAYMENT_INTENT = "^pi_[A-Za-z0-9_]{1,77}$"
_ACCOUNT = f"^{ACCOUNT_PATTERN}$"
_METHOD = r"^[A-Za-z0-9_.-]*$"
_EMAIL = r"^[^@\s\x00-\x1f\x7f]+@[^@\s\x00-\x1f\x7f]+$"

# What each pattern asks for, in words.
PATTERN_REASONS = {
    _ONE_LINE: "must be one line of text, not empty and without control characters",
    _IDENTIFIER: "must be 1 to 64 characters of A-Z a-z 0-9 _ . -",
    _ACTION_ID: "must be an action's id, like refund:order-4821:request-3",
    _SESSION_ID: "must be the session_id of an answer",
    _CURSOR: "must be the next_cursor of an answer",
    _CURRENCY: "must be an ISO 4217 code of three letters, like USD",
    _PAYMENT_INTENT: "must be a PaymentIntent's id, like pi_3PxT0kL2eZvKYlo2",
    _ACCOUNT: "must be empty, acct_…, alias:NAME or alias:NAME/acct_…",
    _METHOD: "must hold only characters of A-Z a-z 0-9 _ . -",
    _EMAIL: "must be an email address",
    HEADER_PATTERN: HEADER_REASON,
}

Identifier = Annotated[str, Field(pattern=_IDENTIFIER, examples=["4821"])]
ActionId = Annotated[
    str,
    Field(
        pattern=_ACTION_ID,
        examples=["refund:order-4821:request-3"],
    ),
]
SessionId = Annotated[str, Field(pattern=_SESSION_ID)]
Cursor = Annotated[str, Field(pattern=_CURSOR)]
Limit = Annotated[int, Field(ge=1, le=PAGE_MAX), BeforeValidator(_limit)]
IdempotencyKey = Annotated[
    str,
    Field(
        pattern=HEADER_PATTERN,
        examples=["ticket-88-refund-1"],
        description="A second fence for the proposer's own clients, and never the identity: a "
        "value under which an action was recorded belongs to that action for ever, and a new "
        "action under it is refused. Plain, or in double quotes as the draft of the header has it.",
    ),
    AfterValidator(value_of_header),
]
Currency = Annotated[str, Field(pattern=_CURRENCY, examples=["USD"]), AfterValidator(_currency)]
Minor = Annotated[int, Field(ge=0, le=AMOUNT_MINOR_MAX, examples=[7900])]
Time = Annotated[datetime, BeforeValidator(_time)]
OneLine = Annotated[str, Field(max_length=80, pattern=_ONE_LINE)]


class _Sent(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class ProposalLineIn(_Sent):
    """Which line of the order a part of the amount is for."""

    line_id: OneLine
    amount_minor: int = Field(ge=1, le=AMOUNT_MINOR_MAX, examples=[7900])


class ProposalIn(_Sent):
    """A refund to be proposed. Both ids belong to the merchant's systems, never to a model."""

    order_id: Identifier | None = Field(
        default=None, description="required with an agent key; a session has its own"
    )
    request_id: Identifier | None = Field(
        default=None,
        examples=["3"],
        description="required with an agent key; a session has its own",
    )
    amount_minor: int = Field(ge=1, le=AMOUNT_MINOR_MAX, examples=[7900])
    currency: Currency
    reason: Identifier = Field(
        examples=["requested_by_customer"],
        description="under a session one of its `reasons`; with an agent key any, and the policy's "
        "decision about it is recorded",
    )
    note: str = Field(
        default="",
        max_length=NOTE_CHARACTERS_MAX,
        description="what the agent wrote; kept apart, shown to people as untrusted",
    )
    lines: list[ProposalLineIn] = Field(
        default=[], max_length=LINES_MAX, description="what the amount is for; shown to people"
    )
    refunded_so_far_minor: Minor | None = Field(
        default=None, description="what the caller believes; 412 when it is not so"
    )


class SessionIn(_Sent):
    """What the merchant's backend binds a model's tools to."""

    order_id: Identifier
    request_id: Identifier = Field(examples=["3"])
    max_amount_minor: int | None = Field(
        default=None,
        ge=1,
        le=AMOUNT_MINOR_MAX,
        description="the most that may be proposed; left out: what order and policy allow",
    )
    expires_in_seconds: int = Field(
        default=EXPIRES_IN_SECONDS_DEFAULT, ge=EXPIRES_IN_SECONDS_MIN, le=EXPIRES_IN_SECONDS_MAX
    )


class ExplainIn(_Sent):
    """A refund to be explained. It has no request id, since nothing comes of it."""

    order_id: Identifier
    amount_minor: int = Field(ge=1, le=AMOUNT_MINOR_MAX, examples=[7900])
    currency: Currency
    reason: Identifier = Field(examples=["requested_by_customer"])
    lines: list[ProposalLineIn] = Field(
        default=[], max_length=LINES_MAX, description="what the amount is for"
    )


class PaymentIn(_Sent):
    """What the order was paid with. It stays once a refund of the order exists."""

    provider: Literal["stripe"]
    payment_intent: str = Field(pattern=_PAYMENT_INTENT, examples=["pi_3PxT0kL2eZvKYlo2"])
    account: str = Field(
        default="",
        max_length=80,
        pattern=_ACCOUNT,
        description="empty: the platform's own account; acct_…: a connected one",
    )
    method: str = Field(default="", max_length=40, pattern=_METHOD, examples=["card"])


class CustomerIn(_Sent):
    """Whom it was sold to. Kept with the order, never in history or logs."""

    ref: OneLine = Field(examples=["cus_88"])
    email: str = Field(
        max_length=254,
        pattern=_EMAIL,
        examples=["ada@example.com"],
    )
    risk: Identifier | None = Field(default=None, examples=["low"])


class LineIn(_Sent):
    """One line of the order."""

    line_id: OneLine
    amount_minor: Minor
    tax_minor: Minor | None = None
    final_sale: bool | None = None
    returned: bool | None = None


def _lines_differ(lines: list[LineIn]) -> list[LineIn]:
    if len({line.line_id for line in lines}) != len(lines):
        raise PydanticCustomError("lines", "must name each line_id once")
    return lines


class OrderIn(_Sent):
    """An order as the merchant's system states it, whole: what is left out is emptied."""

    currency: Currency
    captured_minor: Minor
    payment: PaymentIn
    customer: CustomerIn
    placed_at: Time
    delivered_at: Time | None = None
    shipping_minor: Minor | None = None
    lines: Annotated[list[LineIn], AfterValidator(_lines_differ)] = Field(
        default=[], max_length=LINES_MAX
    )
    source_version: Minor = Field(
        default=0, description="orders the merchant's own statements: an older one changes nothing"
    )

    def facts(self, *, order_id: str) -> OrderFacts:
        """The order for `refunds.orders.mirror_order`."""
        details: dict[str, Any] = self.model_dump(
            mode="json", include={"delivered_at", "shipping_minor", "lines"}, exclude_none=True
        )
        if self.customer.risk is not None:
            details["risk"] = self.customer.risk
        return OrderFacts(
            order_id=order_id,
            currency=self.currency,
            captured_minor=self.captured_minor,
            provider=self.payment.provider,
            payment_ref=self.payment.payment_intent,
            account=self.payment.account,
            payment_method=self.payment.method,
            customer_ref=self.customer.ref,
            customer_email=self.customer.email,
            placed_at=self.placed_at,
            source_version=self.source_version,
            details=details,
        )


class OrderAnswer(BaseModel):
    """An order's balances in minor units of `currency`. Nothing of the customer is given back.

    `captured_minor` is the smaller of what was stated and what the provider shows once it was read.
    `refundable_minor` is what may still be sent; negative when the provider shows more refunded
    or disputed than was captured.
    """

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
    dispute_state: Literal["none", "inquiry", "open", "won", "lost"]
    updated_at: datetime

    @classmethod
    def of(cls, order: Order) -> OrderAnswer:
        """The answer of one order."""
        return cls.model_validate({name: getattr(order, name) for name in cls.model_fields})


class SessionAnswer(BaseModel):
    """A session, and how much may be proposed under it now, in minor units of `currency`.

    `refundable_minor` is what the order has left, whatever `max_amount_minor` says.
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
    reasons: list[str] | None = Field(
        description="the reasons that may be given under it now; null: no policy says which"
    )
    expires_at: datetime

    @classmethod
    def of(cls, session: AgentSession, *, reasons: list[str] | None) -> SessionAnswer:
        """The answer of one session."""
        return cls(**_session_fields(session), reasons=reasons)


class OpenedSessionAnswer(SessionAnswer):
    """A new session with its token, which is told this once."""

    token: str

    @classmethod
    def of_new(
        cls, session: AgentSession, *, reasons: list[str] | None, token: str
    ) -> OpenedSessionAnswer:
        """The answer of a session that was just opened."""
        return cls(**_session_fields(session), reasons=reasons, token=token)


def _session_fields(session: AgentSession) -> dict[str, Any]:
    order = session.order
    return {
        "session_id": session.prefix,
        "order_id": order.order_id,
        "request_id": session.request_id,
        "action_id": action_id_of(session),
        "currency": order.currency,
        "captured_minor": order.captured_minor,
        "refunded_minor": order.refunded_minor,
        "refundable_minor": order.refundable_minor,
        "max_amount_minor": session.max_amount_minor,
        "expires_at": session.expires_at,
    }
