"""Registers the boot checks and makes the Celery application the process's own."""

from __future__ import annotations

from django.apps import AppConfig


class HouseConfig(AppConfig):
    name = "config"

    def ready(self) -> None:
        from config import celery, checks

        # Named so that both imports are used: each registers itself by being imported.
        _ = (celery.app, checks.check_settings)
