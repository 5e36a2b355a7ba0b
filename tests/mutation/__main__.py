"""`make mutation`: change the code in every small way, and see that some test fails each time.

Which files are changed and which tests run stands in pyproject.toml under [tool.mutmut]. It works
on a copy in .data/mutation, so the checkout stays as it is and nothing of an earlier run is
believed. Exit 1: a change that no test noticed and nothing explains; each is shown, to be noticed
by a test, or made impossible by simpler code, or explained below.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
COPY = HOUSE / ".data" / "mutation"
# It takes a minute on two idle cores, and took ten where others kept them busy.
SECONDS_MAX = 1800
# Changes that change nothing, by the line that they make, with the reason.
EXPLAINED = {
    'request = other.action_id.partition(":request-")[2]': "an id of the merchant holds no colon, "
    "so there is one `:request-` to part at, from whichever end (kernel.identity)",
}
# Hypothesis then draws the same examples each time, and judges no example by how long it took.
SAME_EACH_TIME = {"CI": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def mutmut(*arguments: str, seconds_max: float = 60, quiet: bool = True) -> str:
    """Run mutmut in the copy and return what it wrote. Raises CalledProcessError when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments],
        cwd=COPY,
        env=os.environ | SAME_EACH_TIME,
        stdout=subprocess.PIPE if quiet else None,
        text=True,
        timeout=seconds_max,
        check=True,
    )
    return done.stdout or ""


def copy_checkout() -> None:
    """The mutated rooms with the tests, anew."""
    settings = tomllib.loads((HOUSE / "pyproject.toml").read_text())["tool"]["mutmut"]
    shutil.rmtree(COPY, ignore_errors=True)
    COPY.mkdir(parents=True)
    shutil.copy(HOUSE / "pyproject.toml", COPY)
    for room in (*settings["source_paths"], "tests"):
        shutil.copytree(HOUSE / room, COPY / room, ignore=shutil.ignore_patterns("__pycache__"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds-max", type=float, default=SECONDS_MAX)
    parser.add_argument("names", nargs="*", help="only these changes, like 'refunds.binding.*'")
    chosen = parser.parse_args()
    copy_checkout()
    mutmut(
        "run",
        f"--max-children={chosen.processes}",
        *chosen.names,
        seconds_max=chosen.seconds_max,
        quiet=False,
    )
    mutmut("export-cicd-stats")
    counts = json.loads((COPY / "mutants" / "mutmut-cicd-stats.json").read_text())
    # Beside what was not asked for, this lists what was not noticed, and whatever else went wrong.
    listed = [line.strip().split(": ") for line in mutmut("results").splitlines() if ": " in line]
    left = 0
    for name, status in listed:
        if status == "not checked":
            continue
        change = mutmut("show", name)
        lines = {line[1:].strip() for line in change.splitlines() if line.startswith("+")}
        why = [reason for line, reason in EXPLAINED.items() if line in lines]
        print(change, *(f"Explained: {reason}.\n" for reason in why), sep="\n")
        left += not why
    print(f"{counts['killed']} of {counts['total']} changes were noticed; {left} are left.")
    return 1 if left or not counts["killed"] else 0


if __name__ == "__main__":
    sys.exit(main())
