"""The staff site's page of agent keys. Here, since the rooms of keys and of pages are apart."""

from __future__ import annotations

from typing import ClassVar

from django.contrib import admin

from agents.models import AgentKey
from console.read_only import ReadOnlyAdmin


@admin.register(AgentKey)
class AgentKeyAdmin(ReadOnlyAdmin):
    """Who calls the API, and who of the staff answers for it. Keys are made by a command."""

    list_display = ("prefix", "name", "owner", "created_at", "last_used_on", "revoked_at")
    list_select_related = ("owner",)
    exact_search = ("prefix", "name")
    # Not the digest of the secret: it is of use to nobody.
    fields: ClassVar[tuple[str, ...]] = (
        "prefix",
        "name",
        "owner",
        "scopes",
        "scope_note",
        "created_at",
        "last_used_on",
        "revoked_at",
    )
