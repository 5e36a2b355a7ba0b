"""How a test brings an action to where reconciliation finds it, and lets time pass."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from effects.models import Case
from effects.states import State
from providers.sandbox import Sandbox
from reconciliation.sweep import sweep
from refunds.dispatch import dispatch
from refunds.models import Order, RefundAction, RefundEvent
from tests import builders

# Answers are lost at once, so that no test waits for a timeout.
EXECUTED = "reset-after-execution"
NOT_EXECUTED = "reset-before-execution"
CACHED_500 = "error-500-not-executed"
CACHED_500_EXECUTED = "error-500-executed"


def unknown(
    sandbox: Sandbox, *, fault: str, order: Order | None = None, **fields: Any
) -> RefundAction:
    """An action that was sent and whose answer was lost: UNKNOWN, no try made."""
    row = builders.action(order or builders.order(sandbox=sandbox), **fields)
    return send_into(sandbox, row, fault=fault)


def send_into(sandbox: Sandbox, row: RefundAction, *, fault: str) -> RefundAction:
    """Send an AUTHORIZED action into a fault: UNKNOWN."""
    sandbox.fault(fault)
    dispatch(action_id=row.action_id)
    row = builders.fresh(row)
    assert row.state == State.UNKNOWN, row.state
    return row


def sweep_at(seconds: float) -> int:
    """A sweep, so many seconds of database time after the test began."""
    builders.skew_clock(seconds)
    return sweep()


def posts(sandbox: Sandbox) -> int:
    """How many refund requests reached the provider."""
    return len(builders.refunds_on_the_wire(sandbox))


def reads(sandbox: Sandbox) -> int:
    """How many times refunds were listed."""
    return len(sandbox.requests(method="GET", path="/v1/refunds"))


def history(row: RefundAction) -> list[str]:
    """The kinds of the action's events, in order."""
    return list(
        RefundEvent.objects.filter(action=row).order_by("pk").values_list("kind", flat=True)
    )


def looks(row: RefundAction) -> list[dict[str, Any]]:
    """What each look at the provider wrote down, in order."""
    events = RefundEvent.objects.filter(action=row, kind="refund.looked").order_by("pk")
    return [event.data for event in events]


def due_at(row: RefundAction) -> datetime:
    """When a sweep looks at the action next; it must have such a time."""
    due = builders.fresh(row).due_at
    assert due is not None
    return due


def open_cases(row: RefundAction) -> dict[str, Case]:
    """The action's open cases by kind."""
    found = Case.objects.filter(action_id=row.action_id, closed_at__isnull=True)
    return {case.kind: case for case in found}
