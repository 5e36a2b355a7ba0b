"""Threads and forks: nobody is answered with somebody else's refund."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import stripe

from effects.outcomes import Outcome, Succeeded, Unknown
from tests.providers.loopback import Request, loopback, refunds_everything
from tests.providers.requests_made import a_provider, a_request

# A parent that makes a call, then forks children that all call at the same time. No threads of its
# own, so that forking is allowed; the server lives in the test's process.
FORKING = """
import json, os, sys
from effects.outcomes import Succeeded
from tests.providers.requests_made import a_provider, a_request

provider = a_provider(sys.argv[1], total_timeout_seconds=20, read_timeout_seconds=10)
first = provider.send_refund(request=a_request(key="k:parent", request_id="parent"))
assert isinstance(first, Succeeded), first
parents_client = provider._client()
children = []
for child in range(4):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        own = right = 0
        for number in range(20):
            name = f"c{child}n{number}"
            outcome = provider.send_refund(request=a_request(key="k:" + name, request_id=name))
            right += isinstance(outcome, Succeeded) and outcome.effect.ref == "re_" + name
            own += provider._client() is not parents_client
        os.write(write_end, json.dumps([right, own]).encode())
        os._exit(0)
    os.close(write_end)
    children.append((pid, read_end))
results = []
for pid, read_end in children:
    os.waitpid(pid, 0)
    results.append(json.loads(os.read(read_end, 1000)))
print(json.dumps([results, provider._client() is parents_client]))
"""

# The same with the SDK's own HTTP client, one StripeClient for parent and children.
FORKING_WITH_THE_SDKS_OWN_CLIENT = """
import json, os, sys
import stripe

stripe.enable_telemetry = False
client = stripe.StripeClient(
    "sk_test_1", base_addresses={"api": sys.argv[1]}, http_client=stripe.RequestsClient(timeout=2)
)

def refund(name):
    return client.v1.refunds.create(
        {"payment_intent": "pi_1", "amount": 1, "metadata": {"request_id": name}}
    ).id

refund("parent")
children = []
for child in range(4):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        wrong = 0
        for number in range(20):
            name = f"c{child}n{number}"
            try:
                wrong += refund(name) != "re_" + name
            except stripe.StripeError:
                wrong += 1
        os.write(write_end, json.dumps(wrong).encode())
        os._exit(0)
    os.close(write_end)
    children.append((pid, read_end))
results = []
for pid, read_end in children:
    os.waitpid(pid, 0)
    results.append(json.loads(os.read(read_end, 1000)))
print(json.dumps(results))
"""


def slowly(connection: object, request: Request) -> None:
    time.sleep(0.01)
    refunds_everything(connection, request)  # type: ignore[arg-type]


def run(program: str, base: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", program, base],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_children_of_a_process_that_made_a_call_are_answered_with_their_own_refunds() -> None:
    with loopback(slowly) as server:
        results, parent_keeps_its_client = run(FORKING, server.base)
        assert results == [[20, 20]] * 4
        assert parent_keeps_its_client
        assert server.connections == len(server.requests) == 81


def test_the_fork_test_can_fail() -> None:
    """A negative control: with the SDK's own client the same server mixes the answers up."""
    with loopback(slowly) as server:
        wrong = run(FORKING_WITH_THE_SDKS_OWN_CLIENT, server.base)
    assert sum(wrong) > 0


def test_threads_share_a_provider_and_get_their_own_refunds() -> None:
    wrong: list[Outcome] = []
    with loopback(slowly) as server:
        provider = a_provider(server.base, total_timeout_seconds=20, read_timeout_seconds=10)

        def send(thread: int) -> None:
            for number in range(10):
                name = f"t{thread}n{number}"
                outcome = provider.send_refund(request=a_request(key="k:" + name, request_id=name))
                if not isinstance(outcome, Succeeded) or outcome.effect.ref != "re_" + name:
                    wrong.append(outcome)

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(server.requests) == 80


def test_a_siblings_answer_is_unknown_and_an_incident() -> None:
    """Should answers ever be swapped in spite of it all, they are not believed."""

    def swapped(connection: object, request: Request) -> None:
        body = request.body.replace(b"request-3", b"request-4")
        sibling = Request(
            method="POST",
            target=request.target,
            headers=request.headers | {"idempotency-key": "refund:order-4821:request-4"},
            body=body,
            raw=b"",
        )
        refunds_everything(connection, sibling)  # type: ignore[arg-type]

    with loopback(swapped) as server:
        outcome = a_provider(server.base).send_refund(request=a_request())
    assert isinstance(outcome, Unknown)
    assert (outcome.reason, outcome.incident) == ("answer_mismatch", True)
    assert outcome.evidence.extra["differs"] == "idempotency_key"


def test_building_a_provider_opens_no_connection() -> None:
    with loopback(refunds_everything) as server:
        a_provider(server.base)._client()
        time.sleep(0.1)
        assert server.connections == 0


def test_the_client_never_retries_and_names_its_version() -> None:
    client = a_provider(None)._client()
    options = client._requestor._options
    assert options.max_network_retries == 0
    assert options.stripe_version == "2026-10-28.endive"
    assert options.base_addresses["api"] == stripe.DEFAULT_API_BASE
