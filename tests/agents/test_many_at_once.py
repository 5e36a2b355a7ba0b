"""One request, many deliveries at the same instant."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from refunds.models import RefundAction, RefundEvent
from tests import builders
from tests.agents.conftest import Caller, refund_body

DELIVERIES = 50
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
