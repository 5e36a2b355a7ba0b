"""What a form of the console posted, who may post it, and the answer to it."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect


def permitted(request: HttpRequest, permission: str) -> Any:
    """The session's user. Raises PermissionDenied (403) without the permission."""
    if not request.user.has_perm(permission):
        raise PermissionDenied
    return request.user


def posted_note(request: HttpRequest) -> str:
    """The note with line breaks as they were typed; browsers post CRLF."""
    return request.POST.get("note", "").replace("\r\n", "\n")


def posted_number(request: HttpRequest, name: str, *, digits_max: int = 9) -> int:
    """A number that the page put into its form: by default what a count of events can be.

    Raises BadRequest (400) naming the field when it cannot be that.
    """
    text = request.POST.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= digits_max):
        raise BadRequest(f"{name}: must be the number that the form showed")
    return int(text)


def tell(request: HttpRequest, *, page: str, done: str = "", refused: str = "") -> HttpResponse:
    """Back to the page, which shows the sentence: what was done, or why nothing was."""
    if refused:
        messages.error(request, refused)
    else:
        messages.success(request, done)
    return HttpResponseRedirect(page)
