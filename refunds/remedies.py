"""Remedies: what people do after a refund has failed for good, so that nobody is paid twice.

Nothing here raises for what can be expected: a `RemedyRefused` says in a sentence what was not done
and why. `seen_version` is how many events the refund's history had when the person looked
(`history_version`); whoever looked at an older page acts on nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import Max

from effects.kinds import Locked
from effects.models import Case
from effects.outcomes import Unreadable
from effects.people import EXPLANATION_CHARACTERS_MIN, NOTE_CHARACTERS_MAX, actor_of, is_note
from effects.send import refuse_open_transaction
from effects.states import FINAL_STATES, State
from kernel.money import format_amount
from policies.rules import tier_of
from providers.registry import payment_provider
from refunds import remedy_moves
from refunds.credits import begin_credit, why_no_credit
from refunds.decide import parameters_in_force
from refunds.facts import Beside
from refunds.hint import tell_a_worker
from refunds.kind import REFUND
from refunds.models import (
    CreditAction,
    CreditEvent,
    ExternalRefund,
    Order,
    RefundAction,
    RefundEvent,
    Remedy,
)
from refunds.remedy_models import STOPPABLE_REMEDIES, RemedyState

MAY_PROPOSE = "refunds.propose_remedy"
MAY_APPROVE = "refunds.approve_remedy"
MAY_RECORD = "refunds.record_remedy"

# Why the money goes this way, as one of few words that can be counted. The note says the rest.
REMEDY_REASONS: dict[str, str] = {
    "cannot_receive": "the customer's card or account cannot receive it",
    "refused": "the provider refused the refund",
    "given_up": "whether the refund was made could not be found out",
    "customer_asked": "the customer asked for it this way",
    "other": "other, see the note",
}
# What became of a transfer or a cheque that was out.
FAILURE_REASONS: dict[str, str] = {
    "bounced": "the bank sent it back",
    "recalled": "it was called back",
    "lost": "the cheque was lost or never cashed",
    "not_made": "it was recorded and never made",
}
# A bank's or a cheque's number, as it is printed: it goes into searches and reports.
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _./:#-]{2,119}")


class Why(StrEnum):
    """Why nothing was done."""

    NOT_PERMITTED = "not_permitted"
    NO_SUCH = "no_such"
    BAD_INPUT = "bad_input"
    CHANGED_SINCE = "changed_since"
    NOT_FAILED = "not_failed"
    ALREADY_LIVE = "already_live"
    DOES_NOT_FIT = "does_not_fit"
    PAUSED = "paused"
    NO_CUSTOMER = "no_customer"
    SAME_PERSON = "same_person"
    SAME_REFERENCE = "same_reference"
    NOT_NOW = "not_now"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyDone:
    """It was done. `remedy` as it stands now; `sentence` is for the person."""

    remedy: Remedy
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyRefused:
    """Nothing was done or changed; `sentence` says why and what would help."""

    why: Why
    sentence: str


def history_version(*, action_id: str) -> int:
    """How many events the refund's history has: the version that a person sees and posts."""
    return RefundEvent.objects.filter(action__action_id=action_id).count()


