"""The part of a case's page that says what can be done about its action, and does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from approvals.models import CaseAct
from console.posted import posted_note, posted_number
from console.words import page_of, visible
from effects.kinds import EffectKind
from effects.models import Case
from effects.people import EXPLANATION_CHARACTERS_MIN
from kernel.money import format_amount
from reconciliation.case_acts import (
    NotDone,
    Result,
    SecondNeeded,
    Why,
    Word,
    allow_new_key,
    give_up,
    link_refund,
    send_again,
    withdraw,
)
from reconciliation.circumstances import case_version
from reconciliation.possible_acts import Name, possible_acts

# Each act with the fields of its form beside reason and note.
_ACTS: dict[Name, tuple[Callable[..., Result], tuple[str, ...]]] = {
    Name.LINK: (link_refund, ("provider_ref",)),
    Name.SEND_AGAIN: (send_again, ()),
    Name.NEW_KEY: (allow_new_key, ("typed_amount",)),
    Name.GIVE_UP: (give_up, ()),
    Name.WITHDRAW: (withdraw, ()),
}
# These have forms of their own on the page.
_ELSEWHERE = (Name.ASSIGN, Name.SNOOZE)


class CaseActForms:
    """A POST for each act beside the pages of a case; a mixin for its admin."""

    admin_site: Any

    def act_urls(self) -> list[Any]:
        """One address for all acts, by their names."""
        view = self.admin_site.admin_view(self.act_view)
        return [path("<int:pk>/act/<slug:name>/", view, name="effects_case_act")]

    @method_decorator(require_POST)
    def act_view(self, request: HttpRequest, pk: int, name: str) -> HttpResponse:
        """Do one act, or say why not."""
        user: Any = request.user
        case = get_object_or_404(Case, pk=pk)
        if name not in {act.value for act in _ACTS}:
            raise Http404
        act, fields = _ACTS[Name(name)]
        typed = {field: request.POST.get(field, "") for field in fields}
        result = act(case_id=case.case_id, user=user, word=_word(request), **typed)
        if isinstance(result, NotDone):
            if result.why is Why.NOT_PERMITTED:
                raise PermissionDenied
            messages.error(request, result.sentence)
        elif isinstance(result, SecondNeeded):
            messages.warning(request, result.sentence)
        else:
            messages.success(request, result.sentence)
        return HttpResponseRedirect(page_of(case))


def acts_context(
    *, case: Case, kind: EffectKind | None, action: Any, user: Any, now: datetime
) -> dict[str, Any]:
    """What the forms need; read before the history is, so that no act rests on more than it."""
    if kind is None or action is None or case.closed_at is not None:
        return {}
    return {
        "history_version": case_version(kind=kind, action=action),
        "acts": [
            # Notes of people are shown beside the buttons: nothing in them may hide.
            replace(act, waits_for_second=tuple(map(visible, act.waits_for_second)))
            for act in possible_acts(case=case, user=user, now=now)
            if act.name not in _ELSEWHERE
        ],
        "act_reasons": CaseAct.Reason.choices,
        "act_note_min": EXPLANATION_CHARACTERS_MIN,
        "act_amount": format_amount(action.amount_minor, action.currency),
    }


def _word(request: HttpRequest) -> Word:
    return Word(
        reason=request.POST.get("reason", ""),
        note=posted_note(request),
        seen_version=posted_number(request, "seen_version"),
    )
