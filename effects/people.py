"""How people stand in history, and what they may write there."""

from __future__ import annotations

from django.contrib.auth.models import User

from kernel.text import is_text

# Whoever reads it a year later reads some sentences; what is longer belongs elsewhere.
NOTE_CHARACTERS_MAX = 2_000
# Where a note must explain what was done. Shorter ones say "ok" or "see above", which helps nobody.
EXPLANATION_CHARACTERS_MIN = 15


def actor_of(user: User) -> str:
    """How history names a person. Cut to what the columns hold."""
    return f"person:{user.get_username()}"[:80]


def is_note(text: str) -> bool:
    """Whether this can stand as a note: text that can be stored, and not too long."""
    return is_text(text) and len(text) <= NOTE_CHARACTERS_MAX
