"""The machine of `tests.properties.machine`, at least 2,000 steps of it.

- `MACHINE_EXAMPLES`: how many examples of 50 steps; a long campaign asks for more.
- `MACHINE_SEED`: the number printed by a run that is to be repeated.
- `MACHINE_QUICK`: stop at the first failure without looking for a shorter story.
"""

from __future__ import annotations

import os
import random
from unittest.mock import patch

import pytest
from django.contrib.auth.models import Permission, User
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from effects import crashpoints
from providers.sandbox import Sandbox
from tests import builders
from tests.properties.machine import FIRED, Machine, no_broker, work_goes_on
from tests.properties.stopped_clock import stopped_clock

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(3_600)]

EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "60"))
STEPS_PER_EXAMPLE = 50
STEPS_MIN = 2_000
QUICK = "MACHINE_QUICK" in os.environ
# Each try at a shorter story plays a whole example; whoever waits for CI wants the story soon.
SHRINKING_SECONDS = 60

MUST_HAPPEN = (
    *(f"crash {point}" for point in crashpoints.CRASH_POINTS),
    "check now: found",
    "decide: Approved",
    "deliver: succeeded",
    "deliver: unknown",
    "keys forgotten",
    "recorded late, was UNKNOWN",
    "refund elsewhere",
    "seen PENDING",
    "switch on",
    "meanwhile at before-bytes-leave",
    "meanwhile at after-round-read",
    "beat beside a held row",
    "woke and sent: NotSent",
    "woke and sent: Succeeded",
)


def test_no_order_of_events_pays_twice_loses_or_hides_a_refund(sandbox: Sandbox) -> None:
    FIRED.clear()
    Machine.sandbox = sandbox
    Machine.person = builders.person("machine")
    Machine.person.user_permissions.add(Permission.objects.get(codename="settle_case"))
    Machine.person = User.objects.get(pk=Machine.person.pk)
    number = int(os.environ.get("MACHINE_SEED", random.getrandbits(32)))
    print(f"MACHINE_SEED={number}")
    try:
        with (
            stopped_clock(sandbox) as Machine.clock,
            no_broker(),
            work_goes_on(),
            patch("hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS", SHRINKING_SECONDS),
        ):
            run_state_machine_as_test(
                seed(number)(Machine),
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=STEPS_PER_EXAMPLE,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                    phases=(Phase.generate,) if QUICK else (Phase.generate, Phase.shrink),
                    report_multiple_bugs=False,
                    print_blob=False,
                    database=None,
                ),
            )
    finally:
        print("\n".join(f"{count:7} {what}" for what, count in sorted(FIRED.items())))
    if EXAMPLES * STEPS_PER_EXAMPLE >= STEPS_MIN:
        assert FIRED["steps"] >= STEPS_MIN
        never = [what for what in MUST_HAPPEN if not FIRED[what]]
        assert not never, f"these never happened: {never}"
