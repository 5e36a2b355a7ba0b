"""What must never be, whatever happened: the provider's ledger held against our rows.

Each function takes one look at the world and returns sentences, one for each contradiction.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from effects.clock import database_now
from effects.models import Case, Switch
from effects.states import IN_FLIGHT_STATES, LEGAL, State
from providers.sandbox import Sandbox
from refunds.facts import scopes_of
from refunds.models import ExternalRefund, Order, RefundAction, RefundEvent

# In these our rows say that the provider has not paid and will not.
NOTHING_PAID = (
    State.HELD,
    State.AWAITING_APPROVAL,
    State.AUTHORIZED,
    State.REJECTED,
    State.EXPIRED,
    State.CANCELLED,
    State.FAILED_FINAL,
)
# The database's clock ticks with every question, the sandbox's does not.
CLOCKS_APART = 5.0
# The farthest a due time lies in the future: an approval's end.
DUE_WITHIN = timedelta(seconds=settings.APPROVAL_TTL_SECONDS + 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Rows and ledger at one moment. `live` and `made` are the ledger's refunds by action id."""

    now: datetime
    actions: list[RefundAction]
    orders: dict[int, Order]
    externals: list[ExternalRefund]
    cases: list[Case]
    switches: list[Switch]
    refunds: list[dict[str, Any]]
    posts: list[dict[str, Any]]
    made: dict[str, list[dict[str, Any]]]
    live: dict[str, list[dict[str, Any]]]

    def action(self, action_id: str) -> RefundAction:
        """The row of one action."""
        return next(action for action in self.actions if action.action_id == action_id)

    def open_cases(self, *, action: RefundAction | None = None) -> list[Case]:
        """Cases that are open, on one action or on all."""
        return [
            case
            for case in self.cases
            if case.closed_at is None and (action is None or case.action_id == action.action_id)
        ]

    def posts_of(self, action: RefundAction) -> list[dict[str, Any]]:
        """Refund requests that reached the provider for one action, by what they name."""
        return [post for post in self.posts if _names(post) == action.action_id]


def _names(post: dict[str, Any]) -> str:
    params = post.get("params") or {}
    metadata = params.get("metadata") or {}
    return str(metadata.get("action_id", ""))


def look(sandbox: Sandbox) -> World:
    """Everything at once. Six queries; the sandbox is in this process."""
    orders = {order.pk: order for order in Order.objects.order_by("pk")}
    actions = list(RefundAction.objects.prefetch_related("attempts").order_by("pk"))
    for action in actions:
        action.order = orders[action.order_id]
    refunds = sandbox.refunds()
    made: dict[str, list[dict[str, Any]]] = defaultdict(list)
    live: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for refund in refunds:
        action_id = refund["metadata"].get("action_id", "")
        made[action_id].append(refund)
        if refund["status"] not in ("failed", "canceled"):
            live[action_id].append(refund)
    return World(
        now=database_now(),
        actions=actions,
        orders=orders,
        externals=list(ExternalRefund.objects.all()),
        cases=list(Case.objects.order_by("pk")),
        switches=list(Switch.objects.filter(ended_at__isnull=True)),
        refunds=refunds,
        posts=sandbox.requests("POST", "/v1/refunds"),
        made=made,
        live=live,
    )


def contradictions(world: World, *, settled: set[str], delayed: set[str]) -> list[str]:
    """Everything wrong with one moment.

    `settled` are the provider's ids of refunds that it has ever shown as succeeded; `delayed` are
    actions of which a request is executed later than the settle time allows for: a stated limit.
    Their rows may say too early that nothing was paid. Paid twice they may not be.
    """
    return [
        *_paid_more_than_once(world),
        *_claims_without_evidence(world, settled=settled, delayed=delayed),
        *_attempts_resolved_wrongly(world, delayed=delayed),
        *_balances_wrong(world),
        *_sent_wrongly(world),
        *_hidden(world),
    ]


def _paid_more_than_once(world: World) -> Iterator[str]:
    """I1. One key makes one effect, so a failed one counts too."""
    for action in world.actions:
        count = len(world.live[action.action_id])
        if count > 1:
            yield f"{action} was paid {count} times"
        made = len(world.made[action.action_id])
        if made > action.generation:
            yield f"{action} has {made} refunds under {action.generation} key(s)"


