"""The API's addresses, below /api/v1/."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path, re_path

from agents.api import api
from agents.door import around_all, nothing_here

_patterns, _app_name, _namespace = api.urls

urlpatterns: list[URLPattern | URLResolver] = [
    path("", (around_all(_patterns), _app_name, _namespace)),
    re_path("", nothing_here),
]
