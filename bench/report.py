"""The tables a run ends with. Rates are ratios to plain SQL in the same run; CPU is per refund."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from bench.measured import Median, Run, medians

GROUPS = ("web", "worker", "beat", "sandbox", "postgres", "broker")


def machine_line(runs: Sequence[Run]) -> str:
    """Where it was measured, and how much of the machine others used."""
    shares = [run.foreign_share for run in runs]
    return (
        f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
        f"fsync on. Other programs used {min(shares):.0%} to {max(shares):.0%} of the machine "
        "during the runs."
    )


def product_table(runs: Sequence[Run], *, commits: int) -> str:
    """The product beside pgbench."""
    by_label = medians(runs)
    floors = [median for label, median in by_label.items() if label.startswith("plain SQL")]
    head = [
        *("load", "runs", "refunds/s", "slowest-fastest"),
        *(f"÷ {floor.label}" for floor in floors),
        *("p50 ms", "p99 ms"),
    ]
    rows = [
        [
            *(m.label, str(m.runs), f"{m.per_second:.1f}", _spread(m)),
            *(f"{m.per_second / floor.per_second:.3f}" for floor in floors),
            *(_whole(m.p50_ms), _whole(m.p99_ms)),
        ]
        for m in by_label.values()
    ]
    return (
        f"\nRefunds per second, medians. Plain SQL: the product's own statements and its {commits} "
        "commits, by pgbench.\n" + _table(head, rows) + _cpu(list(by_label.values()))
    )


def pools_table(runs: Sequence[Run]) -> str:
    """The worker pools on the same backlog, against the first of them."""
    by_label = medians(runs)
    first = {
        latency: next(m for label, m in by_label.items() if label.endswith(f", {latency}"))
        for latency in dict.fromkeys(label.rpartition(", ")[2] for label in by_label)
    }
    head = [
        "pool, provider",
        "runs",
        "refunds/s",
        "slowest-fastest",
        "÷ first",
        "worker CPU ms",
        "worker MB",
    ]
    rows = [
        [
            *(m.label, str(m.runs), f"{m.per_second:.1f}", _spread(m)),
            f"{m.per_second / first[label.rpartition(', ')[2]].per_second:.2f}",
            f"{m.cpu_ms_each['worker']:.1f}",
            _whole(m.worker_memory_mb),
        ]
        for label, m in by_label.items()
    ]
    return "\nWorker pools: a backlog worked off, medians.\n" + _table(head, rows)


def _cpu(rows: Sequence[Median]) -> str:
    cores = os.cpu_count() or 1
    head = ["CPU ms per refund", *GROUPS, "all", f"{cores} cores could do"]
    body = [
        [
            m.label,
            *(f"{m.cpu_ms_each[group]:.1f}" if group in m.cpu_ms_each else "" for group in GROUPS),
            f"{m.cpu_ms_total:.1f}",
            f"{1000 * cores / m.cpu_ms_total:.0f}/s" if m.cpu_ms_total else "",
        ]
        for m in rows
    ]
    return "\n" + _table(head, body)


def _spread(median: Median) -> str:
    slowest, fastest = median.spread
    return f"{slowest:.1f}-{fastest:.1f}"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that also reads well in a terminal."""
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *others = cells
        padded = [first.ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        return f"| {' | '.join(padded)} |\n"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|\n"
    return line(head) + rule + "".join(line(row) for row in rows)
