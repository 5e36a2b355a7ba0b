"""The control API, over HTTP and in process; the state file; the command line."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest
import stripe

from providers.sandbox import DEFAULT_API_KEY, FAULTS, Sandbox, SandboxClient, Settings
from providers.sandbox.control import CALLS

from .calls import failure, paid, refund, stripe_client

README = Path(__file__).parents[2] / "providers" / "sandbox" / "README.md"


def test_the_ledger_tells_what_exists_not_what_was_answered(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox, 7900)
    sandbox.fault("error-500-executed")
    failure(lambda: refund(client, payment, 2500, metadata={"action_id": "a1"}))
    sandbox.refund_outside(payment, amount=1000)
    made, outside = sandbox.refunds(payment)
    assert made["metadata"] == {"action_id": "a1"}
    assert (made["idempotency_key"], made["outside"]) == ("k1", False)
    assert (outside["metadata"], outside["idempotency_key"]) == ({}, None)
    assert outside["outside"]
    sandbox.fail_refund(outside["id"])
    line = sandbox.ledger()["payments"][payment]
    assert (line["captured"], line["refunded"]) == (7900, 2500)
    assert (line["refunds"], line["live_refunds"]) == (2, 1)


def test_the_request_log_keeps_every_request(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    payment = paid(sandbox)
    sandbox.fault("reset-before-execution")
    failure(lambda: refund(client, payment))
    refund(client, payment)
    refund(client, payment)
    lost, made, replay = sandbox.requests("POST", "/v1/refunds")
    assert (lost["status"], lost["answered"], lost["faults"]) == (
        None,
        "reset",
        ["reset-before-execution"],
    )
    assert (made["status"], made["replayed"]) == (200, False)
    assert (replay["status"], replay["replayed"]) == (200, True)
    assert made["idempotency_key"] == "k1"
    assert made["params"] == {"payment_intent": payment, "amount": "2500"}


def test_the_control_api_works_over_http(sandbox: Sandbox) -> None:
    remote = SandboxClient(sandbox.url)
    payment = paid(remote, 500)  # type: ignore[arg-type]
    remote.fault("drip")
    assert remote.faults()[0]["fault"] == "drip"
    remote.clear_faults()
    assert remote.ledger(payment)["payments"][payment]["captured"] == 500
    with urllib.request.urlopen(f"{sandbox.url}/_sandbox/ledger?payment_intent={payment}") as got:
        assert json.load(got)["payments"][payment]["refunded"] == 0
    with pytest.raises(ValueError, match="no control call"):
        remote.call("answer")
    with pytest.raises(urllib.error.HTTPError) as wrong:
        urllib.request.urlopen(f"{sandbox.url}/_sandbox/clock", data=b"[1]")
    assert wrong.value.code == 400
    wrong.value.close()


def test_control_calls_are_not_faulted_delayed_or_logged(sandbox: Sandbox) -> None:
    sandbox.fault("html-502", match={}, times=None)
    sandbox.latency(5000)
    started = time.monotonic()
    assert SandboxClient(sandbox.url).call("health")["ok"]
    assert time.monotonic() - started < 1
    assert sandbox.requests() == []


def test_a_payment_is_made_once_per_id(sandbox: Sandbox) -> None:
    first = sandbox.payment(amount=500, id="pi_4821")
    assert sandbox.payment(amount=500, id="pi_4821") == first
    with pytest.raises(ValueError, match="Nothing was changed"):
        sandbox.payment(amount=600, id="pi_4821")


def test_the_clock_can_be_frozen_set_and_let_go(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    sandbox.call("clock", set=1_800_000_000, frozen=True)
    assert refund(client, paid(sandbox)).created == 1_800_000_000
    assert sandbox.advance(60)["now"] == 1_800_000_060
    assert not sandbox.call("clock", frozen=False)["frozen"]


def test_latency_is_added_to_every_call(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    payment = paid(sandbox)
    sandbox.latency(200)
    started = time.monotonic()
    refund(client, payment)
    client.v1.refunds.list({"payment_intent": payment})
    assert 0.4 <= time.monotonic() - started < 1.5


def test_a_reset_forgets_all_but_accounts_and_settings(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    sandbox.settings(rate_limit_sends_code=False)
    payment = paid(sandbox)
    refund(client, payment)
    sandbox.fault("drip")
    sandbox.advance(1000)
    sandbox.reset()
    assert sandbox.ledger() == {"refunds": [], "payments": {}}
    assert sandbox.faults() == sandbox.requests() == sandbox.call("keys")["keys"] == []
    assert sandbox.call("clock")["offset_seconds"] == 0
    assert sandbox.settings()["rate_limit_sends_code"] is False
    assert failure(lambda: client.v1.payment_intents.retrieve(payment)).http_status == 404


@pytest.mark.parametrize(
    "wrong",
    [
        {"no_such_setting": 1},
        {"latency_ms": "fast"},
        {"latency_ms": None},
        {"insufficient_balance": "maybe"},
        {"enforce_balance": "perhaps"},
    ],
)
def test_a_wrong_setting_is_refused(sandbox: Sandbox, wrong: dict[str, object]) -> None:
    before = sandbox.settings()
    with pytest.raises(ValueError, match=next(iter(wrong))):
        sandbox.settings(**wrong)
    assert sandbox.settings() == before
    with pytest.raises(ValueError, match="Nothing was changed"):
        sandbox.settings(charge_lock_seconds=5, **wrong)
    assert sandbox.settings() == before


@pytest.mark.parametrize("amount", [0, -5, "500", 5.0, True, None])
def test_a_payment_needs_a_whole_positive_amount(sandbox: Sandbox, amount: object) -> None:
    with pytest.raises(ValueError, match="positive integer"):
        sandbox.call("payment", amount=amount)


def test_a_query_can_carry_numbers(sandbox: Sandbox) -> None:
    with urllib.request.urlopen(f"{sandbox.url}/_sandbox/payment?amount=500&id=pi_1") as got:
        assert json.load(got)["payment_intent"]["amount"] == 500


def test_going_down_twice_is_refused(sandbox: Sandbox) -> None:
    sandbox.down(0.3)
    with pytest.raises(ValueError, match="down already"):
        sandbox.down(0.3)


def test_what_waits_when_the_sandbox_stops_is_not_executed(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    sandbox = Sandbox(state=state).start()
    payment = paid(sandbox)
    sandbox.latency(60_000)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(failure, lambda: refund(stripe_client(sandbox), payment))
        while not sandbox.requests("POST"):
            time.sleep(0.01)
        sandbox.stop()
        waiting.result()
    assert sandbox.refunds() == []
    with Sandbox(state=state) as again:
        assert again.refunds() == []
        assert refund(stripe_client(again), payment).status == "succeeded"


def test_the_readme_names_every_fault_setting_and_call() -> None:
    text = README.read_text()
    names = [*FAULTS, *CALLS, *(field.name for field in fields(Settings))]
    assert [name for name in names if f"`{name}`" not in text] == []


# The state file


def test_a_second_run_starts_from_what_is_there(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    with Sandbox(state=state) as first:
        payment = paid(first, payment_method="pm_card_pendingRefund")
        made = refund(stripe_client(first), payment)
        first.advance(2)
        ledger = first.ledger()
    with Sandbox(state=state) as second:
        assert second.ledger() == ledger
        client = stripe_client(second)
        assert refund(client, payment).id == made.id  # replayed: the key was kept too
        assert len(client.v1.events.list({"type": "refund.created"}).data) == 1
        second.advance(10)
        assert client.v1.refunds.retrieve(made.id).status == "succeeded"


def test_a_torn_last_line_is_dropped_whole(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    with Sandbox(state=state) as first:
        payment = paid(first)
        refund(stripe_client(first), payment, key="k1")
        whole = state.stat().st_size
        refund(stripe_client(first), payment, key="k2")
    content = state.read_bytes()
    state.write_bytes(content[: (whole + len(content)) // 2])
    with Sandbox(state=state) as second:
        # Neither the second refund nor its key is left: they were one line.
        assert [line["idempotency_key"] for line in second.refunds()] == ["k1"]
        assert [line["key"] for line in second.call("keys")["keys"]] == ["k1"]
        refund(stripe_client(second), payment, key="k2")
    with Sandbox(state=state) as third:
        assert len(third.refunds()) == 2


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    state = tmp_path / "notes.txt"
    state.write_text("dear diary\n")
    with pytest.raises(SystemExit, match="is not a sandbox state file"):
        Sandbox(state=state)
    assert state.read_text() == "dear diary\n"


# The command line


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "providers.sandbox", *arguments],
        cwd=README.parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=10)


def test_the_command_says_where_it_listens_and_ends_cleanly(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    with running("--port-file", str(port_file), "--set", "latency_ms=1") as process:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        url = line.removeprefix("sandbox listening on ")
        assert url == f"http://127.0.0.1:{port_file.read_text().strip()}"
        assert SandboxClient(url).settings()["latency_ms"] == 1
    assert process.returncode == 0


def test_nothing_is_paid_twice_when_the_sandbox_itself_is_killed(tmp_path: Path) -> None:
    state = str(tmp_path / "state.jsonl")
    with running("--state", state) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        remote = SandboxClient(url)
        payment = str(remote.payment(amount=7900)["payment_intent"]["id"])
        client = stripe.StripeClient(DEFAULT_API_KEY, base_addresses={"api": url})
        made = refund(client, payment)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with Sandbox(state=Path(state)) as again:
        assert refund(stripe_client(again), payment).id == made.id
        assert len(again.refunds()) == 1


def test_a_port_in_use_is_said_in_words(sandbox: Sandbox) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "providers.sandbox", "--port", str(sandbox.port)],
        cwd=README.parents[2],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    assert "Nothing was started" in done.stderr
