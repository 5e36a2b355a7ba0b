"""The refund as a kind of effect: its rows, its money, its provider."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F

from approvals.standing import Yes
from effects import cases
from effects.kinds import (
    Back,
    Decided,
    Go,
    Link,
    Locked,
    Needed,
    No,
    Reading,
    Recheck,
    Totals,
    Wait,
)
from effects.models import Case
from effects.outcomes import (
    Listing,
    LookUp,
    Outcome,
    ProviderEffect,
    Unreadable,
)
from effects.send import refuse_open_transaction
from effects.states import State
from kernel.errors import Bug
from kernel.money import format_amount
from policies.decision import Decision, Verdict
from policies.facts import Facts, RefundLine
from providers import matching
from providers.port import Capabilities, SendRequest
from providers.registry import payment_provider
from refunds.binding import binding, what_changed, what_was_tampered_with
from refunds.decide import (
    STATE_FOR,
    call_somebody,
    decide,
    keep_decision,
    limits_that_hold,
    parameters_in_force,
    who_must_approve,
)
from refunds.elsewhere import (
    book_elsewhere,
    evidence_of,
    known_refs,
    listed,
    takes_up_balance,
)
from refunds.facts import Beside, facts_for, read_beside
from refunds.hint import tell_a_worker
from refunds.models import ExternalRefund, Order, RefundAction, RefundAttempt, RefundEvent
from refunds.order_effect import (
    INCIDENT_RECHECK_SECONDS,
    SWITCH_RECHECK_SECONDS,
    OrderEffect,
    judgement_of,
)
from refunds.overdrawn import open_overdrawn
from refunds.remedy_moves import (
    is_settled,
    on_the_way,
    refund_is_back,
    watched_until,
    why_case_stays,
)
from refunds.usage import UsedLately, used_lately

# Refunds of one order go one after the other: Stripe locks the charge anyway, and each is decided
# on what the one before it left. The worker that records hints the next; this is for a lost hint.
SIBLING_RECHECK_SECONDS = 2.0

_KEEPS_RESERVATION = (State.AUTHORIZED, State.AWAITING_APPROVAL, State.SUBMITTING)
_HOLDS_RESERVATION = (State.UNKNOWN, State.PENDING)


class RefundKind(OrderEffect):
    """One refund of one payment of one order."""

    name = "refund"
    action_model = RefundAction
    attempt_model = RefundAttempt
    event_model = RefundEvent
    decide_permission = "refunds.decide_refund"
    locked_with = ("order",)

    # -- rows ---------------------------------------------------------------------------------

    def lock(self, *, action_id: str) -> Locked | None:
        """Lock order and action together, then read the facts beside them. Two queries."""
        action = (
            RefundAction.objects.select_related("order")
            .select_for_update(no_key=True, of=("self", "order"))
            .filter(action_id=action_id)
            .first()
        )
        return None if action is None else self._locked(action)

    def _locked(self, action: RefundAction) -> Locked:
        beside = read_beside(
            order=action.order,
            action_id=action.action_id,
            proposer=action.proposed_by,
            action_pk=action.pk,
        )
        return Locked(
            action=action,
            resource=action.order,
            now=beside.now,
            unresolved=beside.unresolved,
            open_cases=beside.action_cases,
            facts=beside,
            queued_sibling=beside.queued_sibling,
        )

    # -- decisions ----------------------------------------------------------------------------

    def recheck(self, *, locked: Locked) -> Recheck:
        """Whether the decision still holds on the locked facts.

        1. A kill switch, an incident on the order, or a sibling on the wire: wait.
        2. The content of the request is no longer what was decided on: an incident.
        3. A decision of people is compared, with every approval of its round: one more query.
        4. A policy's decision is made again, and recorded when the facts have changed. No policy
           goes past a refund found elsewhere while its case is open.
        """
        action, order, beside = locked.action, locked.resource, _beside(locked)
        if beside.switches:
            return Wait(
                reason=f"kill switch on: {', '.join(beside.switches)}",
                seconds=SWITCH_RECHECK_SECONDS,
            )
        if beside.incidents:
            return Wait(
                reason=f"order {order.order_id} is paused by an open incident",
                seconds=INCIDENT_RECHECK_SECONDS,
            )
        if any(other.state == State.SUBMITTING for other in beside.others):
            return Wait(
                reason="another refund of this order is on the wire",
                seconds=SIBLING_RECHECK_SECONDS,
            )
        yeses: tuple[Yes, ...] = ()
        bound: tuple[dict[str, Any], ...] = (action.bound_facts,)
        if action.decided_by == "person":
            yeses = self._yeses(locked=locked)
            bound += tuple(yes.facts for yes in yeses)
        tampered = what_was_tampered_with(action=action, order=order, bound=bound)
        if tampered:
            return _stop_tampered(locked=locked, what=tampered)
        if action.decided_by == "policy" and beside.found_elsewhere:
            return Back(reason="a refund that was made elsewhere is open on this order")
        if action.decided_by == "person":
            changed = self._what_changed(locked=locked, yeses=yeses)
            if changed:
                return Back(
                    reason=changed,
                    note={
                        "bound_version": action.bound_version,
                        "order_version": order.version,
                        "policy_version": beside.policy_number,
                        "round": action.approval_round,
                    },
                )
            return Go(
                note={
                    "decided_by": "person",
                    "bound_version": action.bound_version,
                    "round": action.approval_round,
                    "approved_by": [yes.username for yes in yeses],
                }
            )
        return self._decide_again(locked=locked)

    def what_differs(self, *, locked: Locked, yes: Yes, tier: int) -> tuple[str, ...]:
        """What differs from what one person said yes to, compared with that person's own row."""
        return what_changed(
            yes=yes,
            action=locked.action,
            order=locked.resource,
            facts=self.facts_of(locked=locked),
            beside=_beside(locked),
            tier=tier,
        )

    def _decide_again(self, *, locked: Locked) -> Recheck:
        action, order, beside = locked.action, locked.resource, _beside(locked)
        facts = self.deciding_facts(locked=locked, admitting=False)
        decision = decide(facts=facts, beside=beside)
        limits = limits_that_hold(decision)
        waits = decision.verdict is Verdict.HOLD and not limits
        same = waits or (
            decision.verdict is Verdict.ALLOW
            and order.version == action.bound_version
            and beside.policy_number == action.bound_facts.get("policy_version")
        )
        if not same:
            _keep_next(locked=locked, facts=facts, decision=decision)
        note = {
            "decided_by": "policy",
            "policy_version": beside.policy_number,
            "decision": action.decision_count,
        }
        if decision.verdict is Verdict.ALLOW:
            return Go(note=note)
        if decision.verdict is Verdict.DENY:
            return No(reason=decision.why, note=note)
        if waits:
            return Wait(reason=decision.why, seconds=SWITCH_RECHECK_SECONDS)
        if limits:
            # It was allowed, and may wait for ever under what holds it now: people hear of it.
            call_somebody(facts=facts, beside=beside, decision=decision)
        return Back(reason=decision.why, note=note, columns=who_must_approve(decision))

    def decide_held(self, *, locked: Locked) -> Decided:
        """Run the policy again on a held refund; what it says now is bound to the facts of now."""
        action, beside = locked.action, _beside(locked)
        facts = self.deciding_facts(locked=locked, admitting=True)
        decision = decide(facts=facts, beside=beside)
        target = STATE_FOR[decision.verdict]
        if target is State.HELD:
            call_somebody(facts=facts, beside=beside, decision=decision)
            return Decided(target=target, reason=decision.why)
        _keep_next(locked=locked, facts=facts, decision=decision)
        return Decided(
            target=target,
            reason=decision.why,
            note={"policy_version": beside.policy_number, "decision": action.decision_count},
            columns={
                **who_must_approve(decision),
                "bound_version": locked.resource.version,
                "bound_facts": binding(
                    action=action, order=locked.resource, facts=facts, beside=beside
                ),
            },
        )

    def facts_of(self, *, locked: Locked) -> Facts:
        """What a decision is compared with: no query, and so nothing about limits."""
        return self._facts(locked=locked, used=None)

    def deciding_facts(self, *, locked: Locked, admitting: bool) -> Facts:
        """Everything that a decision is made on, limits and rates included. One or two queries.

        `admitting`: more may be allowed by what follows, so nobody else decides against the same
        limits meanwhile. Otherwise the action was admitted before and is measured as it was then.
        """
        action = locked.action
        used = used_lately(
            order=locked.resource,
            action_id=action.action_id,
            proposer=action.proposed_by,
            parameters=parameters_in_force(beside=_beside(locked)),
            now=locked.now,
            admitting=admitting,
            before=None if admitting else action.authorized_at or action.created_at,
        )
        if admitting:
            locked.now = used.at
        return self._facts(locked=locked, used=used)

    def _facts(self, *, locked: Locked, used: UsedLately | None) -> Facts:
        """Its own reservation is given back to the action."""
        action = locked.action
        return facts_for(
            order=locked.resource,
            beside=_beside(locked),
            action_id=action.action_id,
            amount_minor=action.amount_minor,
            reason=action.reason,
            proposer=action.proposed_by,
            lines=tuple(RefundLine(**line) for line in action.lines),
            own_reservation_minor=action.reserved_minor,
            used=used,
        )

    def binding_of(self, *, locked: Locked) -> dict[str, Any]:
        """The facts that a decision made now is bound to."""
        return binding(
            action=locked.action,
            order=locked.resource,
            facts=self.facts_of(locked=locked),
            beside=_beside(locked),
        )

    def why_never(self, *, locked: Locked) -> str:
        """See `needed`."""
        return self.needed(locked=locked).never

    def needed(self, *, locked: Locked) -> Needed:
        """What the policy, run now, asks for, and never less than was asked for before.

        Nobody may allow what is not what was proposed, what does not fit what is left, what the
        policy denies (an open dispute), or what a limit holds. Three queries.
        """
        action, order = locked.action, locked.resource
        facts = self.deciding_facts(locked=locked, admitting=True)
        never = what_was_tampered_with(action=action, order=order, bound=(action.bound_facts,))
        if not never and facts.amount_minor > facts.refundable_minor:
            left = format_amount(max(facts.refundable_minor, 0), order.currency)
            never = (
                f"{format_amount(action.amount_minor, action.currency)} is more than the {left} "
                f"left of order {order.order_id}"
            )
        decision = decide(facts=facts, beside=_beside(locked))
        limits = limits_that_hold(decision)
        if not never and (limits or decision.verdict is Verdict.DENY):
            never = "; ".join(limits) or decision.why
            call_somebody(facts=facts, beside=_beside(locked), decision=decision)
        return Needed(
            tier=max(action.review_tier, decision.tier),
            people=max(action.review_people, decision.people),
            never=never,
        )

    # -- consequences -------------------------------------------------------------------------

    def reserve(self, *, locked: Locked) -> bool:
        """Take the amount out of what is left, once. The UPDATE itself is the check (I3)."""
        action, order = locked.action, locked.resource
        if action.reserved_minor:
            return bool(order.refundable_minor >= 0)
        taken = F("refunded_minor") + F("reserved_minor") + F("settled_otherwise_minor")
        changed = Order.objects.filter(
            pk=order.pk,
            captured_minor__gte=taken + F("disputed_minor") + action.amount_minor,
        ).update(
            reserved_minor=F("reserved_minor") + action.amount_minor,
            version=F("version") + 1,
            updated_at=locked.now,
        )
        if changed != 1:
            return False
        order.reserved_minor += action.amount_minor
        order.version += 1
        action.reserved_minor = action.amount_minor
        return True

    def moved(self, *, locked: Locked, source: State, target: State) -> dict[str, Any]:
        """Carry the money: what was reserved is refunded or given back, and the version moves.

        An observed fact is never refused: an order that it overdraws gets an incident. A refund
        that had failed and did not stops its remedy, or meets it.
        """
        action, order = locked.action, locked.resource
        if source is State.FAILED_FINAL:
            for credit_id in refund_is_back(locked=locked):
                transaction.on_commit(partial(tell_a_worker, action_id=credit_id))
        columns: dict[str, Any] = {"decision_count": action.decision_count}
        if target is State.SUBMITTING:
            columns |= {
                "reserved_minor": action.reserved_minor,
                # After our own write, so that our own reservation never makes us stale.
                "bound_version": order.version,
            }
            return columns
        amount = action.amount_minor
        reserved_before = action.reserved_minor
        refunded_before = amount if source is State.SUCCEEDED else 0
        refunded_after = amount if target is State.SUCCEEDED else 0
        if target in _KEEPS_RESERVATION:
            reserved_after = reserved_before
        else:
            reserved_after = amount if target in _HOLDS_RESERVATION else 0
        if (reserved_before, refunded_before) != (reserved_after, refunded_after):
            order.reserved_minor += reserved_after - reserved_before
            order.refunded_minor += refunded_after - refunded_before
            order.version += 1
            self._write_order(locked=locked)
            columns |= {"reserved_minor": reserved_after}
            if order.refundable_minor < 0:
                open_overdrawn(locked=locked)
        return columns

    def _write_order(self, *, locked: Locked) -> None:
        """Write the locked order's balances and version, and when it was last read."""
        order = locked.resource
        if locked.reading is not None:
            order.provider_read_at = locked.reading.read_at
            locked.reading_written = True
        Order.objects.filter(pk=order.pk).update(
            reserved_minor=order.reserved_minor,
            refunded_minor=order.refunded_minor,
            version=order.version,
            provider_read_at=order.provider_read_at,
            updated_at=locked.now,
        )

    def failed_words(self, *, locked: Locked, source: State, data: dict[str, Any]) -> str:
        """Nothing where the debt is settled another way already: nobody is owed."""
        if is_settled(locked=locked):
            return ""
        return super().failed_words(locked=locked, source=source, data=data)

    def why_case_stays(self, *, locked: Locked, case_kind: str) -> str:
        """The case of a failed refund stays while its remedy is on the way."""
        return why_case_stays(locked=locked) if case_kind == Case.Kind.FAILED else ""

    def watched_until(self, *, locked: Locked) -> datetime | None:
        """As any effect, and while it has a live remedy, and some time after that moved last."""
        ends = (super().watched_until(locked=locked), watched_until(locked=locked))
        return max((end for end in ends if end is not None), default=None)

    def recognise(self, *, locked: Locked, effect: ProviderEffect) -> None:
        """A refund that was booked as made elsewhere is this action's own: count it once."""
        order = locked.resource
        if effect.ref not in {other.action_id for other in _beside(locked).others}:
            return
        booked = ExternalRefund.objects.get(order=order, provider_ref=effect.ref, is_ours=False)
        ExternalRefund.objects.filter(pk=booked.pk).update(is_ours=True)
        if takes_up_balance(currency=booked.currency, status=booked.status, order=order):
            order.refunded_minor -= booked.amount_minor
            order.version += 1
            self._write_order(locked=locked)

    def observe(self, *, locked: Locked, reading: Reading) -> None:
        """Write down refunds made elsewhere, and when the payment was read."""
        order = locked.resource
        locked.reading = reading
        new = book_elsewhere(
            order=order, action=locked.action, refunds=reading.strangers, now=locked.now
        )
        if new:
            # One case is open per kind: it names them all, or the second would be told to nobody.
            cases.open_case(
                kind=Case.Kind.FOUND_ELSEWHERE,
                effect=self.name,
                locked=locked,
                reason=(
                    f"Already refunded outside of this service: {listed(new)}. "
                    f"{_own_part(locked)} Decide whether the customer is still owed."
                ),
                evidence=evidence_of(new),
            )
        if new or not locked.reading_written:
            self._write_order(locked=locked)
        if new and order.refundable_minor < 0:
            open_overdrawn(locked=locked)

    # -- the provider -------------------------------------------------------------------------

    def must_look_first(self, *, locked: Locked) -> bool:
        """Before every send, unless the payment was read within the last minutes.

        That an earlier attempt was claimed says nothing: its own look may have failed.
        """
        if not self.promises(action=locked.action).searchable:
            return False
        if _beside(locked).taken_for_undone:
            return True  # what was taken for undone may have come to pass since
        read_at = locked.resource.provider_read_at
        if read_at is None:
            return True
        age_seconds = (locked.now - read_at).total_seconds()
        return not 0 <= age_seconds < settings.LOOK_FRESH_SECONDS

    def _capabilities(self, *, action: RefundAction) -> Capabilities:
        return payment_provider(action.provider).capabilities

    def _send(
        self, *, action: RefundAction, request: SendRequest, fence: Callable[[], bool]
    ) -> Outcome:
        return payment_provider(action.provider).send_refund(
            request=request, before_bytes_leave=fence
        )

    def _read(self, *, action: RefundAction, ref: str) -> ProviderEffect | Unreadable:
        return payment_provider(action.provider).retrieve_refund(
            refund_ref=ref, account=action.account
        )

    def look(self, *, action: RefundAction) -> LookUp:
        """List the payment's refunds, all pages."""
        refuse_open_transaction()
        payment_ref = _order_of(action).payment_ref
        return payment_provider(action.provider).list_refunds(
            payment_ref=payment_ref, account=action.account
        )

    def read_totals(self, *, action: RefundAction, listing: Listing) -> Totals | Unreadable | None:
        """Read how much of the payment went back in all, and compare it with the refunds listed.

        While a listed refund has not settled, a total proves nothing: whether the provider counts
        such refunds is not known, so ours could stand in for it.
        """
        refuse_open_transaction()
        order = _order_of(action)
        totals = payment_provider(action.provider).read_payment(
            payment_ref=order.payment_ref, account=action.account
        )
        if isinstance(totals, Unreadable):
            return totals
        unlisted = matching.unlisted_minor(totals=totals, listing=listing)
        unexplained = ""
        if totals.currency != action.currency:
            unexplained = f"the payment is in {totals.currency}"
        elif unlisted:
            unexplained = (
                f"{format_amount(unlisted, action.currency)} of what went back is in no refund "
                "that is listed"
            )
        elif any(e.settlement in ("pending", "requires_action") for e in listing.effects):
            unexplained = "a refund of the payment has not settled"
        return Totals(
            unexplained=unexplained,
            evidence={
                "captured_minor": totals.captured_minor,
                "refunded_minor": totals.refunded_minor,
                "unlisted_minor": unlisted,
                "charge": totals.charge_ref,
            },
        )

    def fetch(self, *, action: RefundAction, ref: str) -> ProviderEffect | Unreadable:
        """Read one refund of the action's account by the provider's id."""
        refuse_open_transaction()
        return self._read(action=action, ref=ref)

    def judge_link(self, *, locked: Locked, effect: ProviderEffect) -> Link:
        """Whether a refund is of this payment, for this amount, alive, and nobody else's.

        What another action is known by, or what names another action or installation in its
        metadata, is never linked. Two orders may share a payment, and their locks do not keep them
        apart: what does is a lock on the refund's id, held until the transaction ends.
        """
        action, order = locked.action, locked.resource
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [effect.ref])
        owner = effect.metadata.get("action_id") or action.action_id
        instance = effect.metadata.get("instance") or action.instance
        known_as = RefundAction.objects.filter(provider_ref=effect.ref).exclude(pk=action.pk)
        why_not = ""
        if effect.payment_ref != order.payment_ref:
            why_not = "it is a refund of another payment"
        elif (effect.amount_minor, effect.currency) != (action.amount_minor, action.currency):
            why_not = (
                f"it is {format_amount(effect.amount_minor, effect.currency)}, not "
                f"{format_amount(action.amount_minor, action.currency)}"
            )
        elif effect.settlement == "failed":
            why_not = "it has failed, so that nothing was paid by it"
        elif instance != action.instance or owner != action.action_id:
            why_not = "its metadata says that it belongs to another refund"
        elif known_as.exists():
            why_not = "another action is known by it"
        return Link(
            why_not=why_not,
            is_marked="action_id" in effect.metadata and "instance" in effect.metadata,
        )

    def judge(self, *, action: RefundAction, look: LookUp, read_at: datetime) -> Reading | None:
        """Match a listing with the action; who else's refunds are in it is asked of our rows."""
        if not isinstance(look, Listing):
            return None
        order = _order_of(action)
        known = known_refs(order=order, look=look) if look.effects else set()
        judged = matching.judge(
            listing=look,
            action_id=action.action_id,
            instance=action.instance,
            amount_minor=action.amount_minor,
            currency=action.currency,
            payment_ref=order.payment_ref,
            known_refs=known,
            own_ref=action.provider_ref,
        )
        return Reading(
            judgement=judgement_of(judged),
            strangers=judged.strangers,
            read_at=read_at,
            evidence={
                "pages": look.pages,
                "refunds_seen": len(look.effects),
                "refs": [effect.ref for effect in look.effects[:20]],
            },
        )


