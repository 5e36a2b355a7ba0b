"""The refunds room as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class RefundsConfig(AppConfig):
    """Registers the kinds of effect of this room: refunds, and the store credits beside them."""

    name = "refunds"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Make the kinds known. Touches neither the database nor a provider."""
        from effects.kinds import register
        from refunds.credits import CREDIT
        from refunds.kind import REFUND

        register(REFUND)
        register(CREDIT)
