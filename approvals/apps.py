"""The approvals room as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class ApprovalsConfig(AppConfig):
    """Decisions of people."""

    name = "approvals"
    default_auto_field = "django.db.models.BigAutoField"