def propose_remedy(
    *, action_id: str, kind: str, user: User, reason: str, note: str, seen_version: int
) -> RemedyDone | RemedyRefused:
    """Propose to settle one failed refund by another way, as a whole. One transaction.

    1. The person may, and says why.
    2. Lock the refund and its order; it is FAILED_FINAL, as the person saw it, and has no other
       live remedy. No incident and no dispute is open on the order.
    3. A store credit needs the order's customer at the provider. Before all this the provider is
       asked who paid.
    4. The amount fits what is left of the order, and is taken up by the remedy from now on.
    5. Proof by the provider, a small amount, and nothing that speaks for the customer having the
       money: this person's word is enough. Otherwise a second person must approve it.
    6. The refund is read again day by day, in case it was made after all, and its case is open.
    """
    refusal = _refuse_person(user, MAY_PROPOSE) or _refuse_words(reason=reason, note=note)
    if refusal is not None:
        return refusal
    if kind not in Remedy.Kind.values:
        return RemedyRefused(
            why=Why.BAD_INPUT, sentence=f"There is no remedy {kind!r}. Nothing was proposed."
        )
    other_payer = _other_payer(action_id) if kind == Remedy.Kind.STORE_CREDIT else ""
    with transaction.atomic():
        locked = REFUND.lock(action_id=action_id)
        if locked is None:
            return RemedyRefused(why=Why.NO_SUCH, sentence="There is no such refund.")
        refusal = _refuse_version(locked, seen_version) or _refuse_proposal(locked, kind=kind)
        if refusal is not None:
            return refusal
        debt, order = locked.action, locked.resource
        if not remedy_moves.take_up(locked=locked, amount_minor=debt.amount_minor):
            return RemedyRefused(why=Why.DOES_NOT_FIT, sentence=_does_not_fit(debt, order))
        remedy = _insert(
            locked=locked,
            kind=kind,
            user=user,
            reason=reason,
            note=note,
            why_two=_why_two(locked) or other_payer,
        )
        remedy_moves.begin_watch(locked=locked)
        remedy_moves.keep_failed_case(locked=locked, remedy=remedy)
        if remedy.state == RemedyState.AUTHORIZED:
            _begin(locked=locked, remedy=remedy, user=user)
    return RemedyDone(remedy=remedy, sentence=_what_next(remedy))


def approve_remedy(
    *, remedy_id: int, user: User, note: str, seen_version: int
) -> RemedyDone | RemedyRefused:
    """Be the second person behind a proposed remedy. One transaction.

    Somebody other than who proposed it, while the refund still has failed and nothing on the order
    says to wait. A store credit is sent after the commit.
    """
    refusal = _refuse_person(user, MAY_APPROVE) or _refuse_words(note=note)
    if refusal is not None:
        return refusal
    with transaction.atomic():
        found = _lock(remedy_id=remedy_id, seen_version=seen_version)
        if isinstance(found, RemedyRefused):
            return found
        locked, remedy = found
        if remedy.state != RemedyState.PROPOSED:
            return _not_now(remedy, "only a proposed one can be approved")
        if remedy.proposed_by_id == user.pk:
            return RemedyRefused(
                why=Why.SAME_PERSON,
                sentence="Not approved: it takes two people, and you are the one who proposed it.",
            )
        refusal = _refuse_customer(locked, remedy) or _refuse_paused(locked)
        if refusal is not None:
            return refusal
        remedy_moves.move_remedy(
            locked=locked,
            remedy=remedy,
            target=RemedyState.AUTHORIZED,
            event="approved",
            actor=actor_of(user),
            data={"note": note},
            approved_by=user,
            approved_at=locked.now,
        )
        _begin(locked=locked, remedy=remedy, user=user)
    return RemedyDone(remedy=remedy, sentence=_what_next(remedy))


