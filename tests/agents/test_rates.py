"""Rate limits: each credential by itself, all processes together, and without Redis each alone."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from limits import RateLimitItemPerMinute, RateLimitItemPerSecond

from agents import rates
from agents.keys import create_key
from agents.rates import REDIS_TIMEOUT_SECONDS, Counter
from config.embedded.valkey import Valkey
from refunds.models import RefundAction
from tests import builders
from tests.agents.conftest import Caller, read, refund_body
from tests.agents.test_sessions import opened, words

# Words that a tool loop takes for a reason to ask for something else.
INVITING = ("new", "another", "different", "retry", "try again", "error", "failed", "instead")


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    """A server of the test's own, which it may stop or freeze."""
    server = Valkey(tmp_path / "valkey")
    server.start()
    yield server
    if server.process.alive:
        os.kill(server.process.pid, signal.SIGCONT)
    server.stop()


@pytest.fixture
def frozen(valkey: Valkey) -> Iterator[Valkey]:
    """A server that takes connections, since the kernel does, and answers nothing."""
    os.kill(valkey.process.pid, signal.SIGSTOP)
    yield valkey
    os.kill(valkey.process.pid, signal.SIGCONT)


def use(settings: Any, valkey: Valkey) -> None:
    settings.REDIS_URL = valkey.url()


@pytest.mark.django_db
def test_a_key_that_asks_too_often_is_told_when_to_ask_again(caller: Caller, settings: Any) -> None:
    settings.AGENT_REQUESTS_PER_MINUTE = 3
    for _ in range(3):
        read(caller.call("GET", "/orders/none"), 404)
    response = caller.call("GET", "/orders/none")
    assert read(response, 429)["type"] == "urn:refund-once:problem:rate-limited"
    assert 1 <= int(response["Retry-After"]) <= 60


@pytest.mark.django_db
def test_every_credential_counts_by_itself(caller: Caller, settings: Any) -> None:
    order = builders.order()
    _, tools = opened(caller, order)
    _, others = opened(caller, order)
    stranger = Caller(create_key(name="another shop").key)
    settings.AGENT_REQUESTS_PER_MINUTE = 3
    settings.SESSION_REQUESTS_PER_MINUTE = 2
    for asks, path, limit in (
        (caller, "/orders/none", 3),
        (stranger, "/orders/none", 3),
        (tools, "/sessions/current", 2),
        (others, "/sessions/current", 2),
    ):
        statuses = [asks.call("GET", path).status_code for _ in range(limit + 1)]
        assert 429 not in statuses[:limit]
        assert statuses[limit] == 429


@pytest.mark.django_db
def test_what_is_too_much_is_not_looked_at(caller: Caller, settings: Any) -> None:
    order = builders.order()
    settings.AGENT_REQUESTS_PER_MINUTE = 1
    read(caller.call("GET", "/orders/none"), 404)
    read(caller.call("POST", "/refunds", refund_body(order.order_id)), 429)
    read(caller.call("POST", "/refunds", b"nonsense"), 429)
    assert RefundAction.objects.count() == 0


@pytest.mark.django_db
def test_a_replay_that_must_wait_is_told_nothing_that_invites_another_id(
    caller: Caller, settings: Any
) -> None:
    _, tools = opened(caller, builders.order())
    read(tools.call("POST", "/refunds", words()), 201)
    settings.SESSION_REQUESTS_PER_MINUTE = 1
    read(tools.call("POST", "/refunds", words()), 200)
    answer = read(tools.call("POST", "/refunds", words()), 429)
    said = f"{answer['title']} {answer['detail']}".lower()
    assert [word for word in INVITING if word in said] == []
    assert "what was recorded before stands" in said
    assert "then read it" in said


def test_processes_count_together(valkey: Valkey) -> None:
    one, two = Counter(valkey.url()), Counter(valkey.url())
    limit = RateLimitItemPerMinute(4)
    assert [process.count(limit, "key", "a") for process in (one, two, one, two)] == [None] * 4
    assert one.count(limit, "key", "a") is not None
    assert two.count(limit, "key", "a") is not None
    assert two.count(limit, "key", "b") is None


