"""CPU time by group of processes, read from /proc. Linux only.

Seconds on the wall move with whatever else the machine does; CPU milliseconds per refund hardly do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _processes() -> dict[int, tuple[int, int]]:
    """Parent and CPU ticks of every process by pid, the ticks of its reaped children included."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        found[int(entry.name)] = (int(fields[1]), sum(int(ticks) for ticks in fields[11:15]))
    return found


def _group_of_each(
    groups: Mapping[str, Sequence[int]], processes: Mapping[int, tuple[int, int]]
) -> dict[int, str]:
    """The group of each process that has one: that of the nearest ancestor that was named."""
    named = {pid: name for name, pids in groups.items() for pid in pids}
    found = {}
    for pid, (parent, _) in processes.items():
        at, above = pid, parent
        while at not in named and above in processes:
            at, above = above, processes[above][0]
        if at in named:
            found[pid] = named[at]
    return found


def cpu_seconds_by_group(groups: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """CPU seconds used so far by each group: the processes named and all their descendants."""
    processes = _processes()
    used = dict.fromkeys(groups, 0)
    for pid, name in _group_of_each(groups, processes).items():
        used[name] += processes[pid][1]
    return {name: ticks / TICKS_PER_SECOND for name, ticks in used.items()}


def memory_mb(pids: Sequence[int]) -> float:
    """Memory of these processes and their descendants in MB, shared pages divided (PSS)."""
    kilobytes = 0
    for pid in _group_of_each({"": pids}, _processes()):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it ended meanwhile
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


def machine_seconds() -> tuple[float, float]:
    """CPU seconds the whole machine was busy, and all it had."""
    with open("/proc/stat") as stat:
        ticks = [int(number) for number in stat.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / TICKS_PER_SECOND, sum(ticks) / TICKS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """All counters at one moment."""

    wall: float
    busy: float
    there_was: float
    cpu: dict[str, float]


@dataclass(slots=True)
class Meter:
    """Measures what runs inside its `with` block.

    `cpu_seconds` by group, `wall_seconds`, and `foreign_share`: the part of the machine's CPU that
    was used by processes of nobody's group. The bench itself is the group `client`.
    """

    groups: Mapping[str, Sequence[int]]
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0
    foreign_share: float = 0.0
    _before: _Reading | None = None

    def _now(self) -> _Reading:
        busy, there_was = machine_seconds()
        cpu = cpu_seconds_by_group(self.groups)
        # Its own time only: a reaped child of the bench belongs to a group or to nobody.
        cpu["client"] = time.process_time()
        return _Reading(wall=time.monotonic(), busy=busy, there_was=there_was, cpu=cpu)

    def __enter__(self) -> Self:
        self._before = self._now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        before, after = self._before, self._now()
        if before is None:
            return
        self.wall_seconds = after.wall - before.wall
        self.cpu_seconds = {name: after.cpu[name] - before.cpu[name] for name in after.cpu}
        foreign = after.busy - before.busy - sum(self.cpu_seconds.values())
        self.foreign_share = max(0.0, foreign / max(after.there_was - before.there_was, 0.01))