def record_issued(
    *, remedy_id: int, user: User, reference: str, seen_version: int
) -> RemedyDone | RemedyRefused:
    """Record that a bank transfer or a cheque is out. One transaction.

    What is out is a fact, and is taken down of a remedy that was stopped as well: it may have been
    made before anybody knew. If the customer has the money twice by that, it is an incident. The
    number of one that settles another debt already is refused.
    """
    refusal = _refuse_person(user, MAY_RECORD)
    if refusal is not None:
        return refusal
    reference = reference.strip()
    if not _REFERENCE.fullmatch(reference):
        return RemedyRefused(
            why=Why.BAD_INPUT,
            sentence="Not recorded: give the bank's or the cheque's number, 3 to 120 letters, "
            "digits, spaces or _ . / : # -",
        )
    with transaction.atomic():
        found = _lock(remedy_id=remedy_id, seen_version=seen_version)
        if isinstance(found, RemedyRefused):
            return found
        locked, remedy = found
        if remedy.kind == Remedy.Kind.STORE_CREDIT:
            return RemedyRefused(
                why=Why.NOT_NOW,
                sentence="Not recorded: a store credit is sent from here, and only the provider's "
                "answer says that it is out.",
            )
        if remedy.state not in (RemedyState.AUTHORIZED, RemedyState.STOPPED):
            return _not_now(remedy, "only an authorized one can be recorded as out")
        refusal = _refuse_reference(remedy, reference) or _refuse_beside(locked, remedy)
        if refusal is not None:
            return refusal
        if remedy.people_needed > 1 and remedy.approved_by_id is None:
            return RemedyRefused(
                why=Why.NOT_NOW,
                sentence="Not recorded: no second person approved it before it was stopped. If "
                "money left without that, tell the owner of the order's cases.",
            )
        was_stopped = remedy.state == RemedyState.STOPPED
        remedy_moves.came_out(
            locked=locked,
            remedy=remedy,
            actor=actor_of(user),
            reference=reference,
            recorded_by=user,
        )
    sentence = f"{remedy_moves.opening(remedy)} is issued."
    if was_stopped:
        sentence += " It had been stopped: look at the order's open cases."
    return RemedyDone(remedy=remedy, sentence=sentence)


def record_failed(
    *, remedy_id: int, user: User, reason: str, note: str, seen_version: int
) -> RemedyDone | RemedyRefused:
    """Record that an issued bank transfer or cheque did not reach the customer. One transaction.

    It gives its balance back. Unless the customer is paid otherwise the debt is open again, with
    its case; what is proposed next needs two people, since nobody but people says this.
    """
    refusal = _refuse_person(user, MAY_RECORD) or _refuse_words(
        note=note, reason=reason, reasons=FAILURE_REASONS
    )
    if refusal is not None:
        return refusal
    with transaction.atomic():
        found = _lock(remedy_id=remedy_id, seen_version=seen_version)
        if isinstance(found, RemedyRefused):
            return found
        locked, remedy = found
        if remedy.kind == Remedy.Kind.STORE_CREDIT:
            return RemedyRefused(
                why=Why.NOT_NOW,
                sentence="Not recorded: only the provider's answer says that a store credit has "
                "failed.",
            )
        if remedy.state != RemedyState.ISSUED:
            return _not_now(remedy, "only one that is out can have come back")
        remedy_moves.failed(
            locked=locked,
            remedy=remedy,
            actor=actor_of(user),
            why=FAILURE_REASONS[reason],
            reason=reason,
            note=note,
        )
        is_owed = locked.action.state == State.FAILED_FINAL and not remedy_moves.live_remedies(
            locked=locked
        )
    return RemedyDone(
        remedy=remedy,
        sentence=f"{remedy_moves.opening(remedy)} has failed. "
        + (
            "The customer is owed again: propose another remedy, which takes two people."
            if is_owed
            else "The customer was paid another way, so nothing is owed by that."
        ),
    )


def stop_remedy(
    *, remedy_id: int, user: User, note: str, seen_version: int
) -> RemedyDone | RemedyRefused:
    """Stop a remedy of which nothing is out. The debt is open again. One transaction."""
    refusal = _refuse_person(user, MAY_PROPOSE) or _refuse_words(note=note)
    if refusal is not None:
        return refusal
    with transaction.atomic():
        found = _lock(remedy_id=remedy_id, seen_version=seen_version)
        if isinstance(found, RemedyRefused):
            return found
        locked, remedy = found
        if remedy.state not in STOPPABLE_REMEDIES:
            return _not_now(remedy, "only one of which nothing is out can be stopped")
        remedy_moves.stop(locked=locked, remedy=remedy, actor=actor_of(user), why=note)
        remedy_moves.keep_failed_case(locked=locked, remedy=remedy)
        credit = CreditAction.objects.filter(remedy=remedy).first()
        if credit is not None:
            credit_id = credit.action_id
            transaction.on_commit(lambda: tell_a_worker(action_id=credit_id))
    return RemedyDone(
        remedy=remedy,
        sentence=f"{remedy_moves.opening(remedy)} is stopped, and nothing was paid "
        "by it. The customer is still owed.",
    )


