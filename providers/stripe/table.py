"""What each answer of Stripe proves: one table, first matching row wins.

A row says what the *answer* proves and nothing more; what follows from it, given the other
attempts of the action, is decided by `effects`. Rows branch on status and code and, where Stripe
gives no code, on the recorded words of its message; never on `type` alone.

Sources: `docs` https://docs.stripe.com/error-codes and /error-low-level and /api/errors,
`recorded` answers of a live sandbox, `issue` a public report with a log, `sdk` the source of
stripe-python 16.1.0, `here` our own decision.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: the conditions that are set must all hold.

    - `event`: what happened on our side of the wire when there was no usable answer
    - `object`: what a 2xx body turned out to be
    - `status`: HTTP statuses, first and last; `status`-only rows need Stripe's error object
    - `code`: Stripe's error code or message code, exact, or a prefix ending in `*`
    - `message`: a regular expression searched in Stripe's message
    - `replayed`: only an answer that Stripe says it has stored under the key
    """

    what: str
    outcome: str
    word: str = ""
    event: tuple[str, ...] = ()
    object: str = ""
    status: tuple[int, int] | None = None
    type: str = ""
    code: tuple[str, ...] = ()
    param: str = ""
    message: str = ""
    replayed: bool = False
    read_first: bool = False
    incident: bool = False
    source: str = "docs"


BAD_REQUEST = (400, 400)

