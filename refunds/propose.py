"""Propose: from an agent's request to one recorded, decided action."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from effects.states import State
from kernel.canonical import canonical_json, sha256_hex
from kernel.errors import InvalidInput
from kernel.identity import refund_action_id, require_identifier
from kernel.money import require_amount, require_currency
from kernel.text import is_text
from policies.decision import Decision, Verdict
from policies.facts import Facts, RefundLine
from policies.models import DecisionRecord
from providers.registry import payment_provider
from refunds.binding import binding
from refunds.decide import (
    STATE_FOR,
    call_somebody,
    decide,
    keep_decision,
    parameters_in_force,
    who_must_approve,
)
from refunds.facts import Beside, facts_for, read_beside
from refunds.kind import REFUND
from refunds.models import AgentNote, Order, RefundAction, RefundEvent
from refunds.usage import used_lately

NOTE_CHARACTERS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalLine:
    """Which line of the order a part of the amount is for."""

    line_id: str
    amount_minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a caller asks for. `order_id` and `request_id` belong to the merchant's systems.

    `note`, `lines` and `refunded_so_far_minor` are the caller's words and beliefs, not part of
    the identity. `proposer` is the agent's public prefix, `proposer_owner_id` the member of
    staff who answers for it, `request_ref` the HTTP request's id. `session` is the session it came
    through, if it did, and `amount_minor_max` the most that is allowed under it. Under a session a
    model chose the reason, so one that the policy does not have for this agent is a mistake in an
    argument, and not a proposal that is denied for ever.
    """

    order_id: str
    request_id: str
    amount_minor: int
    currency: str
    reason: str
    proposer: str
    note: str = ""
    lines: tuple[ProposalLine, ...] = ()
    refunded_so_far_minor: int | None = None
    request_ref: str = ""
    proposer_owner_id: int | None = None
    session: str = ""
    amount_minor_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A new action was written and decided."""

    action: RefundAction
    decision: DecisionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The same request was here before; this is its action, whatever became of it."""

    action: RefundAction


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """The same ids were used before with other content. Nothing was written.

    `differing` names the fields that differ.
    """

    action: RefundAction
    differing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfAnotherAgent:
    """The same ids were used before by another agent. Nothing was written, nothing is told."""

    action_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownOrder:
    """No such order has been mirrored. Nothing was written."""

    order_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleBelief:
    """The caller believes another refunded amount than ours. Nothing was written."""

    refunded_minor: int
    believed_minor: int


Proposed = Recorded | Replayed | Conflict | OfAnotherAgent | UnknownOrder | StaleBelief


def propose_refund(*, proposal: Proposal) -> Proposed:
    """Record one proposal and decide it, once, however often it arrives.

    1. Validate the shape; raises InvalidInput naming the field.
    2. Identity first: an action that exists is answered before any other check, for ever.
    3. Lock the order, so that parallel proposals of one request find each other.
    4. Compare the caller's beliefs with the order, and under a session the amount with the
       session's and the reason with the policy's.
    5. Freeze the provider request and its hash.
    6. Decide, one admission to the same limits at a time, and insert the action in the state that
       the decision gives, with its history.
    7. After the commit, hint a worker. The row is the queue; the hint may be lost.
    """
    action_id = refund_action_id(order_id=proposal.order_id, request_id=proposal.request_id)
    proposal = _validated(proposal)
    known = RefundAction.objects.select_related("order").filter(action_id=action_id).first()
    if known is not None:
        return _answer_known(action=known, proposal=proposal)
    with transaction.atomic():
        order = (
            Order.objects.select_for_update(no_key=True).filter(order_id=proposal.order_id).first()
        )
        if order is None:
            return UnknownOrder(order_id=proposal.order_id)
        beside = read_beside(order=order, action_id=action_id, proposer=proposal.proposer)
        if beside.action_exists:
            known = RefundAction.objects.select_related("order").get(action_id=action_id)
            return _answer_known(action=known, proposal=proposal)
        if proposal.currency != order.currency:
            raise InvalidInput(
                field="currency", reason=f"must be the order's currency, {order.currency}"
            )
        most = proposal.amount_minor_max
        if most is not None and proposal.amount_minor > most:
            raise InvalidInput(
                field="amount_minor", reason=f"must be at most {most}, what this session is for"
            )
        _refuse_reason(proposal=proposal, beside=beside)
        believed = proposal.refunded_so_far_minor
        if believed is not None and believed != order.refunded_minor:
            return StaleBelief(refunded_minor=order.refunded_minor, believed_minor=believed)
        action, decision = _insert(
            proposal=proposal, action_id=action_id, order=order, beside=beside
        )
        if action.state == State.AUTHORIZED:
            transaction.on_commit(lambda: REFUND.hint(action_id=action_id))
    return Recorded(action=action, decision=decision)


def _validated(proposal: Proposal) -> Proposal:
    """The proposal with its currency in upper case; raises InvalidInput naming a bad field."""
    currency = require_currency(proposal.currency)
    require_amount(proposal.amount_minor, currency=currency)
    require_identifier(proposal.reason, field="reason")
    if not is_text(proposal.note) or len(proposal.note) > NOTE_CHARACTERS_MAX:
        raise InvalidInput(
            field="note", reason=f"must be text of at most {NOTE_CHARACTERS_MAX} characters"
        )
    for number, line in enumerate(proposal.lines):
        field = f"lines[{number}].amount_minor"
        require_amount(line.amount_minor, currency=currency, field=field)
    believed = proposal.refunded_so_far_minor
    if believed is not None and (type(believed) is not int or believed < 0):
        raise InvalidInput(field="refunded_so_far_minor", reason="must be an integer >= 0")
    return replace(proposal, currency=currency)


