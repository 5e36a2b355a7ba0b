"""One hypothesis machine over the real database, the real SDK and the sandbox.

It mixes proposals, deliveries, crashes at every named point, faults of the provider, time,
forgotten keys, refunds made elsewhere, decisions of people and sweeps, in any order. After every
step the provider's ledger is held against our rows; at the end the faults stop, and everything
must come to rest: over, or a person's.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
from django.conf import settings
from django.db import connection
from hypothesis import note
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import approvals.decide
from effects import claim, crashpoints, record, send
from effects.models import Case
from effects.states import LEGAL, State
from providers.sandbox import Sandbox
from reconciliation import check_now, escalate, leases, resolve, sweep
from refunds.dispatch import dispatch
from refunds.dispatch_due import hint_due_actions
from refunds.kind import REFUND
from refunds.models import Order, RefundAction, RefundEvent
from refunds.propose import Proposal, propose_refund
from refunds.withdraw import withdraw_refund
from tests import builders

# Every module that names a crash point calls it through its own import.
_CALLERS = (claim, send, record, resolve, escalate, leases)

# The ones whose wire effect a test can wait for; hangs are covered with real processes.
FAULTS = (
    "reset-before-execution",
    "reset-after-execution",
    "close-after-execution",
    "html-502",
    "html-502-executed",
    "error-500-executed",
    "error-500-not-executed",
    "empty-500",
    "html-200",
    "truncated-content-length",
    "rate-limit-429",
    "lock-timeout-429",
    "error-409-in-flight",
    "error-424",
    "insufficient-balance-400",
    "swapped-response",
    "mismatched-amount",
    "list-unreadable",
)
AMOUNTS = (500, 500, 2_500, 7_900, 15_000)
STEPS = (1.0, 45.0, 200.0, 700.0, 4_000.0, 40_000.0, 90_000.0)

# Counted over a whole run and printed at its end, so that a rule that never fired is seen.
FIRED: Counter[str] = Counter()


class Crashed(BaseException):
    """The process ends here. Not an Exception: nothing in the product may catch it."""


@contextmanager
def crash_at(point: str) -> Iterator[None]:
    """End the 'process' at a named point: open transactions roll back, nothing else runs."""

    def crash_point(name: str) -> None:
        if name == point:
            FIRED[f"crash {point}"] += 1
            raise Crashed

    patches = [patch.object(module, "crash_point", crash_point) for module in _CALLERS]
    for one in patches:
        one.start()
    try:
        yield
    except Crashed:
        connection.close()  # a dead process's connection is gone, its locks with it
        builders.skew_clock(Machine.skew_seconds)
    finally:
        for one in patches:
            one.stop()


class Machine(RuleBasedStateMachine):
    """The state of the world is in the database and in the sandbox, not in here."""

    sandbox: Sandbox
    skew_seconds = 0.0
    _numbers = itertools.count(1)

    # ---- beginnings

    @initialize(policy=st.sampled_from(["default", "allow-all"]))
    def begin(self, policy: str) -> None:
        """An order or two of this example's own; older examples' rows stay where they are."""
        self.example = next(self._numbers)
        self.sandbox.clear_faults()
        if policy == "default":
            builders.policy()
        else:
            builders.allow_all()
        self.person = builders.person(f"person-{os.getpid()}-{self.example}")
        self.orders = [
            builders.order(
                order_id=f"m{self.example}-{n}", captured_minor=20_000, sandbox=self.sandbox
            )
            for n in range(2)
        ]
        self.hints: set[str] = set()

    def _ids(self) -> list[str]:
        return list(
            RefundAction.objects.filter(order__in=self.orders)
            .order_by("pk")
            .values_list("action_id", flat=True)
        )

    # ---- what callers, people and time do

    @rule(
        which=st.integers(0, 1),
        request=st.integers(1, 4),
        amount=st.sampled_from(AMOUNTS),
    )
    def propose(self, which: int, request: int, amount: int) -> None:
        FIRED["propose"] += 1
        order = self.orders[which]
        made = propose_refund(
            proposal=Proposal(
                order_id=order.order_id,
                request_id=f"r{request}",
                amount_minor=amount,
                currency="USD",
                reason="damaged",
                proposer="agent-1",
            )
        )
        note(f"proposed {order.order_id} r{request} {amount}: {type(made).__name__}")

    @precondition(lambda self: self._ids())
    @rule(data=st.data(), yes=st.booleans())
    def decide(self, data: st.DataObject, yes: bool) -> None:
        action = self._pick(data, state=State.AWAITING_APPROVAL)
        decision = approvals.decide.approve if yes else approvals.decide.reject
        made = decision(
            action_id=action.action_id,
            user=self.person,
            note="looked at the order and the ticket",
            seen_version=action.order.version,
            seen_payload_hash=action.payload_hash,
        )
        FIRED[f"decide {type(made).__name__}"] += 1
        note(f"decided {action.action_id}: {made}")

    @precondition(lambda self: self._ids())
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        FIRED["withdraw"] += 1
        withdraw_refund(action_id=self._pick(data).action_id, actor="agent:agent-1")

    @rule(which=st.integers(0, 1), amount=st.sampled_from([300, 5_000]), rare=st.integers(0, 9))
    def refund_elsewhere(self, which: int, amount: int, rare: int) -> None:
        """Somebody refunds in the provider's dashboard, if there is that much left."""
        if rare:
            return
        try:
            self.sandbox.refund_outside(self.orders[which].payment_ref, amount=amount)
        except ValueError:
            return
        FIRED["refund elsewhere"] += 1

    @rule(seconds=st.sampled_from(STEPS))
    def time_passes(self, seconds: float) -> None:
        FIRED["time"] += 1
        self._advance(seconds)

    @rule()
    def provider_forgets_old_keys(self) -> None:
        """At least 24 hours old: younger ones are promised."""
        FIRED["keys forgotten"] += int(self.sandbox.prune_keys() > 0)

    # ---- what workers and beat do

    @precondition(lambda self: self._ids())
    @rule(
        data=st.data(),
        fault=st.one_of(st.none(), st.sampled_from(FAULTS)),
        crash=st.one_of(st.none(), st.none(), st.sampled_from(crashpoints.CRASH_POINTS[:6])),
        again=st.booleans(),
    )
    def deliver(
        self, data: st.DataObject, fault: str | None, crash: str | None, again: bool
    ) -> None:
        """A message arrives, for any action in any state, perhaps on a bad day."""
        action = self._pick(data, state=State.AUTHORIZED)
        if fault is not None:
            self.sandbox.fault(fault)
        posts = len(self._posts())
        stale = self._is_stale(action)
        with crash_at(crash or ""):
            said = dispatch(action_id=action.action_id)
            if again:  # delivered twice
                dispatch(action_id=action.action_id)
            note(f"delivered {action.action_id} (fault {fault}, crash {crash}): {said}")
            FIRED["deliver"] += 1
        FIRED["fault fired"] += sum(1 for f in self.sandbox.faults() if f.get("fired"))
        self.sandbox.clear_faults()
        if stale and len(self._posts()) > posts:
            raise AssertionError(f"{action.action_id} was sent on an approval gone stale")

    @rule(
        fault=st.sampled_from([None, None, "list-unreadable"]),
        crash=st.one_of(st.none(), st.none(), st.sampled_from(crashpoints.CRASH_POINTS[6:])),
    )
    def beat(self, fault: str | None, crash: str | None) -> None:
        """Both sweeps, as beat starts them."""
        if fault is not None:
            self.sandbox.fault(fault, times=None)
        with crash_at(crash or ""):
            sweep.sweep()
            hint_due_actions()
            FIRED["beat"] += 1
        self.sandbox.clear_faults()

    @precondition(lambda self: self._ids())
    @rule(data=st.data())
    def person_checks_now(self, data: st.DataObject) -> None:
        FIRED["check now"] += 1
        check_now.check_now(action_id=self._pick(data).action_id, actor="person:tester")

    # ---- what must never be

    @invariant()
    def money_is_right(self) -> None:
        if hasattr(self, "orders"):
            problems = self.problems()
            if problems:
                raise AssertionError("\n".join(problems))

    def problems(self) -> list[str]:
        """What the ledger and the rows of this example contradict each other in."""
        found: list[str] = []
        live: dict[str, list[dict[str, Any]]] = {}
        paid: Counter[str] = Counter()
        for refund in self.sandbox.refunds():
            if refund["status"] in ("failed", "canceled"):
                continue
            paid[refund["payment_intent"]] += refund["amount"]
            live.setdefault(refund["metadata"].get("action_id", ""), []).append(refund)
        held: Counter[int] = Counter()
        done: Counter[int] = Counter()
        for action in RefundAction.objects.filter(order__in=self.orders):
            refunds = live.get(action.action_id, [])
            held[action.order_id] += action.reserved_minor
            done[action.order_id] += action.amount_minor * (action.state == State.SUCCEEDED)
            if len(refunds) > 1:
                found.append(f"{action} was paid {len(refunds)} times")
            if action.state in (State.SUCCEEDED, State.PENDING) and len(refunds) != 1:
                found.append(f"{action} is {action.state}; the provider has {len(refunds)}")
            if refunds and action.state not in (
                State.SUCCEEDED,
                State.PENDING,
                State.UNKNOWN,
                State.SUBMITTING,
            ):
                found.append(f"{action} is {action.state}, and the provider has paid it")
        for order in Order.objects.filter(pk__in=[order.pk for order in self.orders]):
            elsewhere = sum(order.external_refunds.values_list("amount_minor", flat=True))
            if order.reserved_minor != held[order.pk]:
                found.append(f"{order} reserves {order.reserved_minor}, rows {held[order.pk]}")
            if order.refunded_minor != done[order.pk] + elsewhere:
                found.append(f"{order} says {order.refunded_minor} refunded, rows otherwise")
            if paid[order.payment_ref] > order.captured_minor:
                found.append(f"{order} was paid beyond what was captured")
        return found + self._keys_sent_too_late()

    def _keys_sent_too_late(self) -> list[str]:
        """No request ever leaves under a key that was first used longer ago than the limit."""
        first: dict[str, float] = {}
        found = []
        for request in self._posts():
            key, at = request["idempotency_key"], request["at"]
            begun = first.setdefault(key, at)
            if at - begun >= settings.KEY_RESEND_SECONDS:
                found.append(f"{key} was sent again after {at - begun:.0f} s")
        return found

    def teardown(self) -> None:
        """The faults stop; a worker and a beat live. Everything must come to rest."""
        if not hasattr(self, "orders"):
            return
        self.sandbox.clear_faults()
        for _ in range(12):
            if not self._restless():
                break
            self._advance(700.0)
            sweep.sweep()
            for action_id in self._ids():
                note(f"in the end {action_id}: {dispatch(action_id=action_id)}")
        restless = self._restless()
        if restless:
            raise AssertionError(f"neither over nor anybody's: {restless}")
        problems = self.problems() + self._broken_histories()
        if problems:
            raise AssertionError("\n".join(problems))

    def _restless(self) -> list[str]:
        owned = set(
            Case.objects.filter(closed_at__isnull=True, action_id__in=self._ids()).values_list(
                "action_id", flat=True
            )
        )
        return [
            f"{action} {action.state} {[a.outcome for a in action.attempts.order_by('number')]}"
            for action in RefundAction.objects.filter(order__in=self.orders)
            if not action.is_final
            and action.state != State.AWAITING_APPROVAL
            and not (action.state == State.UNKNOWN and action.action_id in owned)
            and not (action.state == State.AUTHORIZED and self._is_paused(action))
        ]

    def _is_paused(self, action: RefundAction) -> bool:
        """An incident on the order is a person's, and pauses all of it."""
        return Case.objects.filter(
            resource=str(action.order), kind=Case.Kind.INCIDENT, closed_at__isnull=True
        ).exists()

    def _broken_histories(self) -> list[str]:
        legal = {(source.value, target.value) for source, target in LEGAL}
        found = []
        for action in RefundAction.objects.filter(order__in=self.orders):
            data = RefundEvent.objects.filter(action=action, data__has_key="to").order_by("pk")
            moves = [(event.data.get("from"), event.data["to"]) for event in data]
            for before, after in itertools.pairwise(moves):
                if after[0] != before[1] or after not in legal:
                    found.append(f"{action}: {before} and then {after}")
            if moves[-1][1] != action.state:
                found.append(f"{action} is {action.state}, its history ends at {moves[-1][1]}")
        return found

    # ---- helpers

    def _pick(self, data: st.DataObject, *, state: State | None = None) -> RefundAction:
        """One of the example's actions; mostly one that stands where the rule can do something."""
        ids = self._ids()
        if state is not None:
            ready = RefundAction.objects.filter(action_id__in=ids, state=state)
            there = list(ready.order_by("pk").values_list("action_id", flat=True))
            ids = there if there and data.draw(st.integers(0, 3)) else ids
        action_id = data.draw(st.sampled_from(ids), label="action")
        return RefundAction.objects.select_related("order").get(action_id=action_id)

    def _posts(self) -> list[dict[str, Any]]:
        return self.sandbox.requests("POST", "/v1/refunds")

    def _is_stale(self, action: RefundAction) -> bool:
        """Approved by a person, and the order has moved on since."""
        return (
            action.state == State.AUTHORIZED
            and action.decided_by == "person"
            and action.order.version != action.bound_version
        )

    def _advance(self, seconds: float) -> None:
        Machine.skew_seconds += seconds
        builders.skew_clock(Machine.skew_seconds)
        self.sandbox.advance(seconds)


def no_broker() -> Any:
    """Hints go nowhere: the machine itself decides what is delivered, and when."""
    return patch.object(type(REFUND), "hint", lambda self, *, action_id: True)
