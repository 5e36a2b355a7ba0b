"""The store credit as a kind of effect: a remedy that is sent, with a key of its own.

Its money is held by its remedy, from the proposal on, so nothing is reserved here. What becomes of
the credit moves the remedy, and that the order's balance and the refund's history.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.postgres.expressions import ArraySubquery
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import JSONObject

from effects import cases
from effects.clock import DatabaseNow
from effects.kinds import (
    Back,
    Contradiction,
    Decided,
    Found,
    Go,
    Locked,
    No,
    Reading,
    Recheck,
    Totals,
    Wait,
)
from effects.models import Case, Switch
from effects.outcomes import (
    Listing,
    LookUp,
    Outcome,
    ProviderEffect,
    Unreadable,
)
from effects.send import refuse_open_transaction
from effects.states import State
from effects.switches import scopes_covering
from effects.transitions import postpone
from kernel.canonical import canonical_json, sha256_hex
from kernel.errors import Bug
from kernel.identity import credit_action_id
from kernel.money import format_amount
from providers import matching
from providers.port import Capabilities, SendRequest
from providers.registry import payment_provider
from refunds import remedy_moves
from refunds.facts import ATTEMPT_NOW, AttemptNow, attempts_now
from refunds.hint import tell_a_worker
from refunds.kind import REFUND
from refunds.models import (
    CreditAction,
    CreditAttempt,
    CreditEvent,
    Order,
    RefundAction,
    Remedy,
)
from refunds.order_effect import (
    INCIDENT_RECHECK_SECONDS,
    SWITCH_RECHECK_SECONDS,
    OrderEffect,
    judgement_of,
)
from refunds.remedy_models import LIVE_REMEDIES, RemedyState

# https://docs.stripe.com/api/customers/object#customer_object-id. A merchant's own customer id has
# no balance at the provider.
_PROVIDER_CUSTOMER = re.compile(r"cus_[A-Za-z0-9]{1,70}")

# In a listing's evidence: by how much the balance differs from what the list adds up to.
_UNLISTED = "unlisted_minor"

# In a reading's evidence: the refunds of the payment for which a credit is not sent.
_IN_THE_WAY = "refunds_in_the_way"

_ON_THE_WAY = (State.SUBMITTING, State.UNKNOWN, State.PENDING)
_TO_BE_SENT = (State.AUTHORIZED, State.AWAITING_APPROVAL)
_OVER = (State.REJECTED, State.EXPIRED, State.CANCELLED)


@dataclass(slots=True, kw_only=True)
class CreditFacts:
    """What was read beside a locked credit. `debt` is the locked refund, `remedy` their link.

    `effect_ref` is the provider's id of an effect that is about to be adopted.
    """

    debt: RefundAction
    remedy: Remedy
    switches: tuple[str, ...]
    incidents: int
    found_elsewhere: int
    attempts: tuple[AttemptNow, ...]
    effect_ref: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BesideRefunds(Listing):
    """A customer's balance, and beside it the refunds of the payment that are in the way."""

    refunds: tuple[ProviderEffect, ...]


def why_no_credit(order: Order) -> str:
    """Why no store credit can be given for this order, as half a sentence; "" when one can."""
    if _PROVIDER_CUSTOMER.fullmatch(order.customer_ref):
        return ""
    return (
        f"order {order.order_id} names no customer of the provider (its customer.ref is not one "
        "like cus_…), and a store credit is put on that customer's balance"
    )


