"""One request, many deliveries at the same instant."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import pytest
from django.db import connection

from refunds.models import RefundAction, RefundEvent
from tests import builders
from tests.acceptance.world import World
from tests.agents.conftest import Caller, refund_body
from tests.stack import MakeStack

DELIVERIES = 50
CROWD = 60
TRIES_MAX = 5


@pytest.mark.django_db(transaction=True)
def test_fifty_parallel_same_proposals_give_one_action(caller: Caller) -> None:
    order = builders.order()
    ready = threading.Barrier(DELIVERIES)

    def deliver(number: int) -> tuple[int, str]:
        try:
            ready.wait(timeout=30)
            # Every tenth says another amount: it must find the first one, or be the first.
            body = refund_body(order.order_id, amount_minor=3_000 if number % 10 == 9 else 7_900)
            for _ in range(TRIES_MAX):
                response = Caller(caller.key).call("POST", "/refunds", body)
                # A crowd on a slow machine may wait for the order's lock for too long; the same
                # proposal is then sent again, as docs/api.md says.
                if response.status_code != 503:
                    break
            return response.status_code, response.content.decode()
        finally:
            connection.close()

    with ThreadPoolExecutor(DELIVERIES) as threads:
        answers = list(threads.map(deliver, range(DELIVERIES)))
    statuses = Counter(status for status, _ in answers)
    assert statuses[201] == 1, answers[0]
    assert set(statuses) == {200, 201, 409}
    assert statuses[409] in (5, 45)
    assert RefundAction.objects.count() == 1
    assert RefundEvent.objects.filter(kind="refund.proposed").count() == 1


# No transaction of this process stays open while the stack starts: Postgres would end it.
@pytest.mark.django_db(transaction=True)
def test_sixty_proposals_by_keys_and_sessions_on_the_real_server_are_one_action(
    make_stack: MakeStack,
) -> None:
    """Some say another amount, some carry an Idempotency-Key; a worker sends meanwhile."""
    with closing(World(make_stack(env={"WEB_WORKERS": "2"}))) as world:
        propose_at_once(world)


def propose_at_once(world: World) -> None:
    order_id = world.order()
    sessions = [
        world.call("POST", "/api/v1/sessions", {"order_id": order_id, "request_id": "7"})[1]
        for _ in range(5)
    ]
    action_id = sessions[0]["action_id"]
    ready = threading.Barrier(CROWD)

    def deliver(number: int) -> tuple[int, dict[str, Any], bool]:
        body: dict[str, Any] = {"amount_minor": 3_000 if number % 10 == 9 else 7_900}
        body |= {"currency": "USD", "reason": "requested_by_customer"}
        token = world.key
        if number % 2:
            token = sessions[number % 5]["token"]
        else:
            body |= {"order_id": order_id, "request_id": "7"}
        headers = {"Authorization": f"Bearer {token}"}
        if number % 3 == 0:
            headers["Idempotency-Key"] = "job-1" if number % 2 else f'"job-{number}"'
        with httpx.Client(timeout=60) as client:
            ready.wait(timeout=60)
            for _ in range(TRIES_MAX):
                answer = client.post(
                    f"{world.stack.url}/api/v1/refunds", json=body, headers=headers
                )
                if answer.status_code != 503:  # see above
                    break
            replayed = answer.headers.get("Idempotent-Replayed") == "true"
            return answer.status_code, answer.json(), replayed

    with ThreadPoolExecutor(CROWD) as threads:
        answers = list(threads.map(deliver, range(CROWD)))
    statuses = Counter(status for status, _, _ in answers)
    assert statuses[201] == 1, answers[0]
    assert set(statuses) == {200, 201, 409}
    # Six of sixty say another amount: all of them conflict, or all the others do.
    assert statuses[409] in (6, 54)
    for status, answer, replayed in answers:
        assert replayed == (status == 200)
        told = answer["action"] if status == 409 else answer
        assert told["action_id"] == action_id
    assert world.count("refunds_refundaction") == 1
    assert world.count("agents_idempotencyvalue") <= 1
    world.rest()
    assert len(world.refunds(action_id)) == 1
    assert world.problems() == []
