"""Kill switches, breakers and sweeps."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from console.posted import permitted
from console.read_only import ReadOnlyAdmin
from effects.models import Breaker, SweepRun, Switch
from effects.people import actor_of
from effects.switches import turn_off, turn_on
from kernel.errors import InvalidInput

FLIP_PERMISSION = "effects.flip_switch"


@admin.register(Switch)
class SwitchAdmin(ReadOnlyAdmin):
    """Kill switches: the list turns them on, a switch's page turns it off."""

    list_display = ("scope", "reason", "set_by", "set_at", "until", "ended_at", "ended_by")
    exact_search = ("scope",)
    list_before_template = "console/switch_on.html"
    change_form_outer_before_template = "console/switch_off.html"

    def get_urls(self) -> list[Any]:
        """On and off, both POST."""
        wrap = self.admin_site.admin_view
        return [
            path("on/", wrap(self.on_view), name="effects_switch_on"),
            path("<int:pk>/off/", wrap(self.off_view), name="effects_switch_off"),
            *super().get_urls(),
        ]

    @method_decorator(require_POST)
    def on_view(self, request: HttpRequest) -> HttpResponse:
        """Stop what the scope covers."""
        user = permitted(request, FLIP_PERMISSION)
        try:
            new = turn_on(
                scope=request.POST.get("scope", "").strip(),
                reason=request.POST.get("reason", ""),
                actor=actor_of(user),
                until=_moment(request.POST.get("until", "")),
            )
        except InvalidInput as error:
            messages.error(request, f"Nothing was stopped: {error}")
        else:
            messages.success(
                request,
                "It is on." if new else "It is on for that long already. Nothing was changed.",
            )
        return HttpResponseRedirect(reverse("admin:effects_switch_changelist"))

    @method_decorator(require_POST)
    def off_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Let it be sent again."""
        user = permitted(request, FLIP_PERMISSION)
        if turn_off(switch_id=pk, actor=actor_of(user)):
            messages.success(request, "It is off. What waited goes on within seconds.")
        else:
            messages.error(request, "It was off already.")
        return HttpResponseRedirect(reverse("admin:effects_switch_changelist"))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """With the form, for those who may."""
        may = {"may_flip": request.user.has_perm(FLIP_PERMISSION)}
        found: HttpResponse = super().changelist_view(request, may | (extra_context or {}))
        return found

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """With the button, for those who may."""
        may = {"may_flip": request.user.has_perm(FLIP_PERMISSION)}
        found: HttpResponse = super().change_view(
            request, object_id, form_url, may | (extra_context or {})
        )
        return found


def _moment(text: str) -> datetime | None:
    """When a switch ends by itself, UTC unless it says otherwise; None for ""."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(field="until", reason="must be a date and a time") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@admin.register(Breaker)
class BreakerAdmin(ReadOnlyAdmin):
    """Provider accounts that are not read for now."""

    list_display = ("account", "failures", "open_until")


@admin.register(SweepRun)
class SweepRunAdmin(ReadOnlyAdmin):
    """When each sweep last came through."""

    list_display = ("name", "finished_at", "handled")
