"""What an act on a case depends on: the history of its action, read at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from approvals.models import CaseAct
from effects.kinds import EffectKind
from effects.models import Case
from reconciliation.settle import settled_at

# While one of these is open, nobody declares what did not happen: what the payment shows is itself
# in question, or the customer may have the money already.
_BLOCKING = (Case.Kind.INCIDENT, Case.Kind.FOUND_ELSEWHERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the provider out of the history. `is_absent` is None when it was unreadable."""

    method: str
    is_absent: bool | None
    read_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSeen:
    """How one attempt of the action stands."""

    generation: int
    claimed_at: datetime
    lease_until: datetime
    closed_at: datetime | None
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Everything that the conditions of the acts are about.

    `version` is the case's version for people: how many events its action's history has. `looks`
    are oldest first; `words` are what people asked for under the key generation in use.
    `blocked_by` is an open case of the resource that forbids declarations, or "".
    """

    kind: EffectKind
    case: Case
    action: Any
    now: datetime
    version: int
    attempts: tuple[AttemptSeen, ...]
    looks: tuple[Look, ...]
    words: tuple[CaseAct, ...]
    blocked_by: str

    @property
    def last_claim(self) -> datetime | None:
        """When the last request was claimed."""
        return max((attempt.claimed_at for attempt in self.attempts), default=None)

    @property
    def refusal(self) -> str:
        """The stored refusal under the key in use, like `insufficient_funds`; "" without one."""
        for attempt in reversed(self.attempts):
            of_this_key = attempt.generation == self.action.generation
            if of_this_key and attempt.outcome.startswith("refused"):
                return attempt.outcome.partition(":")[2] or "refused"
        return ""

    @property
    def key_age(self) -> timedelta:
        """How long ago the key in use may first have reached the provider."""
        first: datetime = self.action.key_first_used_at or self.now
        return self.now - first

    @property
    def absent_looks(self) -> tuple[Look, ...]:
        """The looks that showed nothing, late enough to be believed, and were not contradicted.

        A look by whichever way that showed something ends what was seen before it.
        """
        found: list[Look] = []
        for look in self.looks:
            if look.is_absent:
                found.append(look)
            elif look.is_absent is False:
                found = []
        believed_from = settled_at(self.last_claim) if self.last_claim else None
        return tuple(
            look for look in found if believed_from is not None and look.read_at >= believed_from
        )

    def last_look(self, method: str) -> Look | None:
        """The newest readable look by one method."""
        return next(
            (
                look
                for look in reversed(self.looks)
                if look.method == method and look.is_absent is not None
            ),
            None,
        )

    def first_word(self, act: str, *, subject: str = "") -> CaseAct | None:
        """Who has asked for a two-person act and waits for a second, while that word holds.

        It holds as long as an approval would: nobody is the second on what was said last month.
        """
        said = [word for word in self.words if (word.act, word.subject) == (act, subject)]
        newest = max((word.round for word in said), default=0)
        of_round = [word for word in said if word.round == newest]
        ttl = timedelta(seconds=settings.APPROVAL_TTL_SECONDS)
        if len(of_round) != 1 or of_round[0].at + ttl <= self.now:
            return None
        return of_round[0]

    def next_round(self, act: str, *, subject: str) -> int:
        """The number of a new round of an act."""
        said = (w.round for w in self.words if (w.act, w.subject) == (act, subject))
        return max(said, default=0) + 1


def case_version(*, kind: EffectKind, action: Any) -> int:
    """How many events the action's history has; compared under its lock with what was seen."""
    history: Any = kind.event_model._default_manager
    return int(history.filter(action=action).count())


def read_circumstances(
    *, kind: EffectKind, action: Any, case: Case, now: datetime
) -> Circumstances:
    """Read what the acts on a case depend on. Five queries.

    Under the action's lock for an act, without it for a page.
    """
    attempts = kind.attempt_model._default_manager.filter(action=action).order_by("number")
    history: Any = kind.event_model._default_manager
    looked = history.filter(
        action=action, kind__in=[f"{kind.name}.looked", f"{kind.name}.totals_read"]
    ).order_by("pk")
    blocking = (
        Case.objects.filter(resource=case.resource, kind__in=_BLOCKING, closed_at__isnull=True)
        .order_by("pk")
        .first()
    )
    return Circumstances(
        kind=kind,
        case=case,
        action=action,
        now=now,
        version=case_version(kind=kind, action=action),
        attempts=tuple(
            AttemptSeen(**row)
            for row in attempts.values(
                "generation", "claimed_at", "lease_until", "closed_at", "outcome"
            )
        ),
        looks=tuple(
            Look(
                method=data["method"],
                is_absent=data.get("absent"),
                read_at=datetime.fromisoformat(data["read_at"]) if "read_at" in data else at,
            )
            for data, at in looked.values_list("data", "at")
            # Looks written down before they named their method count for nothing.
            if "method" in data
        ),
        words=tuple(
            CaseAct.objects.filter(
                action_id=action.action_id, generation=action.generation
            ).select_related("person")
        ),
        blocked_by=blocking.get_kind_display() if blocking else "",
    )
