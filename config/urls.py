"""Every address of the house but /healthz and /readyz (config/health.py)."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.decorators.csrf import csrf_exempt

from agents.door import around, nothing_here
from agents.mcp import mcp, mcp_resource
from config.metrics import metrics

urlpatterns: list[URLPattern | URLResolver] = [
    path("metrics", metrics),
    path("api/v1/", include("agents.urls")),
    path("mcp", mcp, name="mcp"),
    path(
        ".well-known/oauth-protected-resource/mcp",
        csrf_exempt(around(mcp_resource)),
        name="mcp_resource",
    ),
    # What a program asks for beside those: told as a problem, and never sent on to an address with
    # a slash, since a redirect turns a POST into a GET.
    re_path(r"^(?:api|mcp|\.well-known)\b", nothing_here, name="nowhere"),
    path("admin/", admin.site.urls),
]
