"""Schemathesis reads our own OpenAPI document and tries to break what it says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connection
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from agents.keys import create_key
from agents.models import AgentKey
from agents.sessions import OpenedSession, open_session
from config.wsgi import application
from kernel.identity import IDENTIFIER_PATTERN
from refunds.models import RefundAction
from tests import builders

# Enough to try each call's fields within seconds. By time, against a running product, and with more
# checks: make fuzz MINUTES=10. Here: FUZZ_EXAMPLES=2000 pytest tests/agents/test_fuzz.py
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))

IDENTIFIER = re.compile(IDENTIFIER_PATTERN)

schema = schemathesis.openapi.from_wsgi("/api/v1/openapi.json", application)


@pytest.fixture(params=["an agent's key", "a session's token"])
def token(request: pytest.FixtureRequest, db: None, settings: Any) -> Iterator[str]:
    """Each kind of credential, and rows that a generated id can hit."""
    settings.AGENT_REQUESTS_PER_MINUTE = settings.SESSION_REQUESTS_PER_MINUTE = 1_000_000
    with connection.cursor() as cursor:
        # Making up examples may take longer than a transaction may idle in the product.
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
    key = create_key(name="fuzz")
    # The ids of the document's own examples.
    order = builders.order(order_id="4821")
    builders.action(order, request_id="3", proposer=key.prefix)
    agent = AgentKey.objects.get(prefix=key.prefix)
    session = open_session(key=agent, order_id="4821", request_id="4", expires_in_seconds=86_400)
    assert isinstance(session, OpenedSession)
    # A real WSGI request ends by closing its connection, and with it this test's transaction.
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield session.token if "session" in request.param else key.key
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize="FUZZ_EXAMPLES" not in os.environ,
)
def test_no_request_is_answered_with_5xx_or_what_the_document_does_not_say(
    case: Any, token: str
) -> None:
    body = case.body
    if isinstance(body, dict):
        # A made-up order is never a known one; point possible proposals at ours, so that they get
        # past the shape of their fields.
        order_id, currency = body.get("order_id"), body.get("currency")
        if isinstance(order_id, str) and IDENTIFIER.fullmatch(order_id):
            body["order_id"] = "4821"
        if isinstance(currency, str) and len(currency) == 3:
            body["currency"] = "usd"
    case.call_and_validate(
        headers={"Authorization": f"Bearer {token}"},
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_headers_conformance,
            response_schema_conformance,
        ],
    )
    assert RefundAction.objects.filter(amount_minor__lte=0).count() == 0
