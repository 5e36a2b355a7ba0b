"""What is particular to one kind of effect. Everything else about it is written once, elsewhere.

A second kind (an e-mail, a store credit) implements this class and gets claim, send, record,
reconciliation, cases and crash points without a line of them copied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from effects.doubt import WATCH_DAYS, in_doubt
from effects.models import AbstractAction, AbstractEvent
from effects.outcomes import Evidence, Listing, LookUp, Outcome, ProviderEffect, Unreadable
from effects.states import State
from kernel.errors import Bug


@dataclass(slots=True, kw_only=True)
class Locked:
    """An action and what it acts on, both locked in the open transaction.

    `now` is the database's time after the locks were taken. `unresolved` are the tokens of the
    action's attempts whose outcome is not known, `open_cases` how many cases are open on it,
    `facts` what this kind read beside them. `reading` is a look at the provider that came with
    an answer; the kind writes it down with its next write of the resource. `resolved_in_doubt`: an
    attempt was resolved in this transaction, and may yet come to pass (`effects.doubt`).
    """

    action: Any
    resource: Any
    now: datetime
    unresolved: tuple[UUID, ...]
    open_cases: int
    facts: Any
    queued_sibling: str = ""
    reading: Reading | None = None
    reading_written: bool = False
    resolved_in_doubt: bool = False

    @property
    def resource_name(self) -> str:
        """What a case or an event calls the resource, like `order:4821`."""
        return str(self.resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """The claim may go on. `note` goes into the history."""

    note: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Not now: the action stays AUTHORIZED and is due again at a later time."""

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """The decision no longer holds: a person (or the policy) must decide again.

    `columns` of the action go with the move: who must decide.
    """

    reason: str
    note: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class No:
    """The policy, run again on the locked facts, says no."""

    reason: str
    note: dict[str, Any] = field(default_factory=dict)


