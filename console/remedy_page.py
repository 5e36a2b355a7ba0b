"""Remedies and store credits: proposed on a failed refund's page, settled on their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST
from unfold.decorators import display

from console.action_pages import ActionAdmin, AttemptAdmin, HistoryAdmin
from console.evidence import evidence_of
from console.posted import posted_note, posted_number, tell
from console.read_only import ReadOnlyAdmin, WithContext
from console.words import page_of
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
class RemedyAdmin(WithContext, ReadOnlyAdmin):
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
            path("<int:pk>/failed/", wrap(self.failed_view), name="refunds_remedy_failed"),
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
            note=posted_note(request),
            seen_version=posted_number(request, "seen_version"),
        )
        return _answer(request, result, page=page_of(debt))

    @method_decorator(require_POST)
    def approve_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Be the second person."""
        return self._act(
            request,
            pk,
            lambda user: remedies.approve_remedy(
                remedy_id=pk,
                user=user,
                note=posted_note(request),
                seen_version=posted_number(request, "seen_version"),
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
                seen_version=posted_number(request, "seen_version"),
            ),
        )

    @method_decorator(require_POST)
    def failed_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Record that what was out did not reach the customer."""
        return self._act(
            request,
            pk,
            lambda user: remedies.record_failed(
                remedy_id=pk,
                user=user,
                reason=request.POST.get("reason", ""),
                note=posted_note(request),
                seen_version=posted_number(request, "seen_version"),
            ),
        )

    @method_decorator(require_POST)
    def stop_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Stop what is not out."""
        return self._act(
            request,
            pk,
            lambda user: remedies.stop_remedy(
                remedy_id=pk,
                user=user,
                note=posted_note(request),
                seen_version=posted_number(request, "seen_version"),
            ),
        )

    def _act(
        self, request: HttpRequest, pk: int, act: Callable[[Any], RemedyDone | RemedyRefused]
    ) -> HttpResponse:
        remedy = get_object_or_404(Remedy, pk=pk)
        return _answer(request, act(request.user), page=page_of(remedy))

    def page_context(self, request: HttpRequest, row: Remedy) -> dict[str, Any]:
        """The remedy with the evidence of its refund, and what this person can do."""
        return _page(request, row)


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
        "can_fail": by_hand
        and remedy.state == RemedyState.ISSUED
        and user.has_perm(remedies.MAY_RECORD),
        "failure_reasons": list(remedies.FAILURE_REASONS.items()),
        "can_stop": remedy.state in STOPPABLE_REMEDIES and user.has_perm(remedies.MAY_PROPOSE),
    }


def _answer(request: HttpRequest, result: RemedyDone | RemedyRefused, *, page: str) -> HttpResponse:
    if isinstance(result, RemedyDone):
        return tell(request, page=page_of(result.remedy), done=result.sentence)
    if result.why is Why.NOT_PERMITTED:
        raise PermissionDenied
    return tell(request, page=page, refused=result.sentence)


@admin.register(CreditAction)
class CreditActionAdmin(ActionAdmin):
    """Store credits, each with its requests and its history."""

    change_form_outer_before_template = "console/credit.html"

    def page_context(self, request: HttpRequest, row: CreditAction) -> dict[str, Any]:
        """The credit with its evidence, its remedy and its refund."""
        return evidence_of(row) | {
            "amount": format_amount(row.amount_minor, row.currency),
            "remedy_page": page_of(row.remedy),
            "refund_page": page_of(row.remedy.debt),
        }


@admin.register(CreditAttempt)
class CreditAttemptAdmin(AttemptAdmin):
    """Store credit requests on the wire."""


@admin.register(CreditEvent)
class CreditEventAdmin(HistoryAdmin):
    """History of store credits, newest first."""
