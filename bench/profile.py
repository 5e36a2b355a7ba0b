"""Where the time of a refund goes: a sampling profile of a worker that works off a backlog."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.measured import BenchError
from bench.world import World, running_world
from config.development import CHECKOUT

#: Written by `bench/profiled_worker.py`: a list of `[[frame, …], seconds]`, outermost frame first.
OUT_ENV = "BENCH_PROFILE_OUT"

# A sample belongs to the first stage one of whose frames it holds: (file, function), by what the
# file's path ends with.
STAGES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("connect to Postgres", (("django/db/backends/base/base.py", "connect"),)),
    ("claim", (("effects/claim.py", "claim"),)),
    ("look at the provider", (("refunds/kind.py", "look"),)),
    ("judge what was seen", (("refunds/kind.py", "judge"),)),
    ("the fence", (("effects/send.py", "fence"),)),
    ("send", (("refunds/kind.py", "send"),)),
    ("record", (("effects/record.py", "record"),)),
    ("close the connection", (("celery/fixups/django.py", "close_database"),)),
    ("logs", (("logging/__init__.py", "_log"),)),
)
#: What is below takes next to nothing.
LINES_MAX = 12
TASK = ("celery/app/trace.py", "trace_task")
SWEEPS = ("reconciliation/sweep.py", "refunds/dispatch_due.py")
# Innermost first: the library in whose name the time passes.
LIBRARIES = (
    *("psycopg_binary", "psycopg", "django_fsm", "django", "stripe", "requests", "urllib3"),
    *("kombu", "celery", "redis", "structlog", "django_structlog", "billiard", "vine"),
)


def profile_of_a_refund(*, count: int, say: Callable[[str], None]) -> None:
    """Print milliseconds per refund by stage and by library, of one worker alone (pool solo)."""
    if importlib.util.find_spec("pyinstrument") is None:
        raise BenchError(
            "pyinstrument is not installed, so nothing was profiled. Run: .venv/bin/pip install "
            "--require-hashes -r bench/requirements.txt"
        )
    with running_world(say=say) as world:
        out = Path(world.stack.folder) / "profile.json"
        world.start()
        _use_profiled_worker(world, out)
        run = world.drain(count=count, label="drain, profiled")
        say(f"{run.per_second:.1f} refunds/s under the profiler; {run.count} refunds")
        (worker,) = world.stack.processes["worker"]
        worker.stop(timeout_seconds=30)
        if not out.exists():
            raise BenchError(f"the profiled worker left no profile:\n{worker.last_words()}")
        samples = [(frames, seconds) for frames, seconds in json.loads(out.read_text())]
    print(_told(samples, count=count))


def _use_profiled_worker(world: World, out: Path) -> None:
    (worker,) = world.stack.processes["worker"]
    worker.stop(timeout_seconds=10)
    worker.command = [sys.executable, "-m", "bench.profiled_worker"]
    worker.env |= {OUT_ENV: str(out), "PYTHONPATH": str(CHECKOUT)}
    world.stack.restart("worker")


def _stage(frames: Sequence[str]) -> str:
    for stage, marks in STAGES:
        for frame in frames:
            path, function = frame.split("\x00")[:2]
            if any(path.endswith(file) and function == name for file, name in marks):
                return stage
    return "the task's frame (Celery, logs)"


def _library(frames: Sequence[str]) -> str:
    for frame in reversed(frames):
        path = frame.split("\x00")[0]
        if path.startswith(str(CHECKOUT)) and "site-packages" not in path:
            return "our code"
        for library in LIBRARIES:
            if f"/site-packages/{library}/" in path:
                return library
    return "Python"


def _own_function(frames: Sequence[str]) -> str:
    """The innermost function of ours: what asked a library for what it does."""
    for frame in reversed(frames):
        path, function = frame.split("\x00")[:2]
        if path.startswith(f"{CHECKOUT}/") and "site-packages" not in path:
            return f"{path.removeprefix(f'{CHECKOUT}/')} {function}"
    return "Celery around the task"


def _told(samples: Sequence[tuple[list[str], float]], *, count: int) -> str:
    by_stage: dict[str, float] = {}
    by_library: dict[str, float] = {}
    by_function: dict[str, float] = {}
    for frames, seconds in samples:
        marks = {tuple(frame.split("\x00")[:2]) for frame in frames}
        if not any(path.endswith(TASK[0]) and function == TASK[1] for path, function in marks):
            continue  # waiting for messages, and Celery's own boot
        if any(path.endswith(SWEEPS) for path, _ in marks):
            continue  # not a refund's; and one may have stood still while the backlog was made
        for counted, name in (
            (by_stage, _stage(frames)),
            (by_library, _library(frames)),
            (by_function, _own_function(frames)),
        ):
            counted[name] = counted.get(name, 0.0) + seconds
    total = sum(by_stage.values()) or 1.0

    def lines(title: str, counted: dict[str, float]) -> list[str]:
        return [
            f"\n{title:<40}  ms/refund  share",
            *(
                f"{name:<40}  {1000 * seconds / count:9.2f}  {seconds / total:5.1%}"
                for name, seconds in sorted(counted.items(), key=lambda each: -each[1])[:LINES_MAX]
            ),
        ]

    return "\n".join(
        [
            f"\nWall time inside tasks: {1000 * total / count:.1f} ms per refund, waiting included "
            f"(cores: {os.cpu_count()}).",
            *lines("stage", by_stage),
            *lines("library the time passes in", by_library),
            *lines("function of ours that asked for it", by_function),
        ]
    )
