"""Cases: what waits for a person, with its evidence, "check now" and "close"."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from approvals.settle import PERMISSION, NotSettled, not_by_hand, settle_case
from console.case_act_forms import CaseActForms, acts_context
from console.case_owner_forms import CaseOwnerForms, owner_context
from console.evidence import evidence_of
from console.posted import permitted, posted_note, tell
from console.read_only import ReadOnlyAdmin, WithContext
from console.words import in_words, page_of, since
from effects.clock import database_now
from effects.kinds import kind_of
from effects.models import Case
from effects.people import actor_of


class OpenOrClosed(admin.SimpleListFilter):
    """Open cases, unless others are asked for."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """What can be chosen beside "All", which here means open."""
        return [("closed", "closed")]

    def choices(self, changelist: Any) -> Any:
        """The first choice shows open cases and says so."""
        first, *others = super().choices(changelist)
        yield {**first, "display": "open"}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Case]) -> QuerySet[Case]:
        """Narrow the list; a search finds closed ones too."""
        if self.value() == "closed":
            return queryset.filter(closed_at__isnull=False)
        if request.GET.get("q"):
            return queryset
        return queryset.filter(closed_at__isnull=True)


@admin.register(Case)
class CaseAdmin(CaseActForms, CaseOwnerForms, WithContext, ReadOnlyAdmin):
    """One thing that a person must settle."""

    list_display = ("kind", "about", "owner", "opened_at", "due_at", "closed_at")
    list_filter = (OpenOrClosed, "kind")
    exact_search = ("action_id", "resource", "owner")
    change_form_outer_before_template = "console/case.html"
    # Beside the evidence on the page; the rest of the row adds nothing for a person.
    fields: ClassVar[tuple[str, ...]] = ("case_id", "closed_at", "closed_by", "resolution")

    @admin.display(description="about")
    def about(self, case: Case) -> str:
        """The action, or the account."""
        return case.action_id or case.resource

    def get_urls(self) -> list[Any]:
        """What a person can do beside Django's pages. All of it is POST."""
        wrap = self.admin_site.admin_view
        return [
            path("<int:pk>/check-now/", wrap(self.check_view), name="effects_case_check"),
            path("<int:pk>/close/", wrap(self.close_view), name="effects_case_close"),
            *self.act_urls(),
            *self.owner_urls(),
            *super().get_urls(),
        ]

    @method_decorator(require_POST)
    def check_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask the provider once, read-only, and adopt what it proves."""
        from reconciliation.check_now import check_now

        user = permitted(request, PERMISSION)
        case = get_object_or_404(Case, pk=pk)
        if not case.action_id:
            messages.error(request, "This case is about no single action; nothing was asked.")
        else:
            checked = check_now(action_id=case.action_id, actor=actor_of(user))
            messages.info(request, checked.sentence)
        return HttpResponseRedirect(page_of(case))

    @method_decorator(require_POST)
    def close_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Close by a person's word, where a word is enough."""
        user = permitted(request, PERMISSION)
        case = get_object_or_404(Case, pk=pk)
        result = settle_case(case_id=case.case_id, user=user, note=posted_note(request))
        return tell(
            request,
            page=page_of(case),
            done="Closed, with your name and note in the history.",
            refused=result.sentence if isinstance(result, NotSettled) else "",
        )

    def page_context(self, request: HttpRequest, row: Case) -> dict[str, Any]:
        """The case with the evidence of its action."""
        return _page(request, row)


def _page(request: HttpRequest, case: Case) -> dict[str, Any]:
    now, user = database_now(), request.user
    kind = kind_of(case.action_id)
    action: Any = (
        kind.action_model._default_manager.filter(action_id=case.action_id).first()
        if kind
        else None
    )
    acts = acts_context(case=case, kind=kind, action=action, user=user, now=now)
    context: dict[str, Any] = evidence_of(action) if action is not None else {}
    return (
        acts
        | context
        | owner_context(case)
        | {
            "case": case,
            "is_open": case.closed_at is None,
            "open_for": since(case.opened_at, now=now),
            "overdue": case.closed_at is None and case.due_at < now,
            "found": in_words(case.evidence),
            "action_page": page_of(action) if action is not None else "",
            "not_by_hand": not_by_hand(case, action_is_final=bool(action and action.is_final)),
            "may_settle": user.has_perm(PERMISSION),
        }
    )
