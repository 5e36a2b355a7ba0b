"""The states of an effect and the legal moves between them: the one table.

The FSM, the database triggers, the admin's help and the README are all made from `STATES` and
`MOVES`. Change them here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import models


class State(models.TextChoices):
    """Where an action stands. Named for what is durable, not for what comes next."""

    HELD = "HELD", "held"
    AWAITING_APPROVAL = "AWAITING_APPROVAL", "awaiting approval"
    AUTHORIZED = "AUTHORIZED", "authorized"
    SUBMITTING = "SUBMITTING", "submitting"
    UNKNOWN = "UNKNOWN", "unknown"
    PENDING = "PENDING", "pending"
    SUCCEEDED = "SUCCEEDED", "succeeded"
    FAILED_FINAL = "FAILED_FINAL", "failed"
    REJECTED = "REJECTED", "rejected"
    EXPIRED = "EXPIRED", "expired"
    CANCELLED = "CANCELLED", "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a state means, who moves it on, and what happens if that mover dies."""

    means: str
    mover: str


STATES: dict[State, About] = {
    State.HELD: About(
        means="Recorded; it cannot be decided now (a kill switch is on, or facts cannot be "
        "reached). Nothing was sent.",
        mover="The decision sweep runs the policy again. Past the approval time a case is opened.",
    ),
    State.AWAITING_APPROVAL: About(
        means="Recorded; a person must decide. No attempt is unresolved.",
        mover="A reviewer. If nobody decides in time the expiry sweep makes it EXPIRED, with a "
        "case: the customer still expects an answer.",
    ),
    State.AUTHORIZED: About(
        means="Allowed by a decision; nothing unresolved is on the wire.",
        mover="A worker, hinted after the commit. The dispatch sweep finds what the hint lost; "
        "an approval that ends sends it back to AWAITING_APPROVAL.",
    ),
    State.SUBMITTING: About(
        means="Claimed, the amount reserved; a request is or may be on the wire.",
        mover="The worker that holds the lease. When the lease is over the sweep makes it "
        "UNKNOWN, never AUTHORIZED.",
    ),
    State.UNKNOWN: About(
        means="The provider may or may not have acted.",
        mover="Reconciliation: three tries or 24 hours, then the person who owns its case. "
        "Evidence from anywhere can still settle it.",
    ),
    State.PENDING: About(
        means="The provider has accepted it and has not settled it.",
        mover="Slow polling, which burns no tries. Over 7 days (45 when the customer must act) a "
        "case is opened and polling goes on.",
    ),
    State.SUCCEEDED: About(
        means="The provider shows it done. It can still fail for about 30 days.",
        mover="Nothing needs to. Provider evidence of a late failure makes it FAILED_FINAL, "
        "with a case.",
    ),
    State.FAILED_FINAL: About(
        means="Authoritative evidence that it cannot succeed, or two people who gave it up. The "
        "customer is still owed.",
        mover="The person who owns the case it opened. Late proof of success wins.",
    ),
    State.REJECTED: About(
        means="Decided against. No attempt, or all attempts proved not executed.",
        mover="Final, but for late proof of success, which opens a case.",
    ),
    State.EXPIRED: About(
        means="Nobody decided in time. No attempt, or all attempts proved not executed.",
        mover="Final, but for late proof of success. Its case is owned by a person.",
    ),
    State.CANCELLED: About(
        means="Withdrawn before it was claimed. No attempt, or all proved not executed.",
        mover="Final, but for late proof of success, which opens a case.",
    ),
}


@dataclass(frozen=True, slots=True)
class Move:
    """One legal move and the only reason for it."""

    source: State
    target: State
    when: str


