"""The README's quickstart, line by line, against a running stack."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time

import pytest

from config.development import CHECKOUT
from tests.stack import MakeStack

# Until the refund of the quickstart has gone through; it takes a second or two.
DONE_SECONDS = 30.0


@pytest.mark.skipif(shutil.which("curl") is None, reason="the quickstart is told with curl")
def test_the_quickstart_ends_with_one_refund(make_stack: MakeStack) -> None:
    stack = make_stack()
    page = (CHECKOUT / "README.md").read_text()
    made, calls = re.search(
        r"^\.venv/bin/python manage\.py (agent_key create \S+).*?(^curl .*?)^```", page, re.M | re.S
    ).groups()  # type: ignore[union-attr]
    key = stack.manage(*made.split()).split()[0]
    variables = f"SANDBOX={stack.sandbox_url}\nAPI={stack.url}\nKEY={key}\n"
    payment, order, propose, read = calls.strip().split("\n\n")

    def run(call: str) -> dict[str, object]:
        shell = subprocess.run(
            ["sh", "-c", variables + call], capture_output=True, text=True, check=True, timeout=30
        )
        answer: dict[str, object] = json.loads(shell.stdout)
        return answer

    run(payment)
    assert run(order)["refundable_minor"] == 12_000
    first = run(propose)
    assert run(propose)["action_id"] == first["action_id"]
    deadline = time.monotonic() + DONE_SECONDS
    while (seen := run(read))["state"] != "SUCCEEDED" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert seen["state"] == "SUCCEEDED"
    assert seen["retry"] == "never"
