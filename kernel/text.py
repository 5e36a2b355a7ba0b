"""What counts as text: what Postgres and UTF-8 can both hold."""

from __future__ import annotations

import re

# Postgres stores no NUL, and half of a surrogate pair has no UTF-8.
_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")


def is_text(value: str) -> bool:
    """Whether this can be stored and told again as it is."""
    return _NOT_TEXT.search(value) is None
