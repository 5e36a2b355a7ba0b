"""Remedies on the staff site: proposed on the refund's page, settled on their own."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from refunds.models import Remedy
from tests.console.test_pages import post, staff
from tests.refunds import debts

pytestmark = pytest.mark.django_db(transaction=True)


def page_of(row: Any) -> str:
    return reverse(f"admin:refunds_{row._meta.model_name}_change", args=[row.pk])


def shown(client: Client, row: Any) -> str:
    answer = client.get(page_of(row))
    assert answer.status_code == 200
    return str(answer.content.decode())


def seen_on(page: str) -> str:
    found = re.search(r'name="seen_version" value="(\d+)">\s*<p><strong>', page)
    assert found is not None
    return found.group(1)


def act(client: Client, remedy: Remedy, what: str, **fields: Any) -> Any:
    seen = seen_on(shown(client, remedy))
    url = reverse(f"admin:refunds_remedy_{what}", args=[remedy.pk])
    return post(client, url, seen_version=seen, **fields)


@pytest.fixture
def debt(sandbox):
    return debts.debt(sandbox)


def propose(client: Client, debt: Any, **changed: Any) -> Any:
    fields = {
        "kind": "cheque",
        "reason": "cannot_receive",
        "note": debts.NOTE,
        "seen_version": seen_on(shown(client, debt)),
    } | changed
    return post(client, reverse("admin:refunds_remedy_propose", args=[debt.pk]), **fields)


def test_a_cheque_is_proposed_recorded_and_settles_the_debt(debt):
    client = staff("propose_remedy", "record_remedy")

    answer = propose(client, debt)

    remedy = Remedy.objects.get()
    assert answer.url == page_of(remedy)
    assert "Cheque 1 of 79.00 USD" in shown(client, remedy)
    act(client, remedy, "record", reference="cheque 0017")
    assert debts.fresh(remedy).state == "ISSUED"
    assert "cheque 0017" in shown(client, remedy)
    assert "Propose it" not in shown(client, debt)


def test_the_second_person_approves_and_the_first_cannot(sandbox):
    debt = debts.given_up(sandbox)
    first = staff("propose_remedy", "approve_remedy")
    propose(first, debt)
    remedy = Remedy.objects.get()
    assert "Not by you" in shown(first, remedy)

    act(first, remedy, "approve", note=debts.NOTE)
    assert debts.fresh(remedy).state == "PROPOSED"
    act(staff("approve_remedy"), remedy, "approve", note=debts.NOTE)

    assert debts.fresh(remedy).state == "AUTHORIZED"


def test_a_store_credit_has_pages_of_its_own(debt):
    client = staff("propose_remedy")
    propose(client, debt, kind="store_credit")
    credit = debts.credit_of(Remedy.objects.get())

    assert debt.order.customer_ref in shown(client, credit)
    assert credit.action_id in shown(client, Remedy.objects.get())


def test_a_remedy_is_stopped_on_its_page(debt):
    client = staff("propose_remedy")
    propose(client, debt)
    remedy = Remedy.objects.get()

    act(client, remedy, "stop", note=debts.NOTE)

    assert debts.fresh(remedy).state == "STOPPED"
    assert "Propose it" in shown(client, debt)


def test_who_may_not_propose_is_refused_and_sees_no_form(debt):
    client = staff()
    assert "Propose it" not in shown(client, debt)

    url = reverse("admin:refunds_remedy_propose", args=[debt.pk])
    answer = post(client, url, seen_version="3", kind="cheque", reason="other", note=debts.NOTE)

    assert answer.status_code == 403
    assert not Remedy.objects.exists()


@pytest.mark.parametrize("version", ["", "-1", "1e3", "९", "1" * 30])
def test_a_form_without_a_usable_version_is_a_bad_request(debt, version):
    answer = propose(staff("propose_remedy"), debt, seen_version=version)

    assert answer.status_code == 400
    assert not Remedy.objects.exists()


def test_an_older_page_acts_on_nothing_and_says_so(debt):
    client = staff("propose_remedy")
    seen = seen_on(shown(client, debt))
    debts.stopping(debts.proposed(debt, "cheque"))

    answer = propose(client, debt, seen_version=seen)

    assert "new events since you opened this page" in client.get(answer.url).content.decode()
    assert Remedy.objects.count() == 1


@pytest.mark.parametrize("what", ["approve", "record", "stop"])
def test_every_act_is_post_with_a_token(debt, what):
    client = staff("propose_remedy", "approve_remedy", "record_remedy")
    remedy = debts.proposed(debt, "cheque")
    url = reverse(f"admin:refunds_remedy_{what}", args=[remedy.pk])

    assert client.get(url).status_code == 405
    assert client.post(url, {"seen_version": "1"}).status_code == 403
    assert debts.fresh(remedy).state == "AUTHORIZED"
