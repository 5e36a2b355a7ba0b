"""Orders, refunds and their history; on a refund that awaits a person, approve and reject."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from approvals.decide import ApprovedByOne, Refused, Seen, Why, approve, reject
from approvals.models import Approval
from approvals.standing import tier_of
from console.action_pages import ActionAdmin, AttemptAdmin, HistoryAdmin
from console.approving import decide_panel, shown_to
from console.evidence import LINES_MAX, evidence_of, line_of
from console.posted import posted_note, posted_number, tell
from console.read_only import ReadOnlyAdmin, WithContext
from console.remedy_page import remedies_of
from console.words import STATE_COLOURS, action_link, page_of, visible
from effects.states import State
from kernel.money import format_amount
from policies.models import DecisionRecord
from refunds.kind import REFUND
from refunds.models import (
    AgentNote,
    ExternalRefund,
    Order,
    RefundAction,
    RefundAttempt,
    RefundEvent,
)

# An order's version is a bigint: every number of 18 digits fits.
_BIGINT_DIGITS = 18


@admin.register(Order)
class OrderAdmin(WithContext, ReadOnlyAdmin):
    """Balances of an order, and every refund of it."""

    list_display = ("order_id", "captured", "refunded", "reserved", "left", "dispute_state")
    exact_search = ("order_id", "payment_ref")
    change_form_outer_before_template = "console/order.html"

    @admin.display(description="captured")
    def captured(self, order: Order) -> str:
        """What the customer paid."""
        return format_amount(order.captured_minor, order.currency)

    @admin.display(description="refunded")
    def refunded(self, order: Order) -> str:
        """What went back, ours or not."""
        return format_amount(order.refunded_minor, order.currency)

    @admin.display(description="in flight")
    def reserved(self, order: Order) -> str:
        """What is reserved for refunds whose end is not known."""
        return format_amount(order.reserved_minor, order.currency)

    @admin.display(description="left to refund")
    def left(self, order: Order) -> str:
        """What may still be sent."""
        return format_amount(order.refundable_minor, order.currency)

    def page_context(self, request: HttpRequest, row: Order) -> dict[str, Any]:
        """The order, its refunds, and refunds made elsewhere."""
        return {
            "order": row,
            "balances": [
                (words, format_amount(amount, row.currency))
                for words, amount in (
                    ("captured", row.captured_minor),
                    ("disputed", row.disputed_minor),
                    ("refunded", row.refunded_minor),
                    ("in flight", row.reserved_minor),
                    ("settled otherwise", row.settled_otherwise_minor),
                    ("left to refund", row.refundable_minor),
                )
            ],
            "refunds": siblings_of(row),
            "external": [
                (made, format_amount(made.amount_minor, made.currency))
                for made in row.external_refunds.order_by("pk")[:LINES_MAX]
            ],
        }


def siblings_of(order: Order, *, beside: RefundAction | None = None) -> list[dict[str, Any]]:
    """The order's refunds, newest first, as a table shows them."""
    rows = order.actions.order_by("-pk")
    if beside is not None:
        rows = rows.exclude(pk=beside.pk)
    return [
        {
            "row": row,
            "page": page_of(row),
            "amount": format_amount(row.amount_minor, row.currency),
            "state_label": State(row.state).label,
            "state_colour": STATE_COLOURS[row.state],
        }
        for row in rows[:LINES_MAX]
    ]


