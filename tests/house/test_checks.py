"""The boot checks refuse settings under which the promises would not hold."""

from __future__ import annotations

import pytest
from django.conf import settings as live_settings
from django.core.checks import CheckMessage
from django.test import override_settings

from config.checks import check_settings, check_timeouts
from config.environment import Environment


def ids(messages: list[CheckMessage]) -> list[str | None]:
    return [message.id for message in messages]


def test_the_settings_as_they_are_pass() -> None:
    assert check_settings() == []
    assert check_timeouts() == []


def test_eager_tasks_are_refused() -> None:
    with override_settings(CELERY_TASK_ALWAYS_EAGER=True):
        assert ids(check_settings()) == ["config.E002"]


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("ATOMIC_REQUESTS", True, "config.E003"),
        ("ENGINE", "django.db.backends.sqlite3", "config.E004"),
    ],
)
def test_a_database_that_breaks_the_promises_is_refused(
    monkeypatch: pytest.MonkeyPatch, key: str, value: object, found: str
) -> None:
    monkeypatch.setitem(live_settings.DATABASES["default"], key, value)
    assert ids(check_settings()) == [found]


def test_timeouts_out_of_order_are_refused() -> None:
    environment: Environment = live_settings.ENVIRONMENT
    unsafe = environment.model_copy(update={"submit_lease_seconds": 5.0})
    with override_settings(ENVIRONMENT=unsafe):
        assert ids(check_timeouts()) == ["config.E001"]
