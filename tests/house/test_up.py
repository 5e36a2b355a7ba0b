"""`make up` ends as it is told to, once, and tells in a sentence why it does not start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from config import demo, up
from config.development import CHECKOUT
from config.processes import ServerError
from config.stack import Stack
from config.up import kept_secrets

# Ends only after a clean-up of a second, in which it is told to end again and again.
PROGRAM = """
import os, signal, sys, time
from config.processes import uninterrupted
from config.up import interrupt_on_signals
interrupt_on_signals()
try:
    print("ready", flush=True)
    time.sleep(30)
except KeyboardInterrupt:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    time.sleep(0.1)
    print("cleaned up", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_it_and_the_next_do_not_cut_the_clean_up_short(number: int) -> None:
    # As a script's `make up &` starts it: with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        said, _ = child.communicate(timeout=10)
    assert (said, child.returncode) == ("cleaned up\n", 0)


def test_stopping_a_stack_is_not_interrupted(tmp_path: Path) -> None:
    class Impatient:
        alive = False
        stopped = False

        def stop(self, *, timeout_seconds: float) -> None:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(os.getpid(), number)
            self.stopped = True

    stack, child = Stack(folder=tmp_path), Impatient()
    stack.processes["web"] = [child]  # type: ignore[list-item]
    before = signal.getsignal(signal.SIGTERM)
    stack.stop()
    assert child.stopped
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("text", ["garbage", "SECRET_KEY=\ngarbage\n", "", "\x00\xff=1"])
def test_secrets_that_cannot_be_read_are_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.setattr(up, "DATA_DIR", tmp_path)
    (tmp_path / "secrets.env").write_bytes(text.encode("latin-1"))
    with pytest.raises(ServerError, match=r"Nothing was started\. Delete it"):
        kept_secrets()


def test_secrets_are_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(up, "DATA_DIR", tmp_path)
    assert kept_secrets() == kept_secrets()


def test_a_live_key_is_refused_before_any_process_sees_it(tmp_path: Path) -> None:
    stack = Stack(folder=tmp_path / "logs", env={"STRIPE_API_KEY": "sk_live_hunter2"})
    with pytest.raises(
        ServerError, match="DEVELOPMENT is set together with a live Stripe key"
    ) as e:
        stack.start()
    assert "hunter2" not in str(e.value)
    assert (stack.processes, stack.servers) == ({}, None)
    assert not (tmp_path / "logs").exists()


def test_the_cases_of_the_demo_belong_to_the_person_who_can_log_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, str] = {}

    def persistent_stack(*, env: dict[str, str]) -> None:
        asked.update(env)
        raise ServerError("that is all this test needs")

    monkeypatch.setattr(demo, "persistent_stack", persistent_stack)
    monkeypatch.setattr(demo, "interrupt_on_signals", lambda: None)
    monkeypatch.setattr(sys, "argv", ["demo", "--once"])
    assert demo.main() == 1
    assert asked["CASE_OWNER"] == demo.REVIEWER


def test_the_sandbox_is_told_the_key_where_no_list_of_processes_shows_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STRIPE_API_BASE", raising=False)
    stack = Stack(folder=tmp_path, env={"STRIPE_API_KEY": "sk_test_given"})
    try:
        stack._start_sandbox()
        (sandbox,) = stack.processes["sandbox"]
        assert "sk_test_given" not in " ".join(sandbox.command)
        asked = urllib.request.Request(
            f"{stack.sandbox_url}/v1/refunds", headers={"Authorization": "Bearer sk_test_given"}
        )
        with urllib.request.urlopen(asked, timeout=5) as answer:
            assert answer.status == 200
    finally:
        stack.stop()
