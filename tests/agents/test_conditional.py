"""ETag and If-None-Match: what the caller has already is 304, and costs no body."""

from __future__ import annotations

from typing import Any

import pytest

from tests import builders
from tests.agents.conftest import Caller, read, refund_body
from tests.agents.test_sessions import opened

pytestmark = pytest.mark.django_db


@pytest.fixture
def addresses(caller: Caller) -> list[tuple[Caller, str]]:
    """Every address with a tag, and who reads it."""
    order = builders.order()
    action_id = read(caller.call("POST", "/refunds", refund_body(order.order_id)), 201)["action_id"]
    _, tools = opened(caller, order)
    return [
        (caller, f"/refunds/{action_id}"),
        (caller, f"/orders/{order.order_id}"),
        (tools, "/sessions/current"),
    ]


def get(caller: Caller, path: str, named: str = "") -> Any:
    return caller.call("GET", path, **({"If-None-Match": named} if named else {}))


def test_what_the_caller_has_already_is_304_without_a_body(
    addresses: list[tuple[Caller, str]],
) -> None:
    for caller, path in addresses:
        whole = get(caller, path)
        read(whole, 200)
        tag = whole["ETag"]
        assert (tag[0], tag[-1]) == ('"', '"')
        assert whole["Cache-Control"] == "private, no-cache"
        for named in (tag, f"W/{tag}", f'"other", {tag}', f'"a",W/"b",{tag}', "*", f"{tag}, *"):
            unchanged = get(caller, path, named)
            assert (unchanged.status_code, unchanged.content) == (304, b""), named
            assert unchanged["ETag"] == tag
            assert unchanged["Cache-Control"] == "private, no-cache"
            assert unchanged["X-Request-ID"]
            assert "Content-Type" not in unchanged


@pytest.mark.parametrize("named", ['"other"', "nonsense", '"', "W/", ",", "\x00", '"a' * 900])
def test_another_tag_or_none_at_all_is_answered_whole(
    addresses: list[tuple[Caller, str]], named: str
) -> None:
    for caller, path in addresses:
        read(get(caller, path, named), 200)


def test_a_change_has_another_tag(caller: Caller) -> None:
    order = builders.order()
    path = f"/refunds/{builders.action(order, proposer=caller.key.split('_')[2]).action_id}"
    before = get(caller, path)["ETag"]
    read(caller.call("POST", f"{path}/withdraw"), 200)
    changed = get(caller, path, before)
    assert read(changed, 200)["state"] == "CANCELLED"
    assert changed["ETag"] != before


def test_head_has_the_tag_and_knows_304(addresses: list[tuple[Caller, str]]) -> None:
    caller, path = addresses[0]
    tag = get(caller, path)["ETag"]
    assert caller.call("HEAD", path)["ETag"] == tag
    assert caller.call("HEAD", path, **{"If-None-Match": tag}).status_code == 304


def test_what_is_not_there_has_no_tag(caller: Caller) -> None:
    answer = get(caller, "/refunds/refund:order-1:request-1", "*")
    read(answer, 404)
    assert "ETag" not in answer
    assert answer["Cache-Control"] == "no-store"
