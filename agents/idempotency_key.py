"""The `Idempotency-Key` header: a second fence around a proposal, and never its identity.

Who an action is, its ids say, and an action that exists is answered whatever the header says. The
header catches the other mistake: a client that sends one request again under other ids. Its draft:
https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from django.db import transaction

from agents.models import AgentKey, IdempotencyValue
from effects.clock import DatabaseNow
from refunds.propose import Proposal, Proposed, Recorded, propose_refund

HEADER = "Idempotency-Key"
# 1 to 255 visible ASCII characters. Plain without a comma, since servers join a header that comes
# twice with one; or a String of RFC 8941 (section 3.3.3), as the draft has it, where two of them
# are escaped.
HEADER_PATTERN = r'^(?:[!#-+\--~][!-+\--~]{0,254}|"(?:[!#-\[\]-~]|\\["\\]){1,255}")$'
HEADER_REASON = (
    "must be given once, as 1 to 255 visible ASCII characters, without a comma unless in quotes"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOfAnotherAction:
    """Another action was recorded under this value. Nothing was recorded."""

    action_id: str


class _Undo(Exception):
    """Takes a transaction back."""


def value_of_header(text: str) -> str:
    """The opaque value of a header that has the right form; quotes are none of it."""
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


def propose_under_value(
    *, key: AgentKey, value: str, proposal: Proposal
) -> Proposed | ValueOfAnotherAction:
    """Propose, and give the value to the action in the same transaction, if it is a new one.

    Only what was recorded takes the value: it stays free when nothing was. Of parallel proposals of
    two actions under one value, the second waits here for the first, and then is undone.
    """
    owner = ""
    try:
        with transaction.atomic():
            proposed = propose_refund(proposal=proposal)
            if isinstance(proposed, Recorded):
                action = proposed.action
                IdempotencyValue.objects.bulk_create(
                    [
                        IdempotencyValue(
                            key=key, value=value, action=action, recorded_at=DatabaseNow()
                        )
                    ],
                    ignore_conflicts=True,
                )
                owner = (
                    IdempotencyValue.objects.filter(key=key, value=value)
                    .values_list("action__action_id", flat=True)
                    .get()
                )
                if owner != action.action_id:
                    raise _Undo
    except _Undo:
        return ValueOfAnotherAction(action_id=owner)
    return proposed
