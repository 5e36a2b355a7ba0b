"""Schemathesis against a running product, by time: `python -m tests.agents.fuzz --minutes 10`.

`make fuzz MINUTES=10`. It reads the OpenAPI document as a stranger would, makes up calls and
sequences of calls that fit it and that do not, and checks every answer against what the document
says. Half of the time it calls with an agent's key, half with a session's token. A worker sends
what gets allowed meanwhile, and at the end the provider's ledger must hold no refund twice.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from config.development import CHECKOUT
from tests.acceptance.world import World, world_with_servers
from tests.agents.fuzz_hooks import EXAMPLE_ORDER_ID, ONLY_THIS_REQUEST, ORDER_ID, REQUEST_ID
from tests.stack import last_words

# Of all of schemathesis's checks, the one that does not fit: it expects a request of the right form
# to be accepted, and ours may name an order that is not there, or contradict another one.
NOT_CHECKED = "positive_data_acceptance"


def credentials(world: World) -> dict[str, str]:
    """Both kinds, the session for a request that was proposed; and the order of the examples."""
    world.order(order_id=EXAMPLE_ORDER_ID)
    world.order(order_id=ORDER_ID)
    world.propose(ORDER_ID, request_id=REQUEST_ID, amount_minor=100)
    status, session = world.call(
        "POST",
        "/api/v1/sessions",
        {"order_id": ORDER_ID, "request_id": REQUEST_ID, "expires_in_seconds": 86_400},
    )
    if status != 201:
        raise AssertionError(session)
    return {"an agent's key": world.key, "a session's token": session["token"]}


def fuzz(world: World, *, who: str, token: str, seconds: int, folder: Path) -> int:
    """One run of `schemathesis run`; its exit status. Failures do not end it before its time."""
    print(f"==== with {who}, for {seconds} s", flush=True)
    return subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run"),
            f"{world.stack.url}/api/v1/openapi.json",
            *("--header", f"Authorization: Bearer {token}", "--workers", "1"),
            *("--max-time", str(seconds), "--continue-on-failure", "--max-failures", "50"),
            *("--checks", "all", "--exclude-checks", NOT_CHECKED),
            *("--report", "ndjson", "--report-dir", str(folder / who.split()[1].strip("'s"))),
            "--generation-database=none",
            "--no-color",
        ],
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": str(CHECKOUT),
            "SCHEMATHESIS_HOOKS": "tests.agents.fuzz_hooks",
            ONLY_THIS_REQUEST: "1" if "session" in who else "",
        },
        check=False,
    ).returncode


def answered(lines: list[str]) -> dict[str, Counter[int]]:
    """How often each call was answered with each status, from the log of the web process."""
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for line in lines:
        if '"request_finished"' in line:
            told = json.loads(line)
            path = re.sub(
                r"(orders|sessions|refunds)/(?!current$|withdraw$)[^/]+", r"\1/…", told["request"]
            )
            found[path if "/api/v1/" in path else "other"][told["code"]] += 1
    return {call: statuses for call, statuses in found.items() if statuses.total() >= 20}


def main(arguments: list[str] | None = None) -> int:
    """Run it; 0 when there was no finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.agents.fuzz")
    parser.add_argument("--minutes", type=float, default=10)
    minutes: float = parser.parse_args(arguments).minutes
    env = {
        "AGENT_REQUESTS_PER_MINUTE": "1000000",
        "SESSION_REQUESTS_PER_MINUTE": "1000000",
        "WEB_WORKERS": "2",
    }
    with tempfile.TemporaryDirectory() as folder, world_with_servers(env=env) as (world, _):
        world.lift_limits()
        found = {
            who: fuzz(world, who=who, token=token, seconds=int(minutes * 30), folder=Path(folder))
            for who, token in credentials(world).items()
        }
        world.rest()
        problems = world.problems()
        lines = [
            line
            for log in world.stack.folder.glob("web*.log")
            for line in log.read_text(errors="replace").splitlines()
        ]
        mistakes = sum("A request ended in a mistake." in line for line in lines)
        if problems or mistakes or any(found.values()):
            print(last_words(world.stack))
    for call, statuses in sorted(answered(lines).items()):
        print(f"{call}: {dict(sorted(statuses.items()))}")
    print(f"exit statuses of schemathesis: {found}")
    print(f"mistakes in the log: {mistakes}")
    print(f"what the ledger contradicts: {problems or 'nothing'}")
    return 1 if problems or mistakes or any(found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