Recheck = Go | Wait | Back | No


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The policy's new word on a held action; `target` is HELD while it still cannot decide.

    `columns` of the action go with the move, `note` into the history.
    """

    target: State
    reason: str
    note: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What a yes given now takes: `people` distinct people of `tier` or above.

    `never` says, as half a sentence, why nobody's yes can allow it; "" if one can.
    """

    tier: int
    people: int
    never: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """The provider was read and shows no effect of this action that could have happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Exactly one effect of this action that has not failed, and it matches."""

    effect: ProviderEffect


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyFailed:
    """The action's effects at the provider have all failed."""

    effects: tuple[ProviderEffect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """What the provider shows cannot be: another amount, or two live effects. Adopt nothing."""

    reason: str
    effects: tuple[ProviderEffect, ...]


Judgement = Absent | Found | OnlyFailed | Contradiction


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A judged look at the provider.

    `strangers` are effects on the same resource that belong to no action of ours; `read_at` is
    the database time just before the look began. `is_complete`: another object of the provider,
    read after the list, shows that nothing was missing from it.
    """

    judgement: Judgement
    strangers: tuple[ProviderEffect, ...]
    read_at: datetime
    evidence: dict[str, Any]
    is_complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The action's resource read as a whole: a second way to see whether something was done.

    `unexplained`: why the totals do not say "absent", as half a sentence; "" when all that was
    done is explained by the effects that were listed.
    """

    unexplained: str
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Whether an effect that a person names can be the action's.

    `why_not`: half a sentence, "" when it can. `is_marked`: it carries our action id, so that one
    person's word is enough.
    """

    why_not: str
    is_marked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What the action's provider promises; see `providers.port.Capabilities`."""

    has_keys: bool
    searchable: bool
    list_is_immediately_consistent: bool


class EffectKind(ABC):
    """The particulars of one kind of effect. Methods that take `Locked` run in a transaction."""

    name: str
    action_model: type[AbstractAction]
    # Its rows have an `action`, which an abstract row cannot have.
    attempt_model: Any
    event_model: type[AbstractEvent]
    # What a person needs to decide actions of this kind, like `refunds.decide_refund`.
    decide_permission: str

    # -- rows ---------------------------------------------------------------------------------

    @abstractmethod
    def lock(self, *, action_id: str) -> Locked | None:
        """Lock the resource and the action, and read the facts. None: no such action."""

    @abstractmethod
    def lock_attempt(self, *, token: UUID) -> tuple[Locked, Any] | None:
        """The same, found by an attempt's token, with that attempt as it stands under the lock.

        The attempt has `is_closed` beside its columns.
        """

    @abstractmethod
    def new_event(self, *, locked: Locked, kind: str, actor: str, data: dict[str, Any]) -> Any:
        """An unsaved event row of this kind for the locked action."""

    # -- decisions ----------------------------------------------------------------------------

    @abstractmethod
    def recheck(self, *, locked: Locked) -> Recheck:
        """Compare a person's decision with the locked facts, or make a policy's again.

        Records a new decision when the policy was run on facts that have changed.
        """

    @abstractmethod
    def decide_held(self, *, locked: Locked) -> Decided:
        """Run the policy again on an action that it could not decide before.

        Records the new decision, unless it is still held.
        """

    @abstractmethod
    def version_of(self, *, locked: Locked) -> int:
        """The locked resource's version, which every change of a money or status fact increases."""

    @abstractmethod
    def binding_of(self, *, locked: Locked) -> dict[str, Any]:
        """The facts that a decision made now is bound to."""

    @abstractmethod
    def why_never(self, *, locked: Locked) -> str:
        """Why nobody's yes can allow it on the locked facts, as half a sentence; "" if one can."""

    def needed(self, *, locked: Locked) -> Needed:
        """Who must approve it as the facts are now. A kind without a policy asks the action."""
        return Needed(
            tier=locked.action.review_tier,
            people=locked.action.review_people,
            never=self.why_never(locked=locked),
        )

    def what_differs(self, *, locked: Locked, yes: Any, tier: int) -> tuple[str, ...]:
        """What differs from what one person said yes to, as half sentences; () when nothing does.

        `yes` is an `approvals.standing.Yes`, `tier` what its giver must have. A kind that can say
        more than that something differs overrides this.
        """
        differs = (
            yes.tier_now < tier
            or locked.now >= yes.expires_at
            or yes.resource_version != self.version_of(locked=locked)
            or yes.facts != self.binding_of(locked=locked)
        )
        return (f"what {yes.username} approved is not how it stands now",) if differs else ()

    # -- consequences -------------------------------------------------------------------------

    @abstractmethod
    def reserve(self, *, locked: Locked) -> bool:
        """Reserve what the effect will take, once; False when it does not fit (I3)."""

    @abstractmethod
    def moved(self, *, locked: Locked, source: State, target: State) -> dict[str, Any]:
        """Carry what a move means for the resource; returns columns of the action to write."""

    def failed_words(self, *, locked: Locked, source: State, data: dict[str, Any]) -> str:
        """What the case of a failed effect tells its owner; "": another case tells it.

        A late failure also says what is deliberately not undone.
        """
        why = data.get("reason") or data.get("code") or "no reason given"
        if source is State.SUCCEEDED:
            return (
                f"It failed at the provider after it had succeeded ({why}). Its amount was given "
                "back to the balance. Deliberately not undone: nothing is sent again, whoever was "
                "told that it had succeeded was not told otherwise, and no remedy was begun. The "
                "customer is still owed: tell them, and decide on a remedy by the time this case "
                "is due, or close it if none is."
            )
        return (
            f"It failed ({why}). Nothing will be sent again by itself. The customer is still owed: "
            "decide on a remedy, or close this if none is due."
        )

    def why_case_stays(self, *, locked: Locked, case_kind: str) -> str:
        """Why a person's word does not close this case now, as a sentence; "" when it may."""
        return ""

    def watched_until(self, *, locked: Locked) -> datetime | None:
        """Until when a final effect is read again, day by day, in case it happened after all."""
        if not in_doubt(attempts=self.attempt_model, action=locked.action):
            return None
        since: datetime = locked.action.state_since
        return since + timedelta(days=WATCH_DAYS)

    def may_be_in_doubt(self, *, locked: Locked) -> bool:
        """Whether `in_doubt` must be asked. A kind that knows its attempts spares that query."""
        return bool(locked.action.attempt_count)

    @abstractmethod
    def recognise(self, *, locked: Locked, effect: ProviderEffect) -> None:
        """An effect is about to be adopted: if it was booked as made elsewhere, it was not."""

    @abstractmethod
    def key_never_left(self, *, locked: Locked, but: UUID) -> bool:
        """Whether no attempt under the key in use ever left this machine (`but` was not sent)."""

    @abstractmethod
    def observe(self, *, locked: Locked, reading: Reading) -> None:
        """Write down what a look showed beside the action: when, and effects made elsewhere."""

    # -- the provider (never inside a transaction) --------------------------------------------

    @abstractmethod
    def promises(self, *, action: Any) -> Promises:
        """What this action's provider promises."""

    @abstractmethod
    def send(self, *, action: Any, idempotency_key: str, fence: Callable[[], bool]) -> Outcome:
        """Put the frozen payload on the wire, once, unless the fence says no."""

    @abstractmethod
    def look(self, *, action: Any) -> LookUp:
        """List the effects of the action's resource at the provider. Reads only."""

    @abstractmethod
    def retrieve(self, *, action: Any) -> ProviderEffect | Unreadable:
        """Read the one effect that the action is known by. Reads only."""

    def read_totals(self, *, action: Any, listing: Listing) -> Totals | Unreadable | None:
        """Read the resource's totals beside a listing just read. None: there is no such way."""
        return None

    def fetch(self, *, action: Any, ref: str) -> ProviderEffect | Unreadable:
        """Read any one effect of the action's account by the id that a person typed. Reads only."""
        return Unreadable(
            reason="not_supported", evidence=Evidence(message="It is not read by its id.")
        )

    def judge_link(self, *, locked: Locked, effect: ProviderEffect) -> Link:
        """Whether an effect that a person names can be the locked action's."""
        return Link(why_not="effects of this kind are not linked by hand")

    @abstractmethod
    def judge(self, *, action: Any, look: LookUp, read_at: datetime) -> Reading | None:
        """What a listing says about the action; None when it could not be read."""

    @abstractmethod
    def must_look_first(self, *, locked: Locked) -> bool:
        """Whether the resource must be read before this send (design: before the first one)."""

    @abstractmethod
    def hint(self, *, action_id: str) -> bool:
        """Tell a worker that this action may be due. May be lost, repeated or late.

        False when it surely was not told. Never raises: the row is the queue.
        """


_kinds: dict[str, EffectKind] = {}


def register(kind: EffectKind) -> None:
    """Make a kind known, once, when its app starts."""
    if kind.name in _kinds:
        raise Bug(f"effect kind {kind.name!r} is registered twice")
    _kinds[kind.name] = kind


def kind_named(name: str) -> EffectKind:
    """The registered kind of that name."""
    return _kinds[name]


def all_kinds() -> tuple[EffectKind, ...]:
    """Every registered kind, in order of registration."""
    return tuple(_kinds.values())


def kind_of(action_id: str) -> EffectKind | None:
    """The kind an action id belongs to: its first word, like `refund` in `refund:order-1:…`."""
    return _kinds.get(action_id.partition(":")[0])
