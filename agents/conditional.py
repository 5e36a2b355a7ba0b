"""Conditional reads: an answer that the caller has already is 304, without a body.

https://www.rfc-editor.org/rfc/rfc9110#name-if-none-match. The tag is made of the body, so that
nothing has to be remembered, and it is strong: the same tag is the same bytes.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.http import parse_etags

from kernel.canonical import sha256_hex

# Kept by the caller alone, and asked for again each time.
CACHE_CONTROL = "private, no-cache"
_DIGITS = 32


def unless_unchanged(request: HttpRequest, answer: HttpResponse) -> HttpResponse:
    """The answer with its tag, or 304 when the caller names that tag in `If-None-Match`."""
    tag = f'"{sha256_hex(answer.content.decode())[:_DIGITS]}"'
    # Weakly compared, as the header asks: W/"x" is "x" here.
    named = {
        one.removeprefix("W/") for one in parse_etags(request.headers.get("If-None-Match", ""))
    }
    if tag in named or "*" in named:
        answer = HttpResponse(status=304)
        # RFC 9110, 15.4.5: no content, so no type of one.
        del answer["Content-Type"]
    answer["ETag"] = tag
    answer["Cache-Control"] = CACHE_CONTROL
    return answer
