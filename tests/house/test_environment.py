"""The environment is refused with one readable list, and never with a traceback or a secret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from config import development
from config.development import CHECKOUT, OFFLINE
from config.embedded.places import FolderLock
from config.environment import Refusal, read_environment


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A complete environment that a test then spoils."""
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def problems() -> list[str]:
    with pytest.raises(Refusal) as refusal:
        read_environment()
    return list(refusal.value.problems)


def test_the_defaults_are_in_a_safe_order(environment: pytest.MonkeyPatch) -> None:
    assert read_environment().problems() == []


def test_every_duration_may_be_a_fraction_of_a_second(environment: pytest.MonkeyPatch) -> None:
    for name, seconds in {
        "PROVIDER_CONNECT_TIMEOUT_SECONDS": 0.1,
        "PROVIDER_READ_TIMEOUT_SECONDS": 0.2,
        "PROVIDER_TOTAL_TIMEOUT_SECONDS": 0.4,
        "SUBMIT_LEASE_SECONDS": 0.6,
        "TASK_SOFT_TIME_LIMIT_SECONDS": 0.8,
        "TASK_HARD_TIME_LIMIT_SECONDS": 0.9,
        "BROKER_VISIBILITY_TIMEOUT_SECONDS": 1.5,
        "SETTLE_SECONDS": 1.1,
        "KEY_RESEND_SECONDS": 5.5,
        "DISPATCH_SWEEP_SECONDS": 0.1,
    }.items():
        environment.setenv(name, str(seconds))
    environment.setenv("RECONCILE_DELAYS_SECONDS", "0.1, 0.2,0.3")
    assert read_environment().reconcile_delays_seconds == (0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("name", "seconds", "said"),
    [
        ("PROVIDER_READ_TIMEOUT_SECONDS", 27.5, "must not exceed PROVIDER_TOTAL_TIMEOUT_SECONDS"),
        ("PROVIDER_TOTAL_TIMEOUT_SECONDS", 60, "must be below SUBMIT_LEASE_SECONDS"),
        ("SUBMIT_LEASE_SECONDS", 90, "must be below TASK_SOFT_TIME_LIMIT_SECONDS"),
        ("TASK_SOFT_TIME_LIMIT_SECONDS", 120, "must be below TASK_HARD_TIME_LIMIT_SECONDS"),
        ("TASK_HARD_TIME_LIMIT_SECONDS", 300, "must be below BROKER_VISIBILITY_TIMEOUT_SECONDS"),
        ("SETTLE_SECONDS", 90, "must be above SUBMIT_LEASE_SECONDS + PROVIDER_TOTAL_TIMEOUT"),
        ("KEY_RESEND_SECONDS", 86400, "must be below the 86400 seconds that Stripe remembers"),
    ],
)
def test_an_unsafe_order_of_timeouts_is_refused(
    environment: pytest.MonkeyPatch, name: str, seconds: float, said: str
) -> None:
    environment.setenv(name, str(seconds))
    assert any(said in problem for problem in problems())


def test_connect_plus_read_may_equal_the_total(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PROVIDER_READ_TIMEOUT_SECONDS", "27")
    assert read_environment().problems() == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("INSTANCE", "shop one", "INSTANCE"),
        ("INSTANCE", "x" * 41, "INSTANCE"),
        ("STRIPE_WEBHOOK_SECRETS", " , ", "at least one is needed"),
        ("RECONCILE_DELAYS_SECONDS", "1,2", "RECONCILE_DELAYS_SECONDS: three numbers are needed"),
        ("RECONCILE_WINDOW_SECONDS", "-1", "RECONCILE_WINDOW_SECONDS"),
        ("DATABASE_URL", "sqlite:///x", "postgresql://"),
        ("REDIS_URL", "localhost", "redis://"),
        ("CASE_OWNER", "", "CASE_OWNER"),
        ("STRIPE_API_KEYS", "eu", "alias=key"),
        ("STRIPE_API_KEYS", "eu=sk_test_1,us=hunter2", "us must be a secret or restricted key"),
        ("STRIPE_API_KEY", "", "begins with sk_ or rk_"),
        ("STRIPE_API_KEY", "pk_live_1", "begins with sk_ or rk_"),
        ("STRIPE_WEBHOOK_SECRETS", "", "at least one is needed"),
        ("SECRET_KEY", "", "32 characters or more"),
        ("SECRET_KEY", " " * 40, "32 characters or more"),
        ("SECRET_KEY", "x" * 31, "32 characters or more"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(
    environment: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    environment.setenv(name, value)
    assert any(said in problem for problem in problems())


def test_the_next_in_line_is_the_owner_of_cases_until_another_is_named(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.setenv("CASE_OWNER", "grace")
    assert read_environment().next_in_line == "grace"
    environment.setenv("CASE_ESCALATION_OWNER", "ada")
    assert read_environment().next_in_line == "ada"


@pytest.mark.parametrize("name", ["CRASH_POINTS_DIR", "DEVELOPMENT"])
def test_what_belongs_to_tests_is_refused_beside_a_live_key(
    environment: pytest.MonkeyPatch, name: str
) -> None:
    environment.delenv("DEVELOPMENT")
    environment.setenv("STRIPE_API_KEY", "rk_live_1")
    environment.setenv("STRIPE_API_BASE", "")
    environment.setenv(name, "1")
    assert [problem.split()[0] for problem in problems()] == [name]


def test_a_live_key_never_travels_over_plain_http(environment: pytest.MonkeyPatch) -> None:
    environment.delenv("DEVELOPMENT")
    environment.setenv("STRIPE_API_KEY", "sk_live_1")
    environment.setenv("STRIPE_API_BASE", "http://proxy.example.com")
    assert [problem.split()[0] for problem in problems()] == ["STRIPE_API_BASE"]
    environment.setenv("STRIPE_API_BASE", "https://proxy.example.com")
    assert read_environment().problems() == []


def test_boot_tells_every_problem_at_once_and_exits_2_without_a_traceback() -> None:
    spoiled = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": "mysql://refunds:hunter2@db/refunds",
        "SUBMIT_LEASE_SECONDS": "10",
        "STRIPE_API_KEY": "sk_live_hunter2",
    }
    refused = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=CHECKOUT,
        env=spoiled,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    for name in ("DATABASE_URL", "REDIS_URL", "INSTANCE", "CASE_OWNER", "SUBMIT_LEASE_SECONDS"):
        assert name in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "hunter2" not in refused.stderr


def test_without_any_server_a_command_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DATABASE_URL")
    monkeypatch.delenv("REDIS_URL")
    monkeypatch.setattr(development, "STACK_ENV", tmp_path / "stack.env")
    assert "make up" in (development.find_environment("status") or "")
    assert development.find_environment("makemigrations") is None


def test_beside_a_running_stack_a_command_uses_its_servers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DATABASE_URL")
    monkeypatch.delenv("REDIS_URL")
    monkeypatch.setattr(development, "STACK_ENV", tmp_path / "stack.env")
    (tmp_path / "stack.env").write_text("DATABASE_URL=postgresql://u:p=@h/n\nREDIS_URL=redis://h\n")
    assert "make up" in (development.find_environment("status") or "")  # its starter was killed
    starter = FolderLock(tmp_path)
    starter.take()
    assert development.find_environment("status") is None
    assert os.environ["DATABASE_URL"] == "postgresql://u:p=@h/n"
    starter.release()