TABLE: tuple[Row, ...] = (
    # 1. No byte of the request was written: the connection says so itself, and the cause chain
    #    only gives the word.
    Row(what="the fence said no", event=("fenced",), outcome="NotSent", word="fenced"),
    Row(
        what="the fence could not be asked",
        event=("fence_failed",),
        outcome="NotSent",
        word="fence_failed",
        source="here",
    ),
    Row(
        what="the time was over before the request was written",
        event=("deadline_before_send",),
        outcome="NotSent",
        word="deadline",
        source="here",
    ),
    Row(
        what="no connection in time",
        event=("connect_timeout",),
        outcome="NotSent",
        word="connect_timeout",
        source="sdk",
    ),
    Row(
        what="the name does not resolve",
        event=("name_resolution",),
        outcome="NotSent",
        word="name_resolution",
        source="sdk",
    ),
    Row(
        what="the connection was refused",
        event=("connection_refused",),
        outcome="NotSent",
        word="connection_refused",
        source="sdk",
    ),
    Row(
        what="the TLS handshake failed",
        event=("tls_handshake",),
        outcome="NotSent",
        word="tls_handshake",
        source="here",
    ),
    Row(
        what="anything else before the first byte",
        event=("before_send",),
        outcome="NotSent",
        word="before_send",
        source="here",
    ),
    # 2. Bytes may have left, and no whole answer came back.
    Row(
        what="the total deadline cut the call",
        event=("deadline",),
        outcome="Unknown",
        word="deadline",
        source="here",
    ),
    Row(
        what="no answer within the read timeout",
        event=("read_timeout",),
        outcome="Unknown",
        word="read_timeout",
    ),
    Row(
        what="the answer stopped in the middle",
        event=("truncated",),
        outcome="Unknown",
        word="truncated",
    ),
    Row(
        what="TLS broke after the handshake",
        event=("tls",),
        outcome="Unknown",
        word="tls",
        source="issue",
    ),
    Row(
        what="the connection was reset or closed without an answer",
        event=("connection_reset",),
        outcome="Unknown",
        word="connection_reset",
    ),
    Row(
        what="the answer is larger than any answer of Stripe",
        event=("answer_too_long",),
        outcome="Unknown",
        word="answer_too_long",
        source="here",
    ),
    Row(
        what="the call was interrupted (a task's time limit, any other exception)",
        event=("interrupted",),
        outcome="Unknown",
        word="interrupted",
        source="here",
    ),
    # 3. A whole answer that is not the answer to our request.
    Row(
        what="the answer names another idempotency key, amount, payment, customer or action",
        object="mismatch",
        outcome="Unknown",
        word="answer_mismatch",
        incident=True,
        source="recorded",
    ),
    # 4. 2xx.
    Row(
        what="a refund that has succeeded, or a store credit",
        status=(200, 299),
        object="succeeded",
        outcome="Succeeded",
        source="recorded",
    ),
    Row(
        what="a refund that is pending, requires action, or has a status we do not know",
        status=(200, 299),
        object="open",
        outcome="Pending",
        source="recorded",
    ),
    Row(
        what="a refund that failed or was cancelled",
        status=(200, 299),
        object="failed",
        outcome="Refused",
        word="failed",
        source="recorded",
    ),
    Row(
        what="success, but nothing readable in it",
        status=(200, 299),
        object="unreadable",
        outcome="Unknown",
        word="unreadable_answer",
        source="sdk",
    ),
    # 5. Answers that are not Stripe's: a page of a proxy, an empty body.
    Row(
        what="a redirect (never followed)",
        status=(300, 399),
        outcome="Unknown",
        word="redirect",
        source="here",
    ),
    Row(
        what="a server error, with or without a body, replayed or not",
        status=(500, 599),
        outcome="Unknown",
        word="server_error",
    ),
    Row(
        what="any other status without Stripe's error object",
        object="unreadable",
        outcome="Unknown",
        word="unreadable_answer",
        source="here",
    ),
    # 6. Stripe's errors, by status.
    Row(
        what="the key is in use by a request in flight, or any other conflict",
        status=(409, 409),
        outcome="Unknown",
        word="conflict",
        source="issue",
    ),
    Row(
        what="something Stripe depends on failed",
        status=(424, 424),
        outcome="Unknown",
        word="external_dependency",
    ),
    Row(
        what="too many requests, or the object is locked (`rate_limit`, `lock_timeout`)",
        status=(429, 429),
        outcome="RateLimited",
        word="rate_limited",
        source="issue",
    ),
    Row(
        what="the old form of too many requests",
        status=BAD_REQUEST,
        code=("rate_limit",),
        outcome="RateLimited",
        word="rate_limited",
        source="sdk",
    ),
    Row(
        what="the key was used with other content, and may have been executed",
        status=BAD_REQUEST,
        type="idempotency_error",
        outcome="Unknown",
        word="key_reused_with_other_content",
        incident=True,
        source="issue",
    ),
    # 6a. The same out of the store: this key has answered for good, whatever is repaired since, so
    #     pausing the account for it once more would never end.
    Row(
        what="no such payment or customer, or no permission, answered from what the key stores",
        status=(403, 404),
        replayed=True,
        outcome="Refused",
        word="not_found",
        source="here",
    ),
    Row(
        what="wrong account, mode or object, answered from what is stored under the key",
        status=BAD_REQUEST,
        code=("account_invalid", "livemode_mismatch", "resource_missing"),
        replayed=True,
        outcome="Refused",
        word="misconfigured",
        source="here",
    ),
    Row(
        what="the API key is wrong or expired",
        status=(401, 401),
        outcome="Misconfigured",
        word="unauthorized",
    ),
    Row(
        what="the API key may not do this",
        status=(403, 403),
        outcome="Misconfigured",
        word="forbidden",
    ),
    Row(
        what="the account cannot be used",
        status=(400, 499),
        code=("account_invalid",),
        outcome="Misconfigured",
        word="account_invalid",
    ),
    Row(
        what="a test key for a live payment, or the reverse",
        status=(400, 499),
        code=("livemode_mismatch",),
        outcome="Misconfigured",
        word="livemode_mismatch",
    ),
    Row(
        what="no such payment or customer for this key: usually the wrong account or mode",
        status=(404, 404),
        outcome="Misconfigured",
        word="not_found",
        source="recorded",
    ),
    Row(
        what="no such object, said with 400",
        status=BAD_REQUEST,
        code=("resource_missing",),
        outcome="Misconfigured",
        word="not_found",
        source="recorded",
    ),
    # 7. Definite refusals.
    Row(
        what="the payment is fully refunded, maybe by us",
        status=BAD_REQUEST,
        code=("charge_already_refunded",),
        outcome="Refused",
        word="already_refunded",
        read_first=True,
        source="recorded",
    ),
    Row(
        what="more than is left of the payment, maybe because of us",
        status=BAD_REQUEST,
        param="amount",
        message=r"greater than (the )?(unrefunded|charge) amount",
        outcome="Refused",
        word="amount_over_remaining",
        read_first=True,
        source="recorded",
    ),
    Row(
        what="more than Stripe can refund at all",
        status=BAD_REQUEST,
        code=("amount_too_large",),
        outcome="Refused",
        word="amount_over_remaining",
        read_first=True,
    ),
    Row(
        what="the payment is disputed; it can be refunded again when the dispute is won",
        status=BAD_REQUEST,
        code=("charge_disputed", "refund_disputed_payment"),
        outcome="Refused",
        word="disputed",
        read_first=True,
        source="recorded",
    ),
    Row(
        what="the payment cannot be refunded",
        status=BAD_REQUEST,
        code=("charge_not_refundable",),
        outcome="Refused",
        word="not_refundable",
        read_first=True,
    ),
    Row(
        what="the payment was never captured",
        status=BAD_REQUEST,
        message=r"uncaptured [Cc]harge",
        outcome="Refused",
        word="not_captured",
        source="recorded",
    ),
    Row(
        what="the payment has no successful charge",
        status=BAD_REQUEST,
        message=r"does not have a successful charge",
        outcome="Refused",
        word="no_successful_charge",
        source="recorded",
    ),
    Row(
        what="the merchant's Stripe balance is too low",
        status=BAD_REQUEST,
        code=("insufficient_balance_for_refund", "balance_insufficient"),
        outcome="Refused",
        word="insufficient_funds",
        source="issue",
    ),
    Row(
        what="the same, told only in words",
        status=BAD_REQUEST,
        message=r"[Ii]nsufficient funds in your Stripe balance",
        outcome="Refused",
        word="insufficient_funds",
        source="issue",
    ),
    Row(
        what="a customer whose balance is in another currency",
        status=BAD_REQUEST,
        message=r"combine currencies on a single customer",
        outcome="Refused",
        word="currency_mismatch",
        source="issue",
    ),
    Row(
        what="a parameter is wrong: a mistake of this program; nothing was done",
        status=BAD_REQUEST,
        code=("parameter_*",),
        outcome="Refused",
        word="invalid_parameter",
        source="recorded",
    ),
    Row(
        what="a reason Stripe does not know",
        status=BAD_REQUEST,
        param="reason",
        outcome="Refused",
        word="invalid_parameter",
        source="recorded",
    ),
    Row(
        what="no payment was named",
        status=BAD_REQUEST,
        message=r"One of the following params should be provided",
        outcome="Refused",
        word="invalid_parameter",
        source="recorded",
    ),
    Row(
        what="valid parameters, and the refund failed all the same",
        status=(402, 402),
        outcome="Refused",
        word="declined",
        read_first=True,
    ),
    Row(
        what="any other bad request; final only after Stripe was read",
        status=BAD_REQUEST,
        type="invalid_request_error",
        outcome="Refused",
        word="unrecognised_refusal",
        read_first=True,
        source="here",
    ),
    # 8. Whatever is left proves nothing.
    Row(what="anything else", outcome="Unknown", word="unrecognised_answer", source="here"),
)
