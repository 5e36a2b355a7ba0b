"""Every address of the house."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

from config.health import healthz, readyz
from config.metrics import metrics

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", healthz),
    path("readyz", readyz),
    path("metrics", metrics),
    path("api/v1/", include("agents.urls")),
    path("admin/", admin.site.urls),
]
