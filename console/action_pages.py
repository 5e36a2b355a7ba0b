"""What the pages of every kind of effect have in common: its actions, attempts and history."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from unfold.decorators import display

from console.read_only import ReadOnlyAdmin, WithContext
from console.words import STATE_COLOURS
from effects.states import State
from kernel.money import format_amount


class ActionAdmin(WithContext, ReadOnlyAdmin):
    """Actions that move money of an order."""

    list_display = ("action_id", "amount", "shown_state", "state_since", "due_at", "proposed_by")
    list_filter = ("state",)
    exact_search = ("action_id", "order__order_id", "provider_ref")
    list_select_related = ("order",)

    @admin.display(description="amount")
    def amount(self, action: Any) -> str:
        """For people."""
        return format_amount(action.amount_minor, action.currency)

    @display(description="state", label={str(State(k).label): v for k, v in STATE_COLOURS.items()})  # type: ignore[untyped-decorator]
    def shown_state(self, action: Any) -> str:
        """Where it stands."""
        return str(State(action.state).label)


class AttemptAdmin(ReadOnlyAdmin):
    """Requests on the wire."""

    list_display = ("action", "number", "generation", "claimed_at", "outcome", "resolution")
    exact_search = ("action__action_id",)
    list_select_related = ("action",)


class HistoryAdmin(ReadOnlyAdmin):
    """History, newest first."""

    list_display = ("at", "kind", "actor", "order", "action")
    exact_search = ("action__action_id", "order__order_id")
    list_select_related = ("action", "order")
