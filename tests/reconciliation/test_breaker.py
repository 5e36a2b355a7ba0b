"""The circuit breaker's row, where two workers meet on it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction

from effects.clock import database_now
from effects.models import Breaker
from reconciliation.breaker import OPEN_SECONDS, remember_read, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_two_workers_at_the_end_of_an_outage_send_one_probe():
    now = database_now()
    Breaker.objects.create(account="stripe:", failures=5, open_until=now - timedelta(seconds=1))
    others = []

    def other():
        try:
            others.append(wait_until(account="stripe:", now=now))
        finally:
            connection.close()

    thread = threading.Thread(target=other)
    with transaction.atomic():
        mine = wait_until(account="stripe:", now=now)
        thread.start()
        thread.join(timeout=0.5)  # it has read the old row by now, and waits for this one's lock
    thread.join(timeout=30)

    assert mine is None
    assert others == [now + timedelta(seconds=OPEN_SECONDS)]


def test_one_read_that_works_starts_the_count_again():
    now = database_now()
    for _ in range(4):
        remember_read_in_a_transaction(readable=False, now=now)
    remember_read_in_a_transaction(readable=True, now=now)
    for _ in range(4):
        remember_read_in_a_transaction(readable=False, now=now)
    assert wait_until(account="stripe:", now=now) is None

    remember_read_in_a_transaction(readable=False, now=now)

    assert wait_until(account="stripe:", now=now) == now + timedelta(seconds=OPEN_SECONDS)
    assert wait_until(account="stripe:acct_2", now=now) is None


def remember_read_in_a_transaction(*, readable, now):
    with transaction.atomic():
        remember_read(account="stripe:", readable=readable, now=now)
