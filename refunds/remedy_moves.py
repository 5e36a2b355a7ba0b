"""What moves a remedy: its row, the order's balance, the refund's history and its case, together.

The only module that writes `Remedy.state`. Every function takes the refund locked, as
`RefundKind.lock` locks it: `locked.action` is the refund that failed, `locked.resource` its order.
A remedy's row is written only under that lock and is not locked itself.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import F

from approvals.models import CaseAct
from effects import cases
from effects.kinds import Locked, kind_named
from effects.models import Case
from effects.states import State
from effects.transitions import postpone
from kernel.money import format_amount
from refunds.models import CreditAction, Order, RefundEvent
from refunds.overdrawn import open_overdrawn
from refunds.remedy_models import LIVE_REMEDIES, STOPPABLE_REMEDIES, Remedy, RemedyState

# How long a failed refund is read again after its remedy was issued. Stripe reports a refund that
# failed late within about 30 days; nothing says how late one may succeed, so the same is allowed.
# https://docs.stripe.com/refunds#failed-refunds
WATCH_DAYS = 30
WATCH_EVERY = timedelta(days=1)

_ISSUED = RemedyState.ISSUED.value


def live_remedies(*, locked: Locked) -> list[Remedy]:
    """The debt's live settlements: one at most, unless an incident has shown a second."""
    rows = Remedy.objects.filter(debt=locked.action, state__in=LIVE_REMEDIES)
    return list(rows.select_related("credit").order_by("number"))


def take_up(*, locked: Locked, amount_minor: int) -> bool:
    """Take a remedy's amount out of what is left; False when it does not fit. The UPDATE checks."""
    taken = F("refunded_minor") + F("reserved_minor") + F("settled_otherwise_minor")
    fits = Order.objects.filter(
        pk=locked.resource.pk,
        captured_minor__gte=taken + F("disputed_minor") + amount_minor,
    )
    return _change_balance(locked=locked, rows=fits, by_minor=amount_minor)


def _change_balance(*, locked: Locked, rows: Any, by_minor: int) -> bool:
    changed = rows.update(
        settled_otherwise_minor=F("settled_otherwise_minor") + by_minor,
        version=F("version") + 1,
        updated_at=locked.now,
    )
    if changed:
        locked.resource.settled_otherwise_minor += by_minor
        locked.resource.version += 1
    return bool(changed)


def tell(*, locked: Locked, remedy: Remedy, event: str, actor: str, data: dict[str, Any]) -> None:
    """Append one line about a remedy to the refund's history."""
    RefundEvent.objects.create(
        order=locked.resource,
        action=locked.action,
        kind=f"refund.remedy_{event}",
        actor=actor[:80],
        at=locked.now,
        data={
            "order_version": locked.resource.version,
            "remedy": remedy.number,
            "remedy_kind": remedy.kind,
            "remedy_state": remedy.state,
            "amount_minor": remedy.amount_minor,
            "currency": remedy.currency,
            **data,
        },
    )


def move_remedy(
    *,
    locked: Locked,
    remedy: Remedy,
    target: RemedyState,
    event: str,
    actor: str,
    data: dict[str, Any],
    **columns: Any,
) -> None:
    """Move one remedy, in the caller's transaction. Postgres refuses what is no legal move.

    1. A live remedy takes up the order's balance; one that is not gives it back.
    2. Write the row.
    3. Append the event to the refund's history.
    4. The refund is read again from tomorrow on, however long ago it was read last.
    """
    before = remedy.amount_minor if remedy.state in LIVE_REMEDIES else 0
    after = remedy.amount_minor if target in LIVE_REMEDIES else 0
    columns |= {"state": target.value, "state_since": locked.now}
    for name, value in columns.items():
        setattr(remedy, name, value)
    Remedy.objects.filter(pk=remedy.pk).update(**columns)
    if before != after:
        order = Order.objects.filter(pk=locked.resource.pk)
        _change_balance(locked=locked, rows=order, by_minor=after - before)
    tell(locked=locked, remedy=remedy, event=event, actor=actor, data=data)
    begin_watch(locked=locked)


def begin_watch(*, locked: Locked) -> None:
    """Read the failed refund again from tomorrow on, and credits of it that were given up.

    Those are told after the commit: whoever holds a refund never waits for a credit.
    """
    if locked.action.state != State.FAILED_FINAL:
        return
    due_at = locked.now + WATCH_EVERY
    postpone(kind=kind_named("refund"), locked=locked, due_at=due_at)
    earlier = CreditAction.objects.filter(
        remedy__debt=locked.action, state=State.FAILED_FINAL, due_at__isnull=True
    )
    transaction.on_commit(partial(earlier.update, due_at=due_at))


