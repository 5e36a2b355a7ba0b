"""Random walks: people, workers, faults and a provider that changes its mind, in any order.

After every step the balances agree with the rows, and whenever a customer has got a debt twice an
incident says so. Each walk is a seed; a failure names the seed and prints the steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from effects.models import Case
from effects.states import State
from reconciliation.check_now import check_now
from reconciliation.sweep import sweep
from refunds.dispatch import dispatch
from refunds.models import CreditAction, ExternalRefund, Order, RefundAction, Remedy
from tests import builders
from tests.refunds import debts

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]

STEPS = 18
SEEDS = range(8)
LIVE = ("PROPOSED", "AUTHORIZED", "ISSUING", "ISSUED")
LOST = ("reset-before-execution", "reset-after-execution", "rate-limit-429", "error-500-executed")


class Walk:
    """One order with one debt, and everything that may happen to it."""

    def __init__(self, sandbox: Any, seed: int) -> None:
        self.sandbox, self.random = sandbox, random.Random(seed)
        builders.allow_all()
        self.order = debts.order_of_customer(sandbox, captured_minor=20_000)
        self.debt = (debts.given_up if seed % 4 == 3 else debts.debt)(
            sandbox, **({} if seed % 4 == 3 else {"order": self.order})
        )
        self.order = Order.objects.get(pk=self.debt.order.pk)
        self.person, self.other = debts.person(), debts.person()
        self.seconds, self.out_by_hand, self.steps = 60.0, 0, list[str]()

    # -- what can happen

    def propose(self) -> None:
        kind = self.random.choice(["store_credit", "store_credit", "bank_transfer", "cheque"])
        debts.proposing(self.debt, kind, user=self.person)

    def approve(self) -> None:
        self._with_one("PROPOSED", lambda remedy: debts.approving(remedy, user=self.other))

    def record(self) -> None:
        self._with_one(
            self.random.choice(["AUTHORIZED", "AUTHORIZED", "STOPPED"]),
            lambda remedy: debts.recording(remedy, user=self.person, reference=f"bank {remedy.pk}"),
        )

    def stop(self) -> None:
        self._with_one(
            self.random.choice(["PROPOSED", "AUTHORIZED", "ISSUING", "ISSUED"]),
            lambda remedy: debts.stopping(remedy, user=self.person),
        )

    def work(self) -> None:
        """A worker takes whatever is there, perhaps into a fault."""
        if self.random.random() < 0.5:
            path = f"/v1/customers/{self.order.customer_ref}/balance_transactions"
            fault = self.random.choice(LOST)
            self.sandbox.fault(fault, match={"method": "POST", "path": path})
        for credit in CreditAction.objects.filter(order=self.order):
            dispatch(action_id=credit.action_id)
        self.sandbox.clear_faults()

    def time(self) -> None:
        self.seconds += self.random.choice([90, 300, 4_000, 90_000, 3_000_000])
        builders.skew_clock(self.seconds)
        sweep()

    def come_back(self) -> None:
        """The refund that had failed is at the provider after all. Not always does anybody ask."""
        used = sum(
            refund["amount"]
            for refund in self.sandbox.refunds(self.order.payment_ref)
            if refund["status"] != "failed"
        )
        if (
            builders.fresh(self.debt).state == State.FAILED_FINAL
            and used + self.debt.amount_minor <= self.order.captured_minor
            and self.random.random() < 0.6
        ):
            ours = {"action_id": self.debt.action_id, "instance": self.debt.instance}
            self.sandbox.refund_outside(
                self.order.payment_ref, amount=self.debt.amount_minor, metadata=ours
            )
        if self.random.random() < 0.5:
            self.check()

    def fail_late(self) -> None:
        debt = builders.fresh(self.debt)
        if debt.state == State.SUCCEEDED:
            self.sandbox.fail_refund(debt.provider_ref)
        self.check()

    def check(self) -> None:
        self.seconds += 15
        builders.skew_clock(self.seconds)
        check_now(action_id=self.debt.action_id, actor="person:grace")

    def refund_more(self) -> None:
        """Another refund of the order, as large as may be."""
        row = builders.action(self.order, amount_minor=self.random.choice([2_000, 7_900, 12_100]))
        dispatch(action_id=row.action_id)

    def settle_incident(self) -> None:
        """A person has settled it, whatever it was."""
        rows = Case.objects.filter(resource=f"order:{self.order.order_id}", kind="incident")
        if self.random.random() < 0.3:
            rows.filter(closed_at__isnull=True).update(closed_at=self.debt.created_at)

    def bounce(self) -> None:
        """A person records that what was out has come back."""
        self._with_one("ISSUED", lambda remedy: debts.coming_back(remedy, user=self.person))

    def close_failed_case(self) -> None:
        """Somebody closes the case of the debt by a word."""
        rows = Case.objects.filter(action_id=self.debt.action_id, kind=Case.Kind.FAILED)
        rows.filter(closed_at__isnull=True).update(
            closed_at=builders.fresh(self.debt).updated_at, closed_by="person:grace"
        )

    def change_customer(self) -> None:
        """The order is said to be another customer's, or the first one's again."""
        other = f"{self.order.customer_ref}x"
        self.sandbox.customer(id=other)
        Order.objects.filter(pk=self.order.pk).update(
            customer_ref=self.random.choice([self.order.customer_ref, other])
        )

    def some_days(self) -> None:
        """Nobody does anything, and the sweeps go on."""
        for _ in range(3):
            self.seconds += 90_000
            builders.skew_clock(self.seconds)
            sweep()

    def _with_one(self, state: str, act: Callable[[Remedy], Any]) -> None:
        found = list(Remedy.objects.filter(debt=self.debt, state=state))
        if found:
            act(self.random.choice(found))

    # -- what must be, whatever happened

    def problems(self) -> list[str]:
        found = []
        order = Order.objects.get(pk=self.order.pk)
        remedies = list(Remedy.objects.filter(debt__order=order))
        live = [remedy for remedy in remedies if remedy.state in LIVE]
        done = RefundAction.objects.filter(order=order, state=State.SUCCEEDED)
        if order.settled_otherwise_minor != sum(remedy.amount_minor for remedy in live):
            found.append(f"settled otherwise {order.settled_otherwise_minor}: {live}")
        elsewhere = ExternalRefund.objects.filter(order=order, is_ours=False)
        went_back = sum(refund.amount_minor for refund in done)
        went_back += sum(refund.amount_minor for refund in elsewhere)
        if order.refunded_minor != went_back:
            found.append(f"refunded {order.refunded_minor}")
        if len([remedy for remedy in live if not remedy.is_second]) > 1:
            found.append(f"two live settlements: {live}")
        debt = builders.fresh(self.debt)
        waiting = [remedy for remedy in live if remedy.state in ("PROPOSED", "AUTHORIZED")]
        if waiting and debt.state != State.FAILED_FINAL:
            found.append(f"{waiting} while the refund is {debt.state}")
        known = Case.objects.filter(resource=str(order), kind=Case.Kind.INCIDENT).exists()
        out = [remedy for remedy in remedies if remedy.state == "ISSUED"]
        ways = len(out) + (debt.state in (State.SUCCEEDED, State.PENDING))
        if ways > 1 and not known:
            found.append(f"settled {ways} ways, and nobody was told")
        if order.refundable_minor < 0 and not known:
            found.append(f"overdrawn by {-order.refundable_minor}, and nobody was told")
        found += self._credits()
        return found

    def unseen(self) -> list[str]:
        """After days of sweeps, a refund that is there beside a remedy that could still go out."""
        debt = builders.fresh(self.debt)
        there = [
            refund["id"]
            for refund in self.sandbox.refunds(self.order.payment_ref)
            if refund["status"] != "failed"
            and refund["metadata"].get("action_id") == debt.action_id
        ]
        waiting = Remedy.objects.filter(debt=debt, state__in=LIVE[:3])
        # Two of them are adopted by nobody: that is an incident, and the order stands still.
        told = Case.objects.filter(
            resource=str(self.order), kind=Case.Kind.INCIDENT, closed_at__isnull=True
        )
        if there and debt.state == State.FAILED_FINAL and waiting.exists() and not told.exists():
            return [f"{there} is there, and {list(waiting)} waits"]
        return []

    def _credits(self) -> list[str]:
        """The provider's ledger against our rows: each credit once at most, never for nothing."""
        found = []
        for credit in CreditAction.objects.filter(order=self.order):
            lines = self.sandbox.credits(credit.customer_ref)
            given = [
                line for line in lines if line["metadata"].get("action_id") == credit.action_id
            ]
            remedy = Remedy.objects.get(pk=credit.remedy_id)
            if credit.customer_ref != remedy.customer_ref:
                found.append(f"{credit.action_id} is for {credit.customer_ref}")
            if len(given) > 1:
                found.append(f"{credit.action_id} was given {len(given)} times")
            if given and credit.state not in (State.SUBMITTING, State.UNKNOWN, State.SUCCEEDED):
                found.append(f"{credit.action_id} is {credit.state} and was given")
            if credit.state == State.SUCCEEDED and (len(given), remedy.state) != (1, "ISSUED"):
                found.append(f"{credit.action_id} succeeded: {given}, {remedy.state}")
        return found


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_a_debt_is_settled_once_or_somebody_is_told(sandbox, seed):
    walk = Walk(sandbox, seed)
    ways: list[Callable[[], None]] = [
        walk.propose,
        walk.propose,
        walk.approve,
        walk.record,
        walk.stop,
        walk.work,
        walk.work,
        walk.time,
        walk.time,
        walk.come_back,
        walk.fail_late,
        walk.refund_more,
        walk.settle_incident,
        walk.bounce,
        walk.close_failed_case,
        walk.change_customer,
    ]
    for _ in range(STEPS):
        step = walk.random.choice(ways)
        walk.steps.append(step.__name__)
        step()
        assert walk.problems() == [], walk.steps
    walk.some_days()
    assert walk.problems() + walk.unseen() == [], walk.steps
