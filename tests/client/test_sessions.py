"""Sessions: opened and ended by the backend, used by a model's tools without an id."""

from __future__ import annotations

import asyncio
import json

import pytest

from agents.models import AgentSession
from effects.states import State
from refund_once_client import (
    AsyncRefundSession,
    OpenedSession,
    OutcomeUnknown,
    Problem,
    RefundSession,
)
from refunds.models import RefundAction
from tests import builders
from tests.client.conftest import BRISK, TIMEOUT_SECONDS, Client, session_client
from tests.client.faulty_proxy import FaultyProxy

pytestmark = [pytest.mark.django_db(transaction=True)]

REFUNDS = "/api/v1/refunds"


@pytest.fixture
def opened(refunds: Client, proxy: FaultyProxy) -> OpenedSession:
    """A session for an order of 200.00, up to 100.00; nothing of its opening is counted."""
    order = builders.order()
    opened: OpenedSession = refunds.open_session(
        order_id=order.order_id, request_id="3", max_amount_minor=10_000
    )
    proxy.begin()
    return opened


@pytest.fixture
def tools(way: str, proxy: FaultyProxy, opened: OpenedSession) -> Client:
    """A model's tools."""
    return session_client(way, proxy.url, opened.token)


def test_a_session_is_opened_for_one_order_and_one_request(
    refunds: Client, way: str, proxy: FaultyProxy
) -> None:
    order = builders.order()

    opened = refunds.open_session(
        order_id=order.order_id, request_id="3", max_amount_minor=5_000, expires_in_seconds=120
    )

    assert opened.action_id == f"refund:order-{order.order_id}:request-3"
    assert opened.token.startswith("ro_session_")
    assert opened.token not in repr(opened)
    current = session_client(way, proxy.url, opened.token).current()
    assert (current.session_id, current.order_id) == (opened.session_id, order.order_id)
    assert (current.refundable_minor, current.max_amount_minor) == (20_000, 5_000)
    assert current.currency == "USD"
    assert current.expires_at == opened.expires_at


def test_opening_is_repeated_and_leads_to_the_same_action(
    refunds: Client, proxy: FaultyProxy
) -> None:
    order = builders.order()
    proxy.begin("dropped_before", "dropped_after")

    opened = refunds.open_session(order_id=order.order_id, request_id="3")

    assert len(proxy.sent("POST", "/api/v1/sessions")) == 3
    assert AgentSession.objects.count() == 2  # nobody has the token of the first one
    assert opened.action_id == f"refund:order-{order.order_id}:request-3"


def test_a_model_proposes_reads_and_withdraws_without_an_id(
    tools: Client, opened: OpenedSession, proxy: FaultyProxy
) -> None:
    assert tools.status() is None

    proposed = tools.propose(amount_minor=9_900, reason="damaged", note="it came broken")

    assert proposed.action_id == opened.action_id
    assert proposed.currency == "USD"
    assert tools.status() == proposed
    (post,) = proxy.sent("POST", REFUNDS)
    assert not {"order_id", "request_id"} & json.loads(post.body).keys()
    assert post.headers["Idempotency-Key"] == opened.action_id
    assert tools.withdraw().state == State.CANCELLED
    assert tools.wait_until_final(timeout_seconds=5).state == State.CANCELLED


def test_proposing_another_amount_under_a_session_is_a_conflict(tools: Client) -> None:
    tools.propose(amount_minor=9_900, reason="damaged")
    with pytest.raises(Problem) as caught:
        tools.propose(amount_minor=100, reason="damaged")
    assert caught.value.kind == "action-conflict"
    assert RefundAction.objects.count() == 1


def test_more_than_the_session_is_for_is_refused_by_name(tools: Client) -> None:
    with pytest.raises(Problem) as caught:
        tools.propose(amount_minor=10_001, reason="damaged")
    assert [field.field for field in caught.value.fields] == ["amount_minor"]
    assert RefundAction.objects.count() == 0


def test_nothing_is_withdrawn_where_nothing_was_proposed(tools: Client) -> None:
    with pytest.raises(Problem) as caught:
        tools.withdraw()
    assert caught.value.kind == "action-unknown"


def test_a_tools_lost_answer_is_read_and_not_sent_again(
    tools: Client, opened: OpenedSession, proxy: FaultyProxy
) -> None:
    proxy.begin("ok", "dropped_after")

    action = tools.propose(amount_minor=9_900, reason="damaged")

    assert action.action_id == opened.action_id
    assert [(one.method, one.path) for one in proxy.arrived] == [
        ("GET", "/api/v1/sessions/current"),
        ("POST", REFUNDS),
        ("GET", f"{REFUNDS}/{opened.action_id}"),
    ]
    assert RefundAction.objects.count() == 1


def test_a_tools_lost_proposal_is_sent_again_byte_for_byte(
    tools: Client, opened: OpenedSession, proxy: FaultyProxy
) -> None:
    proxy.begin("ok", "dropped_before")

    tools.propose(amount_minor=9_900, reason="damaged")

    first, second = proxy.sent("POST", REFUNDS)
    assert (first.body, first.headers) == (second.body, second.headers)
    assert RefundAction.objects.get().action_id == opened.action_id


def test_an_unknown_outcome_under_a_session_names_the_action(
    tools: Client, opened: OpenedSession, proxy: FaultyProxy
) -> None:
    proxy.begin("ok", "dropped_after", *["502_before"] * BRISK.tries_max)

    with pytest.raises(OutcomeUnknown) as caught:
        tools.propose(amount_minor=9_900, reason="damaged")

    assert caught.value.action_id == opened.action_id
    status = tools.status()
    assert status is not None
    assert status.action_id == opened.action_id


def test_a_revoked_session_is_over_and_revoking_it_again_is_fine(
    refunds: Client, tools: Client, opened: OpenedSession, proxy: FaultyProxy
) -> None:
    proxy.begin("dropped_after")

    assert refunds.revoke_session(opened.session_id) is None

    assert len(proxy.sent("DELETE")) == 2
    with pytest.raises(Problem) as caught:
        tools.status()
    assert caught.value.kind == "unauthorized"


def test_what_a_session_is_bound_to_is_read_once_for_many_proposals(
    opened: OpenedSession, proxy: FaultyProxy
) -> None:
    with RefundSession(
        proxy.url, opened.token, patience=BRISK, timeout_seconds=TIMEOUT_SECONDS
    ) as session:
        first = session.propose(amount_minor=9_900, reason="damaged")
        assert session.propose(amount_minor=9_900, reason="damaged").action_id == first.action_id
    assert len(proxy.sent("GET")) == 1


def test_many_proposals_at_once_of_one_session_are_one_action(
    opened: OpenedSession, proxy: FaultyProxy
) -> None:
    async def at_once() -> set[str]:
        async with AsyncRefundSession(
            proxy.url, opened.token, patience=BRISK, timeout_seconds=20
        ) as session:
            await session.current()
            proxy.begin("dropped_after", "ok", "502_before", "garbage_after")
            calls = [session.propose(amount_minor=9_900, reason="damaged") for _ in range(10)]
            return {action.action_id for action in await asyncio.gather(*calls)}

    assert asyncio.run(at_once()) == {opened.action_id}
    assert RefundAction.objects.count() == 1
    assert len({(post.body, tuple(post.headers.items())) for post in proxy.sent("POST")}) == 1