def _claims_without_evidence(
    world: World, *, settled: set[str], delayed: set[str]
) -> Iterator[str]:
    """I4."""
    for action in world.actions:
        live = world.live[action.action_id]
        known = [r for r in world.made[action.action_id] if r["id"] == action.provider_ref]
        if action.state in (State.SUCCEEDED, State.PENDING) and not known:
            yield f"{action} is {action.state} by {action.provider_ref!r}, which is not its refund"
        if action.state == State.SUCCEEDED and action.provider_ref not in settled:
            yield f"{action} is SUCCEEDED, and the provider never showed it so"
        if action.state == State.FAILED_FINAL and known and live:
            yield f"{action} is FAILED_FINAL, and the provider shows its refund {live}"
        if action.state in NOTHING_PAID and live and action.action_id not in delayed:
            yield f"{action} is {action.state}, and the provider has paid it"


def _attempts_resolved_wrongly(world: World, *, delayed: set[str]) -> Iterator[str]:
    """I4 for attempts: "executed" needs a refund under the key, "not_executed" none."""
    by_key = {r["idempotency_key"] for r in world.refunds}
    for action in world.actions:
        resolutions: dict[str, set[str]] = defaultdict(set)
        for attempt in action.attempts.all():
            resolutions[attempt.idempotency_key].add(attempt.resolution)
        for key, words in resolutions.items():
            if "executed" in words and key not in by_key:
                yield f"an attempt under {key} counts as executed; the provider has nothing"
            if words == {"not_executed"} and key in by_key and action.action_id not in delayed:
                yield f"all attempts under {key} count as not executed; the provider has executed"


def _balances_wrong(world: World) -> Iterator[str]:
    """Balances are what the rows say, and I3, computed from states and not from reservations."""
    reserved: Counter[int] = Counter()
    refunded: Counter[int] = Counter()
    taken: Counter[int] = Counter()
    on_the_wire: Counter[int] = Counter()
    for action in world.actions:
        reserved[action.order_id] += action.reserved_minor
        refunded[action.order_id] += action.amount_minor * (action.state == State.SUCCEEDED)
        on_the_wire[action.order_id] += action.state == State.SUBMITTING
        in_flight = action.state in (*IN_FLIGHT_STATES, State.SUCCEEDED)
        taken[action.order_id] += action.amount_minor if in_flight else action.reserved_minor
    for external in world.externals:
        if external.is_ours:  # counted with the action that it was recognised as
            continue
        refunded[external.order_id] += external.amount_minor
        taken[external.order_id] += external.amount_minor
    flagged = {case.resource for case in world.cases if case.kind == Case.Kind.INCIDENT}
    for order in world.orders.values():
        if order.reserved_minor != reserved[order.pk]:
            yield f"{order} reserves {order.reserved_minor}; its rows reserve {reserved[order.pk]}"
        if order.refunded_minor != refunded[order.pk]:
            yield f"{order} says {order.refunded_minor} refunded; its rows {refunded[order.pk]}"
        limit = order.captured_minor - order.disputed_minor - order.settled_otherwise_minor
        if taken[order.pk] > limit and str(order) not in flagged:
            yield f"{order} has {taken[order.pk]} refunded or in flight of {limit}, and no incident"
        if on_the_wire[order.pk] > 1:
            yield f"{order} has {on_the_wire[order.pk]} refunds on the wire at once"


def _sent_wrongly(world: World) -> Iterator[str]:
    """One key for an action, young enough, and never more requests than attempts."""
    for action in world.actions:
        posts = world.posts_of(action)
        attempts = list(action.attempts.all())
        if len(posts) > len(attempts):
            yield f"{action} was sent {len(posts)} times by {len(attempts)} attempts"
        for post in posts:
            if not any(_holds(attempt, at=post["at"]) for attempt in attempts):
                yield f"{action} was sent at {post['at']}, outside of every lease"
        keys = {post["idempotency_key"] for post in posts}
        if len(keys) > action.generation:
            yield f"{action} was sent under {len(keys)} keys: {sorted(keys)}"
        first: dict[str, float] = {}
        for post in posts:
            age = post["at"] - first.setdefault(post["idempotency_key"], post["at"])
            if age >= settings.KEY_RESEND_SECONDS:
                yield f"{post['idempotency_key']} was sent again after {age:.0f} s"
        if len({str(sorted(post["params"].items())) for post in posts}) > 1:
            yield f"{action} was sent with different parameters"


