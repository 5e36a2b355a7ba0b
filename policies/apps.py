"""The policies room as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class PoliciesConfig(AppConfig):
    """Policy versions and decisions."""

    name = "policies"
    default_auto_field = "django.db.models.BigAutoField"