def begin_credit(*, locked: Locked, remedy: Remedy, actor: str) -> CreditAction:
    """Write the credit of a remedy that was just authorised, to be sent after the commit.

    `locked` is the refund. The request is frozen here, and the remedy is what authorises it.
    """
    order, debt = locked.resource, locked.action
    action_id = credit_action_id(
        order_id=order.order_id, request_id=debt.request_id, number=remedy.number
    )
    payload = canonical_json(
        payment_provider(order.provider).credit_payload(
            account=order.account,
            customer_ref=remedy.customer_ref,
            amount_minor=remedy.amount_minor,
            currency=remedy.currency,
            action_id=action_id,
            instance=settings.INSTANCE,
            order_id=order.order_id,
            request_id=debt.request_id,
        )
    )
    credit = CreditAction(
        action_id=action_id,
        state=State.AUTHORIZED.value,
        remedy=remedy,
        order=order,
        customer_ref=remedy.customer_ref,
        amount_minor=remedy.amount_minor,
        currency=remedy.currency,
        payload=payload,
        payload_hash=sha256_hex(payload),
        provider=order.provider,
        account=order.account,
        proposed_by=actor[:80],
        proposer_owner=remedy.proposed_by,
        review_people=remedy.people_needed,
        instance=settings.INSTANCE,
        decided_by="person",
        authorized_at=locked.now,
        bound_version=order.version,
        due_at=locked.now + timedelta(seconds=settings.DISPATCH_SWEEP_SECONDS),
        created_at=locked.now,
        updated_at=locked.now,
        state_since=locked.now,
    )
    credit.save(force_insert=True)
    CreditEvent.objects.create(
        order=order,
        action=credit,
        kind="credit.authorized",
        actor=actor[:80],
        at=locked.now,
        data={
            "refund": debt.action_id,
            "remedy": remedy.number,
            "amount_minor": remedy.amount_minor,
            "currency": remedy.currency,
            "payload_hash": credit.payload_hash,
            "order_version": order.version,
            "to": State.AUTHORIZED.value,
        },
    )
    transaction.on_commit(lambda: tell_a_worker(action_id=action_id))
    return credit