_S = State
_DECIDED: tuple[Move, ...] = (
    Move(_S.HELD, _S.AUTHORIZED, "policy, run again, allows it"),
    Move(_S.HELD, _S.AWAITING_APPROVAL, "policy, run again, asks a person"),
    Move(_S.HELD, _S.REJECTED, "policy, run again, says no"),
    Move(_S.HELD, _S.CANCELLED, "withdrawn"),
    Move(_S.AWAITING_APPROVAL, _S.AUTHORIZED, "enough people approved"),
    Move(_S.AWAITING_APPROVAL, _S.REJECTED, "a person said no"),
    Move(_S.AWAITING_APPROVAL, _S.EXPIRED, "nobody decided in time"),
    Move(_S.AWAITING_APPROVAL, _S.CANCELLED, "withdrawn"),
    Move(_S.AUTHORIZED, _S.SUBMITTING, "claimed by a worker, the amount reserved"),
    Move(_S.AUTHORIZED, _S.AWAITING_APPROVAL, "the facts it was authorised on have changed"),
    Move(_S.AUTHORIZED, _S.REJECTED, "policy, run again in the claim, says no"),
    Move(_S.AUTHORIZED, _S.CANCELLED, "withdrawn"),
    Move(_S.AUTHORIZED, _S.UNKNOWN, "it was sent before and its key is too old to send again"),
    Move(_S.SUBMITTING, _S.SUCCEEDED, "the provider says so and the answer matches"),
    Move(_S.SUBMITTING, _S.PENDING, "the provider accepted it and has not settled it"),
    Move(_S.SUBMITTING, _S.UNKNOWN, "no usable answer, or the lease is over"),
    Move(_S.SUBMITTING, _S.FAILED_FINAL, "a definite refusal, nothing else unresolved"),
    Move(_S.SUBMITTING, _S.AUTHORIZED, "proof that the attempt did nothing"),
    Move(_S.UNKNOWN, _S.SUCCEEDED, "found at the provider"),
    Move(_S.UNKNOWN, _S.PENDING, "found at the provider, not settled"),
    Move(_S.UNKNOWN, _S.FAILED_FINAL, "proof that it failed or was refused, or people gave it up"),
    Move(_S.UNKNOWN, _S.AUTHORIZED, "proof of not executed, the key is young"),
    Move(
        _S.UNKNOWN,
        _S.AWAITING_APPROVAL,
        "proof of not executed and the approval no longer holds, or people allow a new key",
    ),
    Move(_S.PENDING, _S.SUCCEEDED, "the provider settled it"),
    Move(_S.PENDING, _S.FAILED_FINAL, "the provider could not settle it"),
    Move(_S.SUCCEEDED, _S.FAILED_FINAL, "it failed late, with a case"),
    Move(_S.FAILED_FINAL, _S.SUCCEEDED, "late proof of success, with a case"),
)

_ON_EVIDENCE = "verified provider evidence, with a case if nothing should have been in flight"


def _moves() -> tuple[Move, ...]:
    """The decided moves, and from every state to SUCCEEDED or PENDING on evidence."""
    known = {(move.source, move.target) for move in _DECIDED}
    evidence = tuple(
        Move(source, target, _ON_EVIDENCE)
        for source in State
        for target in (State.SUCCEEDED, State.PENDING)
        if source is not target and (source, target) not in known
    )
    return _DECIDED + evidence


MOVES: tuple[Move, ...] = _moves()
LEGAL: frozenset[tuple[State, State]] = frozenset((m.source, m.target) for m in MOVES)

# A row may only be born in a state that a decision gives; anything later needs a move.
START_STATES = (State.HELD, State.AWAITING_APPROVAL, State.AUTHORIZED, State.REJECTED)

# Nothing more happens by itself.
FINAL_STATES = (
    State.SUCCEEDED,
    State.FAILED_FINAL,
    State.REJECTED,
    State.EXPIRED,
    State.CANCELLED,
)

# In these no attempt may be unresolved; the database refuses to enter them while one is.
STATES_WITHOUT_OPEN_QUESTIONS = (
    State.AUTHORIZED,
    State.AWAITING_APPROVAL,
    State.FAILED_FINAL,
    State.REJECTED,
    State.EXPIRED,
    State.CANCELLED,
)

# In these the effect may exist at the provider, or may still come to exist.
IN_FLIGHT_STATES = (State.SUBMITTING, State.UNKNOWN, State.PENDING)


def sources_of(target: State) -> list[str]:
    """Every state from which `target` may be reached."""
    return [move.source.value for move in MOVES if move.target is target]
