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
from effects.states import State
from providers.sandbox import Sandbox
from tests import builders
from tests.properties.machine import FAULTS, FIRED, Machine, no_broker, work_goes_on
from tests.properties.stopped_clock import stopped_clock

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(3_600)]

EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "64"))
STEPS_PER_EXAMPLE = 50
STEPS_MIN = 2_000
QUICK = "MACHINE_QUICK" in os.environ
# Each try at a shorter story plays a whole example; whoever waits for CI wants the story soon.
SHRINKING_SECONDS = 60

# Beginnings of what is counted. In CI each must have happened, whatever the seed: so only what
# happens dozens of times in a run. What is rarer is demanded of a campaign.
MUST_HAPPEN = (
    *("crash ", "fault ", "woke ", "keys forgotten", "refund elsewhere", "seen PENDING"),
    *("deliver: succeeded", "deliver: unknown", "decide: Approved", "check now: "),
)
# A campaign must have been everywhere.
CAMPAIGN_EXAMPLES = 200
MUST_HAPPEN_IN_A_CAMPAIGN = (
    *(f"crash {point}" for point in crashpoints.CRASH_POINTS),
    *(f"fault {fault}" for fault in FAULTS),
    *(f"seen {state}" for state in State),
    *("switch on", "beat beside a held row", "recorded late"),
    *("meanwhile at before-bytes-leave", "meanwhile at after-round-read"),
    *("woke and sent: NotSent", "woke and sent: Succeeded", "recorded late, was UNKNOWN"),
    *("check now: found", "check now: not_executed", "check now: failed"),
    *("failed late, was pending", "failed late, was succeeded"),
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
    must = MUST_HAPPEN_IN_A_CAMPAIGN if EXAMPLES >= CAMPAIGN_EXAMPLES else MUST_HAPPEN
    if EXAMPLES * STEPS_PER_EXAMPLE >= STEPS_MIN:
        assert FIRED["steps"] >= STEPS_MIN
        never = [name for name in must if not any(fired.startswith(name) for fired in +FIRED)]
        assert not never, f"these never happened: {never}"