class CreditKind(OrderEffect):
    """One store credit on the balance of the customer of one order."""

    name = "credit"
    action_model = CreditAction
    attempt_model = CreditAttempt
    event_model = CreditEvent
    decide_permission = "refunds.approve_remedy"
    # The refund and the order are locked by a second statement, see `_locked`.
    locked_with = ()

    # -- rows ---------------------------------------------------------------------------------

    def lock(self, *, action_id: str) -> Locked | None:
        """Lock the credit, then the refund it settles and the order, then read what is beside them.

        In that order everywhere: whoever holds a refund never waits for a credit.
        """
        credit = (
            CreditAction.objects.select_for_update(no_key=True, of=("self",))
            .filter(action_id=action_id)
            .first()
        )
        return None if credit is None else self._locked(credit)

    def _locked(self, credit: CreditAction) -> Locked:
        # The same statement as a refund's own lock: one order of locks, so no deadlock.
        debt = (
            RefundAction.objects.select_related("order")
            .select_for_update(no_key=True, of=("self", "order"))
            .get(remedies__credit=credit)
        )
        remedy = Remedy.objects.get(pk=credit.remedy_id)
        remedy.debt, remedy.credit = debt, credit
        order = credit.order = debt.order
        row = _read_beside(order=order, credit=credit)
        attempts = attempts_now(row["attempts"])
        return Locked(
            action=credit,
            resource=order,
            now=row["now"],
            unresolved=tuple(attempt.token for attempt in attempts if not attempt.resolution),
            open_cases=sum(1 for case in row["cases"] if case["action_id"] == credit.action_id),
            facts=CreditFacts(
                debt=debt,
                remedy=remedy,
                switches=tuple(sorted(row["switches"])),
                incidents=sum(1 for case in row["cases"] if case["kind"] == Case.Kind.INCIDENT),
                found_elsewhere=sum(
                    1 for case in row["cases"] if case["kind"] == Case.Kind.FOUND_ELSEWHERE
                ),
                attempts=attempts,
            ),
        )

    # -- decisions ----------------------------------------------------------------------------

    def recheck(self, *, locked: Locked) -> Recheck:
        """Whether the remedy still holds on the locked rows.

        1. Its remedy was stopped, the refund is there after all, or it has another customer: no.
        2. A kill switch, an incident, a dispute or a refund found elsewhere: wait.
        3. A new key was opened by people: their approvals of this round are compared.

        Asked while it is not yet AUTHORIZED again, it goes on: the claim asks once more.
        """
        action, facts = locked.action, _facts(locked)
        if action.state != State.AUTHORIZED:
            return Go()
        over = self.why_never(locked=locked)
        if over:
            return No(reason=over)
        if facts.switches:
            return Wait(
                reason=f"kill switch on: {', '.join(facts.switches)}",
                seconds=SWITCH_RECHECK_SECONDS,
            )
        paused = _why_paused(locked)
        if paused:
            return Wait(reason=paused, seconds=INCIDENT_RECHECK_SECONDS)
        if sha256_hex(action.payload) != action.payload_hash:
            return _stop_tampered(locked=locked)
        # In its first round its remedy is what authorises it.
        if action.approval_round > 1:
            changed = self._what_changed(locked=locked, yeses=self._yeses(locked=locked))
            if changed:
                return Back(reason=changed)
        return Go(note={"remedy": facts.remedy.number, "refund": facts.debt.action_id})

    def decide_held(self, *, locked: Locked) -> Decided:
        """No policy decides about remedies, so none is ever held."""
        raise Bug(f"{locked.action.action_id} is HELD, and no policy decides about remedies")

    def binding_of(self, *, locked: Locked) -> dict[str, Any]:
        """The request, the refund and the remedy that it stands on."""
        facts = _facts(locked)
        return {
            "payload_hash": locked.action.payload_hash,
            "refund_state": facts.debt.state,
            "remedy_state": facts.remedy.state,
        }

    def why_never(self, *, locked: Locked) -> str:
        """Its remedy does not stand, the refund has not failed any more, another customer."""
        facts, order = _facts(locked), locked.resource
        if facts.remedy.state != RemedyState.AUTHORIZED:
            return f"its remedy is {RemedyState(facts.remedy.state).label}"
        if facts.debt.state != State.FAILED_FINAL:
            return f"the refund is {State(facts.debt.state).label} after all"
        if order.customer_ref != locked.action.customer_ref:
            return f"order {order.order_id} has another customer now"
        return ""

    # -- consequences -------------------------------------------------------------------------

    def reserve(self, *, locked: Locked) -> bool:
        """Its remedy holds the amount already."""
        return bool(locked.resource.refundable_minor >= 0)

    def moved(self, *, locked: Locked, source: State, target: State) -> dict[str, Any]:
        """Move the remedy as the credit moves; that carries the money."""
        facts = _facts(locked)
        remedy, refund = facts.remedy, replace(locked, action=facts.debt)
        actor = locked.action.action_id
        if target in _ON_THE_WAY and remedy.state == RemedyState.AUTHORIZED:
            remedy_moves.move_remedy(
                locked=refund,
                remedy=remedy,
                target=RemedyState.ISSUING,
                event="issuing",
                actor=actor,
                data={"credit": actor},
            )
        elif target in _TO_BE_SENT and remedy.state == RemedyState.ISSUING:
            remedy_moves.did_nothing(locked=refund, remedy=remedy, actor=actor)
        elif (
            target is State.SUCCEEDED
            or (target is State.PENDING and remedy.state not in LIVE_REMEDIES)
        ) and remedy.state != RemedyState.ISSUED:
            remedy_moves.came_out(
                locked=refund, remedy=remedy, actor=actor, reference=facts.effect_ref
            )
        elif target is State.FAILED_FINAL and remedy.state in LIVE_REMEDIES:
            remedy_moves.failed(
                locked=refund, remedy=remedy, actor=actor, why=f"{actor} has failed"
            )
        elif target in _OVER and remedy.state == RemedyState.AUTHORIZED:
            remedy_moves.stop(
                locked=refund, remedy=remedy, actor=actor, why=f"{actor} is {target.label}"
            )
        return {"bound_version": locked.resource.version} if target is State.SUBMITTING else {}

    def failed_words(self, *, locked: Locked, source: State, data: dict[str, Any]) -> str:
        """Nothing: the case of the refund tells it, or is opened again and does."""
        return ""

    def watched_until(self, *, locked: Locked) -> datetime | None:
        """As any effect, as the refund that it settles, and some time after people gave it up."""
        own = super().watched_until(locked=locked)
        ends = [
            since + timedelta(days=remedy_moves.WATCH_DAYS)
            for since in remedy_moves.given_up_since(locked.action)
        ]
        refund = remedy_moves.watched_until(locked=replace(locked, action=_facts(locked).debt))
        return max([*ends, *(end for end in (own, refund) if end is not None)], default=None)

    def recognise(self, *, locked: Locked, effect: ProviderEffect) -> None:
        """Remember the provider's id for the remedy's reference."""
        _facts(locked).effect_ref = effect.ref

    def observe(self, *, locked: Locked, reading: Reading) -> None:
        """A credit of ours that no row stands for is an incident: our records have forgotten.

        A refund of the payment that is in the way is not judged here: the old refund is read at
        once, and that adopts it or opens the case of one that was made elsewhere.
        """
        in_the_way = reading.evidence.get(_IN_THE_WAY, [])
        debt = _facts(locked).debt
        if in_the_way and debt.state == State.FAILED_FINAL:
            postpone(kind=REFUND, locked=replace(locked, action=debt), due_at=locked.now)
        refs = [stranger.ref for stranger in reading.strangers if stranger.ref not in in_the_way]
        if not refs:
            return
        cases.open_case(
            kind=Case.Kind.INCIDENT,
            effect=self.name,
            locked=locked,
            reason=(
                f"The customer's balance shows store credits that this installation made and has "
                f"no record of ({', '.join(refs)}). The database may have forgotten something. "
                f"Nothing more is sent for {locked.resource_name} while this case is open. Find "
                "out whether the customer was paid already."
            ),
            evidence={"refs": refs, **reading.evidence},
        )

    # -- the provider -------------------------------------------------------------------------

    def must_look_first(self, *, locked: Locked) -> bool:
        """Always, where that is possible: credits are rare."""
        return self.promises(action=locked.action).searchable

    def _capabilities(self, *, action: CreditAction) -> Capabilities:
        return payment_provider(action.provider).credit_capabilities

    def _send(
        self, *, action: CreditAction, request: SendRequest, fence: Callable[[], bool]
    ) -> Outcome:
        """Unless the refund came back since the claim."""

        def still_owed() -> bool:
            owed = RefundAction.objects.filter(
                remedies__credit=action.pk, state=State.FAILED_FINAL
            ).exists()
            return owed and fence()

        return payment_provider(action.provider).send_credit(
            request=request, before_bytes_leave=still_owed
        )

    def _read(self, *, action: CreditAction, ref: str) -> ProviderEffect | Unreadable:
        return payment_provider(action.provider).retrieve_credit(
            credit_ref=ref, customer_ref=action.customer_ref, account=action.account
        )

    def look(self, *, action: CreditAction) -> LookUp:
        """List everything that changed the customer's balance, all pages.

        Before it is sent the refunds of the payment are listed, too: one that stands there may
        have paid the customer already. The list of the balance may lag. While the credit is being
        found out the balance is read after it: when the listed changes add up to that, none is
        missing.
        """
        refuse_open_transaction()
        look = payment_provider(action.provider).list_credits(
            customer_ref=action.customer_ref, account=action.account
        )
        if isinstance(look, Listing) and action.state == State.SUBMITTING:
            return _with_refunds(action=action, look=look)
        if not isinstance(look, Listing) or action.state != State.UNKNOWN:
            return look
        unlisted_minor = _unlisted_minor(action=action, look=look)
        if unlisted_minor is None:
            return look
        extra = look.evidence.extra | {_UNLISTED: unlisted_minor}
        return replace(look, evidence=replace(look.evidence, extra=extra))

    def read_totals(self, *, action: CreditAction, listing: Listing) -> Totals | Unreadable | None:
        """The customer's balance, against what its listed changes add up to."""
        refuse_open_transaction()
        totals = payment_provider(action.provider).read_customer(
            customer_ref=action.customer_ref, account=action.account
        )
        if isinstance(totals, Unreadable):
            return totals
        unlisted_minor = matching.unlisted_credit_minor(
            totals=totals, listing=listing, currency=action.currency
        )
        difference = format_amount(abs(unlisted_minor), action.currency)
        return Totals(
            unexplained=f"the customer's balance differs by {difference} from the changes listed"
            if unlisted_minor
            else "",
            evidence={
                "balance_minor": totals.credit_minor.get(action.currency, 0),
                "unlisted_minor": unlisted_minor,
                "currency": action.currency,
            },
        )

    def judge(self, *, action: CreditAction, look: LookUp, read_at: datetime) -> Reading | None:
        """Match a customer's balance with the credit. What others did to it is their business."""
        if not isinstance(look, Listing):
            return None
        judged = matching.judge(
            listing=look,
            action_id=action.action_id,
            instance=action.instance,
            amount_minor=action.amount_minor,
            currency=action.currency,
            payment_ref=action.customer_ref,
            known_refs=_known_refs(action=action, look=look),
            shared=True,
        )
        in_the_way = look.refunds if isinstance(look, _BesideRefunds) else ()
        return Reading(
            judgement=judgement_of(judged),
            strangers=(*judged.strangers, *in_the_way),
            read_at=read_at,
            evidence=({_IN_THE_WAY: [refund.ref for refund in in_the_way]} if in_the_way else {})
            | {
                "pages": look.pages,
                "balance_changes_seen": len(look.effects),
                "refs": [
                    effect.ref
                    for effect in look.effects
                    if effect.metadata.get("instance") == action.instance
                ][:20],
            },
            is_complete=look.evidence.extra.get(_UNLISTED) == 0,
        )