def _refuse_reason(*, proposal: Proposal, beside: Beside) -> None:
    """Raise InvalidInput where a model chose a reason that the policy does not have for it.

    Where it has none at all, no other reason would help: the denial is recorded and ends it.
    """
    parameters = parameters_in_force(beside=beside) if proposal.session else None
    allowed = parameters.reasons_for(proposal.proposer) if parameters else ()
    if allowed and proposal.reason not in allowed:
        raise InvalidInput(field="reason", reason=f"must be one of {', '.join(allowed)}")


def _answer_known(
    *, action: RefundAction, proposal: Proposal
) -> Replayed | Conflict | OfAnotherAgent:
    if action.proposed_by != proposal.proposer:
        return OfAnotherAgent(action_id=action.action_id)
    differing = tuple(
        name
        for name in ("amount_minor", "currency", "reason")
        if getattr(action, name) != getattr(proposal, name)
    )
    if differing:
        return Conflict(action=action, differing=differing)
    return Replayed(action=action)


def _insert(
    *, proposal: Proposal, action_id: str, order: Order, beside: Beside
) -> tuple[RefundAction, DecisionRecord]:
    payload = canonical_json(
        payment_provider(order.provider).refund_payload(
            account=order.account,
            payment_ref=order.payment_ref,
            amount_minor=proposal.amount_minor,
            currency=proposal.currency,
            reason=proposal.reason,
            action_id=action_id,
            instance=settings.INSTANCE,
            order_id=proposal.order_id,
            request_id=proposal.request_id,
        )
    )
    payload_hash = sha256_hex(payload)
    facts, at = _facts(proposal=proposal, action_id=action_id, order=order, beside=beside)
    decision = decide(facts=facts, beside=beside)
    if decision.verdict is Verdict.HOLD:
        call_somebody(facts=facts, beside=beside, decision=decision)
    state = STATE_FOR[decision.verdict]
    action = RefundAction(
        action_id=action_id,
        state=state.value,
        order=order,
        request_id=proposal.request_id,
        amount_minor=proposal.amount_minor,
        currency=proposal.currency,
        reason=proposal.reason,
        payload=payload,
        payload_hash=payload_hash,
        provider=order.provider,
        account=order.account,
        proposed_by=proposal.proposer,
        proposer_owner_id=proposal.proposer_owner_id,
        instance=settings.INSTANCE,
        lines=[asdict(line) for line in proposal.lines],
        request_ref=proposal.request_ref,
        decided_by="policy",
        authorized_at=at if state is State.AUTHORIZED else None,
        **who_must_approve(decision),
        bound_version=order.version,
        due_at=_first_due(state=state, now=beside.now),
        created_at=beside.now,
        updated_at=beside.now,
        state_since=beside.now,
    )
    action.bound_facts = binding(action=action, order=order, facts=facts, beside=beside)
    action.save(force_insert=True)
    kept = keep_decision(
        action_id=action_id, number=1, facts=facts, beside=beside, decision=decision
    )
    if proposal.note:
        AgentNote.objects.create(action=action, text=proposal.note)
    RefundEvent.objects.bulk_create(
        _first_events(
            action=action, order=order, decision=decision, beside=beside, session=proposal.session
        )
    )
    return action, kept


def _facts(
    *, proposal: Proposal, action_id: str, order: Order, beside: Beside
) -> tuple[Facts, datetime]:
    """What the first decision is made on, and when it was read.

    Nobody else decides against the same limits until this transaction ends.
    """
    used = used_lately(
        order=order,
        action_id=action_id,
        proposer=proposal.proposer,
        parameters=parameters_in_force(beside=beside),
        now=beside.now,
        admitting=True,
    )
    facts = facts_for(
        order=order,
        beside=beside,
        action_id=action_id,
        amount_minor=proposal.amount_minor,
        reason=proposal.reason,
        proposer=proposal.proposer,
        lines=tuple(RefundLine(**asdict(line)) for line in proposal.lines),
        used=used,
    )
    return facts, used.at


def _first_due(*, state: State, now: datetime) -> datetime | None:
    """The first sweep that looks: soon after the hint, or when the time to decide is over."""
    if state in (State.AUTHORIZED, State.HELD):
        return now + timedelta(seconds=settings.DISPATCH_SWEEP_SECONDS)
    if state is State.AWAITING_APPROVAL:
        return now + timedelta(seconds=settings.APPROVAL_TTL_SECONDS)
    return None


def _first_events(
    *, action: RefundAction, order: Order, decision: Decision, beside: Beside, session: str
) -> list[RefundEvent]:
    def event(kind: str, actor: str, data: dict[str, Any]) -> RefundEvent:
        return RefundEvent(
            order=order,
            action=action,
            kind=kind,
            actor=actor,
            at=beside.now,
            data={"order_version": order.version, **data},
        )

    return [
        event(
            "refund.proposed",
            f"agent:{action.proposed_by}"[:80],
            {
                "amount_minor": action.amount_minor,
                "currency": action.currency,
                "reason": action.reason,
                "payload_hash": action.payload_hash,
                "request_ref": action.request_ref,
                **({"session": session} if session else {}),
            },
        ),
        event(
            "refund.decided",
            "policy",
            {
                "verdict": decision.verdict.name,
                "why": decision.why,
                "policy_version": beside.policy_number,
                "to": action.state,
            },
        ),
    ]
