"""Plain functions that make the rows a test begins with, through the same doors as the product."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction

from approvals.decide import Approved, ApprovedByOne, Seen, approve
from effects.claim import Claimed, claim
from effects.kinds import Reading
from effects.outcomes import Evidence, Outcome, ProviderEffect
from effects.record import record, resolve_attempts
from effects.send import Sent
from effects.states import State
from effects.transitions import move
from policies.models import PolicyVersion
from policies.parameters import Parameters, Tier
from policies.versions import DEFAULT_PARAMETERS, publish
from providers.registry import override_provider
from providers.sandbox import Sandbox
from providers.stripe.adapter import StripeProvider
from refunds.kind import REFUND
from refunds.models import Order, RefundAction, RefundAttempt
from refunds.orders import OrderFacts, mirror_order
from refunds.propose import Proposal, Recorded, propose_refund

_numbers = itertools.count(1)

# Every amount of every currency by policy alone, side by side, as often as asked: what is left to
# protect the money is the protocol itself.
ALLOW_ALL = replace(
    DEFAULT_PARAMETERS,
    ceiling_minor=dict.fromkeys(DEFAULT_PARAMETERS.ceiling_minor, 2**53 - 1),
    review_beside_open=False,
    same_amount_window_seconds=0,
    tiers=(Tier(tier=1, up_to_base_minor=None),),
    velocity=(),
    budgets=(),
    goodwill_budgets=(),
    anomaly_factor=0,
    sample_qa_per_mille=0,
)


def next_id(prefix: str) -> str:
    """An id that no other test of this process uses."""
    return f"{prefix}{next(_numbers)}"


def order(
    *,
    order_id: str | None = None,
    captured_minor: int = 20_000,
    currency: str = "USD",
    payment_ref: str | None = None,
    customer_ref: str | None = None,
    sandbox: Sandbox | None = None,
    **facts: Any,
) -> Order:
    """A mirrored order; with `sandbox`, its payment exists there too."""
    order_id = order_id or next_id("order-")
    payment_ref = payment_ref or f"pi_{order_id.replace('-', '').replace('.', '')}"
    if sandbox is not None:
        sandbox.payment(amount=captured_minor, currency=currency.lower(), id=payment_ref)
    mirrored = mirror_order(
        facts=OrderFacts(
            order_id=order_id,
            currency=currency,
            captured_minor=captured_minor,
            provider="stripe",
            payment_ref=payment_ref,
            # Each order another customer's: what one of them got back is a limit too.
            customer_ref=customer_ref or f"customer-of-{order_id}",
            customer_email="customer@example.com",
            **facts,
        ),
        actor="test",
    )
    return mirrored.order


def proposal(of: Order, *, request_id: str | None = None, **fields: Any) -> Proposal:
    """A proposal of 79.00 for an order, unless said otherwise."""
    values: dict[str, Any] = {
        "order_id": of.order_id,
        "request_id": request_id or next_id("request-"),
        "amount_minor": 7_900,
        "currency": of.currency,
        "reason": "requested_by_customer",
        "proposer": "agent-1",
    }
    return Proposal(**(values | fields))


def action(of: Order, **fields: Any) -> RefundAction:
    """A proposed and decided action."""
    proposed = propose_refund(proposal=proposal(of, **fields))
    if not isinstance(proposed, Recorded):
        raise AssertionError(f"not recorded: {proposed!r}")
    return proposed.action


def fresh(row: RefundAction) -> RefundAction:
    """The action as the database has it now, with its order."""
    return RefundAction.objects.select_related("order").get(pk=row.pk)


def due(row: RefundAction) -> datetime:
    """When an action is next due, now; it is an error when it never is."""
    at = fresh(row).due_at
    if at is None:
        raise AssertionError(f"{row.action_id} is never due")
    return at


def policy(**parameters: Any) -> Parameters:
    """Publish the default policy with some parameters changed."""
    changed = replace(DEFAULT_PARAMETERS, **parameters)
    publish(parameters=changed, published_by="test")
    return changed


def allow_all() -> None:
    """Publish a policy that asks nobody."""
    publish(parameters=ALLOW_ALL, published_by="test")


def person(username: str | None = None, *, may_decide: bool = True, tier: int = 1) -> User:
    """A member of staff; with `may_decide`, one who may approve up to that tier, and reject."""
    user = User.objects.create_user(
        username=username or next_id("person"), password="correct horse battery", is_staff=True
    )
    if may_decide:
        codename = "decide_refund" if tier == 1 else f"approve_tier_{tier}"
        user.user_permissions.add(*Permission.objects.filter(codename=codename))
    return User.objects.get(pk=user.pk)


def seen(row: RefundAction, **changed: Any) -> Seen:
    """What a person is shown who looks at the action now."""
    now = fresh(row)
    policy = PolicyVersion.objects.first()
    values: dict[str, Any] = {
        "version": now.order.version,
        "payload_hash": now.payload_hash,
        "round": now.approval_round,
        "policy_version": policy.number if policy else 0,
    }
    return Seen(**(values | changed))


def approved(row: RefundAction, *people: User, note: str = "checked") -> RefundAction:
    """The action approved by these people, one after the other, or by somebody who may."""
    for user in people or (person(),):
        made = approve(action_id=row.action_id, user=user, note=note, seen=seen(row))
        if not isinstance(made, Approved | ApprovedByOne):
            raise AssertionError(made)
    return fresh(row)


def stand_at(row: RefundAction, state: str, **columns: Any) -> RefundAction:
    """Move an action along one legal move, the way the product does."""
    with transaction.atomic():
        locked = REFUND.lock(action_id=row.action_id)
        if locked is None:
            raise AssertionError(row.action_id)
        move(
            kind=REFUND,
            locked=locked,
            target=state,  # type: ignore[arg-type]
            event="test.moved",
            actor="test",
            data={},
            due_at=columns.pop("due_at", None),
            **columns,
        )
    return fresh(row)


@contextmanager
def past_the_triggers() -> Iterator[None]:
    """Write rows as somebody who went round our triggers (the tests' role may); CHECKs stay."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        yield
        cursor.execute("SET session_replication_role = DEFAULT")


def skew_clock(seconds: float) -> None:
    """Move the database clock of this connection; 0 puts it right."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('refund_once.clock_skew_seconds', %s, false)", [str(seconds)]
        )


@contextmanager
def stripe_at(sandbox: Sandbox) -> Iterator[StripeProvider]:
    """Let every provider call of this process go to that sandbox, with the product's timeouts."""
    provider = StripeProvider(
        api_key=sandbox.api_key,
        api_base=sandbox.url,
        connect_timeout_seconds=settings.PROVIDER_CONNECT_TIMEOUT_SECONDS,
        read_timeout_seconds=settings.PROVIDER_READ_TIMEOUT_SECONDS,
        total_timeout_seconds=settings.PROVIDER_TOTAL_TIMEOUT_SECONDS,
    )
    with override_provider("stripe", provider):
        yield provider


NO_EVIDENCE = Evidence()


# -- one answer at a time -------------------------------------------------------------------------


def effect(of: RefundAction, *, ref: str | None = None, **fields: Any) -> ProviderEffect:
    """The provider's refund of an action, as it would show it: succeeded unless said otherwise."""
    values: dict[str, Any] = {
        "ref": ref or next_id("re_"),
        "amount_minor": of.amount_minor,
        "currency": of.currency,
        "payment_ref": of.order.payment_ref,
        "status": fields.get("settlement", "succeeded"),
        "settlement": "succeeded",
        "metadata": {"action_id": of.action_id, "instance": settings.INSTANCE},
    }
    return ProviderEffect(**(values | fields))


def claimed(row: RefundAction) -> Claimed:
    """Claim an action, as a worker does."""
    result = claim(kind=REFUND, action_id=row.action_id, worker="worker:test")
    if not isinstance(result, Claimed):
        raise AssertionError(result.reason)
    return result


def answered(token: UUID, outcome: Outcome, *, reading: Reading | None = None) -> None:
    """Record what an attempt came back with, as a worker does."""
    record(
        kind=REFUND,
        token=token,
        sent=Sent(outcome=outcome, reading=reading),
        actor="worker:test",
    )


def lease_over(row: RefundAction) -> RefundAction:
    """What the sweep makes of a SUBMITTING action whose worker never came back: UNKNOWN."""
    with transaction.atomic():
        locked = REFUND.lock(action_id=row.action_id)
        if locked is None:
            raise AssertionError(row.action_id)
        RefundAttempt.objects.filter(action=row, closed_at__isnull=True).update(
            closed_at=locked.now, outcome="no_answer"
        )
        move(
            kind=REFUND,
            locked=locked,
            target=State.UNKNOWN,
            event="refund.lease_over",
            actor="test",
            data={},
            due_at=locked.now,
            unknown_since=locked.action.unknown_since or locked.now,
        )
    return fresh(row)


def not_executed(row: RefundAction) -> None:
    """What reconciliation writes down when it proved that the attempts did nothing."""
    with transaction.atomic():
        locked = REFUND.lock(action_id=row.action_id)
        if locked is None:
            raise AssertionError(row.action_id)
        resolve_attempts(
            kind=REFUND, locked=locked, resolution="not_executed", resolved_by="reconciliation"
        )


def refunds_on_the_wire(sandbox: Sandbox) -> list[dict[str, Any]]:
    """Every refund request that reached the sandbox."""
    return sandbox.requests(method="POST", path="/v1/refunds")
