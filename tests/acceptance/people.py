"""People at the staff site of a running stack: a browser's cookies, forms as they are shown."""

from __future__ import annotations

import http.cookiejar
import re
import secrets
import urllib.parse
import urllib.request

from tests.acceptance.world import World

# What `make` has no command for: a policy that allows up to 50.00 by itself and asks two people of
# tier 2 about more, and those people.
SET_UP = """
from dataclasses import replace
from django.contrib.auth.models import Permission, User
from policies.parameters import Tier
from policies.versions import DEFAULT_PARAMETERS, publish
publish(
    parameters=replace(
        DEFAULT_PARAMETERS,
        ceiling_minor={{"USD": 5_000}},
        tiers=(
            Tier(tier=1, up_to_base_minor=5_000),
            Tier(tier=2, up_to_base_minor=None, people=2),
        ),
    ),
    published_by="operator",
)
for name in {names!r}:
    user = User.objects.create_user(name, password="{password}", is_staff=True)
    user.user_permissions.add(*Permission.objects.filter(
        codename__in=["approve_tier_2", "view_refundaction", "view_order"]
    ))
"""


def people_of_tier_2(world: World, *names: str) -> tuple[Reviewer, ...]:
    """Publish the policy above, and log these people in at the staff site."""
    password = secrets.token_urlsafe(16)
    world.manage("shell", "-c", SET_UP.format(names=names, password=password))
    return tuple(Reviewer(world, username=name, password=password) for name in names)


class Reviewer:
    """One person at the staff site."""

    def __init__(self, world: World, *, username: str, password: str) -> None:
        self.world = world
        self.username = username
        self.jar = http.cookiejar.CookieJar()
        self.browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))
        page = self.get("/admin/login/")
        said = self.post(
            "/admin/login/?next=/admin/",
            {"username": username, "password": password, **hidden(page)},
        )
        if "/admin/logout/" not in said:
            raise AssertionError("the log-in was refused")

    def get(self, path: str) -> str:
        with self.browser.open(self.world.stack.url + path, timeout=30) as answer:
            return str(answer.read().decode())

    def post(self, path: str, fields: dict[str, str]) -> str:
        body = urllib.parse.urlencode(fields).encode()
        request = urllib.request.Request(self.world.stack.url + path, data=body)
        with self.browser.open(request, timeout=30) as answer:
            return str(answer.read().decode())

    def approve(self, action_id: str, *, note: str = "") -> str:
        """Open the refund's page and press Approve; returns the page that follows."""
        pk = self.world.action(action_id)["id"]
        shown = self.get(f"/admin/refunds/refundaction/{pk}/change/")
        return self.post(
            f"/admin/refunds/refundaction/{pk}/approve/", {"note": note} | hidden(shown)
        )


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of a page's forms."""
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page))


FIRST_YES = "Nothing is sent before 1 more person approves it."
ENOUGH = "Approved. A worker sends it."