def _holds(attempt: Any, *, at: float) -> bool:
    """Whether an attempt's lease would have outlasted a request that began then."""
    last = attempt.lease_until.timestamp() - settings.PROVIDER_TOTAL_TIMEOUT_SECONDS
    return bool(attempt.claimed_at.timestamp() - CLOCKS_APART <= at <= last + CLOCKS_APART)


def _hidden(world: World) -> Iterator[str]:
    """I2: what is not over is due, or a person owns it. What ended badly had a case."""
    for action in world.actions:
        owned = world.open_cases(action=action)
        if not action.is_final and action.due_at is None and not owned:
            yield f"{action} is {action.state}, never due, and nobody's"
        if action.due_at is not None and action.due_at > world.now + DUE_WITHIN:
            yield f"{action} is due only at {action.due_at}"
        needed = {State.FAILED_FINAL: Case.Kind.FAILED, State.EXPIRED: Case.Kind.EXPIRED}
        kind = needed.get(State(action.state))
        if kind and not any(
            case.kind == kind and case.action_id == action.action_id for case in world.cases
        ):
            yield f"{action} is {action.state}, and no case was opened"


def reasons_not_to_claim(world: World, action: RefundAction) -> list[str]:
    """Why nobody may claim this action as the world stands, as half sentences."""
    order = world.orders[action.order_id]
    covered = scopes_of(
        provider=action.provider, account=action.account, proposer=action.proposed_by
    )
    left = order.refundable_minor + action.reserved_minor
    first_use = action.key_first_used_at
    limit = timedelta(seconds=settings.KEY_RESEND_SECONDS)
    reasons = {
        f"it is {action.state}": action.state != State.AUTHORIZED,
        "its approval is stale": action.decided_by == "person"
        and order.version != action.bound_version,
        "its approval is over": action.bound_until is not None and action.bound_until <= world.now,
        "a kill switch is on": any(
            switch.scope in covered and (switch.until is None or switch.until > world.now)
            for switch in world.switches
        ),
        "an incident is open": any(
            case.kind == Case.Kind.INCIDENT and case.resource == str(order)
            for case in world.open_cases()
        ),
        "it does not fit the balance": action.amount_minor > left,
        "its key is too old": first_use is not None and world.now - first_use >= limit,
    }
    return [reason for reason, holds in reasons.items() if holds]


def broken_histories(world: World) -> list[str]:
    """Histories whose moves do not follow from one another, or end elsewhere than their action."""
    legal = {(source.value, target.value) for source, target in LEGAL}
    moves: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for event in RefundEvent.objects.filter(data__has_key="to").order_by("pk"):
        if event.action_id is not None:
            moves[event.action_id].append((event.data.get("from", ""), event.data["to"]))
    found = []
    for action in world.actions:
        for before, after in itertools.pairwise(moves[action.pk]):
            if after[0] != before[1] or after not in legal:
                found.append(f"{action}: {before} and then {after}")
        if moves[action.pk][-1][1] != action.state:
            found.append(f"{action} is {action.state}; its history ends at {moves[action.pk][-1]}")
    return found


def story(world: World) -> str:
    """Every action's history and the provider's side of it, for whoever reads a failure."""
    lines = []
    events = list(RefundEvent.objects.order_by("pk"))
    for order in world.orders.values():
        lines.append(
            f"{order} v{order.version}: captured {order.captured_minor}, refunded "
            f"{order.refunded_minor}, reserved {order.reserved_minor}"
        )
        for event in events:
            if event.order_id == order.pk and event.action_id is None:
                lines.append(f"    {event.at:%d %H:%M:%S} {event.kind} {event.data}")
    for action in world.actions:
        lines.append(f"{action} {action.state} {action.amount_minor}")
        for event in events:
            if event.action_id == action.pk:
                told = {k: v for k, v in event.data.items() if k in _TOLD}
                lines.append(f"    {event.at:%d %H:%M:%S} {event.kind} by {event.actor} {told}")
        for attempt in action.attempts.all():
            lines.append(f"    attempt {attempt.number}: {attempt.outcome} {attempt.resolution}")
        for refund in world.made[action.action_id]:
            lines.append(f"    the provider: {refund['id']} {refund['status']}")
    return "\n".join(lines)


_TOLD = ("from", "to", "outcome", "result", "reason", "why", "why_inconclusive", "key", "verdict")
