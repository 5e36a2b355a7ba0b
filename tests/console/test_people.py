"""Nobody comes by the right to approve refunds through the pages of people and groups."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from tests import builders
from tests.console.test_pages import post, staff

pytestmark = pytest.mark.django_db

HELD = ("add_user", "change_user", "delete_user", "add_group", "change_group", "delete_group")


def user_of(client: Client) -> User:
    return User.objects.get(pk=client.session["_auth_user_id"])


def edited(user: User, **changes: Any) -> dict[str, Any]:
    """What the form of a person sends, with these changes."""
    joined = user.date_joined
    return {
        "username": user.username,
        "is_active": "on",
        "is_staff": "on",
        "date_joined_0": f"{joined:%Y-%m-%d}",
        "date_joined_1": f"{joined:%H:%M:%S}",
        **changes,
    }


def rights(decide: Permission) -> dict[str, Any]:
    return {"is_superuser": "on", "user_permissions": [decide.pk]}


@pytest.fixture
def decide() -> Permission:
    return Permission.objects.get(codename="decide_refund")


def change(user: User, what: str = "auth_user_change") -> str:
    return reverse(f"admin:{what}", args=[user.pk])


def test_nobody_gives_rights_to_themselves(decide: Permission) -> None:
    client = staff(*HELD)
    me = user_of(client)
    assert post(client, change(me), **edited(me, **rights(decide))).status_code == 403
    me = user_of(client)
    assert not me.is_superuser
    assert not me.has_perm("refunds.decide_refund")


def test_who_is_no_superuser_gives_no_rights_to_others(decide: Permission) -> None:
    other, client = builders.person(may_decide=False), staff(*HELD)
    sent = edited(other, first_name="Ada", **rights(decide))
    assert post(client, change(other), **sent).status_code == 302
    other = User.objects.get(pk=other.pk)
    assert other.first_name == "Ada"
    assert not other.is_superuser
    assert not other.user_permissions.exists()


@pytest.mark.parametrize("kind", ["reviewer", "disabled reviewer", "in a group", "superuser"])
def test_who_has_rights_is_changed_by_superusers_only(kind: str, decide: Permission) -> None:
    other = builders.person(may_decide="reviewer" in kind)
    User.objects.filter(pk=other.pk).update(
        is_superuser=kind == "superuser", is_active="disabled" not in kind
    )
    if kind == "in a group":
        group = Group.objects.create(name="reviewers")
        group.permissions.add(decide)
        other.groups.add(group)
    new = {"password1": "a-new-password-1", "password2": "a-new-password-1"}
    new["usable_password"] = "true"
    password = change(other, "auth_user_password_change")
    client = staff(*HELD)
    assert client.get(password).status_code == 403
    assert post(client, password, **new).status_code == 403
    assert post(client, change(other), **edited(other, username="x")).status_code == 403
    gone = reverse("admin:auth_user_delete", args=[other.pk])
    assert post(client, gone, post="yes").status_code == 403
    same = User.objects.get(pk=other.pk)
    assert (same.username, same.password) == (other.username, other.password)

    assert post(staff(superuser=True), password, **new).status_code == 302
    assert User.objects.get(pk=other.pk).check_password("a-new-password-1")


def test_groups_are_changed_by_superusers_only(decide: Permission) -> None:
    group = Group.objects.create(name="everybody")
    page = reverse("admin:auth_group_change", args=[group.pk])
    sent = {"name": "everybody", "permissions": [decide.pk]}
    client = staff(*HELD)
    assert post(client, page, **sent).status_code == 403
    assert post(client, reverse("admin:auth_group_add"), **sent).status_code == 403
    assert not group.permissions.exists()
    assert post(staff(superuser=True), page, **sent).status_code == 302
    assert group.permissions.exists()
