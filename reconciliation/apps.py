"""The reconciliation room as a Django app. It has no rows of its own."""

from __future__ import annotations

from django.apps import AppConfig


class ReconciliationConfig(AppConfig):
    """Sweeps, rounds, escalation, and the operator's commands."""

    name = "reconciliation"
    default_auto_field = "django.db.models.BigAutoField"
