"""People and groups: Django's own pages in this site's clothes.

Who may approve a refund is a matter of money, so only superusers give rights, and only they change
people who have some: with a reviewer's password one is the reviewer. Django's own pages would let
everybody who may change people make themselves a superuser.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from console.read_only import OnlyItsFilters

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class PersonAdmin(OnlyItsFilters, DjangoUserAdmin, ModelAdmin):  # type: ignore[type-arg,misc]
    """A person. One who has decided something is disabled, never deleted."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    rights: ClassVar[tuple[str, ...]] = ("is_superuser", "groups", "user_permissions")

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        """Rights are read by everybody and given by superusers."""
        fields = tuple(super().get_readonly_fields(request, obj))
        return fields if request.user.is_superuser else (*fields, *self.rights)

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Whoever may change people may change those who have no rights; superusers all of them.

        It covers passwords too. Of one who is disabled the rights count as well: they come back.
        """
        return super().has_change_permission(request, obj) and _is_below(obj, request.user)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """As for changes."""
        return super().has_delete_permission(request, obj) and _is_below(obj, request.user)


def _is_below(person: User | None, user: Any) -> bool:
    if user.is_superuser or person is None:
        return True
    return not (person.is_superuser or person.groups.exists() or person.user_permissions.exists())


@admin.register(Group)
class RoleAdmin(OnlyItsFilters, DjangoGroupAdmin, ModelAdmin):  # type: ignore[misc]
    """A set of permissions. Whoever could change one could give themselves any right."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Superusers only."""
        return bool(request.user.is_superuser)

    def has_change_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        """Superusers only."""
        return bool(request.user.is_superuser)

    def has_delete_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        """Superusers only."""
        return bool(request.user.is_superuser)
