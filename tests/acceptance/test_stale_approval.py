"""The stale approval: 79.00 approved at version 18, another's 30.00 goes through, 79.00 resumes."""

from __future__ import annotations

import http.cookiejar
import re
import secrets
import urllib.parse
import urllib.request

import pytest
import redis

from tests.acceptance.world import World, payment_of, running_world

pytestmark = pytest.mark.timeout(240)

VERSION = 18
CAPTURED_MINOR = 20_000
REVIEWER = "reviewer"

# What `make` has no command for: a policy that asks a person about 79.00, and that person.
SET_UP = """
from dataclasses import replace
from django.contrib.auth.models import Permission, User
from policies.versions import DEFAULT_PARAMETERS, publish
publish(
    parameters=replace(DEFAULT_PARAMETERS, ceiling_minor={{"USD": 5_000}}), published_by="operator"
)
user = User.objects.create_user("{reviewer}", password="{password}", is_staff=True)
user.user_permissions.add(*Permission.objects.filter(
    codename__in=["decide_refund", "view_refundaction", "view_order"]
))
"""


class Reviewer:
    """A person at the staff site: a browser's cookies, forms as they are shown."""

    def __init__(self, world: World, *, password: str) -> None:
        self.world = world
        self.jar = http.cookiejar.CookieJar()
        self.browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))
        page = self.get("/admin/login/")
        said = self.post(
            "/admin/login/?next=/admin/",
            {"username": REVIEWER, "password": password, **hidden(page)},
        )
        assert "/admin/logout/" in said, "the log-in was refused"

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


def bring_to_version(world: World, order_id: str, version: int) -> None:
    """What was captured changes, as when parts of an order ship one after the other."""
    for step in range(1, version + 1):
        captured = CAPTURED_MINOR - (version - step) * 100
        status, body = world.call(
            "PUT",
            f"/api/v1/orders/{order_id}",
            {
                "currency": "USD",
                "captured_minor": captured,
                "payment": {"provider": "stripe", "payment_intent": payment_of(order_id)},
                "customer": {"ref": "c1", "email": "customer@example.com"},
                "placed_at": "2026-01-15T10:00:00Z",
                "source_version": step,
            },
        )
        assert status == (201 if step == 1 else 200), body
    assert body["version"] == version
    assert body["refundable_minor"] == CAPTURED_MINOR


def test_an_approval_that_went_stale_sends_nothing_and_a_new_one_sends_once() -> None:
    # Without beat: what happens, happens in the order told here.
    with running_world(workers=1, beat=0) as world:
        password = secrets.token_urlsafe(16)
        world.stack.manage("shell", "-c", SET_UP.format(reviewer=REVIEWER, password=password))
        order_id = "4821"
        world.provider.payment(amount=CAPTURED_MINOR, currency="usd", id=payment_of(order_id))
        bring_to_version(world, order_id, VERSION)

        status, proposed = world.propose(order_id, request_id="r3", amount_minor=7_900)
        action_id = str(proposed["action_id"])
        assert (status, proposed["state"]) == (201, "AWAITING_APPROVAL")
        assert proposed["order_version"] == VERSION

        # Approved; the worker that should send it is dead and its message is lost.
        world.stack.kill("worker")
        person = Reviewer(world, password=password)
        assert "Approved. A worker sends it." in person.approve(action_id)
        assert world.action(action_id)["state"] == "AUTHORIZED"
        assert world.action(action_id)["bound_version"] == VERSION
        with redis.Redis.from_url(world.stack.redis_url) as broker:
            broker.flushdb()
        world.stack.restart("worker")

        # Another agent's 30.00 goes through.
        status, other = world.propose(order_id, request_id="r4", amount_minor=3_000)
        assert (status, other["state"]) == (201, "AUTHORIZED")
        world.until(
            "the 30.00 to be refunded",
            lambda: world.action(other["action_id"])["state"] == "SUCCEEDED",
        )

        # The first resumes.
        world.publish("refunds.dispatch", action_id)
        world.until(
            "the 79.00 to be looked at again",
            lambda: world.action(action_id)["state"] != "AUTHORIZED",
        )
        assert world.action(action_id)["state"] == "AWAITING_APPROVAL"
        assert world.posts(action_id) == []
        assert world.refunds(action_id) == []
        assert (
            world.query(
                "SELECT 1 FROM refunds_refundattempt t JOIN refunds_refundaction a "
                "ON a.id = t.action_id WHERE a.action_id = %s",
                action_id,
            )
            == []
        )
        assert world.open_cases(action_id) == ["stale-approval"]
        (case,) = world.query(
            "SELECT * FROM effects_case WHERE action_id = %s AND closed_at IS NULL", action_id
        )
        version_now = world.call("GET", f"/api/v1/orders/{order_id}")[1]["version"]
        assert f"is at version {version_now}, not {VERSION}" in case["reason"]
        assert "Nothing was sent" in case["reason"]
        assert "30.00" in case["reason"]
        status, told = world.call("GET", f"/api/v1/refunds/{action_id}")
        assert (told["state"], told["retry"]) == ("AWAITING_APPROVAL", "never")

        # Messages do not bring the old approval back.
        for _ in range(5):
            world.publish("refunds.dispatch", action_id)
        # A person looks at it as it is now, says why, and it is sent, once.
        assert "Approved. A worker sends it." in person.approve(action_id, note="both are owed")
        world.until(
            "the 79.00 to be refunded", lambda: world.action(action_id)["state"] == "SUCCEEDED"
        )
        assert len(world.posts(action_id)) == 1
        assert len(world.refunds(action_id)) == 1
        assert world.open_cases(action_id) == []
        approvals = world.query(
            "SELECT number, resource_version FROM approvals_approval WHERE action_id = %s "
            "ORDER BY number",
            action_id,
        )
        assert [row["resource_version"] for row in approvals] == [VERSION, version_now]
        assert world.problems() == []
