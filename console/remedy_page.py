"""Remedies and store credits: proposed on a failed refund's page, settled on their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST
from unfold.decorators import display

from console.evidence import evidence_of
from console.read_only import ReadOnlyAdmin
from console.words import STATE_COLOURS, page_of
from effects.states import State
from kernel.money import format_amount
from refunds import remedies
from refunds.models import CreditAction, CreditAttempt, CreditEvent, RefundAction, Remedy
from refunds.remedies import RemedyDone, RemedyRefused, Why
from refunds.remedy_models import STOPPABLE_REMEDIES, RemedyState
from refunds.remedy_moves import opening

REMEDY_COLOURS: dict[str, str] = {
    RemedyState.PROPOSED: "warning",
    RemedyState.AUTHORIZED: "info",
    RemedyState.ISSUING: "info",
    RemedyState.ISSUED: "success",
    RemedyState.STOPPED: "default",
    RemedyState.FAILED: "danger",
}


def remedies_of(request: HttpRequest, action: RefundAction) -> dict[str, Any]:
    """What a refund's page shows of its remedies, and the form that proposes one."""
    rows = Remedy.objects.filter(debt=action).order_by("number")
    return {
        "remedies": [
            {
                "row": row,
                "page": page_of(row),
                "words": opening(row),
                "state_label": RemedyState(row.state).label,
                "state_colour": REMEDY_COLOURS[row.state],
            }
            for row in rows
        ],
        "may_be_remedied": action.state == State.FAILED_FINAL
        and not any(row.state in ("PROPOSED", "AUTHORIZED", "ISSUING", "ISSUED") for row in rows),
        "may_propose_remedy": request.user.has_perm(remedies.MAY_PROPOSE),
        "remedy_kinds": Remedy.Kind.choices,
        "remedy_reasons": list(remedies.REMEDY_REASONS.items()),
        "history_version": remedies.history_version(action_id=action.action_id),
    }


