"""What an agent may do, whichever door it comes through: propose, read and withdraw its own.

HTTP and MCP call these, so that a session means the same in both: its order and its request are
not the caller's to choose, and another agent's action does not exist.
"""

from __future__ import annotations

from agents.answers import ActionAnswer, read_answer
from agents.callers import Caller
from agents.idempotency_key import ValueOfAnotherAction, propose_under_value
from agents.request_id import request_id
from agents.sessions import action_id_of
from kernel.identity import order_id_of
from policies.versions import parameters_in_force
from refunds.models import RefundAction
from refunds.propose import OfAnotherAgent, Proposal, ProposalLine, Proposed, propose_refund
from refunds.withdraw import TooLate, Withdrawn, wait_for_proposals, withdraw_refund


def propose(
    *,
    caller: Caller,
    order_id: str,
    request_id_of_merchant: str,
    amount_minor: int,
    currency: str,
    reason: str,
    note: str = "",
    lines: tuple[ProposalLine, ...] = (),
    refunded_so_far_minor: int | None = None,
    idempotency_value: str | None = None,
) -> Proposed | ValueOfAnotherAction:
    """Propose a refund in a caller's name; see `refunds.propose.propose_refund` for what it raises.

    Of a session, the ids must be the session's own: whoever calls this has seen to it.
    `idempotency_value` is the second fence of agents/idempotency_key.py.
    """
    session = caller.session
    proposal = Proposal(
        order_id=order_id,
        request_id=request_id_of_merchant,
        amount_minor=amount_minor,
        currency=currency,
        reason=reason,
        note=note,
        lines=lines,
        refunded_so_far_minor=refunded_so_far_minor,
        proposer=caller.key.prefix,
        proposer_owner_id=caller.key.owner_id,
        request_ref=request_id(),
        session=session.prefix if session else "",
        amount_minor_max=session.max_amount_minor if session else None,
    )
    if idempotency_value is None:
        return propose_refund(proposal=proposal)
    return propose_under_value(key=caller.key, value=idempotency_value, proposal=proposal)


def read(*, caller: Caller, action_id: str) -> ActionAnswer | None:
    """One of the caller's own actions, or None when it has no such one. One query."""
    if not may_touch(caller=caller, action_id=action_id):
        return None
    return read_answer(action_id=action_id, proposer=caller.key.prefix)


def withdraw(*, caller: Caller, action_id: str) -> Withdrawn | TooLate | OfAnotherAgent | None:
    """Withdraw one of the caller's own actions. None: there is none, nor one being recorded.

    A proposal of it that is being recorded is waited for, and then withdrawn. One that has not
    arrived yet can still be recorded later.
    """
    if not may_touch(caller=caller, action_id=action_id):
        return None
    # Who proposed an action never changes, so that it may be asked before the lock.
    proposer = proposer_of(action_id)
    if proposer is None:
        wait_for_proposals(order_id=order_id_of(action_id))
        proposer = proposer_of(action_id)
    if proposer is None:
        return None
    if proposer != caller.key.prefix:
        return OfAnotherAgent(action_id=action_id)
    return withdraw_refund(action_id=action_id, actor=caller.actor)


def proposer_of(action_id: str) -> str | None:
    """The prefix of the agent that proposed an action; None: there is none. One query."""
    found = RefundAction.objects.filter(action_id=action_id).values_list("proposed_by", flat=True)
    return found.first()


def reasons_of(caller: Caller) -> list[str] | None:
    """The reasons that the caller may give now; None: no policy is in force to say. One query."""
    parameters = parameters_in_force()
    return None if parameters is None else list(parameters.reasons_for(caller.key.prefix))


def may_touch(*, caller: Caller, action_id: str) -> bool:
    """Whether an id is inside what the caller is bound to: under a session, its one action."""
    return caller.session is None or action_id == action_id_of(caller.session)