def keep_failed_case(*, locked: Locked, remedy: Remedy) -> None:
    """While the customer is owed the refund's case is open, also after somebody had closed it."""
    if locked.action.state != State.FAILED_FINAL or is_settled(locked=locked):
        return
    closes = "this closes when it is issued" if remedy.state in LIVE_REMEDIES else "propose another"
    cases.open_case(
        kind=Case.Kind.FAILED,
        effect="refund",
        locked=locked,
        reason=(
            f"The refund failed, and the customer is still owed. {opening(remedy)} is "
            f"{RemedyState(remedy.state).label}: {closes}."
        ),
        evidence={"remedy": remedy.number},
    )


def stop(*, locked: Locked, remedy: Remedy, actor: str, why: str) -> None:
    """Stop a remedy of which nothing is out. The claim of its credit, if any, will say no."""
    move_remedy(
        locked=locked,
        remedy=remedy,
        target=RemedyState.STOPPED,
        event="stopped",
        actor=actor,
        data={"why": why},
    )


def came_out(*, locked: Locked, remedy: Remedy, actor: str, reference: str, **columns: Any) -> None:
    """A remedy is out: recorded by a person, or shown by the provider. Never refused.

    1. Another settlement of the debt of which nothing is out is stopped.
    2. The customer has it twice, or the refund has not failed any more: an incident. It is opened
       first; Postgres lets no second settlement be without one.
    3. ISSUED. Beside another that is, or may be, out it is a second one.
    4. Otherwise the debt is settled: the refund's case closes and names the remedy.
    """
    others = [other for other in live_remedies(locked=locked) if other.pk != remedy.pk]
    for other in others:
        if other.state in STOPPABLE_REMEDIES:
            stop(locked=locked, remedy=other, actor=actor, why="another settlement is out")
    beside = [other for other in others if other.state in LIVE_REMEDIES]
    is_twice = bool(beside) or locked.action.state != State.FAILED_FINAL
    remedy.reference = remedy.reference or reference
    if is_twice:
        _open_incident(
            locked=locked, out=[*((each, each.state) for each in beside), (remedy, _ISSUED)]
        )
    move_remedy(
        locked=locked,
        remedy=remedy,
        target=RemedyState.ISSUED,
        event="issued",
        actor=actor,
        data={"reference": reference},
        is_second=bool(beside),
        reference=remedy.reference,
        **columns,
    )
    if is_twice:
        return
    cases.close_for_action(
        locked=locked,
        kinds=(Case.Kind.FAILED,),
        actor=actor,
        resolution=f"Settled by {in_words(remedy)}.",
    )
    if locked.resource.refundable_minor < 0:
        open_overdrawn(locked=locked)


def failed(*, locked: Locked, remedy: Remedy, actor: str, why: str, **said: str) -> None:
    """A remedy did not reach the customer: the debt is open again, with its case.

    `said` is what a person said of it: for the history, not for the case.
    """
    move_remedy(
        locked=locked,
        remedy=remedy,
        target=RemedyState.FAILED,
        event="failed",
        actor=actor,
        data={"why": why, **said},
    )
    if locked.action.state == State.FAILED_FINAL and not live_remedies(locked=locked):
        cases.open_case(
            kind=Case.Kind.FAILED,
            effect="refund",
            locked=locked,
            reason=(
                f"The refund failed, and so did {in_words(remedy)} ({why}). Nothing is tried again "
                "by itself. The customer is still owed: propose another remedy."
            ),
            evidence={"remedy": remedy.number, "why": why},
        )


def did_nothing(*, locked: Locked, remedy: Remedy, actor: str) -> None:
    """A credit's attempt is proved to have done nothing: it may be tried again, or is over."""
    if locked.action.state != State.FAILED_FINAL:
        stop(locked=locked, remedy=remedy, actor=actor, why=_why_gone(locked.action))
        return
    if is_settled(locked=locked):
        stop(locked=locked, remedy=remedy, actor=actor, why="another settlement is out")
        return
    move_remedy(
        locked=locked,
        remedy=remedy,
        target=RemedyState.AUTHORIZED,
        event="not_issued",
        actor=actor,
        data={},
    )


def refund_is_back(*, locked: Locked) -> tuple[str, ...]:
    """The refund that had failed is there after all: stop what is not out, tell of what is.

    Called while the refund leaves FAILED_FINAL, in that transaction. Returns the ids of stopped
    credits that a worker may be told of.
    """
    live = live_remedies(locked=locked)
    out = [remedy for remedy in live if remedy.state not in STOPPABLE_REMEDIES]
    by_hand = [
        remedy
        for remedy in live
        if remedy.state == RemedyState.AUTHORIZED and remedy.kind != Remedy.Kind.STORE_CREDIT
    ]
    for remedy in live:
        if remedy not in out:
            stop(locked=locked, remedy=remedy, actor="provider", why=_why_gone(locked.action))
    if out:
        _open_incident(locked=locked, out=[(remedy, remedy.state) for remedy in out])
    if by_hand:
        _ask_whether_paid(locked=locked, remedies=by_hand)
    return tuple(
        remedy.credit.action_id for remedy in live if remedy not in out and has_credit(remedy)
    )