def _keep_next(*, locked: Locked, facts: Facts, decision: Decision) -> None:
    """Keep one more decision about a locked refund; the move that follows writes the count."""
    locked.action.decision_count += 1
    keep_decision(
        action_id=locked.action.action_id,
        number=locked.action.decision_count,
        facts=facts,
        beside=_beside(locked),
        decision=decision,
    )


def _beside(locked: Locked) -> Beside:
    if not isinstance(locked.facts, Beside):
        raise Bug("a refund was locked by another kind")
    return locked.facts


def _order_of(action: RefundAction) -> Order:
    return action.order


def _own_part(locked: Locked) -> str:
    """What this action itself did beside a refund made elsewhere, as a sentence for the case."""
    if locked.action.state in (State.SUCCEEDED, State.PENDING):
        return "This action's own refund exists beside it."
    if locked.action.state in (State.SUBMITTING, State.UNKNOWN):
        return "Whether this action's own request did anything is still being found out."
    if locked.action.is_final:
        label = State(locked.action.state).label
        own = f"This action is {label}, and nothing of its own was found beside it."
        return own + on_the_way(locked=locked)
    return "Nothing was done for this action; approve or reject it."


def _stop_tampered(*, locked: Locked, what: str) -> Wait:
    """What was authorised is not what stands there. Triggers forbid that: somebody went round."""
    cases.open_case(
        kind=Case.Kind.INCIDENT,
        effect="refund",
        locked=locked,
        reason=(
            f"It was changed in the database after it was authorised: {what}. Nothing was sent. "
            "Find out who can change rows there, then withdraw this action and have it proposed "
            "again under a new request id."
        ),
        evidence={"payload_hash": locked.action.payload_hash, "changed": what},
    )
    return Wait(reason=f"it was changed: {what}", seconds=INCIDENT_RECHECK_SECONDS)


REFUND = RefundKind()
