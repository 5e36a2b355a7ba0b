"""The campaign of kills, a short one: what `make campaign` does 500 times, done 25 times."""

from __future__ import annotations

import time

import pytest

from tests.acceptance.campaign import Campaign
from tests.acceptance.world import running_world

pytestmark = pytest.mark.timeout(600)

KILLS = 25


def test_processes_killed_at_random_instants_lose_and_double_nothing() -> None:
    with running_world(workers=2, beat=2, web=2) as world:
        world.lift_limits()
        campaign = Campaign(world, seed=20_260_115, say=print)
        report = campaign.run(kills=KILLS, until=time.monotonic() + 300)
        print(report)
        assert report.problems == []
        assert report.kills.total() == KILLS
        assert report.refunds > 0
