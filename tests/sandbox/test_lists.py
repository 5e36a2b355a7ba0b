"""Lists of refunds and events: order, cursors, filters."""

import pytest
import stripe

from providers.sandbox import Sandbox

from .calls import connected, failure, paid, raw_request, refund, until_closed


def test_refunds_are_listed_newest_first_and_paged_without_gaps(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment, other = paid(sandbox), paid(sandbox)
    made = [refund(client, payment, 10, key=f"k{n}").id for n in range(25)]
    refund(client, other, 10, key="other")
    page = client.v1.refunds.list({"payment_intent": payment})
    assert [each.id for each in page.data] == made[:-11:-1]
    assert page.has_more
    pages = client.v1.refunds.list({"payment_intent": payment, "limit": 7})
    assert [each.id for each in pages.auto_paging_iter()] == made[::-1]


def test_ending_before_walks_back(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    payment = paid(sandbox)
    made = [refund(client, payment, 10, key=f"k{n}").id for n in range(5)]
    page = client.v1.refunds.list({"ending_before": made[0], "limit": 2})
    assert [each.id for each in page.data] == [made[2], made[1]]
    assert page.has_more


def test_refunds_are_filtered_by_time_of_creation(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    payment = paid(sandbox)
    old = refund(client, payment, 10)
    sandbox.advance(100)
    new = refund(client, payment, 10, key="k2")
    after = client.v1.refunds.list({"created": {"gt": old.created}})
    assert [each.id for each in after.data] == [new.id]
    before = client.v1.refunds.list({"created": {"gte": old.created, "lt": new.created}})
    assert [each.id for each in before.data] == [old.id]


def test_bad_cursors_and_limits_are_refused(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    made = refund(client, paid(sandbox))
    error = failure(lambda: client.v1.refunds.list({"starting_after": "re_none"}))
    assert (error.http_status, error.code, error.param) == (
        400,
        "resource_missing",
        "starting_after",
    )
    both = {"starting_after": made.id, "ending_before": made.id}
    assert failure(lambda: client.v1.refunds.list(both)).http_status == 400  # type: ignore[arg-type]
    for limit in (0, 101):
        assert failure(lambda: client.v1.refunds.list({"limit": limit})).param == "limit"  # noqa: B023


def test_an_unknown_payment_is_an_error_not_an_empty_list(client: stripe.StripeClient) -> None:
    error = failure(lambda: client.v1.refunds.list({"payment_intent": "pi_none"}))
    assert error.code == "resource_missing"


def test_events_tell_who_asked(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    made = refund(client, paid(sandbox), key="k1")
    (event,) = client.v1.events.list({"type": "refund.created"}).data
    assert event.request is not None
    assert event.request.idempotency_key == "k1"
    assert event.request.id == made.last_response.request_id  # type: ignore[union-attr]
    assert event.data.object["id"] == made.id
    sandbox.advance(5)
    by_itself = client.v1.events.list({"type": "refund.updated"}).data[0]
    assert by_itself.request is not None
    assert by_itself.request.idempotency_key is None


def test_an_event_is_a_snapshot(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    made = refund(client, paid(sandbox))
    sandbox.fail_refund(made.id)
    kinds = [event.type for event in reversed(client.v1.events.list({"limit": 100}).data)]
    assert kinds[-5:] == [
        "refund.created",
        "charge.refunded",
        "refund.updated",
        "charge.refund.updated",
        "refund.failed",
    ]
    (created,) = client.v1.events.list({"types": ["refund.created"]}).data
    assert created.data.object["status"] == "succeeded"


def test_events_are_gone_after_thirty_days(sandbox: Sandbox, client: stripe.StripeClient) -> None:
    refund(client, paid(sandbox))
    sandbox.advance(31 * 86_400)
    left = {event.type for event in client.v1.events.list().data}
    assert "refund.created" not in left


@pytest.mark.parametrize(
    "query",
    [
        "starting_after[a]=1",
        "payment_intent[a]=1",
        "charge[]=1",
        "created[near]=1",
        "created=soon",
        "limit[]=1",
        "wat=1",
        "[]=1",
        "a[b=1",
    ],
)
def test_malformed_parameters_are_a_400(sandbox: Sandbox, query: str) -> None:
    with connected(sandbox) as sock:
        sock.sendall(raw_request("GET", f"/v1/refunds?{query}", Connection="close"))
        assert until_closed(sock).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b'{"amount": 1}'),
        ("application/x-www-form-urlencoded", b"amount=\xff\xfe"),
        ("application/x-www-form-urlencoded", b"payment_intent[a]=1"),
        ("application/x-www-form-urlencoded", b"charge=ch_1&metadata[a][b]=1"),
        ("application/x-www-form-urlencoded", b"charge=ch_1&metadata=text"),
    ],
)
def test_malformed_forms_are_a_400(sandbox: Sandbox, content_type: str, body: bytes) -> None:
    head = (
        "POST /v1/refunds HTTP/1.1\r\nAuthorization: Bearer sk_test_sandbox\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with connected(sandbox) as sock:
        sock.sendall(head.encode() + body)
        assert until_closed(sock).startswith(b"HTTP/1.1 400 ")


def test_an_unknown_url_is_a_404(client: stripe.StripeClient) -> None:
    error = failure(lambda: client.raw_request("get", "/v1/refunds/search"))
    assert error.http_status == 404


def test_payments_are_listed_newest_first_by_time_and_customer_with_what_is_expanded(
    sandbox: Sandbox, client: stripe.StripeClient
) -> None:
    customer = client.v1.customers.create({"email": "ada@example.com"})
    old = paid(sandbox, customer=customer.id, receipt_email="grace@example.com")
    sandbox.advance(100)
    made = [paid(sandbox) for _ in range(12)]
    page = client.v1.payment_intents.list({"limit": 5})
    assert [each.id for each in page.data] == made[:-6:-1]
    assert page.has_more
    all_of_them = client.v1.payment_intents.list({"limit": 5}).auto_paging_iter()
    assert [each.id for each in all_of_them] == [*made[::-1], old]
    created = client.v1.payment_intents.retrieve(old).created
    earlier = client.v1.payment_intents.list({"created": {"gte": created, "lt": created + 1}})
    assert [each.id for each in earlier.data] == [old]
    (shown,) = client.v1.payment_intents.list(
        {"customer": customer.id, "expand": ["data.latest_charge", "data.customer"]}
    ).data
    assert isinstance(shown.latest_charge, stripe.Charge)
    assert isinstance(shown.customer, stripe.Customer)
    assert shown.customer.email == "ada@example.com"
    assert shown.receipt_email == shown.latest_charge.receipt_email == "grace@example.com"
    assert shown.latest_charge.billing_details.email is None
    error = failure(lambda: client.v1.payment_intents.list({"starting_after": "pi_none"}))
    assert (error.http_status, error.code, error.param) == (
        400,
        "resource_missing",
        "starting_after",
    )
