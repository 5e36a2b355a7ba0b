"""The curl lines of docs/api.md, as they stand there, against a running stack."""

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
from tests.stack import MakeStack

SETTLED_SECONDS = 30


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_examples_of_the_documentation_work(make_stack: MakeStack) -> None:
    stack = make_stack()
    said = stack.manage("agent_key", "create", "shop")
    key = re.search(r"ro_live_\w+", said)
    assert key is not None, said
    env = {
        "PATH": os.environ["PATH"],
        "API": stack.url,
        "SANDBOX": stack.sandbox_url,
        "KEY": key.group(0),
    }
    order, refund, withdrawal = re.findall(
        r"^```sh\n(.*?)^```", (CHECKOUT / "docs/api.md").read_text(), re.DOTALL | re.MULTILINE
    )

    def run(commands: str) -> list[Any]:
        """Every answer that these lines print, one JSON value after the other."""
        done = subprocess.run(
            ["sh", "-euc", commands],
            env=os.environ | env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        answers, text = [], done.stdout.strip()
        while text:
            answer, end = json.JSONDecoder().raw_decode(text)
            answers.append(answer)
            text = text[end:].strip()
        return answers

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
