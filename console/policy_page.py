"""Policies: drafts are edited by one person and published by another; versions are read."""

from __future__ import annotations

import inspect
import json
from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.forms.fields import InvalidJSONInput
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from console.posted import permitted, tell
from console.read_only import ReadOnlyAdmin, WithContext
from console.words import page_of, visible
from effects.clock import database_now
from effects.people import NOTE_CHARACTERS_MAX
from kernel.money import format_amount
from kernel.strict_json import Malformed, NotStrict, read_object
from policies.differences import Difference, differences
from policies.drafts import (
    EDIT_PERMISSION,
    NAME_CHARACTERS_MAX,
    PUBLISH_PERMISSION,
    Content,
    Refused,
    Why,
    content_hash,
    discard_draft,
    publish_draft,
    save_draft,
    why_not_published,
    why_not_saved,
)
from policies.examples import explain_examples
from policies.models import PolicyDraft, PolicyEvent, PolicyVersion
from policies.parameters import Parameters
from policies.replay import Replay, replay
from policies.versions import DEFAULT_PARAMETERS, in_force

WRONGS_SHOWN_MAX = 5
# What can be asked for on a draft's page, and how much of it is done there: seconds of work. The
# command has no bound.
REPLAY_DAYS = (1, 7, 30, 90)
REPLAY_DECISIONS_MAX = 2_000


class StrictJSONField(forms.JSONField):
    """An object as JSON, read as strictly as the API reads its bodies."""

    def to_python(self, value: Any) -> Any:
        """The object. Raises ValidationError naming what could be misread."""
        if not isinstance(value, str) or not value.strip():
            return super().to_python(value)
        try:
            return read_object(value)
        except Malformed as error:
            raise forms.ValidationError(f"The text {error.reason}.") from error
        except NotStrict as error:
            raise forms.ValidationError(
                [f"{wrong.path}: {wrong.reason}" for wrong in error.wrongs[:WRONGS_SHOWN_MAX]]
            ) from error

    def prepare_value(self, value: Any) -> Any:
        """As people read it: one parameter to a line."""
        if isinstance(value, InvalidJSONInput):
            return value
        return json.dumps(value, ensure_ascii=False, indent=2)

    def bound_data(self, data: Any, initial: Any) -> Any:
        """What was typed, as it was typed: it may be no JSON that can be shown in another way."""
        return data if data is None else InvalidJSONInput(data)


class NotSaved(Exception):
    """What the form had checked was no longer so when it was written. Nothing was written."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.sentence)
        self.refused = refused


class DraftForm(forms.ModelForm[PolicyDraft]):
    """What a draft says, and which content and version its editor was looking at."""

    user: ClassVar[Any] = None

    parameters = StrictJSONField(
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 32}),
        help_text="Amounts are minor units. A currency without a ceiling always needs a person.",
    )
    seen_hash = forms.CharField(widget=forms.HiddenInput, required=False)
    compared_with = forms.IntegerField(widget=forms.HiddenInput, required=False)

    class Meta:
        model = PolicyDraft
        fields: ClassVar[list[str]] = ["name", "note", "parameters"]
        widgets: ClassVar[dict[str, Any]] = {
            "name": UnfoldAdminTextInputWidget(attrs={"maxlength": NAME_CHARACTERS_MAX}),
            "note": UnfoldAdminTextareaWidget(attrs={"rows": 3, "maxlength": NOTE_CHARACTERS_MAX}),
        }
        help_texts: ClassVar[dict[str, str]] = {
            "name": "What it is for, in a few words.",
            "note": "Why. Whoever publishes it, and an auditor, reads this.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            # What a rule that is newer than the draft needs is there to be looked at.
            self.initial["parameters"] = _whole(self.instance.parameters)
            self.initial["seen_hash"] = content_hash(self.instance)
        self.initial["compared_with"] = _number_in_force()

    def content(self) -> Content:
        """What was typed."""
        return Content(
            name=self.cleaned_data["name"],
            parameters=self.cleaned_data["parameters"],
            # Browsers send line ends as two characters.
            note=self.cleaned_data["note"].replace("\r\n", "\n"),
            based_on=self.cleaned_data["compared_with"] or 0,
        )

    def clean(self) -> dict[str, Any]:
        """Refuse what `save_draft` would. The draft stays locked until the page is done."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if self.errors:
            return cleaned
        refusal = why_not_saved(
            user=self.user,
            content=self.content(),
            draft_id=self.instance.pk,
            seen_hash=cleaned["seen_hash"],
        )
        if refusal is not None:
            self.add_error(
                "parameters" if refusal.why is Why.BAD_PARAMETERS else None, refusal.sentence
            )
        return cleaned


