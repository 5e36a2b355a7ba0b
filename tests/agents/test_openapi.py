"""The OpenAPI document: valid, whole, and good enough for a stranger's generator."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from agents.api import api
from agents.bearer import AgentBearer
from agents.openapi import BODY_EXAMPLES
from agents.problems import CONTENT_TYPE
from config.development import CHECKOUT
from tests import builders
from tests.agents.conftest import Caller
from tests.agents.test_sessions import opened
from tests.stack import MakeStack

DOCUMENT: dict[str, Any] = json.loads(json.dumps(api.get_openapi_schema()))
OPERATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
EVERY = {"401", "403", "415", "422", "429", "500", "503"}
WITH_BODY = {"400", "411", "413"}


def test_the_document_is_valid_openapi_3_1() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    validate(DOCUMENT, cls=OpenAPIV31SpecValidator)


def test_the_committed_document_is_that_of_the_code() -> None:
    committed = json.loads((CHECKOUT / "docs/openapi.json").read_text())
    assert committed == DOCUMENT, "run: python manage.py docs"


def test_what_is_served_is_the_document() -> None:
    assert Client().get("/api/v1/openapi.json").json() == DOCUMENT


@pytest.mark.parametrize("operation_id", OPERATIONS)
def test_an_operation_says_who_may_call_it_and_every_status(operation_id: str) -> None:
    method, _, operation = OPERATIONS[operation_id]
    responses = operation["responses"]
    assert set(responses) >= EVERY
    if method in ("POST", "PUT"):
        assert set(responses) >= WITH_BODY
    for status, response in responses.items():
        assert "X-Request-ID" in response["headers"]
        if status in ("204", "304"):
            assert "content" not in response
        elif int(status) >= 400:
            assert list(response["content"]) == [CONTENT_TYPE]
        else:
            assert list(response["content"]) == ["application/json"]
    assert "Retry-After" in responses["429"]["headers"]
    assert "Retry-After" in responses["503"]["headers"]
    assert operation["security"][0]["AgentKey"][0] in ("orders", "refunds", "sessions")
    assert operation["summary"]
    assert operation["description"]


def test_who_may_call_is_what_the_views_ask() -> None:
    for router in api._get_bound_routers():
        for view in router.path_operations.values():
            for operation in view.operations:
                (auth,) = operation.auth_callbacks
                assert isinstance(auth, AgentBearer)
                told = OPERATIONS[str(operation.operation_id)][2]["security"]
                assert ({"Session": []} in told) == auth.sessions


@pytest.mark.django_db
def test_every_body_has_examples_that_the_service_takes(caller: Caller) -> None:
    with_body = {name for name, (_, _, about) in OPERATIONS.items() if "requestBody" in about}
    assert set(BODY_EXAMPLES) == with_body
    for name, (method, path, operation) in OPERATIONS.items():  # an order comes first
        content = operation.get("requestBody", {}).get("content", {})
        for who, example in content.get("application/json", {}).get("examples", {}).items():
            asks = caller
            if "session" in who and name == "propose_refund":
                _, asks = opened(caller, builders.order())
            address = path.removeprefix("/api/v1").replace("{order_id}", "4821")
            response = asks.call(method, address, example["value"])
            assert response.status_code < 300, (name, who, response.content)


@pytest.mark.django_db
def test_the_document_needs_no_credential_and_names_no_secret() -> None:
    text = Client().get("/api/v1/openapi.json").content.decode()
    assert not re.search(r"ro_live_[0-9a-f]|ro_session_[0-9a-f]|sk_test|sk_live", text)


STRANGER = """
import sys
sys.path.insert(0, sys.argv[1])
url, key = sys.argv[2:]
from stranger import AuthenticatedClient
from stranger.api.orders import mirror_order
from stranger.api.refunds import get_refund, list_refunds, propose_refund
from stranger.api.sessions import get_current_session, open_session
from stranger.models import (
    ActionAnswer, CustomerIn, OrderIn, PaymentIn, ProblemDetails, ProposalIn,
    SessionIn,
)
import datetime

client = AuthenticatedClient(base_url=url, token=key)
order = OrderIn(
    currency="USD", captured_minor=20000,
    placed_at=datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC),
    payment=PaymentIn(provider="stripe", payment_intent="pi_stranger"),
    customer=CustomerIn(ref="cus_1", email="ada@example.com"),
)
assert mirror_order.sync(client=client, order_id="4821", body=order).order_id == "4821"
proposal = ProposalIn(
    order_id="4821", request_id="3", amount_minor=7900, currency="USD", reason="damaged"
)
recorded = propose_refund.sync_detailed(client=client, body=proposal, idempotency_key="job-1")
assert recorded.status_code == 201, recorded
again = propose_refund.sync_detailed(client=client, body=proposal)
assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")
read = get_refund.sync(client=client, action_id=recorded.parsed.action_id)
assert isinstance(read, ActionAnswer) and read.retry == "never" and read.amount_minor == 7900
page = list_refunds.sync(client=client, order_id="4821", limit=1)
assert [action.action_id for action in page.data] == [read.action_id]
missing = get_refund.sync(client=client, action_id="refund:order-4821:request-9")
assert isinstance(missing, ProblemDetails) and missing.status == 404
session = open_session.sync(client=client, body=SessionIn(order_id="4821", request_id="4"))
tools = AuthenticatedClient(base_url=url, token=session.token)
assert get_current_session.sync(client=tools).order_id == "4821"
words = ProposalIn(amount_minor=100, currency="USD", reason="damaged")
assert propose_refund.sync(client=tools, body=words).action_id == session.action_id
print("done", read.state)
"""


# No transaction of this process stays open while the stack starts: Postgres would end it.
@pytest.mark.django_db(transaction=True)
def test_a_strangers_generator_makes_a_client_that_works(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    (tmp_path / "config.yml").write_text("package_name_override: stranger\npost_hooks: []\n")
    made = subprocess.run(
        [
            *(sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"),
            *("--path", str(CHECKOUT / "docs/openapi.json"), "--fail-on-warning"),
            *("--config", str(tmp_path / "config.yml")),
            *("--output-path", str(tmp_path / "stranger")),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    stack = make_stack(workers=0, beat=0)
    key = re.search(r"ro_live_\w+", stack.manage("agent_key", "create", "stranger"))
    assert key is not None
    used = subprocess.run(
        [sys.executable, "-c", STRANGER, str(tmp_path), stack.url, key.group(0)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert used.returncode == 0, used.stderr
    assert used.stdout.startswith("done")
