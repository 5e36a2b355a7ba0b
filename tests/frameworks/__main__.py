"""`make frameworks`: the whole matrix, and docs/frameworks.md from what came of it."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time

from config.development import CHECKOUT
from tests.acceptance.world import world_with_servers
from tests.frameworks.faulty_proxy import Spoil
from tests.frameworks.matrix import (
    FAULTS,
    FRAMEWORKS,
    KILL,
    Framework,
    Matrix,
    NotInstalled,
    Report,
    Run,
    Side,
    check_installed,
    running_control,
)

PAGE = CHECKOUT / "docs" / "frameworks.md"

TEXT = """\
# Eight agent frameworks under eleven faults

Written by `make frameworks`, which runs the [examples](../examples/README.md), the frameworks' own
loops, with a scripted model: against Refund Once, and against a control. What is counted is the
provider's ledger.

{counts}

## What was run

{what}

| framework | package | version |
| --- | --- | --- |
{versions}
The model is a program. It proves what the frameworks do with a refund tool, not what a real model
would choose: asked for a refund it proposes it, and an answer that reads like a failure makes it
propose again in other words, three times at most. A run that ends with an exception is
delivered again, as a job queue does, three times at most.

| fault | what happens |
| --- | --- |
{faults}
A fault comes after the tool has done its work: the request is delivered, the server commits and
answers, and only then does the answer go wrong.

## Refund Once

The tools of `/mcp` under a session's token, on a running stack with the provider's sandbox. Each
cell: times the money moved / times the server saw the tool called.

{contract}
## The control

The same four tools, written as such tools usually are: it refunds at once, without an idempotency
key. The same frameworks, the same faults, the same model. It is here to show that the faults bite:
if it does not pay twice under each of them, the run fails.

{control}
## What the frameworks did by themselves

{replays}
"""


def main() -> int:
    """Run it; 0 only if nothing is wrong, and then the page is written."""
    parser = argparse.ArgumentParser(prog="make frameworks")
    parser.add_argument("--only", default="", help="frameworks whose label has this in it")
    parser.add_argument("--at-once", type=int, default=2, help="frameworks at the same time")
    said = parser.parse_args()
    try:
        check_installed()
    except NotInstalled as missing:
        sys.exit(str(missing))
    frameworks = [framework for framework in FRAMEWORKS if said.only in framework.label]

    def say(sentence: str) -> None:
        print(f"[frameworks] {time.strftime('%H:%M:%S')} {sentence}", flush=True)

    say("starting the product, the sandbox and the control")
    with (
        world_with_servers(workers=2) as (world, _),
        running_control(world.stack.sandbox_url, folder=world.stack.folder) as control_url,
    ):
        world.lift_limits()
        report = Matrix(world, control_url=control_url, say=say).run(
            faults=[fault for fault in FAULTS if fault is not KILL],
            killed=[framework.label for framework in frameworks],
            frameworks=frameworks,
            at_once=said.at_once,
        )
    for side in Side:
        print(f"\n{side}: times the money moved / times the server saw the tool called\n")
        print(report.table(side))
    print(counts_of(report))
    problems = report.problems()
    for problem in problems:
        print(f"[frameworks] {problem}", file=sys.stderr)
    if len(frameworks) == len(FRAMEWORKS) and not problems:
        PAGE.write_text(page_of(report))
        say(f"wrote {PAGE.relative_to(CHECKOUT)}")
    return 1 if problems else 0


def page_of(report: Report) -> str:
    """docs/frameworks.md."""
    return TEXT.format(
        counts=counts_of(report),
        what=what_was_run(report),
        versions="".join(
            f"| {framework.name} | `{framework.package}` | {version_of(framework)} |\n"
            for framework in FRAMEWORKS
        ),
        faults="".join(f"| {fault.name} | {fault.means} |\n" for fault in FAULTS),
        contract=report.table(Side.CONTRACT),
        control=report.table(Side.CONTROL),
        replays=replays_of(report),
    )


def counts_of(report: Report) -> str:
    """How often money moved, in two sentences, and the workers that died."""
    contract, control = report.of(Side.CONTRACT), report.of(Side.CONTROL)
    return (
        f"- Refund Once: {len(contract)} runs, the money moved once in "
        f"{sum(run.moved == 1 for run in contract)} and more than once in "
        f"{sum(run.moved > 1 for run in contract)}; the tool was called "
        f"{sum(run.calls for run in contract)} times. {report.kills_fired} of our workers were "
        f"killed on the way.\n"
        f"- The control: {len(control)} runs, the money moved more than once in "
        f"{sum(run.moved > 1 for run in control)}."
    )


def what_was_run(report: Report) -> str:
    """When, how long, on what."""
    return (
        f"{time.strftime('%Y-%m-%d')}, {len(report.runs)} runs in {report.seconds:.0f} s on "
        f"{os.cpu_count()} cores, on a stack of one web process, two workers and a beat with "
        "timeouts of seconds.\n\nIn every fifth run against Refund Once a worker was to die by "
        "SIGKILL, its pool with it, at one of the places where a refund can be cut in two: "
        f"{report.kills_armed} were armed, {report.kills_fired} fired."
    )


def replays_of(report: Report) -> str:
    """Where the server saw more calls than the model asked for, its job or a person repeated."""
    found = [
        f"- {run.framework.name} under `{run.fault.name}`, {run.side}: calls of the model "
        f"{run.asked}, calls that the server saw {run.calls}."
        for run in report.runs
        if by_itself(run)
    ]
    died = [
        f"- {run.framework.name} under `{run.fault.name}`, {run.side}: the run ended with "
        f"`{run.errors[0].partition(':')[0]}`, and its job was delivered again."
        for run in report.runs
        if run.died and run.fault.approval is None
    ]
    return "\n".join(found + died) or "Nothing: every call was the model's."


def by_itself(run: Run) -> bool:
    """Whether the framework called the tool when nobody had asked it to."""
    return (
        run.calls > run.asked
        and run.fault.approval is None
        and run.fault.spoil is not Spoil.DUPLICATE
    )


def version_of(framework: Framework) -> str:
    """The version that is locked."""
    if framework.language == "js":
        lock = json.loads((CHECKOUT / "examples/js/package-lock.json").read_text())
        return str(lock["packages"][f"node_modules/{framework.package}"]["version"])
    name = "langchain" if framework.example == "langgraph" else "agents"
    lock_text = (CHECKOUT / f"examples/python/requirements-{name}.txt").read_text()
    found = re.search(rf"^{re.escape(framework.package)}==(\S+)", lock_text, re.MULTILINE)
    return found[1] if found else "?"


if __name__ == "__main__":
    sys.exit(main())
