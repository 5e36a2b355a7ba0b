"""The curl lines of docs/api.md and docs/integrate.md, as they stand, against a running stack."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from typing import Any

import pytest

from config.development import CHECKOUT
from config.stack import Stack
from tests.stack import MakeStack

SETTLED_SECONDS = 30


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
SHELL = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Shell:
    """A reader who copies the lines of a page beside a running stack."""

    def __init__(self, stack: Stack) -> None:
        said = stack.manage("agent_key", "create", "shop")
        key = re.search(r"ro_live_\w+", said)
        assert key is not None, said
        self.env = {"API": stack.url, "SANDBOX": stack.sandbox_url, "KEY": key.group(0)}

    def run(self, commands: str) -> list[Any]:
        """Every answer that these lines print, one JSON value after the other."""
        done = subprocess.run(
            ["sh", "-euc", commands],
            env=os.environ | self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answers, text = [], done.stdout.strip()
        while text:
            answer, end = json.JSONDecoder().raw_decode(text)
            answers.append(answer)
            text = text[end:].strip()
        return answers


def blocks(page: str) -> list[str]:
    """What a page gives to be typed."""
    found: list[str] = SHELL.findall((CHECKOUT / page).read_text())
    return found


@needs_curl
def test_the_examples_of_the_documentation_work(make_stack: MakeStack) -> None:
    run = Shell(make_stack()).run
    order, refund, withdrawal, session = blocks("docs/api.md")
    assert run(order)[1]["refundable_minor"] == 30_000
    assert run(refund)[0]["action_id"] == "refund:order-5000:request-1"
    deadline = time.monotonic() + SETTLED_SECONDS
    while (answers := run(refund))[0]["state"] != "SUCCEEDED":
        assert time.monotonic() < deadline, answers
        time.sleep(0.5)
    # Its belief of nothing refunded is old by now, and it is answered all the same.
    assert answers[0]["final"] is True
    assert answers[1]["state"] == "SUCCEEDED"
    assert len(answers[2]["data"]) == 1
    waiting, withdrawn = run(withdrawal)
    assert (waiting["state"], withdrawn["state"]) == ("AWAITING_APPROVAL", "CANCELLED")
    current, proposed, listed = run(session)
    assert (current["max_amount_minor"], current["refundable_minor"]) == (5_000, 22_100)
    assert proposed["action_id"] == current["action_id"] == "refund:order-5000:request-3"
    assert [action["action_id"] for action in listed["data"]] == [proposed["action_id"]]


@needs_curl
def test_the_way_from_nothing_to_a_refund_by_an_agent_works(make_stack: MakeStack) -> None:
    run = Shell(make_stack()).run
    steps = blocks("docs/integrate.md")
    _, order, by_mcp, by_http, read = run("".join(steps))
    assert order["refundable_minor"] == 12_000
    result = by_mcp["result"]["structuredContent"]
    assert result["outcome"] == "recorded"
    assert result["action_id"] == by_http["action_id"] == read["action_id"]
    deadline = time.monotonic() + SETTLED_SECONDS
    while run(steps[-1])[0]["state"] != "SUCCEEDED":
        assert time.monotonic() < deadline
        time.sleep(0.5)
