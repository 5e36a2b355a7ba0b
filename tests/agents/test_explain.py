"""What the policy would say, asked over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agents.models import AgentKey
from policies.models import DecisionRecord
from refunds.models import RefundAction, RefundEvent
from tests import builders
from tests.agents.conftest import Caller, read, refund_body

pytestmark = pytest.mark.django_db


def body(order_id: str, **changes: Any) -> dict[str, Any]:
    """79.00, as a proposal but for its request id."""
    value = refund_body(order_id, **changes)
    del value["request_id"]
    return value


def explain(caller: Caller, sent: Any, status: int) -> Any:
    return read(caller.call("POST", "/policy/explain", sent), status)


def test_it_answers_what_a_proposal_would_be_told(caller: Caller) -> None:
    builders.order(order_id="4821")
    for amount_minor, reason in ((7_900, "damaged"), (15_000, "damaged"), (7_900, "because")):
        changes = {"amount_minor": amount_minor, "reason": reason}
        said = explain(caller, body("4821", **changes), 200)
        assert list(said) == ["verdict", "tier", "people", "rules", "policy_version"]
        request_id = f"{amount_minor}-{reason}"
        proposal = refund_body("4821", request_id=request_id, **changes)
        decision = read(caller.call("POST", "/refunds", proposal), 201)["decision"]
        assert said["verdict"] == decision["verdict"]
        assert said["policy_version"] == decision["policy_version"]
        assert [r["rule"] for r in said["rules"]] == [r["rule"] for r in decision["rules"]]
        # Who approves is said where somebody does.
        expected = (1, 1) if said["verdict"] == "REVIEW" else (None, None)
        assert (said["tier"], said["people"]) == expected


def test_a_rule_says_whom_it_asks_for_and_names_no_other_refund(caller: Caller) -> None:
    open_one = builders.action(builders.order(order_id="4821"))
    builders.claimed(open_one)
    said = {rule["rule"]: rule for rule in explain(caller, body("4821"), 200)["rules"]}
    asking, calm = said["duplicate_suspect"], said["reason_allowlist"]
    assert (asking["verdict"], asking["tier"]) == ("REVIEW", 1)
    assert open_one.action_id not in str(asking)
    assert (calm["verdict"], calm["tier"]) == ("ALLOW", None)
    # A proposal is told the same.
    proposed = read(caller.call("POST", "/refunds", refund_body("4821")), 201)
    assert asking in proposed["decision"]["rules"]


def test_what_only_marks_is_not_told(caller: Caller) -> None:
    builders.order(order_id="4821")
    for rule in explain(caller, body("4821"), 200)["rules"]:
        assert list(rule) == ["rule", "verdict", "why", "tier"]


def test_nothing_comes_of_it(caller: Caller) -> None:
    builders.order(order_id="4821")
    events = RefundEvent.objects.count()
    with CaptureQueriesContext(connection) as queries:
        explain(caller, body("4821", lines=[{"line_id": "a", "amount_minor": 7_900}]), 200)
    assert not [q["sql"] for q in queries if q["sql"].startswith(("INSERT", "UPDATE", "DELETE"))]
    assert not RefundAction.objects.exists()
    assert not DecisionRecord.objects.exists()
    assert RefundEvent.objects.count() == events


def test_the_key_is_the_proposer(caller: Caller) -> None:
    builders.order(order_id="4821")
    builders.policy(reasons_by_agent={AgentKey.objects.get().prefix: ("late",)})
    assert explain(caller, body("4821", reason="late"), 200)["verdict"] == "ALLOW"
    assert explain(caller, body("4821", reason="damaged"), 200)["verdict"] == "DENY"


def test_an_order_that_was_not_mirrored_is_404(caller: Caller) -> None:
    answer = explain(caller, body("nobody-s"), 404)
    assert answer["type"] == "urn:refund-once:problem:order-unknown"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"order_id": "a:b"}, "order_id"),
        ({"amount_minor": 0}, "amount_minor"),
        ({"amount_minor": "7900"}, "amount_minor"),
        ({"amount_minor": True}, "amount_minor"),
        ({"currency": "EUR"}, "currency"),
        ({"currency": "EURO"}, "currency"),
        ({"reason": "a b"}, "reason"),
        ({"request_id": "3"}, "request_id"),
        ({"note": "please"}, "note"),
        ({"proposer": "somebody"}, "proposer"),
        ({"lines": [{"line_id": "a"}]}, "lines[0].amount_minor"),
        ({"lines": [{"line_id": "", "amount_minor": 1}]}, "lines[0].line_id"),
        ({"lines": {}}, "lines"),
    ],
)
def test_a_field_that_cannot_be_is_named(
    caller: Caller, changes: dict[str, Any], field: str
) -> None:
    builders.order(order_id="4821")
    assert explain(caller, body("4821") | changes, 422)["field"] == field


def test_what_is_no_request_is_refused_as_everywhere(caller: Caller) -> None:
    builders.order(order_id="4821")
    assert explain(caller, b"{", 400)["type"] == "urn:refund-once:problem:malformed-json"
    assert explain(caller, b" " * 70_000, 413)["status"] == 413
    sent = body("4821")
    read(caller.call("POST", "/policy/explain", sent, content_type="text/plain"), 415)
    read(caller.call("POST", "/policy/explain?draft=1", sent), 422)
    read(caller.call("GET", "/policy/explain"), 405)
    read(caller.call("POST", "/policy/explain", sent, Authorization=""), 401)


def test_every_status_it_can_have_is_declared(caller: Caller) -> None:
    document = Client().get("/api/v1/openapi.json").json()
    responses = document["paths"]["/api/v1/policy/explain"]["post"]["responses"]
    wanted = {"200", "400", "401", "403", "404", "411", "413", "415", "422", "429", "500", "503"}
    assert set(responses) == wanted
