"""The staff site as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    """Pages for the people who decide and settle."""

    name = "console"
    default_auto_field = "django.db.models.BigAutoField"
