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
from kernel.identity import require_identifier
from kernel.money import AMOUNT_MINOR_MAX, require_currency
from kernel.strict_json import Malformed, NotStrict, read_object, shown_name
from policies.models import PolicyVersion
from policies.parameters import Parameters
from policies.versions import DEFAULT_PARAMETERS, publish

# Longer than any card payment can be refunded or disputed; more is a slip of the keyboard.
WINDOW_SECONDS_MAX = 2 * 366 * 24 * 3600
WRONGS_SHOWN_MAX = 5


def read_parameters(value: object) -> Parameters:
    """Parameters out of JSON, strictly: every field, no other, no rounding.

    Raises InvalidInput naming the field.
    """
    wanted = DEFAULT_PARAMETERS.as_json()
    if not isinstance(value, dict):
        raise InvalidInput(field="parameters", reason="must be an object")
    for name in sorted(set(value) - set(wanted)):
        raise InvalidInput(field=shown_name(str(name)), reason="is not a known parameter")
    for name in sorted(set(wanted) - set(value)):
        raise InvalidInput(field=name, reason="is required")
    ceilings, reasons = value["ceiling_minor"], value["reasons"]
    if not isinstance(ceilings, dict):
        raise InvalidInput(field="ceiling_minor", reason="must map currencies to minor units")
    for currency, amount in ceilings.items():
        if require_currency(currency, field="ceiling_minor") != currency:
            raise InvalidInput(field="ceiling_minor", reason=f"{currency!r}: use capitals")
        _whole(amount, field=f"ceiling_minor.{currency}", largest=AMOUNT_MINOR_MAX)
    if not isinstance(reasons, list) or not reasons:
        raise InvalidInput(field="reasons", reason="must be a list of reason codes")
    for reason in reasons:
        require_identifier(reason, field="reasons")
    if type(value["review_beside_open"]) is not bool:
        raise InvalidInput(field="review_beside_open", reason="must be true or false")
    for name, largest in (
        ("same_amount_window_seconds", WINDOW_SECONDS_MAX),
        ("unsearchable_ceiling_minor", AMOUNT_MINOR_MAX),
    ):
        _whole(value[name], field=name, largest=largest)
    return Parameters.from_json(value)


def _whole(value: object, *, field: str, largest: int) -> None:
    if type(value) is not int or not 0 <= value <= largest:
        raise InvalidInput(field=field, reason=f"must be an integer from 0 to {largest}")


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
        parameters = in_force.parameters if in_force else DEFAULT_PARAMETERS.as_json()
        return {"parameters": json.loads(json.dumps(parameters))}

    def save_model(self, request: HttpRequest, obj: PolicyVersion, form: Any, change: bool) -> None:
        """Publish. `obj` becomes the row that was written."""
        user: Any = request.user
        published = publish(
            parameters=read_parameters(obj.parameters), published_by=actor_of(user), note=obj.note
        )
        obj.__dict__.update(published.__dict__)
