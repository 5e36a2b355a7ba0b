"""The refunds room as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class RefundsConfig(AppConfig):
    """Registers the refund as a kind of effect."""

    name = "refunds"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Make the kind known. Touches neither the database nor a provider."""
        from effects.kinds import register
        from refunds.kind import REFUND

        register(REFUND)
