"""Forms of this site are UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

# What agents call tells it itself, as a problem.
AGENTS = ("/api/", "/mcp", "/.well-known/")


def refuse_other_encodings(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: 415 for a body that names another encoding.

    Django decodes a form with any codec of Python that is named, and Python has some that decode
    no bytes at all, like rot13. No browser sends another encoding than that of the page, UTF-8.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        # None when none is named, or one that Python does not know.
        named = request.encoding
        is_other = named is not None and codecs.lookup(named).name != "utf-8"
        if is_other and not request.path_info.startswith(AGENTS):
            return HttpResponse("Send the form as UTF-8. Nothing was done.", status=415)
        return get_response(request)

    return middleware
