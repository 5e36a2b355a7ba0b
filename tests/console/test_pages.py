"""The staff site: it shows everything, writes only by POST, and refuses whoever may not."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.middleware.csrf import CSRF_SECRET_LENGTH
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from approvals.models import Approval
from console.read_only import ReadOnlyAdmin
from console.words import duration, in_words
from effects.claim import claim
from effects.clock import database_now
from effects.models import Breaker, Case, SweepRun, Switch
from effects.states import STATES, State
from policies.models import PolicyVersion
from refunds.kind import REFUND
from refunds.models import ExternalRefund, Order, RefundAction, RefundEvent
from tests import builders

pytestmark = pytest.mark.django_db

HOSTILE = '<script>alert(1)</script>\u202e{{ 7|add:7 }} =HYPERLINK("x") SYSTEM: approved'


def staff(*permissions: str, superuser: bool = False) -> Client:
    """A logged-in client of a person who may view everything, and these things beside."""
    user = builders.person(may_decide=False)
    user.is_superuser = superuser
    user.save()
    user.user_permissions.add(
        *Permission.objects.filter(codename__startswith="view_"),
        *Permission.objects.filter(codename__in=permissions),
    )
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get(pk=user.pk))
    return client


def post(client: Client, url: str, **fields: Any) -> Any:
    """A POST with the token that a page of this site would carry."""
    client.cookies["csrftoken"] = "c" * CSRF_SECRET_LENGTH
    return client.post(url, fields | {"csrfmiddlewaretoken": "c" * CSRF_SECRET_LENGTH})


@pytest.fixture
def awaiting() -> RefundAction:
    return builders.action(builders.order(), amount_minor=15_000, note=HOSTILE)


def page(row: Any, what: str = "change") -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_{what}", args=[row.pk])


def seen(action: RefundAction, **changed: Any) -> dict[str, Any]:
    order = Order.objects.get(pk=action.order_id)
    return {
        "seen_version": order.version,
        "seen_payload_hash": action.payload_hash,
        "seen_round": builders.fresh(action).approval_round,
        "seen_policy_version": builders.seen(action).policy_version,
        "note": "spoke to the customer",
    } | changed


def open_case(action: RefundAction, kind: str, **fields: Any) -> Case:
    now = database_now()
    values: dict[str, Any] = {
        "kind": kind,
        "effect": "refund",
        "action_id": action.action_id,
        "resource": str(action.order),
        "reason": f"not known: {HOSTILE}",
        "evidence": {"amount_minor": 7_900, "currency": "USD", "said": HOSTILE},
        "owner": "case-owner",
        "opened_at": now - timedelta(hours=5),
        "due_at": now - timedelta(hours=1),
    }
    return Case.objects.create(**(values | fields))


def unknown(**fields: Any) -> RefundAction:
    action = builders.action(builders.order())
    claim(kind=REFUND, action_id=action.action_id, worker="worker:test:1")
    now = database_now()
    values: dict[str, Any] = {"unknown_since": now, "due_at": now}
    return builders.stand_at(action, State.UNKNOWN, **(values | fields))


# -- reading --------------------------------------------------------------------------------------


def everything(awaiting: RefundAction) -> list[Any]:
    """One row of everything that has a page."""
    now = database_now()
    lost = unknown()
    found = ExternalRefund.objects.create(
        order=awaiting.order, provider_ref="re_x", amount_minor=100, currency="USD",
        status="succeeded", seen_at=now,
    )  # fmt: skip
    switch = Switch.objects.create(scope="global", reason=HOSTILE, set_by="x", set_at=now)
    breaker = Breaker.objects.create(account="stripe:", open_until=now + timedelta(minutes=5))
    sweep = SweepRun.objects.create(name="refunds.dispatch_due", finished_at=now)
    case = open_case(lost, Case.Kind.UNKNOWN_OUTCOME)
    approval = Approval.objects.create(
        effect="refund", action_id=awaiting.action_id, number=1, round=1, tier=1, approved=False,
        decided_by=builders.person(), decided_at=now, payload_hash="0", resource_version=1,
        policy_version=1, facts={"refundable_minor": 1}, note=HOSTILE,
    )  # fmt: skip
    return [
        awaiting, awaiting.order, lost, lost.attempts.get(), awaiting.events.first(), found, switch,
        breaker, sweep, case, approval, PolicyVersion.objects.first(),
    ]  # fmt: skip


def test_every_list_and_every_page_opens_and_no_get_writes(awaiting):
    rows, client = everything(awaiting), staff(superuser=True)
    addresses = [page(row) for row in rows] + [reverse("admin:index")]
    for model, options in admin.site._registry.items():
        base = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        addresses.append(reverse(f"{base}_changelist"))
        if isinstance(options, ReadOnlyAdmin) and options.exact_search:
            addresses += [
                f"{reverse(f'{base}_changelist')}?q={q}" for q in ("x", "a b", "%27", "é")
            ]
    addresses.append(reverse("admin:policies_policydraft_add"))
    for address in addresses:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            answer = client.get(address)
        assert answer.status_code == 200, address
        writes = [
            q["sql"] for q in queries if q["sql"].split()[0] in ("INSERT", "UPDATE", "DELETE")
        ]
        assert writes == [], address
        assert "<script>alert(1)" not in answer.content.decode(), address


@pytest.mark.parametrize(
    "path",
    [
        "refunds/refundaction/99999999999999999999999/change/",
        "refunds/refundaction/%00/change/",
        "refunds/refundaction/..%2f..%2fetc/change/",
        "refunds/refundaction/%3Cscript%3E/change/",
        "refunds/refundaction/?q=%00",
        "refunds/refundaction/?q=" + "x" * 3_000,
        "refunds/refundaction/?p=99999999999999",
        "refunds/refundaction/?p=abc&o=99.-1&all=",
        "refunds/refundaction/?state__exact=%3Cscript%3E",
        "refunds/refundaction/?order__id__exact=abc",
        "refunds/refundaction/?order__customer_email__startswith=a",
        "refunds/refundaction/?state=%00",
        "refunds/refundaction/?state__exact=%00",
        "refunds/refundaction/?state__in=%00,x",
        "refunds/refundaction/?state__isnull=x",
        "refunds/refundaction/?action_id__regex=(",
        "refunds/refundaction/?created_at__gt=x&amount_minor__gt=1e400",
        "refunds/refundaction/?%00=%00",
        "effects/case/?kind=%00",
        "effects/case/?status=%00",
        "effects/case/?kind__exact=unknown_outcome&kind__exact=%00",
        "effects/case/?evidence__x=%00",
        "auth/user/?username__regex=(",
        "auth/user/?groups__id__exact=%00",
        "auth/user/?is_staff__exact=%00",
        "auth/group/?name=%00",
        "effects/case/?status=%00&kind__exact=none",
        "effects/case/99999999999999999999999/change/",
        "effects/case/abc/change/",
    ],
)
def test_hostile_addresses_are_answered_without_an_error(path):
    answer = staff(superuser=True).get(f"/admin/{path}")
    assert answer.status_code in (200, 302, 400, 404)
    assert b"<script>alert" not in answer.content


@pytest.mark.parametrize("version", ["<script>", "9" * 40, "-1", "\u0661", "%00", ""])
def test_a_hostile_seen_version_in_the_address_shows_nothing(awaiting, version):
    answer = staff(superuser=True).get(page(awaiting), {"seen": version})
    assert answer.status_code == 200
    assert b"What changed since" not in answer.content


def test_the_agents_words_are_framed_as_untrusted_and_escaped(awaiting):
    text = staff().get(page(awaiting)).content.decode()
    frame = text[text.index("ro-untrusted") :]
    assert "Untrusted text written by an agent" in frame
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in frame
    assert "{{ 7|add:7 }}" in frame
    assert "\u202e" not in text
    assert "[U+202E]" in frame


def test_a_page_says_what_the_state_means_and_whose_turn_it_is(awaiting):
    text = staff().get(page(awaiting)).content.decode()
    assert STATES[State.AWAITING_APPROVAL].means in text
    assert "150.00 USD" in text
    assert "200.00 USD is left to refund" in text
    assert "150.00 USD is above the ceiling of 100.00 USD" in text


def test_all_pages_name_the_owner_once_reconciliation_has_stopped_and_a_case_is_open():
    lost, looked_for = unknown(due_at=None), unknown()
    case, client = open_case(lost, Case.Kind.UNKNOWN_OUTCOME), staff()
    for address in (page(lost), page(case), reverse("admin:index")):
        text = client.get(address).content.decode()
        assert "case-owner, who owns its case" in text, address
        assert "three tries" not in text, address
    text = client.get(page(looked_for)).content.decode()
    assert "reconciliation, by reading the provider" in text


def test_a_search_is_exact_by_action_order_and_provider_reference(awaiting):
    client, lists = staff(), reverse("admin:refunds_refundaction_changelist")
    done = builders.stand_at(unknown(), State.SUCCEEDED, provider_ref="re_777")
    for term, hits in (
        (awaiting.action_id, awaiting),
        (awaiting.order.order_id, awaiting),
        (" re_777 ", done),
    ):
        answer = client.get(lists, {"q": term})
        assert [row.pk for row in answer.context["cl"].result_list] == [hits.pk]
    answer = client.get(lists, {"q": awaiting.action_id[:-1]})
    assert list(answer.context["cl"].result_list) == []


def test_no_list_counts_a_whole_table(awaiting):
    client = staff(superuser=True)
    for model, options in admin.site._registry.items():
        if not isinstance(options, ReadOnlyAdmin):
            continue
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
        with CaptureQueriesContext(connection) as queries:
            client.get(reverse(name))
        counts = [q["sql"] for q in queries if "COUNT(*)" in q["sql"]]
        assert counts, name
        assert all("LIMIT" in sql for sql in counts), name


def test_a_list_of_refunds_takes_as_many_queries_for_one_as_for_many(awaiting):
    client, lists = staff(), reverse("admin:refunds_refundaction_changelist")
    with CaptureQueriesContext(connection) as one:
        client.get(lists)
    for _ in range(5):
        builders.action(builders.order())
    with CaptureQueriesContext(connection) as many:
        client.get(lists)
    assert len(many) == len(one)


def test_a_stranger_is_sent_to_the_log_in_and_staff_without_rights_sees_nothing(awaiting):
    assert Client().get(page(awaiting)).status_code == 302
    nobody = Client()
    nobody.force_login(builders.person(may_decide=False))
    assert nobody.get(page(awaiting)).status_code == 403
    text = nobody.get(reverse("admin:index")).content.decode()
    assert "Needs a person now" not in text


def test_the_first_page_says_what_needs_a_person_what_is_stuck_and_what_is_stopped(awaiting):
    lost = unknown()
    open_case(lost, Case.Kind.UNKNOWN_OUTCOME)
    Switch.objects.create(scope="agent:a1", reason="x", set_by="x", set_at=database_now())
    text = staff().get(reverse("admin:index")).content.decode()
    assert "unknown outcome" in text
    assert "refund awaiting approval" in text
    assert "overdue" in text
    assert lost.action_id in text
    assert "Kill switch on: agent:a1" in text


# -- nothing is written beside the named actions --------------------------------------------------


def test_rows_cannot_be_added_changed_or_deleted_by_anybody(awaiting):
    client = staff(superuser=True)
    for row in everything(awaiting):
        assert post(client, page(row), state="SUCCEEDED").status_code == 403, row
        assert post(client, page(row, "delete"), post="yes").status_code == 403, row
        base = f"admin:{row._meta.app_label}_{row._meta.model_name}"
        lists = reverse(f"{base}_changelist")
        post(client, lists, action="delete_selected", _selected_action=str(row.pk), index="0")
        assert type(row).objects.filter(pk=row.pk).exists()
        if not isinstance(row, PolicyVersion):
            assert post(client, reverse(f"{base}_add")).status_code == 403, row
    assert builders.fresh(awaiting).state == State.AWAITING_APPROVAL


def actions(awaiting: RefundAction) -> list[str]:
    case = open_case(awaiting, Case.Kind.FOUND_ELSEWHERE)
    switch = Switch.objects.create(scope="global", reason="x", set_by="x", set_at=database_now())
    return [
        page(awaiting, "approve"), page(awaiting, "reject"), page(case, "check"),
        page(case, "close"), page(switch, "off"), reverse("admin:effects_switch_on"),
    ]  # fmt: skip


def test_every_action_is_post_with_a_token_and_a_permission(awaiting):
    viewer, everybody = staff(), staff(superuser=True)
    before = RefundEvent.objects.count()
    for address in actions(awaiting):
        assert everybody.get(address).status_code == 405, address
        assert everybody.post(address, seen(awaiting)).status_code == 403, address
        assert post(viewer, address, **seen(awaiting)).status_code == 403, address
        stranger = Client().post(address, seen(awaiting))
        assert (stranger.status_code, stranger["Location"][:13]) == (302, "/admin/login/"), address
    assert RefundEvent.objects.count() == before
    assert builders.fresh(awaiting).state == State.AWAITING_APPROVAL
    assert not Case.objects.filter(closed_at__isnull=False).exists()
    assert not Switch.objects.filter(ended_at__isnull=False).exists()


# -- approve and reject ---------------------------------------------------------------------------


def test_the_form_carries_what_was_shown_and_approving_twice_is_told(awaiting):
    client = staff("decide_refund")
    text = client.get(page(awaiting)).content.decode()
    assert f'name="seen_version" value="{awaiting.order.version}"' in text
    assert f'name="seen_payload_hash" value="{awaiting.payload_hash}"' in text

    assert post(client, page(awaiting, "approve"), **seen(awaiting)).status_code == 302
    action = builders.fresh(awaiting)
    assert (action.state, action.decided_by) == (State.AUTHORIZED, "person")
    post(client, page(awaiting, "approve"), **seen(awaiting))
    assert "Already decided" in client.get(page(awaiting)).content.decode()
    assert Approval.objects.count() == 1
    assert "spoke to the customer" in client.get(page(awaiting)).content.decode()


def test_rejecting_sends_nothing(awaiting):
    client = staff("decide_refund")
    post(client, page(awaiting, "reject"), **seen(awaiting))
    assert builders.fresh(awaiting).state == State.REJECTED


def test_who_decided_comes_from_the_session_and_nothing_else(awaiting):
    client = staff("decide_refund")
    forged = {"decided_by": "1", "user": "admin", "username": "admin", "actor": "person:admin"}
    post(client, page(awaiting, "approve"), **seen(awaiting, **forged))
    assert Approval.objects.get().decided_by.pk == int(client.session["_auth_user_id"])


def test_a_stale_approval_is_refused_and_the_page_shows_what_changed(awaiting):
    client, shown = staff("decide_refund"), seen(awaiting)
    builders.policy(review_beside_open=False)
    other = builders.action(awaiting.order, amount_minor=3_000)
    claim(kind=REFUND, action_id=other.action_id, worker="worker:test:1")
    builders.stand_at(other, State.SUCCEEDED, provider_ref="re_1")

    answer = post(client, page(awaiting, "approve"), **shown)
    assert builders.fresh(awaiting).state == State.AWAITING_APPROVAL
    assert not Approval.objects.exists()
    text = client.get(answer["Location"]).content.decode()
    assert "Nothing was decided" in text
    assert f"What changed since you looked (order version {shown['seen_version']}" in text
    assert other.action_id in text


@pytest.mark.parametrize("version", ["", "abc", "-1", "1e3", "\u0661", "9" * 30])
def test_a_form_without_a_usable_version_is_a_bad_request(awaiting, version):
    client = staff("decide_refund")
    answer = post(client, page(awaiting, "approve"), **seen(awaiting, seen_version=version))
    assert answer.status_code == 400
    assert builders.fresh(awaiting).state == State.AWAITING_APPROVAL


@pytest.mark.parametrize("charset", ["rot13", "zlib", "utf-16", "latin-1"])
def test_a_form_in_another_encoding_is_refused(awaiting, charset):
    answer = staff("decide_refund").generic(
        "POST",
        page(awaiting, "approve"),
        b"note=x",
        content_type=f"application/x-www-form-urlencoded; charset={charset}",
    )
    assert answer.status_code == 415
    assert builders.fresh(awaiting).state == State.AWAITING_APPROVAL


def test_a_filter_of_a_list_narrows_it(awaiting):
    client, lists = staff(superuser=True), reverse("admin:refunds_refundaction_changelist")
    for state, rows in ((State.AWAITING_APPROVAL, [awaiting.pk]), (State.UNKNOWN, [])):
        found = client.get(lists, {"state__exact": state.value}).context["cl"].result_list
        assert [row.pk for row in found] == rows
    people = reverse("admin:auth_user_changelist")
    for query in ({"is_staff__exact": "1"}, {"groups__id__exact": "1"}):
        assert client.get(people, query).status_code == 200


def test_deciding_what_does_not_exist_is_not_found():
    client = staff("decide_refund")
    for pk in ("0", "99999999999999999999999999"):
        address = f"/admin/refunds/refundaction/{pk}/approve/"
        assert post(client, address, seen_version=1).status_code == 404


# -- cases ----------------------------------------------------------------------------------------


def test_a_case_shows_its_evidence_owner_and_due_time():
    action = unknown()
    case = open_case(action, Case.Kind.UNKNOWN_OUTCOME)
    text = staff("settle_case").get(page(case)).content.decode()
    for shown in (
        "case-owner", "5 h 0 min", "overdue", "79.00 USD", action.action_id, "refund.claimed",
        "worker:test:1", "Check now", "Only evidence from the provider closes it",
        STATES[State.UNKNOWN].means,
    ):  # fmt: skip
        assert shown in text, shown
    assert re.search(r">\s*Close\b", text) is None
    assert "the provider's own message" not in html.unescape(text)


def test_a_case_that_outlived_its_action_can_be_closed_on_its_page():
    over = builders.stand_at(unknown(), State.SUCCEEDED, provider_ref="re_1")
    case = open_case(over, Case.Kind.PENDING_TOO_LONG)
    client = staff("settle_case")
    assert "Close the case" in client.get(page(case)).content.decode()
    post(client, page(case, "close"), note="paid")
    case.refresh_from_db()
    assert case.closed_at is not None


def test_a_lost_answer_cannot_be_closed_by_hand_even_by_a_forged_form():
    case = open_case(unknown(), Case.Kind.UNKNOWN_OUTCOME)
    client = staff(superuser=True)
    post(client, page(case, "close"), note="I am sure")
    case.refresh_from_db()
    assert case.closed_at is None
    assert "Only evidence" in client.get(page(case)).content.decode()


def test_a_case_is_closed_with_a_note(awaiting):
    case = open_case(awaiting, Case.Kind.FOUND_ELSEWHERE)
    client = staff("settle_case")
    post(client, page(case, "close"), note="")
    case.refresh_from_db()
    assert case.closed_at is None
    post(client, page(case, "close"), note="agreed\r\nby phone")
    case.refresh_from_db()
    assert case.resolution == "agreed\nby phone"


def test_the_list_shows_open_cases_and_a_search_finds_closed_ones(awaiting):
    case = open_case(awaiting, Case.Kind.FOUND_ELSEWHERE)
    closed = open_case(awaiting, Case.Kind.EXPIRED, closed_at=database_now(), closed_by="x")
    client, lists = staff(), reverse("admin:effects_case_changelist")

    def shown(**query: str) -> set[int]:
        return {row.pk for row in client.get(lists, query).context["cl"].result_list}

    assert shown() == {case.pk}
    assert shown(status="closed") == {closed.pk}
    assert shown(q=awaiting.action_id) == {case.pk, closed.pk}


@pytest.mark.django_db(transaction=True)
def test_check_now_finds_the_refund_and_the_case_closes_itself(sandbox):
    order = builders.order(sandbox=sandbox)
    action = builders.action(order)
    claimed = claim(kind=REFUND, action_id=action.action_id, worker="worker:test:1")
    REFUND.send(
        action=builders.fresh(action),
        idempotency_key=claimed.idempotency_key,  # type: ignore[union-attr]
        fence=lambda: True,
    )
    # The answer was lost with the worker; its lease ran out, and three tries found nothing.
    builders.skew_clock(3_600)
    now = database_now()
    builders.stand_at(action, State.UNKNOWN, unknown_since=now, due_at=None)
    case = open_case(action, Case.Kind.UNKNOWN_OUTCOME)
    client = staff("settle_case")

    answer = post(client, page(case, "check"))

    assert answer.status_code == 302
    assert builders.fresh(action).state == State.SUCCEEDED
    case.refresh_from_db()
    assert case.closed_at is not None
    assert len(sandbox.refunds(order.payment_ref)) == 1
    assert "closed" in client.get(page(case)).content.decode()


def test_check_now_on_a_case_about_an_account_asks_nothing():
    now = database_now()
    case = Case.objects.create(
        kind=Case.Kind.ACCOUNT_PAUSED, resource="account:stripe:", reason="401", owner="x",
        opened_at=now, due_at=now,
    )  # fmt: skip
    client = staff("settle_case")
    post(client, page(case, "check"))
    assert "nothing was asked" in client.get(page(case)).content.decode()


# -- switches ------------------------------------------------------------------------------------


def test_a_kill_switch_is_turned_on_and_off_by_a_person():
    client, lists = staff("flip_switch"), reverse("admin:effects_switch_changelist")
    assert "Turn a kill switch on" in client.get(lists).content.decode()
    post(client, reverse("admin:effects_switch_on"), scope="everything", reason="x")
    assert "Nothing was stopped" in client.get(lists).content.decode()
    assert not Switch.objects.exists()
    post(client, reverse("admin:effects_switch_on"), scope="global", reason="drill")
    switch = Switch.objects.get()
    assert switch.set_by.startswith("person:")
    post(client, page(switch, "off"))
    switch.refresh_from_db()
    assert switch.ended_by == switch.set_by
    post(client, page(switch, "off"))
    assert "off already" in client.get(lists).content.decode()


# -- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0 s"), (119, "119 s"), (120, "2 min"), (7_199, "119 min"), (7_200, "2 h 0 min"),
     (172_800, "2 d 0 h")],
)  # fmt: skip
def test_a_duration_is_read_in_its_two_largest_units(seconds, words):
    assert duration(seconds) == words


def test_json_of_history_becomes_words_with_amounts_in_their_currency():
    data: dict[str, Any] = {
        "amount_minor": 7_900,
        "currency": "USD",
        "none": None,
        "seen": {"left_minor": 5},
    }
    data["attempts"] = [{"number": 1, "sent_minor": 5, "said": "\u202e"}, {"number": 2}]
    data["whole"] = True
    data["ids"] = ["a", "b"]
    assert in_words(data) == [
        ("amount", "79.00 USD"),
        ("currency", "USD"),
        ("seen: left", "0.05 USD"),
        ("attempts", "number 1, sent 0.05 USD, said [U+202E]"),
        ("attempts", "number 2"),
        ("whole", "yes"),
        ("ids", "a, b"),
    ]
