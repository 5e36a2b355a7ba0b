"""What a refund and a store credit do the same: effects on an order, their attempts beside them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

from approvals.standing import Yes, yeses_of
from effects.doubt import leaves_doubt
from effects.kinds import (
    Absent,
    Contradiction,
    EffectKind,
    Found,
    Judgement,
    Locked,
    OnlyFailed,
    Promises,
)
from effects.outcomes import Evidence, Outcome, Pending, ProviderEffect, Succeeded, Unreadable
from effects.send import refuse_open_transaction
from kernel.errors import Bug
from providers import matching
from providers.port import Capabilities, SendRequest
from refunds.hint import tell_a_worker
from refunds.replayed import as_it_stands

# A switch is looked at again this often; turning it off needs no other wake-up.
SWITCH_RECHECK_SECONDS = 15.0
# A paused order is a person's; the claim only looks now and then.
INCIDENT_RECHECK_SECONDS = 60.0


class OrderEffect(EffectKind):
    """A kind whose resource is an order, and whose facts have the `attempts` (`AttemptNow`)."""

    # What is locked with an action, by one statement.
    locked_with: ClassVar[tuple[str, ...]]

    # -- rows ---------------------------------------------------------------------------------

    def lock_attempt(self, *, token: UUID) -> tuple[Locked, Any] | None:
        """The same for an attempt and its action.

        Attempts are only written under their action's lock and are not locked themselves: one
        order of locks, so no deadlock. How the attempt stands is therefore taken from a later
        query; the first may have waited with an older one in hand.
        """
        rows = ("action", *(f"action__{name}" for name in self.locked_with))
        attempt: Any = (
            self.attempt_model.objects.select_related(*rows)
            .select_for_update(no_key=True, of=rows)
            .filter(token=token)
            .first()
        )
        if attempt is None:
            return None
        locked = self._locked(attempt.action)
        (now,) = (a for a in locked.facts.attempts if a.token == token)
        attempt.is_closed, attempt.resolution = now.is_closed, now.resolution
        return locked, attempt

    @abstractmethod
    def _locked(self, action: Any) -> Locked:
        """What was read beside an action that was just locked."""

    def new_event(self, *, locked: Locked, kind: str, actor: str, data: dict[str, Any]) -> Any:
        """An unsaved line of the order's and the action's history."""
        model: Any = self.event_model
        return model(
            order=locked.resource,
            action=locked.action,
            kind=kind,
            actor=actor[:80],
            at=locked.now,
            data={"order_version": locked.resource.version, **data},
        )

    # -- decisions ----------------------------------------------------------------------------

    def version_of(self, *, locked: Locked) -> int:
        """The order's version."""
        return int(locked.resource.version)

    def _yeses(self, *, locked: Locked) -> tuple[Yes, ...]:
        """The approvals of this round. One query."""
        return yeses_of(
            action_id=locked.action.action_id,
            approval_round=locked.action.approval_round,
            decide_permission=self.decide_permission,
        )

    def _what_changed(self, *, locked: Locked, yeses: tuple[Yes, ...]) -> str:
        """Why what people approved must not be sent, everything of it; "" when it may be."""
        action = locked.action
        differing = [
            words
            for yes in yeses
            for words in self.what_differs(locked=locked, yes=yes, tier=action.review_tier)
        ]
        people = len({yes.user_id for yes in yeses})
        if not people:
            differing.append(
                "no approval of its present round is on record, so it must be approved again"
            )
        elif people < action.review_people:
            differing.append(f"{people} of {action.review_people} people have approved it")
        return "; ".join(dict.fromkeys(differing))

    # -- consequences -------------------------------------------------------------------------

    def key_never_left(self, *, locked: Locked, but: UUID) -> bool:
        """Whether every attempt of this key generation ended before its first byte."""
        return all(
            attempt.outcome.startswith("not_sent") and "fence" not in attempt.outcome
            for attempt in locked.facts.attempts
            if attempt.generation == locked.action.generation and attempt.token != but
        )

    def may_be_in_doubt(self, *, locked: Locked) -> bool:
        """Not where no attempt was resolved so that it leaves a doubt, before or just now."""
        return locked.resolved_in_doubt or any(
            leaves_doubt(resolution=attempt.resolution, resolved_by=attempt.resolved_by)
            for attempt in locked.facts.attempts
        )

    # -- the provider -------------------------------------------------------------------------

    @abstractmethod
    def _capabilities(self, *, action: Any) -> Capabilities:
        """What the provider says of itself."""

    def promises(self, *, action: Any) -> Promises:
        """What this action's provider promises."""
        capabilities = self._capabilities(action=action)
        return Promises(
            has_keys=capabilities.key_life_seconds is not None,
            searchable=capabilities.searchable,
            list_is_immediately_consistent=capabilities.list_is_immediately_consistent,
        )

    @abstractmethod
    def _send(self, *, action: Any, request: SendRequest, fence: Callable[[], bool]) -> Outcome:
        """One request."""

    @abstractmethod
    def _read(self, *, action: Any, ref: str) -> ProviderEffect | Unreadable:
        """Read one effect by the provider's id."""

    def send(self, *, action: Any, idempotency_key: str, fence: Callable[[], bool]) -> Outcome:
        """One request. A replayed answer is old: the effect is read as it is now."""
        refuse_open_transaction()
        request = SendRequest(
            payload=action.payload, idempotency_key=idempotency_key, account=action.account
        )
        outcome = self._send(action=action, request=request, fence=fence)
        if not isinstance(outcome, Succeeded | Pending) or not outcome.evidence.replayed:
            return outcome
        now = _if_as_sent(action, self._read(action=action, ref=outcome.effect.ref))
        return as_it_stands(outcome=outcome, now=now)

    def retrieve(self, *, action: Any) -> ProviderEffect | Unreadable:
        """Read the effect this action is known by."""
        refuse_open_transaction()
        return _if_as_sent(action, self._read(action=action, ref=action.provider_ref))

    def hint(self, *, action_id: str) -> bool:
        """Tell a worker, if the broker can be reached. The dispatch sweep finds what this loses."""
        return tell_a_worker(action_id=action_id)


def _if_as_sent(action: Any, read: ProviderEffect | Unreadable) -> ProviderEffect | Unreadable:
    """An effect read by its id, if it is the one that was sent; else it is as good as unread."""
    if isinstance(read, Unreadable) or (
        read.amount_minor == action.amount_minor
        and read.currency == action.currency
        and read.metadata.get("action_id") in (action.action_id, None)
    ):
        return read
    return Unreadable(
        reason="answer_mismatch",
        evidence=Evidence(message=f"{read.ref} is not what was sent for {action.action_id}"),
    )


def judgement_of(judged: matching.Judgement) -> Judgement:
    """The matching's word as the effect protocol's."""
    if isinstance(judged, matching.Absent):
        return Absent()
    if isinstance(judged, matching.Found):
        return Found(effect=judged.effect)
    if isinstance(judged, matching.FailedOnly):
        return OnlyFailed(effects=judged.effects)
    if isinstance(judged, matching.Mismatch):
        return Contradiction(reason=f"mismatch_{judged.what}"[:40], effects=(judged.effect,))
    if isinstance(judged, matching.Several):
        return Contradiction(reason="several_live_effects", effects=judged.effects)
    raise Bug(f"unhandled judgement {judged!r}")
