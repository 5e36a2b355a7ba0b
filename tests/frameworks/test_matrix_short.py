"""Eight agent frameworks lose answers and do not pay twice: `make frameworks`, the short one."""

from __future__ import annotations

import pytest

from tests.acceptance.world import running_world
from tests.frameworks.matrix import (
    BAD_GATEWAY,
    DROP,
    DUPLICATE,
    FRAMEWORKS,
    OK,
    Matrix,
    Side,
    check_installed,
    running_control,
)

pytestmark = pytest.mark.timeout(600)

#: Each costs a second process of its framework.
KILLED = ("openai-agents-py", "vercel-ai-js", "mcp-sdk-js")


def test_eight_frameworks_that_lose_answers_pay_once_and_the_control_pays_twice() -> None:
    check_installed()
    with (
        running_world(workers=2) as world,
        running_control(world.stack.sandbox_url, folder=world.stack.folder) as control_url,
    ):
        world.lift_limits()
        matrix = Matrix(world, control_url=control_url, say=print)
        report = matrix.run(faults=(OK, DROP, BAD_GATEWAY, DUPLICATE), killed=KILLED)
    for side in Side:
        print(f"{side}\n{report.table(side)}")
    print(f"{report.seconds:.0f} s, {report.kills_fired} of {report.kills_armed} workers killed")
    assert report.problems() == []
    assert len(report.of(Side.CONTRACT)) == 4 * len(FRAMEWORKS) + len(KILLED)
    assert report.kills_fired > 0
