"""The staff site's pages of agents. Here, since the rooms of agents and of pages are apart."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from agents.models import AgentKey, AgentKeyEvent, AgentSession, SecurityEvent
from agents.sessions import revoke_session
from console.posted import permitted
from console.read_only import ReadOnlyAdmin, WithContext
from effects.clock import database_now
from effects.people import actor_of

REVOKE_PERMISSION = "agents.revoke_agentsession"


@admin.register(AgentKey)
class AgentKeyAdmin(ReadOnlyAdmin):
    """Who calls the API, and who of the staff answers for it. Keys are made by a command."""

    list_display = ("prefix", "name", "owner", "created_at", "last_used_on", "revoked_at")
    list_select_related = ("owner",)
    exact_search = ("prefix", "name")
    # Not the digests of the secrets: they are of use to nobody.
    fields: ClassVar[tuple[str, ...]] = (
        "prefix",
        "name",
        "owner",
        "scopes",
        "scope_note",
        "created_at",
        "secrets_end",
        "last_used_on",
        "revoked_at",
    )
    readonly_fields = ("secrets_end",)

    @admin.display(description="secrets")
    def secrets_end(self, key: AgentKey) -> str:
        """When each secret was made and when it ends."""
        return "; ".join(
            f"made {secret.created_at:%Y-%m-%d %H:%M} UTC, "
            + (f"ends {secret.expires_at:%Y-%m-%d %H:%M} UTC" if secret.expires_at else "no end")
            for secret in key.secrets.order_by("pk")
        )


@admin.register(AgentKeyEvent)
class AgentKeyEventAdmin(ReadOnlyAdmin):
    """What was done with keys and sessions, and by whom."""

    list_display = ("at", "key", "kind", "actor")
    list_select_related = ("key",)
    exact_search = ("key__prefix",)
    fields = ("at", "key", "kind", "actor", "data")


@admin.register(AgentSession)
class AgentSessionAdmin(WithContext, ReadOnlyAdmin):
    """What models' tools call with. The backend opens them; a person may end one."""

    list_display = (
        "prefix",
        "key",
        "order",
        "request_id",
        "created_at",
        "expires_at",
        "revoked_at",
    )
    list_select_related = ("key", "order")
    exact_search = ("prefix", "order__order_id", "key__prefix")
    fields = (
        "prefix",
        "key",
        "order",
        "request_id",
        "max_amount_minor",
        "created_at",
        "expires_at",
        "revoked_at",
    )
    change_form_outer_before_template = "console/session_revoke.html"

    def get_urls(self) -> list[Any]:
        """Ending one is a POST."""
        wrap = self.admin_site.admin_view
        return [
            path("<int:pk>/revoke/", wrap(self.revoke_view), name="agents_agentsession_revoke"),
            *super().get_urls(),
        ]

    @method_decorator(require_POST)
    def revoke_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """End a session from its next request on."""
        user = permitted(request, REVOKE_PERMISSION)
        session = get_object_or_404(AgentSession, pk=pk)
        if request.POST.get("confirmed") != "yes":
            messages.error(request, "Nothing was changed: tick that it must not go on.")
        elif revoke_session(session_id=session.prefix, actor=actor_of(user)):
            messages.success(request, "It has ended. What was proposed under it goes on.")
        else:
            messages.error(request, "It had ended before. Nothing was changed.")
        return HttpResponseRedirect(reverse("admin:agents_agentsession_changelist"))

    def page_context(self, request: HttpRequest, row: AgentSession) -> dict[str, Any]:
        """The button, for those who may, while there is something to end."""
        open_now = row.revoked_at is None and row.expires_at > database_now()
        return {"may_revoke": open_now and request.user.has_perm(REVOKE_PERMISSION)}


@admin.register(SecurityEvent)
class SecurityEventAdmin(ReadOnlyAdmin):
    """What credentials were used for and are not for: one row a minute of each."""

    list_display = ("at", "kind", "actor", "credential", "address", "request_id")
    list_filter = ("kind",)
    exact_search = ("credential", "actor")
    fields = ("at", "kind", "actor", "credential", "address", "request_id")