def _insert(
    *, locked: Locked, kind: str, user: User, reason: str, note: str, why_two: str
) -> Remedy:
    """`why_two`: why the word of one person is not enough; "" leaves it to the policy."""
    debt = locked.action
    proof = Remedy.Proof.PEOPLE if why_two else Remedy.Proof.PROVIDER
    people = 2 if why_two else _people_by_policy(locked)
    if people > 1 and not why_two:
        why_two = "the policy asks for two people at this amount"
    last = Remedy.objects.filter(debt=debt).aggregate(last=Max("number"))["last"] or 0
    state = RemedyState.PROPOSED if people > 1 else RemedyState.AUTHORIZED
    remedy = Remedy(
        debt=debt,
        number=last + 1,
        kind=kind,
        amount_minor=debt.amount_minor,
        currency=debt.currency,
        state=state.value,
        state_since=locked.now,
        proof=proof.value,
        people_needed=people,
        why_two=why_two,
        customer_ref=locked.resource.customer_ref,
        reason=reason,
        note=note,
        proposed_by=user,
        proposed_at=locked.now,
    )
    remedy.save(force_insert=True)
    remedy_moves.tell(
        locked=locked,
        remedy=remedy,
        event="proposed",
        actor=actor_of(user),
        data={
            "proof": proof.value,
            "people_needed": people,
            "why_two": why_two,
            "customer_ref": remedy.customer_ref,
            "reason": reason,
            "note": note,
        },
    )
    return remedy


def _why_two(locked: Locked) -> str:
    """Why it takes two people to say that the customer is owed; "" where the provider says so.

    A way that was tried and has not failed at the provider, a case that somebody closed by a word
    while nothing was paid, or as much money that went back on the order since.
    """
    debt, order = locked.action, locked.resource
    if not _failed_at_the_provider(debt):
        return "that nothing was paid so far is the word of people, not the provider's"
    closed_by_a_word = Case.objects.filter(
        action_id=debt.action_id,
        kind=Case.Kind.FAILED,
        closed_by__startswith="person:",
        closed_at__gte=debt.state_since,
    )
    if closed_by_a_word.exists():
        return "the case of the failed refund was closed by a person's word"
    later = (
        RefundAction.objects.filter(
            order=order,
            amount_minor=debt.amount_minor,
            currency=debt.currency,
            created_at__gt=debt.created_at,
        )
        .exclude(pk=debt.pk)
        .exclude(state__in=[state for state in FINAL_STATES if state != State.SUCCEEDED])
        .values_list("action_id", flat=True)
        .first()
    )
    later = (
        later
        or ExternalRefund.objects.filter(
            order=order,
            is_ours=False,
            amount_minor=debt.amount_minor,
            currency=debt.currency,
            seen_at__gt=debt.created_at,
        )
        .exclude(status__in=["failed", "canceled"])
        .values_list("provider_ref", flat=True)
        .first()
    )
    return f"a later refund of the same amount is on the order ({later})" if later else ""


def _other_payer(action_id: str) -> str:
    """Why a credit to the order's customer takes two people: the provider names another payer.

    Reads the provider, with no transaction open. A guest's payment names nobody.
    """
    refuse_open_transaction()
    debt = RefundAction.objects.select_related("order").filter(action_id=action_id).first()
    if debt is None or debt.state != State.FAILED_FINAL or why_no_credit(debt.order):
        return ""
    totals = payment_provider(debt.order.provider).read_payment(
        payment_ref=debt.order.payment_ref, account=debt.order.account
    )
    if isinstance(totals, Unreadable):
        return "who paid could not be read at the provider"
    if totals.customer_ref in ("", debt.order.customer_ref):
        return ""
    return (
        f"the provider says that {totals.customer_ref} paid, not the order's customer "
        f"{debt.order.customer_ref}"
    )


