"""A campaign: workers, beats and web processes killed at random instants while refunds go on.

`python -m tests.acceptance.campaign --kills 500 --seed 7` (make campaign) runs it on servers of
its own. The seed fixes how long each process lives, what is proposed and which faults the provider
has; what a victim is doing at the instant of its death is the machine's chance.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from config.embedded.servers import Servers
from config.processes import ServerError
from tests.acceptance.world import World, world_with_servers

# How long each lives at most once it is ready; the instant of its death is drawn from that. Long
# enough that work gets done in between, short enough that somebody dies every second or two.
LIFE_SECONDS = {"worker": 5.0, "web": 10.0, "beat": 10.0}
# Faults that a provider has and gets over; those that pause the account wait for a person.
FAULTS = (
    *("reset-before-execution", "reset-after-execution", "close-after-execution", "slow"),
    *("html-502", "html-502-executed", "empty-500", "truncated-content-length", "executed-late"),
    *("rate-limit-429", "lock-timeout-429", "error-409-in-flight", "list-unreadable", "list-lags"),
    *("error-500-executed", "error-500-not-executed", "insufficient-balance-400"),
    *("swapped-response", "mismatched-amount", "refuse-connection"),
)
FAULT_PARAMETERS: dict[str, dict[str, Any]] = {
    "slow": {"seconds": 2},
    "executed-late": {"seconds": 1},
    "refuse-connection": {"seconds": 0.5},
}
CAPTURED_MINOR = 20_000
# Above the default ceiling of 100.00 a person decides; above what was captured the policy denies.
AMOUNTS_MINOR = (100, 500, 1_900, 2_500, 3_000, 4_900, 7_900, 7_900, 9_900, 12_000, 25_000)
# With more open than this the proposer waits: a campaign is about kills, not about a backlog.
OPEN_MAX = 40
# A caller whose every answer was lost for this long would call somebody.
ANSWER_SECONDS = 120.0
# Longest way to rest: a message lost with its worker is hinted at again after 30 s, then a lease, a
# settle time and three tries, on a machine that other tests keep busy.
REST_SECONDS = 240.0
PROGRESS_SECONDS = 10.0


@dataclass(slots=True)
class Report:
    """What a campaign did and how it ended. `problems` and `open` must be empty."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    unanswered: int = 0
    faults: int = 0
    false_starts: int = 0
    #: Ended without us: a Celery worker may when its broker goes away.
    died_alone: Counter[str] = field(default_factory=Counter)
    states: dict[str, int] = field(default_factory=dict)
    asked_by_person: int = 0
    attempts: int = 0
    cut_off: int = 0
    found_out: int = 0
    refunds: int = 0
    open_cases: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    incidental: list[str] = field(default_factory=list)

    @property
    def actions(self) -> int:
        return sum(self.states.values())

    def __str__(self) -> str:
        lines: dict[str, Any] = {
            "seed": self.seed,
            "duration": f"{self.seconds:.0f} s",
            "SIGKILLs": f"{self.kills.total()} ({_counted(self.kills)})",
            "proposals answered": _counted({str(k): v for k, v in self.statuses.items()}),
            "calls without an answer, repeated": self.unanswered,
            "provider faults set": self.faults,
            "ended by themselves and started again": _counted(self.died_alone) or "none",
            "starts that had to be repeated": self.false_starts,
            "actions": f"{self.actions} ({_counted(self.states)})",
            "attempts": f"{self.attempts}, of which {self.cut_off} ended without an answer",
            "actions that were UNKNOWN at some time": self.found_out,
            "asked about by a person at the end": self.asked_by_person,
            "open cases": _counted(self.open_cases) or "none",
            "refunds at the provider": self.refunds,
            "problems": "; ".join(self.problems) or "none",
        }
        lines |= {"also": "; ".join(self.incidental)} if self.incidental else {}
        return "\n".join(f"{name + ':':42}{value}" for name, value in lines.items())


