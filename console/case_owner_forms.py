"""The part of a case's page that says whose it is: give it to somebody, put it off, its history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from approvals.case_owners import (
    NotChanged,
    WhyAssigned,
    WhySnoozed,
    assign_case,
    snooze_case,
)
from approvals.settle import PERMISSION
from console.posted import permitted, posted_note, posted_number, tell
from console.words import in_words, page_of
from effects.cases import next_escalation
from effects.models import Case
from kernel.text import is_text


class CaseOwnerForms:
    """Two POSTs beside the pages of a case; a mixin for its admin."""

    admin_site: Any

    def owner_urls(self) -> list[Any]:
        """Assign and snooze."""
        wrap = self.admin_site.admin_view
        return [
            path("<int:pk>/assign/", wrap(self.assign_view), name="effects_case_assign"),
            path("<int:pk>/snooze/", wrap(self.snooze_view), name="effects_case_snooze"),
        ]

    @method_decorator(require_POST)
    def assign_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Give the case to another person."""
        user, case = permitted(request, PERMISSION), get_object_or_404(Case, pk=pk)
        name = request.POST.get("to", "")
        person = None if not is_text(name) else User.objects.filter(username=name).first()
        if name and person is None:
            sentence = "There is no such person. The owner is still the same."
            return tell(request, page=page_of(case), refused=sentence)
        result = assign_case(case_id=case.case_id, to=person, user=user, **_said(request))
        return _answer(request, case=case, result=result, done="It has another owner now.")

    @method_decorator(require_POST)
    def snooze_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Put the case off until a later time."""
        user, case = permitted(request, PERMISSION), get_object_or_404(Case, pk=pk)
        try:
            until = datetime.fromisoformat(request.POST.get("until", ""))
        except ValueError:
            sentence = "Say until when, as a date and a time. Nothing was changed."
            return tell(request, page=page_of(case), refused=sentence)
        result = snooze_case(
            case_id=case.case_id,
            until=until if until.tzinfo else until.replace(tzinfo=UTC),
            user=user,
            **_said(request),
        )
        return _answer(request, case=case, result=result, done="It is put off until then.")


def owner_context(case: Case) -> dict[str, Any]:
    """What the forms need, and the case's own history."""
    able = User.objects.with_perm(PERMISSION, backend="django.contrib.auth.backends.ModelBackend")
    return {
        "may_own": able.filter(is_staff=True).order_by("username").distinct(),
        "why_assigned": WhyAssigned.choices,
        "why_snoozed": WhySnoozed.choices,
        "next_escalation": next_escalation(case),
        "case_history": [
            (event.at, event.kind, event.actor, in_words(event.data))
            for event in case.events.order_by("-pk")
        ],
    }


def _said(request: HttpRequest) -> dict[str, Any]:
    return {
        "why": request.POST.get("why", ""),
        "note": posted_note(request),
        "seen_version": posted_number(request, "seen_version"),
    }


def _answer(request: HttpRequest, *, case: Case, result: object, done: str) -> HttpResponse:
    return tell(
        request,
        page=page_of(case),
        done=f"{done} That stands in its history with your name and note.",
        refused=result.sentence if isinstance(result, NotChanged) else "",
    )
