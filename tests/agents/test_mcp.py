"""The tools of a model: four, without an id, and what they answer."""

from __future__ import annotations

from typing import Any

import pytest

from refunds.models import Order, RefundAction
from tests import builders
from tests.agents.conftest import Caller, read
from tests.agents.mcp_client import LEGACY, NOW, TOOLS, Tools

pytestmark = pytest.mark.django_db

REFUND = {"amount_minor": 7_900, "reason": "damaged"}


def opened(caller: Caller, order: Order | None = None, *, era: str = NOW, **binding: Any) -> Tools:
    """Tools of a new session for request "7" of an order."""
    order = order or builders.order()
    body = {"order_id": order.order_id, "request_id": "7", **binding}
    return Tools(read(caller.call("POST", "/sessions", body), 201)["token"], era=era)


@pytest.mark.parametrize("era", [NOW, *LEGACY])
def test_a_conversation_proposes_reads_and_withdraws_in_every_era(caller: Caller, era: str) -> None:
    order = builders.order()
    tools = opened(caller, order, era=era)
    if era != NOW:
        initialized = tools.result(
            "initialize",
            {
                "protocolVersion": era,
                "capabilities": {},
                "clientInfo": {"name": "by hand", "version": "1"},
            },
        )
        assert initialized["protocolVersion"] == era
    assert {tool["name"] for tool in tools.result("tools/list")["tools"]} == set(TOOLS)
    refundable = tools.call("get_refundable")
    assert (refundable["refundable_minor"], refundable["refundable"]) == (20_000, "200.00 USD")
    assert tools.call("refund_status")["outcome"] == "none"
    recorded = tools.call("propose_refund", **REFUND)
    assert (recorded["outcome"], recorded["amount"]) == ("recorded", "79.00 USD")
    assert recorded["action_id"] == f"refund:order-{order.order_id}:request-7"
    assert tools.call("propose_refund", **REFUND, note="other words") == {
        **recorded,
        "outcome": "replayed",
    }
    assert tools.call("refund_status") == {**recorded, "outcome": "found"}
    assert tools.call("propose_refund", **REFUND | {"reason": "late"})["outcome"] == "conflict"
    withdrawn = tools.call("withdraw_refund")
    assert (withdrawn["outcome"], withdrawn["state"]) == ("withdrawn", "CANCELLED")
    assert tools.call("withdraw_refund") == withdrawn
    assert RefundAction.objects.count() == 1
