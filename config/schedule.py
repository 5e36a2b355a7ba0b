"""What beat sends, and how often. Static, in code: a schedule that moves money is reviewed, not
edited.

Each entry only wakes a sweep; what is due stands in rows. A beat that is late, doubled or dead
changes when something happens, never whether or how often.
"""

from __future__ import annotations

from typing import Any

from config.environment import Environment


def beat_schedule(environment: Environment) -> dict[str, dict[str, Any]]:
    """Celery's `beat_schedule`. A sweep that waits longer than its interval is dropped."""
    sweeps = {
        "refunds.dispatch_due": environment.dispatch_sweep_seconds,
        "reconciliation.sweep": environment.reconcile_sweep_seconds,
        "reconciliation.compare_orders": environment.reconcile_sweep_seconds,
    }
    return {
        name: {"task": name, "schedule": seconds, "options": {"expires": max(seconds, 1.0)}}
        for name, seconds in sweeps.items()
    }
