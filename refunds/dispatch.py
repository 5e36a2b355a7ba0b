"""Dispatch: one authorised effect, from the claim to what came of it."""

from __future__ import annotations

import logging
import os
import socket

from effects.claim import NotClaimed, claim
from effects.kinds import kind_of
from effects.record import record
from effects.send import send

log = logging.getLogger(__name__)


def worker_name() -> str:
    """Who this process is in the history: host and process id."""
    return f"worker:{socket.gethostname()}:{os.getpid()}"[:80]


def dispatch(*, action_id: str) -> str:
    """Send one effect if it is authorised and nobody else has it. Returns what happened.

    1. Claim it: AUTHORIZED -> SUBMITTING with an attempt, committed together.
    2. Look, then send once, with no transaction open.
    3. Record what came back, in a second transaction.

    If this dies between 1 and 3, the lease ends and the sweep makes it UNKNOWN; reconciliation
    finds out. Nothing here ever retries.
    """
    kind, worker = kind_of(action_id), worker_name()
    if kind is None:
        return "not claimed: there is no such kind of action"
    claimed = claim(kind=kind, action_id=action_id, worker=worker)
    if isinstance(claimed, NotClaimed):
        log.info(
            "Not claimed: %s",
            claimed.reason,
            extra={"action": f"{kind.name}.not_claimed", "action_id": action_id},
        )
        return f"not claimed: {claimed.reason}"
    sent = send(kind=kind, claimed=claimed)
    record(kind=kind, token=claimed.token, sent=sent, actor=worker)
    outcome = type(sent.outcome).__name__.lower()
    log.info(
        "Sent, and the answer was recorded.",
        extra={"action": f"{kind.name}.recorded", "action_id": action_id, "outcome": outcome},
    )
    return outcome
