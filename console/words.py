"""How rows are put into words for people."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from effects.kinds import kind_of
from effects.states import State
from kernel.money import format_amount

# The colours of unfold's labels.
STATE_COLOURS: dict[str, str] = {
    State.HELD: "warning",
    State.AWAITING_APPROVAL: "warning",
    State.AUTHORIZED: "info",
    State.SUBMITTING: "info",
    State.UNKNOWN: "danger",
    State.PENDING: "info",
    State.SUCCEEDED: "success",
    State.FAILED_FINAL: "danger",
    State.REJECTED: "default",
    State.EXPIRED: "default",
    State.CANCELLED: "default",
}


def visible(text: str) -> str:
    """Text of strangers with every character that hides, or turns the reading order, spelled out.

    Line breaks and tabs stay. Escaping for HTML is the template's.
    """
    return "".join(
        character
        if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Co", "Cn")
        else f"[U+{ord(character):04X}]"
        for character in text
    )


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `5 h 20 min`, `3 d 4 h`."""
    whole = int(max(seconds, 0))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole} s"
    if hours < 2:
        return f"{minutes} min"
    if days < 2:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def since(then: datetime, *, now: datetime) -> str:
    """How long ago."""
    return duration((now - then).total_seconds())


def in_words(data: Mapping[str, Any], *, currency: str = "") -> list[tuple[str, str]]:
    """JSON of history as (label, text), flat, amounts in the currency. Escaped by the template."""
    currency = str(data.get("currency") or currency)
    lines: list[tuple[str, str]] = []
    for key, value in data.items():
        label = key.removesuffix("_minor").replace("_", " ")
        if value in (None, "", [], {}):
            continue
        if key.endswith("_minor") and type(value) is int and currency:
            lines.append((label, format_amount(value, currency)))
        elif isinstance(value, Mapping):
            lines += [(f"{label}: {k}", v) for k, v in in_words(value, currency=currency)]
        elif isinstance(value, list):
            plain = [item for item in value if not isinstance(item, Mapping)]
            if plain:
                lines.append((label, visible(", ".join(str(item) for item in plain))))
            for item in value:
                if isinstance(item, Mapping):
                    words = in_words(item, currency=currency)
                    lines.append((label, ", ".join(f"{k} {v}" for k, v in words)))
        elif type(value) is bool:
            lines.append((label, "yes" if value else "no"))
        else:
            lines.append((label, visible(str(value))))
    return lines


def page_of(row: Any) -> str:
    """The address of a row's page on this site."""
    name = f"admin:{row._meta.app_label}_{row._meta.model_name}_change"
    return reverse(name, args=[row.pk])


def action_link(action_id: str) -> SafeString | str:
    """A link to the action that bears this id, or the id when there is none."""
    kind = kind_of(action_id)
    row = kind.action_model._default_manager.filter(action_id=action_id).first() if kind else None
    if row is None:
        return action_id
    return format_html('<a class="text-link" href="{}">{}</a>', page_of(row), action_id)