def watched_until(*, locked: Locked) -> datetime | None:
    """Until when the failed refund is read again: some time after its remedy was issued.

    While a remedy is on its way there is no end to it. One that people gave up is watched from then
    on, remedy or not: nobody knows that it failed.
    """
    since = [
        remedy.state_since if remedy.state == RemedyState.ISSUED else locked.now
        for remedy in live_remedies(locked=locked)
    ]
    since += given_up_since(locked.action)
    return max(since) + timedelta(days=WATCH_DAYS) if since else None


def given_up_since(action: Any) -> list[datetime]:
    """Since when a failed refund or credit has been given up by people; [] if it was not."""
    acts = CaseAct.objects.filter(action_id=action.action_id, act=CaseAct.Act.GIVE_UP)
    return [action.state_since] if acts.exists() else []


def is_settled(*, locked: Locked) -> bool:
    """Whether the customer has the money by a remedy."""
    return any(remedy.state == RemedyState.ISSUED for remedy in live_remedies(locked=locked))


def why_case_stays(*, locked: Locked) -> str:
    """Why the case of a failed refund does not close by a word, as a sentence; "" when it may."""
    for remedy in live_remedies(locked=locked):
        if remedy.state != RemedyState.ISSUED:
            return (
                f"{opening(remedy)} is {RemedyState(remedy.state).label}: this "
                "closes when it is issued. Stop it first if none is due."
            )
    return ""


def on_the_way(*, locked: Locked) -> str:
    """What a refund made elsewhere meets: the debt's live remedies, as sentences; "" for none."""
    return "".join(
        f" {opening(remedy)} is {RemedyState(remedy.state).label}"
        + (
            ": stop it if nothing more is owed."
            if remedy.state in STOPPABLE_REMEDIES
            else ": the customer may have both."
        )
        for remedy in live_remedies(locked=locked)
    )


def has_credit(remedy: Remedy) -> bool:
    """Whether the remedy has become a credit action."""
    return bool(getattr(remedy, "credit", None))


def in_words(remedy: Remedy) -> str:
    """A remedy as people read it, like "store credit 1 of 79.00 USD (cbtxn_1)"."""
    amount = format_amount(remedy.amount_minor, remedy.currency)
    reference = f" ({remedy.reference})" if remedy.reference else ""
    return f"{remedy.get_kind_display()} {remedy.number} of {amount}{reference}"


def opening(remedy: Remedy) -> str:
    """The same where a sentence begins."""
    words = in_words(remedy)
    return words[:1].upper() + words[1:]


def _why_gone(debt: Any) -> str:
    return f"the refund is {State(debt.state).label} after all"


def _ask_whether_paid(*, locked: Locked, remedies: list[Remedy]) -> None:
    """What a person was to pay by hand may be paid, and not yet recorded."""
    named = ", ".join(in_words(remedy) for remedy in remedies)
    cases.open_case(
        kind=Case.Kind.UNEXPECTED_SUCCESS,
        effect="refund",
        locked=locked,
        reason=(
            f"The provider shows the refund {State(locked.action.state).label} after all, and "
            f"{named} was to be paid by hand. It is stopped here, which stops nobody outside: see "
            "to it that it is not paid. If it is out already, record its reference on its page; "
            "that opens an incident."
        ),
        evidence={"remedies": [remedy.number for remedy in remedies]},
    )


def _open_incident(*, locked: Locked, out: list[tuple[Remedy, str]]) -> None:
    """The customer has, or may have, the money twice. Nothing here can take it back.

    `out` are the remedies, each with the state it stands in by the end of the transaction.
    """
    debt = locked.action
    named = ", ".join(f"{in_words(remedy)}, {RemedyState(state).label}" for remedy, state in out)
    refund = (
        ""
        if debt.state == State.FAILED_FINAL
        else f" and the refund {debt.action_id}, {State(debt.state).label}"
    )
    for remedy, _ in out:
        tell(locked=locked, remedy=remedy, event="beside_another", actor="system", data={})
    cases.open_case(
        kind=Case.Kind.INCIDENT,
        effect="refund",
        locked=locked,
        reason=(
            f"The customer may have been paid twice: {named}{refund}. Nothing was called back, and "
            f"nothing more is sent for {locked.resource_name} while this case is open. Find out "
            "which of them reached the customer, settle the other by hand, and say here how. "
            "A transfer or a cheque that came back is recorded as failed on its own page first."
        ),
        evidence={
            "refund": debt.action_id,
            "refund_state": debt.state,
            "remedies": [
                {
                    "number": remedy.number,
                    "kind": remedy.kind,
                    "state": str(state),
                    "reference": remedy.reference,
                }
                for remedy, state in out
            ],
        },
    )