def _facts(locked: Locked) -> CreditFacts:
    if not isinstance(locked.facts, CreditFacts):
        raise Bug("a credit was locked by another kind")
    return locked.facts


def _read_beside(*, order: Order, credit: CreditAction) -> dict[str, Any]:
    """The time, switches, cases and attempts beside a locked credit. One query."""
    scopes = scopes_covering(effect="credit", provider=credit.provider, account=credit.account)
    rows: Any = (
        Order.objects.filter(pk=order.pk)
        .annotate(
            now=DatabaseNow(),
            switches=ArraySubquery(
                Switch.objects.filter(scope__in=scopes, ended_at__isnull=True)
                .filter(Q(until__isnull=True) | Q(until__gt=DatabaseNow()))
                .values("scope")
            ),
            cases=ArraySubquery(
                Case.objects.filter(resource=str(order), closed_at__isnull=True).values(
                    found=JSONObject(kind="kind", action_id="action_id")
                )
            ),
            attempts=ArraySubquery(
                CreditAttempt.objects.filter(action=credit).values(found=ATTEMPT_NOW)
            ),
        )
        .values("now", "switches", "cases", "attempts")
    )
    row: dict[str, Any] = rows.get()
    return row


def _with_refunds(*, action: CreditAction, look: Listing) -> LookUp:
    """The listing with the refunds of the debt's payment that stand in the credit's way.

    The debt's own, if it has not failed after all, and those that no row of ours stands for.
    """
    debt = RefundAction.objects.select_related("order").get(remedies__credit=action.pk)
    refunds = REFUND.look(action=debt)
    if not isinstance(refunds, Listing):
        return refunds
    reading = REFUND.judge(action=debt, look=refunds, read_at=debt.updated_at)
    if reading is None:
        raise Bug("a readable listing was not judged")
    judgement = reading.judgement
    own: tuple[ProviderEffect, ...] = ()
    if isinstance(judgement, Found):
        own = (judgement.effect,)
    elif isinstance(judgement, Contradiction):
        own = judgement.effects
    return _BesideRefunds(
        effects=look.effects,
        pages=look.pages,
        evidence=look.evidence,
        refunds=(*own, *reading.strangers),
    )


