"""A hint to a worker may be lost, and holds nobody."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config.embedded.valkey import Valkey
from kernel.away import Away
from refunds import hint


@pytest.fixture
def broker(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Valkey]:
    """A broker of the test's own, which it may stop or freeze, and nothing known of it yet."""
    server = Valkey(tmp_path / "valkey")
    server.start()
    settings.CELERY_BROKER_URL = server.url()
    monkeypatch.setattr(hint, "_broker", Away(ask_again_seconds=0.2))
    yield server
    if server.process.alive:
        os.kill(server.process.pid, signal.SIGCONT)
    server.stop()


def told(times: int) -> list[bool]:
    return [hint.tell_a_worker(action_id=f"refund:order-1:request-{n}") for n in range(times)]


def test_a_broker_that_takes_connections_and_answers_nothing_holds_one_hint_briefly(
    broker: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    """With the worker's own timeouts the first took 30 s, and each one after it 10."""
    assert told(2) == [True, True]
    os.kill(broker.process.pid, signal.SIGSTOP)
    started = time.monotonic()
    assert told(40) == [False] * 40
    # One waits for its timeout; 40 that do would take 12 s.
    assert time.monotonic() - started < 20 * hint.TIMEOUT_SECONDS
    assert len([line for line in caplog.records if "was not told" in line.message]) == 1
    os.kill(broker.process.pid, signal.SIGCONT)
    time.sleep(0.3)
    assert told(2) == [True, True]


def test_a_broker_that_is_gone_costs_nothing(broker: Valkey) -> None:
    broker.stop()
    started = time.monotonic()
    assert told(40) == [False] * 40
    assert time.monotonic() - started < 20 * hint.TIMEOUT_SECONDS
