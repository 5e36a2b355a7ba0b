"""Policy versions: read them, publish a new one. None is ever edited."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.forms.fields import InvalidJSONInput
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminTextareaWidget

from approvals.decide import actor_of
from console.read_only import ReadOnlyAdmin
from kernel.errors import InvalidInput
from kernel.strict_json import Malformed, NotStrict, read_object
from policies.models import PolicyVersion
from policies.parameters import Parameters
from policies.read_parameters import read_parameters
from policies.versions import DEFAULT_PARAMETERS, publish

WRONGS_SHOWN_MAX = 5


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

    def bound_data(self, data: Any, initial: Any) -> Any:
        """What was typed, as it was typed: it may be no JSON that can be shown in another way."""
        return data if data is None else InvalidJSONInput(data)


class PublishForm(forms.ModelForm[PolicyVersion]):
    """The next version: its parameters as JSON, and why."""

    parameters = StrictJSONField(
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 28}),
        help_text="In force for every decision from now on; amounts are minor units. A currency "
        "without a ceiling always needs a person.",
    )

    class Meta:
        model = PolicyVersion
        fields: ClassVar[list[str]] = ["parameters", "note"]
        widgets: ClassVar[dict[str, Any]] = {"note": UnfoldAdminTextareaWidget(attrs={"rows": 3})}

    def clean_parameters(self) -> dict[str, Any]:
        """Refuse what the rules could not read."""
        value: dict[str, Any] = self.cleaned_data["parameters"]
        try:
            read_parameters(value)
        except InvalidInput as error:
            raise forms.ValidationError(str(error)) from error
        return value


@admin.register(PolicyVersion)
class PolicyVersionAdmin(ReadOnlyAdmin):
    """The highest number is in force."""

    list_display = ("number", "published_by", "published_at", "note")
    ordering = ("-number",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Publishing needs policies.add_policyversion."""
        return bool(request.user.has_perm("policies.add_policyversion"))

    def get_form(
        self, request: HttpRequest, obj: PolicyVersion | None = None, **kwargs: Any
    ) -> Any:
        """The form to publish; on an existing version Django's read-only one."""
        if obj is None:
            return PublishForm
        return super().get_form(request, obj, **kwargs)

    def get_fields(self, request: HttpRequest, obj: PolicyVersion | None = None) -> list[str]:
        """What is written, or everything that was."""
        if obj is None:
            return ["parameters", "note"]
        return ["number", "parameters", "parameters_hash", "published_by", "published_at", "note"]

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """The version in force, so that what is not touched stays."""
        in_force = PolicyVersion.objects.order_by("-number").first()
        parameters = Parameters.from_json(in_force.parameters) if in_force else DEFAULT_PARAMETERS
        # Through JSON, which has no tuples.
        return {"parameters": json.loads(json.dumps(parameters.as_json()))}

    def save_model(self, request: HttpRequest, obj: PolicyVersion, form: Any, change: bool) -> None:
        """Publish. `obj` becomes the row that was written."""
        user: Any = request.user
        published = publish(
            parameters=read_parameters(obj.parameters), published_by=actor_of(user), note=obj.note
        )
        obj.__dict__.update(published.__dict__)
