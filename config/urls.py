"""Every address of the house."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, path

from config.health import healthz, readyz

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", healthz),
    path("readyz", readyz),
    path("admin/", admin.site.urls),
]
