"""How a test comes by a refund that failed, by people with rights, and by remedies of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.auth.models import Permission, User
from django.db import transaction

from effects import cases
from effects.kinds import Locked, kind_named
from effects.models import Case
from effects.record import resolve_attempts
from effects.states import State
from effects.transitions import move
from providers.sandbox import Sandbox
from reconciliation.check_now import check_now
from refunds import remedies
from refunds.dispatch import dispatch
from refunds.models import CreditAction, Order, RefundAction, RefundEvent, Remedy
from refunds.remedies import RemedyDone, RemedyRefused, history_version
from tests import builders

NOTE = "the bank says that the card is closed"


def order_of_customer(sandbox: Sandbox, **facts: Any) -> Order:
    """A paid order whose customer the provider knows."""
    order = builders.order(sandbox=sandbox, **facts)
    customer = f"cus_{order.order_id.replace('-', '')}"
    sandbox.customer(id=customer)
    Order.objects.filter(pk=order.pk).update(customer_ref=customer)
    return Order.objects.get(pk=order.pk)


def debt(sandbox: Sandbox, *, order: Order | None = None, **fields: Any) -> RefundAction:
    """A refund that succeeded and failed late: the provider's own proof."""
    row = builders.action(order or order_of_customer(sandbox), **fields)
    dispatch(action_id=row.action_id)
    sandbox.fail_refund(builders.fresh(row).provider_ref)
    checked = check_now(action_id=row.action_id, actor="person:grace")
    assert checked.state == State.FAILED_FINAL, checked
    return builders.fresh(row)


def given_up(sandbox: Sandbox) -> RefundAction:
    """A refund that ended without proof: nobody found out, and people gave it up."""
    row = debt_without_answer(sandbox)
    give_up(row)
    return builders.fresh(row)


def give_up(row: Any) -> None:
    """End an UNKNOWN action as two people may, who have looked everywhere."""
    with locked(row) as found:
        kind = kind_named(row.action_id.partition(":")[0])
        resolve_attempts(kind=kind, locked=found, resolution="not_executed", resolved_by="test")
        move(
            kind=kind,
            locked=found,
            target=State.FAILED_FINAL,
            event=f"{kind.name}.given_up",
            actor="person:grace",
            data={},
            due_at=None,
        )


@contextmanager
def locked(row: Any) -> Iterator[Locked]:
    """An action locked in a transaction, as its kind locks it."""
    with transaction.atomic():
        found = kind_named(row.action_id.partition(":")[0]).lock(action_id=row.action_id)
        assert found is not None
        yield found


def incident(found: Locked) -> None:
    """Open an incident on a locked action."""
    cases.open_case(
        kind=Case.Kind.INCIDENT, effect="refund", locked=found, reason="a drill", evidence={}
    )


def debt_without_answer(sandbox: Sandbox) -> RefundAction:
    """A refund whose request was cut before the provider executed it: UNKNOWN."""
    row = builders.action(order_of_customer(sandbox))
    sandbox.fault("reset-before-execution")
    dispatch(action_id=row.action_id)
    return builders.fresh(row)


def person(*rights: str) -> User:
    """A member of staff with these of the room's rights; with all three, unless some are named."""
    user = builders.person(may_decide=False)
    names = rights or ("propose_remedy", "approve_remedy", "record_remedy")
    user.user_permissions.add(*Permission.objects.filter(codename__in=names))
    return User.objects.get(pk=user.pk)


def proposing(row: RefundAction, kind: str, **changed: Any) -> RemedyDone | RemedyRefused:
    """Propose a remedy, with words that are accepted unless said otherwise."""
    values: dict[str, Any] = {
        "action_id": row.action_id,
        "kind": kind,
        "user": changed.pop("user", None) or person(),
        "reason": "cannot_receive",
        "note": NOTE,
        "seen_version": history_version(action_id=row.action_id),
    }
    return remedies.propose_remedy(**(values | changed))


def proposed(row: RefundAction, kind: str, **changed: Any) -> Remedy:
    """A remedy that was proposed."""
    made = proposing(row, kind, **changed)
    assert isinstance(made, RemedyDone), made
    return made.remedy


def stopping(remedy: Remedy, *, user: User | None = None) -> RemedyDone | RemedyRefused:
    """Stop a remedy, as the person sees it now."""
    return remedies.stop_remedy(
        remedy_id=remedy.pk, user=user or person(), note=NOTE, seen_version=version(remedy)
    )


def recording(
    remedy: Remedy, *, user: User | None = None, reference: str = "SEPA 4821"
) -> RemedyDone | RemedyRefused:
    """Record a remedy as out, as the person sees it now."""
    return remedies.record_issued(
        remedy_id=remedy.pk,
        user=user or person(),
        reference=reference,
        seen_version=version(remedy),
    )


def coming_back(
    remedy: Remedy, *, reason: str = "bounced", user: User | None = None
) -> RemedyDone | RemedyRefused:
    """Record that an issued remedy did not reach the customer."""
    return remedies.record_failed(
        remedy_id=remedy.pk,
        user=user or person(),
        reason=reason,
        note=NOTE,
        seen_version=version(remedy),
    )


def approving(remedy: Remedy, *, user: User | None = None) -> RemedyDone | RemedyRefused:
    """Approve a remedy, as the person sees it now."""
    return remedies.approve_remedy(
        remedy_id=remedy.pk, user=user or person(), note=NOTE, seen_version=version(remedy)
    )


def version(remedy: Remedy) -> int:
    return RefundEvent.objects.filter(action=remedy.debt).count()


def fresh(remedy: Remedy) -> Remedy:
    """The remedy as the database has it now."""
    return Remedy.objects.select_related("debt__order").get(pk=remedy.pk)


def credit_of(remedy: Remedy) -> CreditAction:
    """The remedy's credit as the database has it now."""
    return CreditAction.objects.select_related("order").get(remedy=remedy)


def paid(sandbox: Sandbox, order: Order) -> list[int]:
    """What the customer was given at the provider, one by one, in minor units."""
    return [-line["amount"] for line in sandbox.credits(order.customer_ref)]


def comes_back(sandbox: Sandbox, row: RefundAction) -> RefundAction:
    """The refund that had failed is there after all, and a person asks."""
    ours = {"action_id": row.action_id, "instance": row.instance}
    sandbox.refund_outside(row.order.payment_ref, amount=row.amount_minor, metadata=ours)
    builders.skew_clock(60)  # a person who asks twice within seconds means it once
    check_now(action_id=row.action_id, actor="person:grace")
    return builders.fresh(row)


def open_cases(row: Any) -> dict[str, Case]:
    """The action's open cases by kind."""
    rows = Case.objects.filter(action_id=row.action_id, closed_at__isnull=True)
    return {case.kind: case for case in rows}


def balance_agrees(order: Order) -> None:
    """The order's balances are what its rows say."""
    now = Order.objects.get(pk=order.pk)
    live = Remedy.objects.filter(
        debt__order=now, state__in=["PROPOSED", "AUTHORIZED", "ISSUING", "ISSUED"]
    )
    done = RefundAction.objects.filter(order=now, state=State.SUCCEEDED)
    assert now.settled_otherwise_minor == sum(remedy.amount_minor for remedy in live)
    assert now.refunded_minor == sum(refund.amount_minor for refund in done)