def _counted(counts: dict[str, int] | Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


class Campaign:
    """One campaign in a running world. `run` makes it and says how it ended."""

    def __init__(self, world: World, *, seed: int, say: Callable[[str], None]) -> None:
        self.world = world
        self.report = Report(seed=seed)
        self.say = say
        self._proposals = random.Random(f"{seed}-proposals")
        self._faults = random.Random(f"{seed}-faults")
        self._done = threading.Event()
        self._counting = threading.Lock()
        self._kills_left = 0
        #: What was answered: action id -> amount.
        self.accepted: dict[str, int] = {}
        self._errors: list[str] = []

    def run(
        self, *, kills: int, until: float, interlude: Callable[[], str] | None = None
    ) -> Report:
        """Kill until `kills` have fired or `until` (monotonic seconds) is over; then the end.

        `interlude` happens once, half way, while everything goes on; it says what it was.
        """
        began = time.monotonic()
        with self._in_background(self._propose), self._in_background(self._disturb):
            self._kill(kills=kills, until=until, interlude=interlude)
        self._settle()
        self.report.seconds = time.monotonic() - began
        self._judge()
        return self.report

    # ---- while it goes on

    @contextmanager
    def _in_background(self, work: Callable[[], None]) -> Iterator[None]:
        def guarded() -> None:
            try:
                work()
            except Exception as error:
                # A campaign whose proposer died early would prove nothing: it is a problem.
                self._errors.append(f"{work.__name__} ended: {error!r}")

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def _kill(self, *, kills: int, until: float, interlude: Callable[[], str] | None) -> None:
        """Let everybody die at instants of their own, again and again, and tell how it goes."""
        stack, report = self.world.stack, self.report
        slots = [
            (kind, index) for kind in LIFE_SECONDS for index in range(len(stack.processes[kind]))
        ]
        self._kills_left = kills
        told = 0.0
        with ThreadPoolExecutor(len(slots)) as reapers:
            reaping = [reapers.submit(self._reap, kind, index, until) for kind, index in slots]
            while not all(future.done() for future in reaping):
                time.sleep(0.2)
                if interlude is not None and report.kills.total() * 2 >= kills:
                    report.incidental.append(interlude())
                    interlude = None
                if time.monotonic() - told > PROGRESS_SECONDS:
                    told = time.monotonic()
                    self.say(
                        f"{report.kills.total()} of {kills} kills, {len(self.accepted)} refunds "
                        f"proposed, {len(self.world.restless())} moving"
                    )
            for future in reaping:
                future.result()

    def _reap(self, kind: str, index: int, until: float) -> None:
        """SIGKILL one process's whole group at a random instant of its life, start it again, go on.

        Its life begins when it is ready: dying while being imported proves little.
        """
        instants = random.Random(f"{self.report.seed}-{kind}-{index}")
        while time.monotonic() < until:
            time.sleep(instants.uniform(0.05, LIFE_SECONDS[kind]))
            with self._counting:
                if not self._kills_left:
                    return
                if self.world.stack.processes[kind][index].alive:
                    self._kills_left -= 1
                    self.report.kills[kind] += 1
                else:
                    self.report.died_alone[kind] += 1
            self.world.stack.kill(kind, index=index)
            self._start_again(kind, index)

    def _start_again(self, kind: str, index: int) -> None:
        """As a supervisor does: also when it does not come up, which without a broker it cannot."""
        for remaining in (2, 1, 0):
            try:
                self.world.stack.restart(kind, index=index)
                return
            except ServerError:
                self.report.false_starts += 1
                if not remaining:
                    raise

    def _disturb(self) -> None:
        """A fault every second or two, and a latency that changes."""
        while not self._done.wait(self._faults.uniform(0.5, 2.5)):
            fault = self._faults.choice(FAULTS)
            try:
                self.world.provider.latency(self._faults.choice((0, 20, 100, 300)))
                self.world.provider.fault(fault, **FAULT_PARAMETERS.get(fault, {}))
            except OSError:
                continue  # the provider refuses connections for a moment, as it was told to
            self.report.faults += 1

    def _propose(self) -> None:
        """Refunds of new and known orders, the same again, and other content under the same id."""
        rng, known = self._proposals, list[tuple[str, str, int]]()
        orders: list[str] = []
        while not self._done.wait(rng.uniform(0.02, 0.25)):
            if len(self.world.restless()) > OPEN_MAX:
                continue
            way = rng.random()
            if known and way < 0.15:
                order_id, request_id, amount = rng.choice(known)
                self._answered(order_id, request_id, amount, expected=(200,))
            elif known and way < 0.25:
                order_id, request_id, amount = rng.choice(known)
                self._answered(order_id, request_id, amount + 1, expected=(409,))
            else:
                if orders and way < 0.45:
                    order_id = rng.choice(orders[-20:])
                else:
                    order_id = f"c{len(orders)}"
                    self._until_answered(partial(self._order, order_id))
                    orders.append(order_id)
                request_id, amount = f"r{len(known)}", rng.choice(AMOUNTS_MINOR)
                self._answered(order_id, request_id, amount, expected=(200, 201))
                known.append((order_id, request_id, amount))

    def _order(self, order_id: str) -> tuple[int, dict[str, Any]]:
        self.world.order(order_id=order_id, captured_minor=CAPTURED_MINOR, url=self._web())
        return 201, {}

    def _web(self) -> str:
        return self._proposals.choice(self.world.stack.urls)

    def _answered(
        self, order_id: str, request_id: str, amount: int, *, expected: tuple[int, ...]
    ) -> None:
        """Propose as a caller would: the identical request again until somebody answers it."""
        status, body = self._until_answered(
            lambda: self.world.propose(
                order_id, request_id=request_id, amount_minor=amount, url=self._web()
            )
        )
        self.report.statuses[status] += 1
        if status not in expected:
            self._errors.append(f"{order_id} {request_id}: answered {status}, not {expected}")
        elif status in (200, 201):
            if body["amount_minor"] != amount:
                self._errors.append(f"{body['action_id']}: answered with another amount")
            self.accepted[body["action_id"]] = amount

    def _until_answered(
        self, call: Callable[[], tuple[int, dict[str, Any]]]
    ) -> tuple[int, dict[str, Any]]:
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                status, body = call()
            except (OSError, ValueError) as error:  # nobody there, or half an answer
                status, body = 0, {"detail": repr(error)}
            if status not in (0, 503):
                return status, body
            self.report.unanswered += 1
            if time.monotonic() > deadline:
                raise AssertionError(f"no answer in {ANSWER_SECONDS:g} s: {body}")
            time.sleep(0.1)

    # ---- the end

    def _settle(self) -> None:
        """Faults stop; everything comes to rest; a person asks about what three tries left."""
        self.world.provider.clear_faults()
        self.world.provider.latency(0)
        self.world.rest(seconds=REST_SECONDS)
        unknown = self.world.query(
            "SELECT action_id FROM refunds_refundaction WHERE state = 'UNKNOWN' ORDER BY id"
        )
        for row in unknown:
            self.world.manage("reconcile", "--action", row["action_id"], "--by", "operator")
            self.report.asked_by_person += 1
        self.world.rest(seconds=REST_SECONDS)

    def _judge(self) -> None:
        world, report = self.world, self.report
        rows = world.query("SELECT action_id, state, amount_minor FROM refunds_refundaction")
        report.states = dict(Counter(row["state"] for row in rows))
        live = [r for r in world.provider.refunds() if r["status"] not in ("failed", "canceled")]
        report.refunds = len(live)
        (attempts,) = world.query(
            "SELECT count(*) AS made, count(*) FILTER (WHERE outcome = 'no_answer') AS cut_off "
            "FROM refunds_refundattempt"
        )
        report.attempts, report.cut_off = attempts["made"], attempts["cut_off"]
        (unknown,) = world.query(
            "SELECT count(DISTINCT action_id) AS n FROM refunds_refundevent "
            "WHERE data ->> 'to' = 'UNKNOWN'"
        )
        report.found_out = unknown["n"]
        report.open_cases = {
            row["kind"]: row["n"]
            for row in world.query(
                "SELECT kind, count(*) AS n FROM effects_case WHERE closed_at IS NULL GROUP BY kind"
            )
        }
        report.problems = [*self._errors, *world.problems(), *self._disagreements(rows)]

    def _disagreements(self, rows: list[dict[str, Any]]) -> list[str]:
        """Where the provider, the rows and what callers were told differ."""
        found = []
        succeeded = sum(row["state"] == "SUCCEEDED" for row in rows)
        unsettled = [row["action_id"] for row in rows if row["state"] == "UNKNOWN"]
        paid_unsettled = sum(bool(self.world.refunds(action_id)) for action_id in unsettled)
        if self.report.refunds != succeeded + paid_unsettled:
            found.append(f"{self.report.refunds} refunds, and {succeeded} actions SUCCEEDED")
        held = {row["action_id"]: row["amount_minor"] for row in rows}
        found += [f"{a} was answered and is not there" for a in self.accepted.keys() - held.keys()]
        found += [f"{a} is there and was not asked for" for a in held.keys() - self.accepted.keys()]
        found += [
            f"{a} was proposed over {self.accepted[a]} and holds {held[a]}"
            for a in self.accepted.keys() & held.keys()
            if self.accepted[a] != held[a]
        ]
        return found


def _broker_away(servers: Servers, *, seconds: float, say: Callable[[str], None]) -> str:
    say(f"the broker is stopped for {seconds:g} s, everything in it is lost")
    servers.valkey.stop()
    time.sleep(seconds)
    servers.valkey.restart()
    say("the broker is back, empty")
    return f"half way the broker was away for {seconds:g} s and came back empty"


def main() -> int:
    """Run one campaign on servers of its own; 0 only if nothing is wrong in the end."""
    parser = argparse.ArgumentParser(prog="make campaign")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop killing after this long")
    parser.add_argument("--broker-away-seconds", type=float, default=60.0, help="0: it stays")
    said = parser.parse_args()
    seed = secrets.randbelow(10**6) if said.seed is None else said.seed

    def say(sentence: str) -> None:
        print(f"[campaign] {time.strftime('%H:%M:%S')} {sentence}", flush=True)

    say(f"seed {seed}, {said.kills} kills; starting")
    with world_with_servers(workers=2, beat=2, web=2) as (world, servers):
        world.lift_limits()
        interlude = None
        if said.broker_away_seconds:
            interlude = partial(_broker_away, servers, seconds=said.broker_away_seconds, say=say)
        campaign = Campaign(world, seed=seed, say=say)
        until = time.monotonic() + said.minutes * 60
        try:
            report = campaign.run(kills=said.kills, until=until, interlude=interlude)
        except (AssertionError, ServerError) as error:
            print(campaign.report, file=sys.stderr)
            print(f"[campaign] seed {seed} did not come to its end: {error}", file=sys.stderr)
            return 1
    print(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
