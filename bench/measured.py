"""What one measurement says, and the medians of several."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


class BenchError(Exception):
    """What was measured did not do what it must: there is no result. The text says what differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One load, once. CPU seconds are of the measured span, by group of processes."""

    label: str
    count: int
    seconds: float
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    foreign_share: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    worker_memory_mb: float | None = None

    @property
    def per_second(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_ms_each(self) -> dict[str, float]:
        """CPU milliseconds of one refund by group."""
        return {name: 1000 * used / self.count for name, used in self.cpu_seconds.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Median:
    """The middle of several runs of one label. `spread`: slowest to fastest, refunds per second."""

    label: str
    runs: int
    per_second: float
    spread: tuple[float, float]
    p50_ms: float | None
    p99_ms: float | None
    worker_memory_mb: float | None
    cpu_ms_each: dict[str, float]
    foreign_share: float

    @property
    def cpu_ms_total(self) -> float:
        """Without the load's own maker."""
        return sum(ms for group, ms in self.cpu_ms_each.items() if group != "client")


def latencies_ms(seconds: Sequence[float]) -> dict[str, float]:
    """The 50th and 99th percentile (nearest rank), in milliseconds."""
    ranked = sorted(seconds)
    return {
        f"p{percent}_ms": 1000 * ranked[math.ceil(len(ranked) * percent / 100) - 1]
        for percent in (50, 99)
    }


def medians(runs: Sequence[Run]) -> dict[str, Median]:
    """By label, in the order of first appearance."""
    by_label: dict[str, list[Run]] = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)
    return {label: _median(label, same) for label, same in by_label.items()}


def _median(label: str, runs: Sequence[Run]) -> Median:
    def middle(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    rates = [run.per_second for run in runs]
    groups = list(runs[0].cpu_seconds)
    return Median(
        label=label,
        runs=len(runs),
        per_second=statistics.median(rates),
        spread=(min(rates), max(rates)),
        p50_ms=middle([run.p50_ms for run in runs]),
        p99_ms=middle([run.p99_ms for run in runs]),
        worker_memory_mb=middle([run.worker_memory_mb for run in runs]),
        cpu_ms_each={
            group: statistics.median([run.cpu_ms_each[group] for run in runs]) for group in groups
        },
        foreign_share=statistics.median([run.foreign_share for run in runs]),
    )
