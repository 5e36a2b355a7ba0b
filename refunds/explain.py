"""What the policy would say about a refund now, and why. Nothing is recorded, nothing waits."""

from __future__ import annotations

from dataclasses import dataclass

from kernel.errors import InvalidInput
from kernel.identity import require_identifier
from kernel.money import require_amount, require_currency
from policies.decision import Decision
from policies.facts import Facts, RefundLine
from policies.parameters import Parameters
from policies.read_only import read_only
from policies.rules import evaluate
from refunds.decide import decide, parameters_in_force
from refunds.facts import facts_for, read_beside
from refunds.models import Order
from refunds.propose import ProposalLine, UnknownOrder
from refunds.usage import used_lately


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What would be decided, on which facts. `policy_version`: that in force, 0 for none.

    With a draft the decision is the draft's and the version the one in force all the same.
    """

    decision: Decision
    facts: Facts
    policy_version: int


def explain_refund(
    *,
    order_id: str,
    amount_minor: int,
    currency: str,
    reason: str,
    proposer: str,
    lines: tuple[ProposalLine, ...] = (),
    draft: Parameters | None = None,
) -> Explained | UnknownOrder:
    """Decide a refund that nobody proposed, by the policy in force or by a draft.

    1. Validate as a proposal is; raises InvalidInput naming the field.
    2. Read the order and everything beside it on one snapshot, without any lock. Postgres refuses
       to write in it.
    3. Evaluate. By the time of a proposal the facts may be others, and with them the verdict.
    """
    require_identifier(order_id, field="order_id")
    currency = require_currency(currency)
    require_amount(amount_minor, currency=currency)
    require_identifier(reason, field="reason")
    for number, line in enumerate(lines):
        require_amount(line.amount_minor, currency=currency, field=f"lines[{number}].amount_minor")
    with read_only():
        order = Order.objects.filter(order_id=order_id).first()
        if order is None:
            return UnknownOrder(order_id=order_id)
        if currency != order.currency:
            raise InvalidInput(
                field="currency", reason=f"must be the order's currency, {order.currency}"
            )
        # No action has this id: nothing of the order is left out.
        beside = read_beside(order=order, action_id="", proposer=proposer)
        facts = facts_for(
            order=order,
            beside=beside,
            action_id="",
            amount_minor=amount_minor,
            reason=reason,
            proposer=proposer,
            lines=tuple(
                RefundLine(line_id=line.line_id, amount_minor=line.amount_minor) for line in lines
            ),
            used=used_lately(
                order=order,
                action_id="",
                proposer=proposer,
                parameters=draft or parameters_in_force(beside=beside),
                now=beside.now,
            ),
        )
        decision = evaluate(facts, draft) if draft else decide(facts=facts, beside=beside)
    return Explained(decision=decision, facts=facts, policy_version=beside.policy_number)
