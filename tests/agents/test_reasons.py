"""Which reasons may be given: told before, and a slip of a model's costs no request."""

from __future__ import annotations

from typing import Any

import pytest

from agents.models import AgentKey
from policies.models import PolicyEvent, PolicyVersion
from policies.versions import DEFAULT_PARAMETERS
from refunds.models import RefundAction
from tests import builders
from tests.agents.conftest import Caller, read, refund_body
from tests.agents.mcp_client import WORDS, opened
from tests.agents.test_bad_input import rows

pytestmark = pytest.mark.django_db

REASONS = list(DEFAULT_PARAMETERS.reasons)


def own_reasons(*reasons: str) -> None:
    """A policy with a list of the agent's own, whose order is another one."""
    builders.policy(reasons_by_agent={AgentKey.objects.get().prefix: reasons})


def told(caller: Caller) -> dict[str, Any]:
    """What each door says the reasons are."""
    order = builders.order()
    tools = opened(caller, order)
    body = {"order_id": order.order_id, "request_id": "8"}
    return {
        "get_refundable": tools.call("get_refundable")["reasons"],
        "sessions/current": read(Caller(tools.token).call("GET", "/sessions/current"), 200)[
            "reasons"
        ],
        "sessions": read(caller.call("POST", "/sessions", body), 201)["reasons"],
    }


def test_the_reasons_in_force_are_told_at_every_door(caller: Caller) -> None:
    assert list(told(caller).values()) == [REASONS] * 3
    own_reasons("late", "damaged")
    assert list(told(caller).values()) == [["damaged", "late"]] * 3
    builders.policy(reasons_by_agent={"somebody": ("late",)})
    assert list(told(caller).values()) == [REASONS] * 3
    builders.policy(reasons=("broken", "fraudulent"), goodwill_reasons=())
    assert list(told(caller).values()) == [["broken"]] * 3


def test_without_a_policy_nobody_says_which_reasons_there_are(caller: Caller) -> None:
    with builders.past_the_triggers():
        PolicyEvent.objects.all().delete()
        PolicyVersion.objects.all().delete()
    assert list(told(caller).values()) == [None] * 3
    answer = opened(caller).call("propose_refund", **WORDS | {"reason": "whim"})
    assert (answer["outcome"], answer["state"]) == ("recorded", "AWAITING_APPROVAL")


@pytest.mark.parametrize("reason", ["because", "fraudulent", "goodwill", "Damaged", "late-"])
def test_a_reason_that_a_model_made_up_is_refused_by_name_and_uses_up_nothing(
    caller: Caller, reason: str
) -> None:
    own_reasons("late", "damaged")
    tools = opened(caller)
    before = rows()
    wrong = WORDS | {"reason": reason}
    assert tools.refused("propose_refund", **wrong) == (
        "reason must be one of damaged, late; nothing was done."
    )
    answer = Caller(tools.token).call("POST", "/refunds", wrong | {"currency": "USD"})
    assert read(answer, 422)["fields"] == [
        {"field": "reason", "reason": "must be one of damaged, late"}
    ]
    with_value = Caller(tools.token).call(
        "POST", "/refunds", wrong | {"currency": "USD"}, **{"Idempotency-Key": "v"}
    )
    assert read(with_value, 422)["field"] == "reason"
    assert rows() == before
    recorded = tools.call("propose_refund", **WORDS)
    assert (recorded["outcome"], recorded["state"]) == ("recorded", "AUTHORIZED")


def test_an_action_that_exists_is_answered_whatever_the_reason_is(caller: Caller) -> None:
    tools = opened(caller)
    tools.call("propose_refund", **WORDS)
    assert tools.call("propose_refund", **WORDS | {"reason": "because"})["outcome"] == "conflict"
    # Also when its own reason was taken off the list since.
    own_reasons("late")
    assert tools.call("propose_refund", **WORDS)["outcome"] == "replayed"
    assert RefundAction.objects.count() == 1


def test_the_reason_of_a_backend_is_decided_and_recorded(caller: Caller) -> None:
    """The merchant's own program chose it; the policy's verdict is its answer."""
    body = refund_body(builders.order().order_id, reason="because")
    answer = read(caller.call("POST", "/refunds", body), 201)
    assert (answer["state"], answer["reason"]) == ("REJECTED", "because")


def test_where_no_reason_is_allowed_the_denial_is_recorded_and_ends_it(caller: Caller) -> None:
    own_reasons()
    tools = opened(caller)
    assert tools.call("get_refundable")["reasons"] == []
    answer = tools.call("propose_refund", **WORDS)
    assert (answer["outcome"], answer["state"], answer["final"]) == ("recorded", "REJECTED", True)
