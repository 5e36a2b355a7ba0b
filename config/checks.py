"""What must hold at boot, told by `manage.py check` and before every command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register


@register()
def check_timeouts(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """connect + read <= total < lease < soft < hard < visibility, and the rest of
    `Timeouts.problems`.

    Boot refuses these already (config/environment.py); here they are seen when a settings module of
    somebody's own builds the environment by hand.
    """
    return [Error(problem, id="config.E001") for problem in settings.ENVIRONMENT.problems()]


@register()
def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Settings under which the protocol's promises would not hold."""
    found: list[CheckMessage] = []
    if getattr(settings, "CELERY_TASK_ALWAYS_EAGER", False):
        found.append(
            Error(
                "CELERY_TASK_ALWAYS_EAGER runs tasks inside the caller's transaction: a refund "
                "would be "
                "sent before its claim is committed.",
                hint="Remove it. Tests call the functions; acceptance tests start real workers.",
                id="config.E002",
            )
        )
    if settings.DATABASES["default"].get("ATOMIC_REQUESTS"):
        found.append(
            Error(
                "ATOMIC_REQUESTS keeps a transaction open around every request, also around a "
                "provider "
                "call.",
                hint="Remove it; each function opens the transactions it needs.",
                id="config.E003",
            )
        )
    if settings.DATABASES["default"]["ENGINE"] != "django.db.backends.postgresql":
        found.append(
            Error(
                "Only PostgreSQL enforces what this product promises (triggers, row locks, "
                "constraints).",
                id="config.E004",
            )
        )
    return found