@admin.register(RefundAction)
class RefundActionAdmin(ActionAdmin):
    """One refund: what it is, whose turn it is, and how it came to stand there."""

    change_form_outer_before_template = "console/action.html"

    def get_urls(self) -> list[Any]:
        """The two decisions beside Django's pages. Both are POST."""
        wrap = self.admin_site.admin_view
        return [
            path("<int:pk>/approve/", wrap(self.approve_view), name="refunds_refundaction_approve"),
            path("<int:pk>/reject/", wrap(self.reject_view), name="refunds_refundaction_reject"),
            *super().get_urls(),
        ]

    @method_decorator(require_POST)
    def approve_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Approve what the form showed."""
        return self._decide(request, pk=pk, decide=approve, done="Approved. A worker sends it.")

    @method_decorator(require_POST)
    def reject_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Reject what the form showed."""
        return self._decide(request, pk=pk, decide=reject, done="Rejected. Nothing is sent.")

    def _decide(self, request: HttpRequest, *, pk: int, decide: Any, done: str) -> HttpResponse:
        user: Any = request.user
        if not tier_of(user, decide_permission=REFUND.decide_permission):
            raise PermissionDenied
        action = get_object_or_404(RefundAction, pk=pk)
        seen = Seen(
            version=posted_number(request, "seen_version", digits_max=_BIGINT_DIGITS),
            payload_hash=request.POST.get("seen_payload_hash", ""),
            round=posted_number(request, "seen_round", digits_max=_BIGINT_DIGITS),
            policy_version=posted_number(request, "seen_policy_version", digits_max=_BIGINT_DIGITS),
        )
        result = decide(action_id=action.action_id, user=user, note=posted_note(request), seen=seen)
        page = page_of(action)
        if isinstance(result, Refused):
            if result.why is Why.NOT_PERMITTED:
                raise PermissionDenied
            if result.why is Why.CHANGED_SINCE:
                page += f"?seen={seen.version}"
            return tell(request, page=page, refused=result.sentence)
        if isinstance(result, ApprovedByOne):
            more = result.waiting_for
            done = (
                f"Approved by you. Nothing is sent before {more} more "
                f"{'person approves' if more == 1 else 'people approve'} it."
            )
        return tell(request, page=page, done=done)

    def page_context(self, request: HttpRequest, row: RefundAction) -> dict[str, Any]:
        """The refund with its evidence, and what changed since version `?seen=` of its order."""
        return _page(request, row)


def _page(request: HttpRequest, action: RefundAction) -> dict[str, Any]:
    order, seen = action.order, request.GET.get("seen", "")
    user: Any = request.user
    note = AgentNote.objects.filter(action=action).first()
    return evidence_of(action) | {
        **remedies_of(request, action),
        "order": order,
        "order_page": page_of(order),
        "amount": format_amount(action.amount_minor, action.currency),
        "left": format_amount(order.refundable_minor + action.reserved_minor, order.currency),
        "agent_note": visible(note.text) if note else "",
        "siblings": siblings_of(order, beside=action),
        **decide_panel(action=action, user=user),
        "seen": seen,
        "changed": _changed_since(order, seen=seen),
    }


def _changed_since(order: Order, *, seen: str) -> list[Any]:
    """The order's history after that version, when a refused decision asks for it."""
    if not (seen.isascii() and seen.isdigit() and len(seen) < 19):
        return []
    rows = RefundEvent.objects.filter(order=order, data__order_version__gt=int(seen))
    return [
        (line_of(row, currency=order.currency), row.action)
        for row in rows.select_related("action").order_by("pk")[:LINES_MAX]
    ]


@admin.register(RefundAttempt)
class RefundAttemptAdmin(AttemptAdmin):
    """Requests on the wire."""


@admin.register(RefundEvent)
class RefundEventAdmin(HistoryAdmin):
    """History, newest first."""


@admin.register(ExternalRefund)
class ExternalRefundAdmin(ReadOnlyAdmin):
    """Refunds of our payments that were made elsewhere."""

    list_display = ("provider_ref", "order", "amount", "status", "made_at", "seen_at")
    exact_search = ("provider_ref", "order__order_id")
    list_select_related = ("order",)

    @admin.display(description="amount")
    def amount(self, row: ExternalRefund) -> str:
        """For people."""
        return format_amount(row.amount_minor, row.currency)


@admin.register(DecisionRecord)
class DecisionRecordAdmin(ReadOnlyAdmin):
    """Every evaluation of a policy."""

    list_display = ("linked_action", "number", "verdict", "policy_version", "facts_read_at")
    exact_search = ("action_id",)
    list_display_links = ("number",)

    @admin.display(description="action")
    def linked_action(self, row: DecisionRecord) -> str:
        """The id; its page is found by it."""
        return row.action_id


@admin.register(Approval)
class ApprovalAdmin(ReadOnlyAdmin):
    """Decisions of people."""

    list_display = (
        "action_id", "number", "round", "approved", "decided_by", "tier", "decided_at", "expires_at"
    )  # fmt: skip
    exact_search = ("action_id", "decided_by__username")
    list_select_related = ("decided_by",)
    readonly_fields = ("page", "bound_to")

    @admin.display(description="action")
    def page(self, row: Approval) -> str:
        """A link to the action."""
        return action_link(row.action_id)

    @admin.display(description="bound to")
    def bound_to(self, row: Approval) -> str:
        """What had to be the same when it was sent."""
        return "; ".join(f"{label}: {text}" for label, text in shown_to(row))