def _failed_at_the_provider(debt: RefundAction) -> bool:
    """Whether every way that was tried so far has failed by the provider's own word."""
    ways: list[Any] = [
        RefundEvent.objects.filter(action=debt),
        *(
            CreditEvent.objects.filter(action__remedy=remedy)
            for remedy in Remedy.objects.filter(debt=debt, state=RemedyState.FAILED)
        ),
    ]
    for events in ways:
        last = events.filter(data__to=State.FAILED_FINAL.value).order_by("-pk").first()
        if last is None or last.kind not in ("refund.failed", "credit.failed"):
            return False
    return True


def _people_by_policy(locked: Locked) -> int:
    """Two where the policy in force asks for two people at this amount, else one."""
    beside = locked.facts
    parameters = parameters_in_force(beside=beside) if isinstance(beside, Beside) else None
    if parameters is None:
        return 2
    facts = REFUND.deciding_facts(locked=locked, admitting=False)
    return min(2, tier_of(facts, parameters).people)


def _begin(*, locked: Locked, remedy: Remedy, user: User) -> None:
    """A store credit is sent from here; the others are made by a person, outside."""
    if remedy.kind == Remedy.Kind.STORE_CREDIT:
        begin_credit(locked=locked, remedy=remedy, actor=actor_of(user))


def _what_next(remedy: Remedy) -> str:
    words = remedy_moves.opening(remedy)
    if remedy.state == RemedyState.PROPOSED:
        return (
            f"{words} is proposed. A second person must approve it before anything is paid: "
            f"{remedy.why_two}."
        )
    if remedy.kind == Remedy.Kind.STORE_CREDIT:
        return f"{words} is authorized and is sent now."
    return f"{words} is authorized. Make it now, then record its reference here."


def _lock(*, remedy_id: int, seen_version: int) -> tuple[Locked, Remedy] | RemedyRefused:
    """The refund locked as the person saw it, and the remedy as it stands under that lock."""
    action_id = (
        Remedy.objects.filter(pk=remedy_id).values_list("debt__action_id", flat=True).first()
    )
    locked = REFUND.lock(action_id=action_id) if action_id else None
    if locked is None:
        return RemedyRefused(why=Why.NO_SUCH, sentence="There is no such remedy.")
    remedy = Remedy.objects.get(pk=remedy_id)
    return _refuse_version(locked, seen_version) or (locked, remedy)


def _refuse_person(user: User, permission: str) -> RemedyRefused | None:
    if user.is_active and user.has_perm(permission):
        return None
    return RemedyRefused(
        why=Why.NOT_PERMITTED, sentence=f"Nothing was done: it needs the permission {permission}."
    )


def _refuse_words(
    *, note: str, reason: str | None = None, reasons: dict[str, str] = REMEDY_REASONS
) -> RemedyRefused | None:
    if reason is not None and reason not in reasons:
        return RemedyRefused(
            why=Why.BAD_INPUT,
            sentence=f"Nothing was done: give one of these reasons: {', '.join(reasons)}.",
        )
    if not is_note(note) or len(note.strip()) < EXPLANATION_CHARACTERS_MIN:
        return RemedyRefused(
            why=Why.BAD_INPUT,
            sentence=f"Nothing was done: say in the note what was found and agreed, "
            f"{EXPLANATION_CHARACTERS_MIN} to {NOTE_CHARACTERS_MAX} characters.",
        )
    return None


def _refuse_version(locked: Locked, seen_version: int) -> RemedyRefused | None:
    now = RefundEvent.objects.filter(action=locked.action).count()
    if now == seen_version:
        return None
    return RemedyRefused(
        why=Why.CHANGED_SINCE,
        sentence=f"Nothing was done: {abs(now - seen_version)} new events since you opened this "
        "page. Read them, then decide again.",
    )