def _whole(parameters: dict[str, Any]) -> dict[str, Any]:
    """Stored parameters with those that are newer than they are, off."""
    whole: dict[str, Any] = json.loads(json.dumps(Parameters.from_json(parameters).as_json()))
    return whole


def _number_in_force() -> int:
    version = in_force()
    return version.number if version else 0


@admin.register(PolicyDraft)
class PolicyDraftAdmin(WithContext, ReadOnlyAdmin):
    """What the policy might become."""

    list_display = ("name", "state", "edited_by", "edited_at", "based_on", "became")
    list_filter = ("state",)
    list_select_related = ("edited_by", "based_on", "published_as")
    change_form_outer_before_template = "console/draft.html"
    change_form_before_template = "console/draft_hidden.html"
    change_form_after_template = "console/parameters_help.html"
    parameters_help = inspect.getdoc(Parameters)

    @admin.display(description="became")
    def became(self, draft: PolicyDraft) -> str:
        """The version that it was published as."""
        return str(getattr(draft, "published_as", ""))

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Whoever may edit drafts may begin one."""
        return bool(request.user.has_perm(EDIT_PERMISSION))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """As long as it is open."""
        is_open = obj is None or obj.state == PolicyDraft.State.OPEN
        return is_open and bool(request.user.has_perm(EDIT_PERMISSION))

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever may publish a draft must be able to look at it."""
        return bool(
            request.user.has_perm("policies.view_policydraft")
            or request.user.has_perm(EDIT_PERMISSION)
            or request.user.has_perm(PUBLISH_PERMISSION)
        )

    def get_fields(self, request: HttpRequest, obj: PolicyDraft | None = None) -> list[str]:
        """What can be edited; the rest stands above the form."""
        return ["name", "note", "parameters"]

    def get_form(self, request: HttpRequest, obj: PolicyDraft | None = None, **kwargs: Any) -> Any:
        """The form of this person, or Django's read-only one."""
        if obj is not None and not self.has_change_permission(request, obj):
            return super().get_form(request, obj, **kwargs)
        return type("DraftForm", (DraftForm,), {"user": request.user, "Meta": DraftForm.Meta})

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """The version in force, so that what is not touched stays."""
        version = in_force()
        parameters = version.parameters if version else DEFAULT_PARAMETERS.as_json()
        return {"parameters": _whole(parameters)}

    def save_model(self, request: HttpRequest, obj: PolicyDraft, form: Any, change: bool) -> None:
        """Save what was typed as a draft. `obj` becomes the row that was written."""
        user: Any = request.user
        result = save_draft(
            user=user,
            content=form.content(),
            draft_id=obj.pk,
            seen_hash=form.cleaned_data["seen_hash"],
        )
        if isinstance(result, Refused):
            raise NotSaved(result)
        obj.__dict__.update(PolicyDraft.objects.get(pk=result.draft_id).__dict__)

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Django's page, in its own transaction; what was refused at the last moment is told."""
        try:
            page: HttpResponse = super().changeform_view(request, *args, **kwargs)
        except NotSaved as error:
            return tell(request, page=request.path, refused=error.refused.sentence)
        return page

    def get_urls(self) -> list[Any]:
        """What can be done with a draft beside editing it. Both are POST."""
        wrap = self.admin_site.admin_view
        return [
            path("<int:pk>/publish/", wrap(self.publish_view), name="policies_draft_publish"),
            path("<int:pk>/discard/", wrap(self.discard_view), name="policies_draft_discard"),
            *super().get_urls(),
        ]

    @method_decorator(require_POST)
    def publish_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Put the draft in force as it was shown."""
        user = permitted(request, PUBLISH_PERMISSION)
        draft = get_object_or_404(PolicyDraft, pk=pk)
        result = publish_draft(user=user, draft_id=pk, seen_hash=request.POST.get("seen_hash", ""))
        if isinstance(result, Refused):
            return tell(request, page=page_of(draft), refused=result.sentence)
        done = f"It is version {result.number}, in force for every decision from now on."
        return tell(request, page=page_of(draft), done=done)

    @method_decorator(require_POST)
    def discard_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """End a draft that will not be published."""
        user = permitted(request, EDIT_PERMISSION)
        draft = get_object_or_404(PolicyDraft, pk=pk)
        result = discard_draft(user=user, draft_id=pk, seen_hash=request.POST.get("seen_hash", ""))
        return tell(
            request,
            page=page_of(draft),
            done="It is discarded. It stays here to be read.",
            refused=result.sentence if isinstance(result, Refused) else "",
        )

    def page_context(self, request: HttpRequest, row: PolicyDraft) -> dict[str, Any]:
        """The draft under what it changes, what it would say, and what can be done with it."""
        return _draft_page(request, row)


def _draft_page(request: HttpRequest, draft: PolicyDraft) -> dict[str, Any]:
    user: Any = request.user
    is_open = draft.state == PolicyDraft.State.OPEN
    # Of a draft that is over it stays interesting what it changed then.
    against = in_force() if is_open else draft.based_on
    before = Parameters.from_json(against.parameters) if against else None
    after = Parameters.from_json(draft.parameters)
    refusal = why_not_published(user=user, draft=draft) if is_open else None
    days = request.GET.get("days", "")
    return {
        "draft": draft,
        "draft_is_open": is_open,
        "draft_note": visible(draft.note),
        "draft_hash": content_hash(draft),
        "draft_became": getattr(draft, "published_as", None),
        "against": against,
        "changes": _changes(before, after),
        "examples": explain_examples(before=before, after=after),
        "may_edit": is_open and user.has_perm(EDIT_PERMISSION),
        "why_not_published": refusal.sentence if refusal else "",
        "draft_events": draft.events.order_by("pk"),
        "replay_days": REPLAY_DAYS,
        "replayed": _replay(after, days=int(days)) if days in map(str, REPLAY_DAYS) else None,
    }


def _changes(before: Parameters | None, after: Parameters) -> list[Difference]:
    return differences(before.as_json() if before else {}, after.as_json())


def _replay(draft: Parameters, *, days: int) -> dict[str, Any]:
    """The replay of some days in words, bounded so that a page of it opens within seconds."""
    found: Replay = replay(
        since=database_now() - timedelta(days=days),
        draft=draft,
        decisions_max=REPLAY_DECISIONS_MAX,
    )
    return {
        "days": days,
        "found": found,
        "sums": [
            {
                "row": row,
                "money": format_amount(row.amount_minor, row.currency),
                "base": format_amount(row.base_minor, row.base_currency)
                if row.base_currency and row.base_currency != row.currency
                else "",
            }
            for row in found.sums
        ],
        "largest": [
            {"row": change, "money": format_amount(change.amount_minor, change.currency)}
            for change in found.largest
        ],
    }


@admin.register(PolicyVersion)
class PolicyVersionAdmin(WithContext, ReadOnlyAdmin):
    """The highest number is in force. It comes from a draft and in no other way."""

    list_display = ("number", "editor", "published_by", "published_at", "note")
    list_select_related = ("editor",)
    ordering = ("-number",)
    change_form_outer_before_template = "console/version.html"
    fields: ClassVar[tuple[str, ...]] = (
        *("number", "editor", "publisher", "published_by", "published_at", "note"),
        *("parameters_hash", "parameters"),
    )

    def page_context(self, request: HttpRequest, row: PolicyVersion) -> dict[str, Any]:
        """The version under what it changed."""
        before = PolicyVersion.objects.filter(number=row.number - 1).first()
        draft: Any = row.draft
        return {
            "version": row,
            "version_in_force": row.number == _number_in_force(),
            "version_draft": page_of(draft) if draft else "",
            "against": before,
            "changes": differences(
                _whole(before.parameters) if before else {}, _whole(row.parameters)
            ),
            "new_draft": reverse("admin:policies_policydraft_add")
            if request.user.has_perm(EDIT_PERMISSION)
            else "",
        }


@admin.register(PolicyEvent)
class PolicyEventAdmin(ReadOnlyAdmin):
    """Every policy's history."""

    list_display = ("at", "kind", "actor", "draft", "version")
    list_filter = ("kind",)
    list_select_related = ("draft", "version")
