"""The effects room as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class EffectsConfig(AppConfig):
    """Shared rows of every kind of effect."""

    name = "effects"
    default_auto_field = "django.db.models.BigAutoField"