def _unlisted_minor(*, action: CreditAction, look: Listing) -> int | None:
    """By how much the balance, read now, differs from the list; None: it could not be read."""
    totals = payment_provider(action.provider).read_customer(
        customer_ref=action.customer_ref, account=action.account
    )
    if isinstance(totals, Unreadable):
        return None
    return matching.unlisted_credit_minor(totals=totals, listing=look, currency=action.currency)


def _why_paused(locked: Locked) -> str:
    """Why nothing is sent for the order now, as half a sentence; "" when it may be."""
    order = locked.resource
    if _facts(locked).incidents:
        return f"order {order.order_id} is paused by an open incident"
    if _facts(locked).found_elsewhere:
        return f"a refund of order {order.order_id} that was made elsewhere has an open case"
    if order.dispute_state == Order.DisputeState.OPEN:
        return f"the payment of order {order.order_id} is disputed: the bank may pay it back"
    if order.refundable_minor < 0:
        return f"order {order.order_id} is overdrawn"
    return ""


def _stop_tampered(*, locked: Locked) -> Wait:
    cases.open_case(
        kind=Case.Kind.INCIDENT,
        effect="credit",
        locked=locked,
        reason=(
            "The frozen request does not match its hash: it was changed in the database after it "
            "was authorised. Nothing was sent. Find out who can change rows there, then stop this "
            "remedy and propose it again."
        ),
        evidence={"payload_hash": locked.action.payload_hash},
    )
    return Wait(reason="its frozen request was changed", seconds=INCIDENT_RECHECK_SECONDS)


def _known_refs(*, action: CreditAction, look: Listing) -> set[str]:
    """The credits in a listing that a row of ours stands for: by its id, or by what we wrote."""
    rows = CreditAction.objects.filter(
        action_id__in=[effect.metadata.get("action_id", "") for effect in look.effects]
    ).values_list("action_id", "instance")
    ours = set(rows)
    return {
        effect.ref
        for effect in look.effects
        if (effect.metadata.get("action_id"), effect.metadata.get("instance")) in ours
    }


CREDIT = CreditKind()
