"""A client of Refund Once that proposes each refund once, whatever is lost on the way.

    from refund_once_client import RefundOnce

    with RefundOnce("https://refunds.example.com", key) as refunds:
        action = refunds.propose_refund(order_id="4821", request_id="3", amount_minor=7900,
                                        currency="USD", reason="requested_by_customer")

`RefundOnce` is for a merchant's backend, `RefundSession` for a model's tools; both exist for
asyncio. What they raise is `Problem`, `OutcomeUnknown` and `NoAnswer`, and nothing of httpx.
"""

from refund_once_client.answers import (
    Action,
    ActionPage,
    Approval,
    CurrentSession,
    Decision,
    Explanation,
    FieldProblem,
    OpenCase,
    OpenedSession,
    Order,
    ProviderRefund,
    Rule,
)
from refund_once_client.bounded_http import BoundedTransport
from refund_once_client.clients import (
    AsyncRefundOnce,
    AsyncRefundSession,
    RefundOnce,
    RefundSession,
)
from refund_once_client.exchange import Patience
from refund_once_client.given import Customer, OrderLine, Payment, RefundLine
from refund_once_client.problems import NoAnswer, OutcomeUnknown, Problem, RefundOnceError

__all__ = [
    "Action",
    "ActionPage",
    "Approval",
    "AsyncRefundOnce",
    "AsyncRefundSession",
    "BoundedTransport",
    "CurrentSession",
    "Customer",
    "Decision",
    "Explanation",
    "FieldProblem",
    "NoAnswer",
    "OpenCase",
    "OpenedSession",
    "Order",
    "OrderLine",
    "OutcomeUnknown",
    "Patience",
    "Payment",
    "Problem",
    "ProviderRefund",
    "RefundLine",
    "RefundOnce",
    "RefundOnceError",
    "RefundSession",
    "Rule",
]