def _refuse_proposal(locked: Locked, *, kind: str) -> RemedyRefused | None:
    debt, order = locked.action, locked.resource
    if debt.state != State.FAILED_FINAL:
        return RemedyRefused(
            why=Why.NOT_FAILED,
            sentence=f"Nothing was proposed: the refund is {State(debt.state).label}. Only what "
            "has failed for good is settled another way; otherwise the customer could get both.",
        )
    for remedy in remedy_moves.live_remedies(locked=locked):
        return RemedyRefused(
            why=Why.ALREADY_LIVE,
            sentence=f"Nothing was proposed: {remedy_moves.in_words(remedy)} is "
            f"{RemedyState(remedy.state).label}, and a debt is settled once.",
        )
    if kind == Remedy.Kind.STORE_CREDIT and (why := why_no_credit(order)):
        return RemedyRefused(
            why=Why.NO_CUSTOMER,
            sentence=f"Nothing was proposed: {why}. Use a bank transfer or a cheque.",
        )
    return _refuse_paused(locked)


def _refuse_customer(locked: Locked, remedy: Remedy) -> RemedyRefused | None:
    order = locked.resource
    if remedy.kind != Remedy.Kind.STORE_CREDIT or remedy.customer_ref == order.customer_ref:
        return None
    return RemedyRefused(
        why=Why.NO_CUSTOMER,
        sentence=f"Nothing was done: it was proposed for the customer {remedy.customer_ref}, and "
        f"order {order.order_id} has another one now ({order.customer_ref or 'none'}). Stop it, "
        "and propose it again for the right one.",
    )


def _refuse_reference(remedy: Remedy, reference: str) -> RemedyRefused | None:
    """One transfer or cheque settles one debt. The lock is held until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
            [f"{remedy.kind}:{reference.lower()}"],
        )
    other = (
        Remedy.objects.select_related("debt")
        .filter(kind=remedy.kind, reference__iexact=reference)
        .exclude(debt=remedy.debt_id)
        .first()
    )
    if other is None:
        return None
    return RemedyRefused(
        why=Why.SAME_REFERENCE,
        sentence=f"Not recorded: {remedy_moves.in_words(other)} has this number already, for "
        f"{other.debt.action_id}. Give the number of this one.",
    )


def _refuse_beside(locked: Locked, remedy: Remedy) -> RemedyRefused | None:
    """An authorized remedy has no other beside it; where it has, something went round the code."""
    others = [each for each in remedy_moves.live_remedies(locked=locked) if each.pk != remedy.pk]
    if not others or remedy.state != RemedyState.AUTHORIZED:
        return None
    return RemedyRefused(
        why=Why.ALREADY_LIVE,
        sentence=f"Not recorded: {remedy_moves.in_words(others[0])} is "
        f"{RemedyState(others[0].state).label} beside it, and a debt is settled once. Stop this "
        "one first; if it is out already, record it after that.",
    )


def _refuse_paused(locked: Locked) -> RemedyRefused | None:
    order, beside = locked.resource, locked.facts
    why = ""
    if isinstance(beside, Beside) and beside.incidents:
        why = f"order {order.order_id} is paused by an open incident; settle that first"
    elif order.dispute_state == Order.DisputeState.OPEN:
        why = f"the payment of order {order.order_id} is disputed, and the bank may pay it back"
    elif order.refundable_minor < 0:
        why = f"order {order.order_id} is overdrawn"
    return RemedyRefused(why=Why.PAUSED, sentence=f"Nothing was done: {why}.") if why else None


def _does_not_fit(debt: RefundAction, order: Order) -> str:
    left = format_amount(max(order.refundable_minor, 0), order.currency)
    return (
        f"Nothing was proposed: only {left} is left of order {order.order_id}, and the debt is "
        f"{format_amount(debt.amount_minor, debt.currency)}. Something else used it meanwhile: "
        "look at the order's other refunds."
    )


def _not_now(remedy: Remedy, rule: str) -> RemedyRefused:
    return RemedyRefused(
        why=Why.NOT_NOW,
        sentence=f"Nothing was done: {remedy_moves.in_words(remedy)} is "
        f"{RemedyState(remedy.state).label}, and {rule}.",
    )
