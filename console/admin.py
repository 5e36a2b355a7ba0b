"""Registers every page of the staff site; each stands in the module of what it shows."""

from __future__ import annotations

from django.contrib import admin

from console import (
    case_page,
    house_pages,
    people_pages,
    policy_page,
    refund_pages,
    remedy_page,
)

admin.site.index_title = "Now"
admin.site.index_template = "console/landing.html"

__all__ = [
    "case_page",
    "house_pages",
    "people_pages",
    "policy_page",
    "refund_pages",
    "remedy_page",
]
