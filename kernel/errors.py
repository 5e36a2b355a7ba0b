"""Exceptions. An expected outcome is never one of these: those are values."""

from __future__ import annotations


class Bug(Exception):
    """A promise of this code was broken by this code. Nothing was sent; fix the program.

    Used where `assert` would stand, because `python -O` removes asserts and money needs them.
    """


class InvalidInput(ValueError):
    """What a caller gave cannot be accepted. Nothing was written.

    `field` names the offending field, `reason` says in one sentence what is expected.
    """

    def __init__(self, *, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason
