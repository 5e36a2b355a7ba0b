"""Canonical JSON (RFC 8785) and its SHA-256: what is frozen is what is sent."""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785

from kernel.errors import InvalidInput


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, UTF-8.

    Integers beyond 2^53, NaN, lone surrogates and keys that are not strings have no canonical
    form and raise InvalidInput.
    """
    try:
        return rfc8785.dumps(value).decode("utf-8")
    except (rfc8785.CanonicalizationError, UnicodeError) as error:
        raise InvalidInput(
            field="payload", reason=f"has no canonical JSON form: {error}"
        ) from error


def sha256_hex(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, as 64 hex digits."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
