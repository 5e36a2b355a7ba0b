"""One hypothesis machine over the real database, the real SDK and the sandbox.

It mixes proposals, deliveries, crashes at every named point, workers that sleep and wake too late,
faults of the provider, time, forgotten keys, refunds made elsewhere or failing late, kill switches,
decisions of people and sweeps, in any order. After every step the provider's ledger is held against
our rows (`tests.properties.never`). At the end the faults stop, and everything must come to rest:
over, or a person's.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import hypothesis.strategies as st
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from hypothesis import note
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from hypothesis.strategies._internal.featureflags import FeatureFlags

from approvals.decide import approve, reject
from approvals.models import Approval
from approvals.settle import NOT_BY_HAND, settle_case
from effects import claim, crashpoints, record, send
from effects.claim import Claimed
from effects.models import Breaker, Case, SweepRun, Switch
from effects.send import Sent
from effects.states import State
from effects.switches import turn_off, turn_on
from policies.models import DecisionRecord, PolicyVersion
from providers.sandbox import Sandbox
from reconciliation import escalate, leases, resolve, sweep
from reconciliation.check_now import check_now
from refunds.dispatch import dispatch
from refunds.dispatch_due import hint_due_actions
from refunds.kind import REFUND
from refunds.models import ExternalRefund, Order, RefundAction, RefundAttempt, RefundEvent
from refunds.orders import OrderFacts, mirror_order
from refunds.propose import Conflict, Proposal, Recorded, Replayed, propose_refund
from refunds.withdraw import withdraw_refund
from tests import builders
from tests.properties.never import (
    World,
    broken_histories,
    contradictions,
    look,
    reasons_not_to_claim,
    story,
)
from tests.properties.stopped_clock import StoppedClock

# Every module that names a crash point calls it through its own import.
_CALLERS = (claim, send, record, resolve, escalate, leases)
_IN_DISPATCH = crashpoints.CRASH_POINTS[:6]
_IN_A_ROUND = (
    crashpoints.AFTER_ROUND_OPENED,
    crashpoints.AFTER_ROUND_READ,
    crashpoints.DURING_ROUND_RECORD,
)

# No transaction is open at these: another process may do something there, and be seen to.
_OPEN_IN_DISPATCH = (
    crashpoints.AFTER_CLAIM,
    crashpoints.BEFORE_BYTES_LEAVE,
    crashpoints.AFTER_ANSWER,
    crashpoints.AFTER_RECORD,
)
_OPEN_IN_A_SWEEP = (
    crashpoints.AFTER_LEASE_SWEPT,
    crashpoints.AFTER_ROUND_OPENED,
    crashpoints.AFTER_ROUND_READ,
)
_MEANWHILE = ("deliver", "deliver a sibling", "beat", "freeze and beat", "withdraw", "check now")

# The ones whose wire effect a test can wait for; hangs are covered with real processes.
FAULTS = (
    "reset-before-execution",
    "close-before-execution",
    "reset-after-execution",
    "close-after-execution",
    "html-502",
    "html-502-executed",
    "error-500-executed",
    "error-500-not-executed",
    "empty-500",
    "html-200",
    "json-without-error",
    "truncated-content-length",
    "truncated-close-delimited-200",
    "rate-limit-429",
    "lock-timeout-429",
    "error-409-in-flight",
    "error-424",
    "insufficient-balance-400",
    "disputed-400",
    "already-refunded-400",
    "not-found-404",
    "unauthorized-401",
    "swapped-response",
    "mismatched-amount",
    "mismatched-metadata",
    "unknown-status",
    "list-unreadable",
)
# Ones that leave it open whether the provider acted: the heart of the matter, so drawn more often.
LOST_ANSWERS = (
    "reset-before-execution",
    "reset-after-execution",
    "close-after-execution",
    "html-502",
    "error-500-executed",
)
# A request that the provider executes later. Sooner than the settle time nothing may ever be wrong
# here; later is a stated limit, and must still never be paid twice.
LATE_WITHIN_CONTRACT_SECONDS = settings.SUBMIT_LEASE_SECONDS
LATE_SECONDS = (LATE_WITHIN_CONTRACT_SECONDS, LATE_WITHIN_CONTRACT_SECONDS, 900.0, 5_000.0)

_FOUND_OUT_BY_A_SWEEP = (State.SUBMITTING, State.UNKNOWN, State.PENDING)
AMOUNTS = (500, 500, 1_100, 2_500, 4_000, 7_900, 15_000)
CAPTURED_MINOR = 20_000
SOON = (1.0, 12.0, 45.0, 130.0, 700.0)
# Past the limit for sending again (20 h), past the provider's memory and every approval (24 h).
LONG = (4_000.0, 73_000.0, 90_000.0)
# What was made elsewhere longer ago must have been found by the look before a send: a look is
# believed for a while, and the claim that relied on it may send for the length of its lease.
BLIND_SECONDS = settings.LOOK_FRESH_SECONDS + settings.SUBMIT_LEASE_SECONDS
SCOPES = ("global", "kind:refund", "account:stripe:", "agent:agent-1")

# Counted over a whole run and printed at its end, so that a rule that never fired is seen.
FIRED: Counter[str] = Counter()

_TABLES = [
    model._meta.db_table
    for model in (
        *(RefundEvent, RefundAttempt, ExternalRefund, RefundAction, Order),
        *(Approval, Case, Switch, Breaker, SweepRun, DecisionRecord, PolicyVersion),
    )
]


class Crashed(BaseException):
    """The process ends here. Not an Exception: nothing in the product may catch it."""


@contextmanager
def crash_at(point: str) -> Iterator[None]:
    """End the 'process' at a named point: open transactions roll back, nothing else runs."""
    if not point:
        yield
        return

    def crash_point(name: str) -> None:
        if name == point:
            FIRED[f"crash {point}"] += 1
            note(f"  crashed at {point}")
            raise Crashed

    with ExitStack() as stack:
        for module in _CALLERS:
            stack.enter_context(patch.object(module, "crash_point", crash_point))
        try:
            yield
        except Crashed:
            connection.close()  # a dead process's connection is gone, its locks with it
            Machine.clock.show()


@contextmanager
def meanwhile_at(point: str, act: Callable[[], Any]) -> Iterator[None]:
    """Let another process do something while this one stands at a named point, once.

    Only for points at which no transaction is open, so that one connection can be both processes.
    """
    acted = False

    def crash_point(name: str) -> None:
        nonlocal acted
        if name == point and not acted:
            acted = True
            FIRED[f"meanwhile at {point}"] += 1
            note(f"  meanwhile, at {point}: {act()}")

    with ExitStack() as stack:
        for module in _CALLERS:
            stack.enter_context(patch.object(module, "crash_point", crash_point))
        yield


@contextmanager
def held_by_another_process(action_id: str) -> Iterator[None]:
    """Another process holds the row; whoever waits for it gives up with an error."""
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor, connection.cursor() as ours:
            cursor.execute(
                f"SELECT 1 FROM {RefundAction._meta.db_table} WHERE action_id = %s FOR UPDATE",
                [action_id],
            )
            ours.execute("SET lock_timeout = '2s'")
            yield
            ours.execute("SET lock_timeout = DEFAULT")
    finally:
        other.close()


def wipe() -> None:
    """Empty the tables, past their triggers: examples begin alike, or none could be retold."""
    deletes = "".join(f"DELETE FROM {table};" for table in _TABLES)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SET session_replication_role = replica; {deletes}"
            "SET session_replication_role = DEFAULT;"
        )


class Machine(RuleBasedStateMachine):
    """The state of the world is in the database and in the sandbox; here is only the last look."""

    sandbox: ClassVar[Sandbox]
    person: ClassVar[User]
    clock: ClassVar[StoppedClock]
    world: World

    # ---- beginnings

    @initialize(
        policy=st.sampled_from(["default", "allow-all"]),
        pending=st.booleans(),
        switches=st.sampled_from([0, 0, 1]),
        first=st.sampled_from(AMOUNTS),
        second=st.sampled_from(AMOUNTS),
    )
    def begin(self, policy: str, pending: bool, switches: int, first: int, second: int) -> None:
        """Two orders, one perhaps of a payment whose refunds settle slowly, and two proposals."""
        FIRED["examples"] += 1
        wipe()
        self.sandbox.reset()
        self.sandbox.settings(pending_settles_after_seconds=None)
        Machine.clock.begin()
        if policy == "default":
            builders.policy()
        else:
            builders.allow_all()
        for number, method in enumerate(
            ("pm_card_visa", "pm_card_pendingRefund" if pending else "pm_card_visa")
        ):
            self.sandbox.payment(
                amount=CAPTURED_MINOR, id=f"pi_order{number}", payment_method=method
            )
            builders.order(
                order_id=f"order-{number}",
                payment_ref=f"pi_order{number}",
                captured_minor=CAPTURED_MINOR,
            )
        self.asleep: list[Claimed] = []
        self.unrecorded: list[tuple[Claimed, Sent]] = []
        self.settled: set[str] = set()
        self.delayed: set[str] = set()
        # Rare things are rare, or they would be all that happens.
        self.left = Counter(
            replay=1,
            withdraw=2,
            reject=1,
            elsewhere=1,
            fail=2,
            state=1,
            switch=switches,
            long=3,
            held=1,
            twice=2,
            beat=6,
        )
        self.statement = 0
        self.unused = list(range(9, 17))
        self._propose(0, 1, first)
        self._propose(0, 2, second)
        self.world = look(self.sandbox)

    # ---- what callers do

    @rule(which=st.integers(0, 1), request=st.integers(1, 8), amount=st.sampled_from(AMOUNTS))
    def propose(self, which: int, request: int, amount: int) -> None:
        self._propose(which, request, amount)

    @precondition(lambda self: self.unused)
    @rule(which=st.integers(0, 1), amount=st.sampled_from(AMOUNTS))
    def propose_under_a_new_request_id(self, which: int, amount: int) -> None:
        self._propose(which, self.unused.pop(0), amount)

    @precondition(lambda self: self.left["replay"] > 0)
    @rule(data=st.data())
    def propose_again_with_old_beliefs(self, data: st.DataObject) -> None:
        """A replay is answered with its action, whatever its caller believes by now."""
        self.left["replay"] -= 1
        action = self._pick(data)
        proposal = Proposal(
            order_id=self.world.orders[action.order_id].order_id,
            request_id=action.request_id,
            amount_minor=action.amount_minor,
            currency="USD",
            reason=action.reason,
            proposer="agent-1",
            refunded_so_far_minor=19_999,
        )
        made = propose_refund(proposal=proposal)
        if not isinstance(made, Replayed) or made.action.pk != action.pk:
            self._fail([f"{action} proposed again was answered {made!r}"])

    @precondition(lambda self: self.left["withdraw"] > 0 and self._there(State.AUTHORIZED))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        self.left["withdraw"] -= 1
        action = self._pick(data)
        made = withdraw_refund(action_id=action.action_id, actor="agent:agent-1")
        note(f"  withdraw {action}: {type(made).__name__}")

    # ---- what people do

    @precondition(lambda self: self._there(State.AWAITING_APPROVAL))
    @rule(data=st.data())
    def approve(self, data: st.DataObject) -> None:
        self._decide(data, yes=True)

    @precondition(lambda self: self._there(State.AWAITING_APPROVAL))
    @rule(data=st.data(), wait=st.sampled_from([0.0, 0.0, 90_000.0]))
    def approve_while_the_order_moves_on(self, data: st.DataObject, wait: float) -> None:
        """Something else of the order is delivered, or the approval ends, before this is."""
        approved = self._decide(data, yes=True)
        siblings = [
            action
            for action in self.world.actions
            if action.state == State.AUTHORIZED
            and action.order_id == approved.order_id
            and action.pk != approved.pk
        ]
        if siblings:
            sibling = data.draw(st.sampled_from(siblings), label="sibling")
            note(f"  delivered {sibling}: {dispatch(action_id=sibling.action_id)}")
        if wait and self.left["long"] > 0:
            self.left["long"] -= 1
            self._advance(wait)
        self._look_again()
        before = self.world
        self._deliver(approved)
        self._look_again()
        self._compare_claims(before)

    @precondition(lambda self: self.left["reject"] > 0 and self._there(State.AWAITING_APPROVAL))
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        self.left["reject"] -= 1
        self._decide(data, yes=False)

    @precondition(lambda self: self.world.actions)
    @rule(data=st.data())
    def person_checks_now(self, data: st.DataObject) -> None:
        action = self._pick(data, state=data.draw(st.sampled_from([State.UNKNOWN, None])))
        checked = check_now(action_id=action.action_id, actor="person:tester")
        note(f"  checked {action}: {checked.finding}, {checked.state}")
        if not checked.asked:
            return
        FIRED[f"check now: {checked.finding}"] += 1
        shows = {refund["status"] for refund in self.world.made[action.action_id]}
        if shows & {"succeeded", "pending"} and checked.state not in ("SUCCEEDED", "PENDING"):
            self._fail([f"{action} is {checked.state} after the provider was seen to show it"])
        if shows == {"failed"} and checked.state in ("SUCCEEDED", "PENDING"):
            self._fail([f"{action} is {checked.state} after the provider was seen to show failed"])

    @precondition(lambda self: self._closable())
    @rule(data=st.data())
    def person_settles_case(self, data: st.DataObject) -> None:
        case = data.draw(st.sampled_from(self._closable()))
        made = settle_case(case_id=case.case_id, user=self.person, note="compared both ledgers")
        FIRED[f"settle {case.kind}: {type(made).__name__}"] += 1

    @precondition(lambda self: self.left["switch"] > 0)
    @rule(scope=st.sampled_from(SCOPES))
    def switch_on(self, scope: str) -> None:
        self.left["switch"] -= 1
        FIRED["switch on"] += turn_on(scope=scope, reason="drill", actor="person:tester")

    @precondition(lambda self: self.world.switches)
    @rule()
    def switch_off(self) -> None:
        for switch in self.world.switches:
            FIRED["switch off"] += turn_off(switch_id=switch.pk, actor="person:tester")

    @precondition(lambda self: self.left["state"] > 0)
    @rule(which=st.integers(0, 1), captured=st.sampled_from([12_000, 25_000]))
    def merchant_states_another_amount(self, which: int, captured: int) -> None:
        self.left["state"] -= 1
        self.statement += 1
        FIRED["another captured amount"] += 1
        order = list(self.world.orders.values())[which]
        facts = {
            name: getattr(order, name)
            for name in ("order_id", "currency", "provider", "payment_ref", "customer_ref")
        }
        mirror_order(
            facts=OrderFacts(**facts, captured_minor=captured, source_version=self.statement),
            actor="test",
        )

    # ---- what the provider and time do

    @precondition(lambda self: self.left["elsewhere"] > 0)
    @rule(which=st.integers(0, 1), amount=st.sampled_from([300, 5_000]))
    def refund_elsewhere(self, which: int, amount: int) -> None:
        """Somebody refunds in the provider's dashboard, if there is that much left."""
        self.left["elsewhere"] -= 1
        try:
            self.sandbox.refund_outside(f"pi_order{which}", amount=amount)
        except ValueError:
            return
        FIRED["refund elsewhere"] += 1

    @precondition(lambda self: any(r["status"] == "pending" for r in self.world.refunds))
    @rule()
    def pending_refunds_settle(self) -> None:
        for refund in self.world.refunds:
            if refund["status"] == "pending":
                FIRED["pending settled"] += 1
                self.sandbox.settle_refund(refund["id"])

    @precondition(lambda self: self.left["fail"] > 0 and self._failable())
    @rule(data=st.data())
    def refund_fails_late(self, data: st.DataObject) -> None:
        self.left["fail"] -= 1
        refund = data.draw(st.sampled_from(self._failable()))
        FIRED[f"failed late, was {refund['status']}"] += 1
        self.sandbox.fail_refund(refund["id"])

    @rule(seconds=st.sampled_from(SOON))
    def time_passes(self, seconds: float) -> None:
        self._advance(seconds)

    @precondition(lambda self: self.left["long"] > 0)
    @rule(seconds=st.sampled_from(LONG))
    def hours_pass(self, seconds: float) -> None:
        """Long enough that keys are past their limit; the provider then forgets what it may."""
        self.left["long"] -= 1
        FIRED[f"{seconds / 3600:.0f} h passed"] += 1
        self._advance(seconds)
        FIRED["keys forgotten"] += self.sandbox.prune_keys()

    # ---- what workers do

    @precondition(lambda self: self._there(State.AUTHORIZED))
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self._deliver(self._pick(data, state=State.AUTHORIZED))

    @precondition(lambda self: self._there(State.AUTHORIZED))
    @rule(data=st.data(), fault=st.sampled_from(FAULTS))
    def deliver_on_a_bad_day(self, data: st.DataObject, fault: str) -> None:
        self._deliver(self._pick(data, state=State.AUTHORIZED), fault=fault)

    @precondition(lambda self: self._there(State.AUTHORIZED))
    @rule(data=st.data(), fault=st.sampled_from(LOST_ANSWERS))
    def deliver_and_lose_the_answer(self, data: st.DataObject, fault: str) -> None:
        self._deliver(self._pick(data, state=State.AUTHORIZED), fault=fault)

    @precondition(lambda self: self._there(State.AUTHORIZED))
    @rule(data=st.data(), late=st.sampled_from(LATE_SECONDS))
    def deliver_and_execute_later(self, data: st.DataObject, late: float) -> None:
        self._deliver(self._pick(data, state=State.AUTHORIZED), fault="executed-late", late=late)

    @precondition(lambda self: self._there(State.AUTHORIZED))
    @rule(
        data=st.data(),
        fault=st.one_of(st.none(), st.sampled_from(LOST_ANSWERS)),
        crash=st.sampled_from(_IN_DISPATCH),
    )
    def deliver_and_crash(self, data: st.DataObject, fault: str | None, crash: str) -> None:
        self._deliver(self._pick(data, state=State.AUTHORIZED), fault=fault, crash=crash)

    @precondition(lambda self: self._there(State.AUTHORIZED))
    @rule(data=st.data(), fault=st.sampled_from(LOST_ANSWERS), late=st.booleans())
    def deliver_lose_it_find_out_and_go_on(
        self, data: st.DataObject, fault: str, late: bool
    ) -> None:
        """The repair: it is found, or proved to have done nothing, and then goes out again."""
        action = self._pick(data, state=State.AUTHORIZED)
        if late:
            self._deliver(action, fault="executed-late", late=LATE_WITHIN_CONTRACT_SECONDS)
        else:
            self._deliver(action, fault=fault)
        self._find_out(action)
        self._deliver(action)
        self._look_again()

    @precondition(lambda self: self.left["long"] > 0 and self._there(State.AUTHORIZED))
    @rule(data=st.data(), seconds=st.sampled_from(LONG), prune=st.booleans())
    def deliver_turned_away_and_again_hours_later(
        self, data: st.DataObject, seconds: float, prune: bool
    ) -> None:
        """Its key was used and grows old, though nothing was done under it."""
        self.left["long"] -= 1
        action = self._pick(data, state=State.AUTHORIZED)
        self._deliver(action, fault="rate-limit-429")
        self._advance(seconds)
        if prune:
            FIRED["keys forgotten"] += self.sandbox.prune_keys()
        self._deliver(action)
        self._look_again()

    @precondition(lambda self: self.left["twice"] > 0)
    @rule(data=st.data())
    def deliver_twice_whatever_its_state(self, data: st.DataObject) -> None:
        self.left["twice"] -= 1
        self._deliver(self._pick(data), times=2)

    @precondition(lambda self: self._there(State.AUTHORIZED))
    @rule(data=st.data())
    def claim_and_fall_asleep(self, data: st.DataObject) -> None:
        action = self._pick(data, state=State.AUTHORIZED)
        claimed = claim.claim(kind=REFUND, action_id=action.action_id, worker="worker:sleepy")
        if isinstance(claimed, Claimed):
            FIRED["claimed and asleep"] += 1
            self.asleep.append(claimed)

    @precondition(lambda self: self.asleep)
    @rule(fault=st.one_of(st.none(), st.sampled_from(LOST_ANSWERS)), late=st.booleans())
    def wake_and_send(self, fault: str | None, late: bool) -> None:
        """The sleeper goes on where it was, however long that took."""
        claimed = self.asleep.pop(0)
        with self._fault(fault):
            sent = send.send(kind=REFUND, claimed=claimed)
        said = type(sent.outcome).__name__
        FIRED[f"woke and sent: {said}"] += 1
        note(f"  woke for {claimed.action}: {said}")
        self.unrecorded.append((claimed, sent))
        if not late:
            self._record_late()

    @precondition(lambda self: self._there(State.AUTHORIZED))
    @rule(data=st.data(), fault=st.one_of(st.none(), st.none(), st.sampled_from(FAULTS)))
    def send_and_hold_the_answer_back(self, data: st.DataObject, fault: str | None) -> None:
        action = self._pick(data, state=State.AUTHORIZED)
        claimed = claim.claim(kind=REFUND, action_id=action.action_id, worker="worker:slow")
        if isinstance(claimed, Claimed):
            with self._fault(fault):
                self.unrecorded.append((claimed, send.send(kind=REFUND, claimed=claimed)))

    @precondition(lambda self: self._there(State.AUTHORIZED))
    @rule(data=st.data(), fault=st.sampled_from(LOST_ANSWERS))
    def wake_beside_a_successor(self, data: st.DataObject, fault: str) -> None:
        """While it slept its lease was swept, nothing was found, and another worker has sent it."""
        action = self._pick(data, state=State.AUTHORIZED)
        claimed = claim.claim(kind=REFUND, action_id=action.action_id, worker="worker:sleepy")
        self._find_out(action)
        self._deliver(action, fault=fault)
        if isinstance(claimed, Claimed):
            sent = send.send(kind=REFUND, claimed=claimed)
            self.unrecorded.insert(0, (claimed, sent))
            self._record_late()
        self._look_again()

    @precondition(lambda self: self.unrecorded)
    @rule()
    def record_the_held_answer(self) -> None:
        self._record_late()

    @precondition(lambda self: self._there(State.AUTHORIZED))
    @rule(
        data=st.data(),
        point=st.sampled_from(_OPEN_IN_DISPATCH),
        other=st.sampled_from(_MEANWHILE),
    )
    def deliver_and_meanwhile(self, data: st.DataObject, point: str, other: str) -> None:
        action = self._pick(data, state=State.AUTHORIZED)
        sibling = self._pick(data, state=State.AUTHORIZED)
        with meanwhile_at(point, self._meanwhile(other, action, sibling)):
            said = dispatch(action_id=action.action_id)
        note(f"  delivered {action}: {said}")
        self._look_again()  # what was claimed meanwhile cannot be compared with the last look

    # ---- what beat does

    @precondition(lambda self: self.left["beat"] > 0)
    @rule()
    def beat(self) -> None:
        self.left["beat"] -= 1
        self._beat()

    @precondition(lambda self: self._waiting())
    @rule()
    def beat_when_something_is_due(self) -> None:
        self._advance_to_due()
        self._beat()

    @precondition(lambda self: self._waiting())
    @rule(
        data=st.data(),
        point=st.sampled_from(_OPEN_IN_A_SWEEP),
        other=st.sampled_from(_MEANWHILE),
    )
    def beat_and_meanwhile(self, data: st.DataObject, point: str, other: str) -> None:
        """Two beats at once, or a beat and somebody else."""
        action = data.draw(st.sampled_from(self._waiting()), label="action")
        sibling = self._pick(data)
        self._advance_to_due()
        with meanwhile_at(point, self._meanwhile(other, action, sibling)):
            self._beat()
        self._look_again()

    @precondition(lambda self: self.left["held"] > 0 and self.world.actions)
    @rule(data=st.data())
    def beat_while_another_process_holds_a_row(self, data: st.DataObject) -> None:
        """A beat takes what it can have and waits for nobody."""
        self.left["held"] -= 1
        action = self._pick(data, state=data.draw(st.sampled_from(_FOUND_OUT_BY_A_SWEEP)))
        self._advance_to_due()
        with held_by_another_process(action.action_id):
            self._beat()
        FIRED["beat beside a held row"] += 1

    @precondition(lambda self: self._waiting(State.UNKNOWN))
    @rule(crash=st.sampled_from(_IN_A_ROUND))
    def beat_and_crash_in_a_round(self, crash: str) -> None:
        self._advance_to_due()
        self._beat(crash=crash)

    @precondition(lambda self: self._waiting(State.SUBMITTING))
    @rule()
    def beat_and_crash_after_a_lease_was_swept(self) -> None:
        self._advance_to_due()
        self._beat(crash=crashpoints.AFTER_LEASE_SWEPT)

    @precondition(lambda self: self._waiting(State.UNKNOWN))
    @rule(crash=st.booleans())
    def find_out_in_vain(self, crash: bool) -> None:
        """The provider cannot be read until somebody is told, or dies while telling."""
        for _ in range(4):
            if not self._waiting(State.UNKNOWN):
                return
            self._advance_to_due()
            self._beat(
                fault="list-unreadable", crash=crashpoints.DURING_ESCALATION if crash else ""
            )
            self._look_again()

    # ---- what must never be

    @invariant()
    def money_is_right(self) -> None:
        if not hasattr(self, "world"):
            return
        FIRED["steps"] += 1
        before = self.world
        self._look_again()
        self._compare_claims(before)
        self._fail_if_sent_blindly(before)
        FIRED["requests on the wire"] += max(len(self.world.posts) - len(before.posts), 0)
        for action in self.world.actions:
            FIRED[f"seen {action.state}"] += 1

    def _compare_claims(self, before: World) -> None:
        """Nobody claims what was not to be claimed as the world stood before."""
        for action in before.actions:
            reasons = reasons_not_to_claim(before, action)
            attempts = len(action.attempts.all())
            now = len(self.world.action(action.action_id).attempts.all())
            if now > attempts and reasons:
                self._fail([f"{action} was claimed although {', and '.join(reasons)}"])
            FIRED["claims"] += now - attempts

    def _fail_if_sent_blindly(self, before: World) -> None:
        """A look before the send finds what somebody else refunded, unless it was just read."""
        known = {external.provider_ref for external in self.world.externals}
        for post in self.world.posts[len(before.posts) :]:
            for refund in before.refunds:
                if (
                    refund["outside"]
                    and refund["payment_intent"] == post["params"].get("payment_intent")
                    and refund["id"] not in known
                    and post["at"] - refund["at"] > BLIND_SECONDS
                ):
                    self._fail([f"{post} was sent beside a refund made elsewhere: {refund}"])

    def teardown(self) -> None:
        """The faults stop; a worker and a beat live. Everything must come to rest."""
        error = sys.exc_info()[1]
        if error is not None or not hasattr(self, "world"):
            if isinstance(error, Exception):
                _first_failure()
            return
        self.sandbox.clear_faults()
        for switch in self.world.switches:
            turn_off(switch_id=switch.pk, actor="person:tester")
        for _ in range(12):
            if not self._restless():
                break
            self._advance(700.0)
            self._work_through()
        # And after the time that a decision may take nothing waits for one either.
        for _ in range(3):
            self._advance(90_000.0)
            self._work_through()
        self._look_again()
        restless = self._restless() + [
            f"{action} is still {action.state}"
            for action in self.world.actions
            if action.state in (State.AWAITING_APPROVAL, State.HELD)
        ]
        if restless:
            self._fail([f"neither over nor anybody's: {restless}"])
        broken = broken_histories(self.world)
        if broken:
            self._fail(broken)
        for action in self.world.actions:
            FIRED[f"ended {action.state}"] += 1

    def _work_through(self) -> None:
        for refund in self.sandbox.refunds():
            if refund["status"] == "pending":
                self.sandbox.settle_refund(refund["id"])
        with self._sweeps_speak():
            sweep.sweep()
        for action in RefundAction.objects.filter(state=State.AUTHORIZED).order_by("pk"):
            note(f"  in the end {action}: {dispatch(action_id=action.action_id)}")

    def _restless(self) -> list[str]:
        self._look_again()
        return [
            f"{action} {action.state} {[a.outcome for a in action.attempts.all()]}"
            for action in self.world.actions
            if not action.is_final
            and action.state != State.AWAITING_APPROVAL
            and not (action.state == State.UNKNOWN and self.world.open_cases(action=action))
            and not (action.state == State.AUTHORIZED and self._is_paused(action))
        ]

    def _is_paused(self, action: RefundAction) -> bool:
        """An incident on the order is a person's, and pauses all of it."""
        return any(
            case.kind == Case.Kind.INCIDENT and case.resource == str(action.order)
            for case in self.world.open_cases()
        )

    def _look_again(self) -> None:
        """Look at the world and hold the provider's ledger against our rows."""
        self.world = look(self.sandbox)
        self.settled |= {r["id"] for r in self.world.refunds if r["status"] == "succeeded"}
        found = contradictions(self.world, settled=self.settled, delayed=self.delayed)
        if found:
            self._fail(found)

    def _fail(self, sentences: list[str]) -> None:
        _first_failure()
        self.world = look(self.sandbox)
        raise AssertionError("\n".join([*sentences, "", story(self.world)]))

    # ---- helpers

    def _there(self, state: State) -> list[str]:
        return [action.action_id for action in self.world.actions if action.state == state]

    def _pick(self, data: st.DataObject, *, state: State | None = None) -> RefundAction:
        """One of the actions that stand so; of all when none does."""
        actions = [a.action_id for a in self.world.actions]
        there = self._there(state) if state is not None else []
        return self.world.action(data.draw(st.sampled_from(there or actions), label="action"))

    def _closable(self) -> list[Case]:
        return [case for case in self.world.open_cases() if case.kind not in NOT_BY_HAND]

    def _failable(self) -> list[dict[str, Any]]:
        return [
            refund
            for refund in self.world.refunds
            if refund["status"] in ("succeeded", "pending") and not refund["outside"]
        ]

    def _waiting(self, *states: State) -> list[RefundAction]:
        """What a sweep has to find out, and has not given to a person."""
        return [
            action
            for action in self.world.actions
            if action.state in (states or _FOUND_OUT_BY_A_SWEEP) and action.due_at is not None
        ]

    def _propose(self, which: int, request: int, amount: int) -> None:
        made = propose_refund(proposal=_proposal(which, request, amount))
        FIRED[f"propose: {type(made).__name__}"] += 1
        if not isinstance(made, Recorded | Replayed | Conflict):
            self._fail([f"a proposal was answered {made!r}"])
        note(f"  proposed order-{which} r{request} {amount}: {type(made).__name__}")

    def _decide(self, data: st.DataObject, *, yes: bool) -> RefundAction:
        action = self._pick(data, state=State.AWAITING_APPROVAL)
        made = (approve if yes else reject)(
            action_id=action.action_id,
            user=self.person,
            note="looked at the order and the ticket",
            seen=builders.seen(action),
        )
        FIRED[f"decide: {type(made).__name__}"] += 1
        note(f"  decided {action}: {type(made).__name__}")
        self._look_again()
        return self.world.action(action.action_id)

    def _meanwhile(
        self, what: str, action: RefundAction, sibling: RefundAction
    ) -> Callable[[], Any]:
        def beat() -> str:
            sweep.sweep()
            return "a beat"

        def freeze_and_beat() -> str:
            """This process stands still for minutes; everybody else goes on."""
            self._advance(200.0)
            return beat()

        return {
            "deliver": lambda: dispatch(action_id=action.action_id),
            "deliver a sibling": lambda: dispatch(action_id=sibling.action_id),
            "beat": beat,
            "freeze and beat": freeze_and_beat,
            "withdraw": lambda: withdraw_refund(action_id=action.action_id, actor="agent:agent-1"),
            "check now": lambda: check_now(action_id=action.action_id, actor="person:tester"),
        }[what]

    @contextmanager
    def _fault(self, fault: str | None, *, late: float | None = None) -> Iterator[None]:
        """One fault for the next request that it is made for; late is its delay in seconds."""
        if fault is not None:
            params: dict[str, Any] = {} if late is None else {"seconds": late}
            self.sandbox.fault(fault, **params)
        yield
        for rule_ in self.sandbox.faults():
            if rule_["fired"]:
                FIRED[f"fault {rule_['fault']}"] += 1
        self.sandbox.clear_faults()

    def _deliver(
        self,
        action: RefundAction,
        *,
        fault: str | None = None,
        late: float | None = None,
        crash: str = "",
        times: int = 1,
    ) -> None:
        if late is not None and late > LATE_WITHIN_CONTRACT_SECONDS:
            self.delayed.add(action.action_id)
        with self._fault(fault, late=late), crash_at(crash):
            for _ in range(times):
                said = dispatch(action_id=action.action_id)
                FIRED[f"deliver: {said[:50]}"] += 1
                note(f"  delivered {action}: {said}")

    def _record_late(self) -> None:
        claimed, sent = self.unrecorded.pop(0)
        attempt = RefundAttempt.objects.select_related("action").get(token=claimed.token)
        how = "late" if attempt.closed_at else "in time"
        FIRED[f"recorded {how}, was {attempt.action.state}"] += 1
        record.record(kind=REFUND, token=claimed.token, sent=sent, actor="worker:late")
        note(f"  recorded {how} {claimed.action}: {type(sent.outcome).__name__}")

    def _find_out(self, action: RefundAction) -> None:
        """Beats, each as soon as something is due, until this is known or a person's."""
        for _ in range(6):
            self._look_again()
            if action.pk not in {waiting.pk for waiting in self._waiting()}:
                return
            self._advance_to_due()
            self._beat()

    def _beat(self, *, fault: str | None = None, crash: str = "") -> None:
        """Both sweeps, as beat starts them."""
        if fault is not None:
            self.sandbox.fault(fault, times=None)
        with crash_at(crash), self._sweeps_speak():
            sweep.sweep()
            hint_due_actions()
        self.sandbox.clear_faults()

    @contextmanager
    def _sweeps_speak(self) -> Iterator[None]:
        """A sweep logs what goes wrong with one action and goes on; here it is a failure."""

        def speak(*args: Any, **kwargs: Any) -> None:
            raise

        with patch.object(sweep.log, "exception", speak):
            yield

    def _advance_to_due(self) -> None:
        due = min(a.due_at for a in self._waiting() if a.due_at) if self._waiting() else None
        if due is not None:
            self._advance(max((due - self.world.now).total_seconds(), 0.0) + 1.0)

    def _advance(self, seconds: float) -> None:
        self.clock.advance(seconds)


def _first_failure() -> None:
    """Steps until then; what is tried afterwards to explain it does not count."""
    FIRED.setdefault("steps before the first failure", FIRED["steps"])


def _proposal(which: int, request: int, amount: int) -> Proposal:
    return Proposal(
        order_id=f"order-{which}",
        request_id=f"r{request}",
        amount_minor=amount,
        currency="USD",
        reason="damaged",
        proposer="agent-1",
    )


_ALWAYS = (
    *("propose", "approve", "deliver", "claim", "send", "wake", "record"),
    *("beat", "find", "time", "switch_off", "person_settles"),
)


@contextmanager
def work_goes_on() -> Iterator[None]:
    """Hypothesis leaves half of all rules out of each example. These it may not leave out.

    Without proposals, deliveries or sweeps an example is fifty steps of nothing.
    """
    always = {name for name in vars(Machine) if name.startswith(_ALWAYS)}
    choose = FeatureFlags.is_enabled

    def is_enabled(self: FeatureFlags, name: str) -> bool:
        return name in always or choose(self, name)

    with patch.object(FeatureFlags, "is_enabled", is_enabled):
        yield


def no_broker() -> Any:
    """Hints go nowhere: the machine itself decides what is delivered, and when."""
    return patch.object(type(REFUND), "hint", lambda self, *, action_id: True)
