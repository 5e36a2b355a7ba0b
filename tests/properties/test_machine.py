"""The machine of `tests.properties.machine`, at least 2,000 steps of it."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from providers.sandbox import Sandbox
from tests.properties.machine import FIRED, Machine, no_broker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

# 50 x 50 steps in CI; a long campaign asks for more.
EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "50"))
STEPS_PER_EXAMPLE = 50
# A copy with a planted bug need only be caught, not explained by the shortest example.
PHASES = tuple(Phase) if "MACHINE_QUICK" not in os.environ else (Phase.generate,)


def test_no_order_of_events_pays_twice_loses_or_hides_a_refund(sandbox: Sandbox) -> None:
    FIRED.clear()
    Machine.sandbox = sandbox
    Machine.skew_seconds = 0.0
    with no_broker():
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            Machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS_PER_EXAMPLE,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
                database=None,
                # A copy with a planted bug need only be caught, not explained.
                **(
                    {"phases": settings.default.phases[:3]} if "MACHINE_QUICK" in os.environ else {}
                ),
            ),
        )
    print("\n".join(f"{count:6} {what}" for what, count in sorted(FIRED.items())))
    never = [rule for rule in ("propose", "deliver", "beat", "time", "withdraw") if not FIRED[rule]]
    assert not never, f"these never happened: {never}"
