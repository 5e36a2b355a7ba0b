"""Every address of the house but /healthz and /readyz (config/health.py)."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

from agents.mcp import mcp, mcp_resource
from config.metrics import metrics

urlpatterns: list[URLPattern | URLResolver] = [
    path("metrics", metrics),
    path("api/v1/", include("agents.urls")),
    path("mcp", mcp, name="mcp"),
    path(".well-known/oauth-protected-resource/mcp", mcp_resource, name="mcp_resource"),
    path("admin/", admin.site.urls),
]