@admin.register(Remedy)
class RemedyAdmin(ReadOnlyAdmin):
    """What was done instead of a refund that failed."""

    list_display = ("number", "debt", "kind", "amount", "shown_state", "proposed_by", "state_since")
    list_filter = ("state", "kind")
    exact_search = ("debt__action_id", "reference")
    list_select_related = ("debt", "proposed_by")
    change_form_outer_before_template = "console/remedy.html"

    @admin.display(description="amount")
    def amount(self, remedy: Remedy) -> str:
        """For people."""
        return format_amount(remedy.amount_minor, remedy.currency)

    @display(  # type: ignore[untyped-decorator]
        description="state",
        label={str(RemedyState(name).label): colour for name, colour in REMEDY_COLOURS.items()},
    )
    def shown_state(self, remedy: Remedy) -> str:
        """Where it stands."""
        return str(RemedyState(remedy.state).label)

    def get_urls(self) -> list[Any]:
        """What a person can do beside Django's pages. All of it is POST."""
        wrap = self.admin_site.admin_view
        return [
            path("for/<int:pk>/", wrap(self.propose_view), name="refunds_remedy_propose"),
            path("<int:pk>/approve/", wrap(self.approve_view), name="refunds_remedy_approve"),
            path("<int:pk>/record/", wrap(self.record_view), name="refunds_remedy_record"),
            path("<int:pk>/stop/", wrap(self.stop_view), name="refunds_remedy_stop"),
            *super().get_urls(),
        ]

    @method_decorator(require_POST)
    def propose_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Propose a remedy of the refund with that key."""
        debt = get_object_or_404(RefundAction, pk=pk)
        user: Any = request.user
        result = remedies.propose_remedy(
            action_id=debt.action_id,
            kind=request.POST.get("kind", ""),
            user=user,
            reason=request.POST.get("reason", ""),
            note=_note(request),
            seen_version=_seen(request),
        )
        return _answer(request, result, page=page_of(debt))

    @method_decorator(require_POST)
    def approve_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Be the second person."""
        return self._act(
            request,
            pk,
            lambda user: remedies.approve_remedy(
                remedy_id=pk, user=user, note=_note(request), seen_version=_seen(request)
            ),
        )

    @method_decorator(require_POST)
    def record_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Record the reference of what is out."""
        return self._act(
            request,
            pk,
            lambda user: remedies.record_issued(
                remedy_id=pk,
                user=user,
                reference=request.POST.get("reference", ""),
                seen_version=_seen(request),
            ),
        )

    @method_decorator(require_POST)
    def stop_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Stop what is not out."""
        return self._act(
            request,
            pk,
            lambda user: remedies.stop_remedy(
                remedy_id=pk, user=user, note=_note(request), seen_version=_seen(request)
            ),
        )

    def _act(
        self, request: HttpRequest, pk: int, act: Callable[[Any], RemedyDone | RemedyRefused]
    ) -> HttpResponse:
        remedy = get_object_or_404(Remedy, pk=pk)
        return _answer(request, act(request.user), page=page_of(remedy))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The remedy with the evidence of its refund, and what this person can do."""
        remedy = self.get_object(request, object_id)
        if remedy is not None and self.has_view_permission(request, remedy):
            extra_context = _page(request, remedy) | (extra_context or {})
        found: HttpResponse = super().change_view(request, object_id, form_url, extra_context)
        return found


def _page(request: HttpRequest, remedy: Remedy) -> dict[str, Any]:
    user: Any = request.user
    credit = CreditAction.objects.filter(remedy=remedy).first()
    by_hand = remedy.kind != Remedy.Kind.STORE_CREDIT
    return evidence_of(remedy.debt) | {
        "remedy": remedy,
        "words": opening(remedy),
        "refund": remedy.debt,
        "refund_page": page_of(remedy.debt),
        "credit": credit,
        "credit_page": page_of(credit) if credit else "",
        "remedy_label": RemedyState(remedy.state).label,
        "remedy_colour": REMEDY_COLOURS[remedy.state],
        "reason_words": remedies.REMEDY_REASONS.get(remedy.reason, remedy.reason),
        "history_version": remedies.history_version(action_id=remedy.debt.action_id),
        "can_approve": remedy.state == RemedyState.PROPOSED and user.has_perm(remedies.MAY_APPROVE),
        "is_own": remedy.proposed_by_id == user.pk,
        "can_record": by_hand
        and remedy.state in (RemedyState.AUTHORIZED, RemedyState.STOPPED)
        and user.has_perm(remedies.MAY_RECORD),
        "can_stop": remedy.state in STOPPABLE_REMEDIES and user.has_perm(remedies.MAY_PROPOSE),
    }


def _note(request: HttpRequest) -> str:
    return request.POST.get("note", "").replace("\r\n", "\n")


def _seen(request: HttpRequest) -> int:
    """How many events the page showed; a form without that was not made by this site."""
    seen = request.POST.get("seen_version", "")
    if not (seen.isascii() and seen.isdigit() and len(seen) < 10):
        raise BadRequest("seen_version: must be the number of events that the page showed")
    return int(seen)


def _answer(request: HttpRequest, result: RemedyDone | RemedyRefused, *, page: str) -> HttpResponse:
    if isinstance(result, RemedyDone):
        messages.success(request, result.sentence)
        return HttpResponseRedirect(page_of(result.remedy))
    if result.why is Why.NOT_PERMITTED:
        raise PermissionDenied
    messages.error(request, result.sentence)
    return HttpResponseRedirect(page)


@admin.register(CreditAction)
class CreditActionAdmin(ReadOnlyAdmin):
    """Store credits, each with its requests and its history."""

    list_display = ("action_id", "amount", "shown_state", "state_since", "due_at", "proposed_by")
    list_filter = ("state",)
    exact_search = ("action_id", "order__order_id", "provider_ref")
    list_select_related = ("order",)
    change_form_outer_before_template = "console/credit.html"

    @admin.display(description="amount")
    def amount(self, credit: CreditAction) -> str:
        """For people."""
        return format_amount(credit.amount_minor, credit.currency)

    @display(description="state", label={str(State(k).label): v for k, v in STATE_COLOURS.items()})  # type: ignore[untyped-decorator]
    def shown_state(self, credit: CreditAction) -> str:
        """Where it stands."""
        return str(State(credit.state).label)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The credit with its evidence, its remedy and its refund."""
        credit = self.get_object(request, object_id)
        if credit is not None and self.has_view_permission(request, credit):
            extra_context = (
                evidence_of(credit)
                | {
                    "amount": format_amount(credit.amount_minor, credit.currency),
                    "remedy_page": page_of(credit.remedy),
                    "refund_page": page_of(credit.remedy.debt),
                }
                | (extra_context or {})
            )
        found: HttpResponse = super().change_view(request, object_id, form_url, extra_context)
        return found


@admin.register(CreditAttempt)
class CreditAttemptAdmin(ReadOnlyAdmin):
    """Store credit requests on the wire."""

    list_display = ("action", "number", "generation", "claimed_at", "outcome", "resolution")
    exact_search = ("action__action_id",)
    list_select_related = ("action",)


@admin.register(CreditEvent)
class CreditEventAdmin(ReadOnlyAdmin):
    """History of store credits, newest first."""

    list_display = ("at", "kind", "actor", "order", "action")
    exact_search = ("action__action_id", "order__order_id")
    list_select_related = ("action", "order")