@pytest.mark.parametrize("is_gone", [False, True])
def test_after_the_wait_it_may_go_on(valkey: Valkey, is_gone: bool) -> None:
    counter = Counter(valkey.url())
    if is_gone:
        valkey.stop()
    limit = RateLimitItemPerSecond(3, 2)
    counter.count(limit, "key", "a")
    # Redis tells ends of windows by the millisecond: at the very beginning of one, this may be it.
    time.sleep(0.01)
    counted = 0
    while (wait := counter.count(limit, "key", "a")) is None:
        counted += 1
        assert counted < 50
    assert 1 <= wait <= 2
    time.sleep(wait)
    assert counter.count(limit, "key", "a") is None


def without_redis(
    caller: Caller, settings: Any, caplog: pytest.LogCaptureFixture, valkey: Valkey
) -> None:
    """Requests are served at once, counted here, and it is logged once."""
    use(settings, valkey)
    settings.AGENT_REQUESTS_PER_MINUTE = 40
    took: list[float] = []
    statuses: list[int] = []
    with caplog.at_level(logging.WARNING, logger="agents.rates"):
        while 429 not in statuses and len(statuses) < 60:
            begun = time.monotonic()
            statuses.append(caller.call("GET", "/orders/none").status_code)
            took.append(time.monotonic() - begun)
    # The window slides: at the turn of a minute a few more fit.
    assert statuses == [404] * (len(statuses) - 1) + [429]
    assert 40 <= len(statuses) - 1 <= 50
    told = [vars(record)["action"] for record in caplog.records if record.name == "agents.rates"]
    assert told == ["rates.redis_away"]
    # One request finds it out, and the others do not wait for it.
    assert sorted(took)[len(took) // 2] < REDIS_TIMEOUT_SECONDS, took


@pytest.mark.django_db
def test_without_redis_requests_are_served_and_counted_in_the_process(
    caller: Caller,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
    valkey: Valkey,
) -> None:
    valkey.stop()
    without_redis(caller, settings, caplog, valkey)


@pytest.mark.django_db
def test_a_redis_that_is_frozen_costs_one_request_its_timeout_and_no_other(
    caller: Caller,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
    frozen: Valkey,
) -> None:
    without_redis(caller, settings, caplog, frozen)


def test_when_redis_is_back_processes_count_together_again(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rates, "ASK_AGAIN_SECONDS", 0.3)
    limit = RateLimitItemPerMinute(100)
    counter, other = Counter(valkey.url()), Counter(valkey.url())
    with caplog.at_level(logging.WARNING, logger="agents.rates"):
        counter.count(limit, "key", "a")
        os.kill(valkey.process.pid, signal.SIGSTOP)
        for _ in range(50):
            counter.count(limit, "key", "a")
        os.kill(valkey.process.pid, signal.SIGCONT)
        time.sleep(0.4)
        for _ in range(60):
            counter.count(limit, "key", "a")
    told = [vars(record)["action"] for record in caplog.records if record.name == "agents.rates"]
    assert told == ["rates.redis_away", "rates.redis_back"]
    # 61 or 62 of them are known to every process: a frozen one may have read what it was sent.
    left = 0
    while other.count(limit, "key", "a") is None:
        left += 1
    assert 36 <= left <= 39


@pytest.mark.django_db
def test_the_metric_says_that_redis_is_away(settings: Any, valkey: Valkey) -> None:
    use(settings, valkey)

    def scraped() -> Any:
        text = Client().get("/metrics").content.decode()
        (line,) = [
            line
            for line in text.splitlines()
            if line.startswith("refund_once_rate_limits_without_redis ")
        ]
        return float(line.split()[1])

    assert scraped() == 0
    os.kill(valkey.process.pid, signal.SIGSTOP)
    assert scraped() == 1
    os.kill(valkey.process.pid, signal.SIGCONT)
    assert scraped() == 0
    valkey.stop()
    assert scraped() == 1
