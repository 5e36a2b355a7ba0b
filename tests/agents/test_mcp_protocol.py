"""MCP as a protocol, by hand: who gets in, what is a message, and what else clients send."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from agents.keys import revoke_key
from agents.models import AgentKey, AgentSession
from effects.clock import DatabaseNow
from refunds.models import RefundAction
from tests import builders
from tests.agents.conftest import Caller
from tests.agents.mcp_client import LEGACY, NOW, TOOLS, WORDS, Tools, opened
from tests.agents.test_bad_input import MALFORMED, rows

pytestmark = pytest.mark.django_db

ERAS = (NOW, *LEGACY)
PROPOSE = {"name": "propose_refund", "arguments": WORDS}
METADATA = "/.well-known/oauth-protected-resource/mcp"


def error_of(response: Any, status: int) -> Any:
    """The JSON-RPC error of an answer that must have this status."""
    assert response.status_code == status, (response.status_code, response.content)
    assert response["X-Request-ID"]
    assert response["Cache-Control"] == "no-store"
    answer = json.loads(response.content)
    assert answer["jsonrpc"] == "2.0"
    assert set(answer) == {"jsonrpc", "id", "error"}
    error = answer["error"]
    assert error["data"]["type"].startswith("urn:refund-once:problem:")
    assert re.search(r"[Nn]othing was done|was not looked at|not known right now", error["message"])
    return error


# ---- Who gets in ---------------------------------------------------------------------------------


@pytest.mark.parametrize("era", [NOW, "2025-11-25"])
def test_without_a_usable_token_there_is_401_with_where_to_read(caller: Caller, era: str) -> None:
    tools = opened(caller, era=era)
    before = rows()
    metadata = f'Bearer resource_metadata="http://testserver{METADATA}"'
    for authorization in (
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        f"Basic {tools.token}",
        tools.token,
        f"Bearer {tools.token}0",
        f"Bearer {tools.token[:-1]}",
        f"Bearer {tools.token.upper()}",
        f"Bearer ro_session_{'0' * 18}_{tools.token[-64:]}",
        f"Bearer {tools.token} {tools.token}",
        "Bearer \u00e9",
    ):
        for method in ("initialize", "server/discover", "tools/list", "tools/call"):
            response = tools.request(method, PROPOSE, Authorization=authorization)
            assert "nowhere to sign in" in error_of(response, 401)["message"]
            assert response["WWW-Authenticate"] == metadata
            assert tools.token not in response.content.decode()
    assert rows() == before


def test_the_name_of_the_scheme_has_no_case(caller: Caller) -> None:
    tools = opened(caller)
    response = tools.request("tools/list", Authorization=f"bEARER  {tools.token}")
    assert response.status_code == 200


def test_the_metadata_names_no_authorization_server() -> None:
    response = Client().get(METADATA)
    assert response.status_code == 200
    assert response["X-Request-ID"]
    assert response.json() == {
        "resource": "http://testserver/mcp",
        "bearer_methods_supported": ["header"],
        "resource_name": "Refund Once",
        "resource_documentation": "http://testserver/api/v1/docs",
    }
    assert Client().post(METADATA).status_code == 405


def test_an_agent_key_is_not_for_mcp(caller: Caller) -> None:
    before = rows()
    error = error_of(Tools(caller.key).request("tools/call", PROPOSE), 403)
    assert error["data"] == {"type": "urn:refund-once:problem:forbidden"}
    assert "POST /api/v1/sessions" in error["message"]
    assert rows() == before


def test_a_session_that_ends_during_the_conversation_is_over(caller: Caller) -> None:
    order = builders.order()
    tools = opened(caller, order)
    tools.call("refund_status")
    AgentSession.objects.update(revoked_at=DatabaseNow())
    error_of(tools.request("tools/call", PROPOSE), 401)
    timed = opened(caller, order, expires_in_seconds=60)
    timed.call("refund_status")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL refund_once.clock_skew_seconds = '61'")
        error_of(timed.request("tools/call", PROPOSE), 401)
        cursor.execute("SET LOCAL refund_once.clock_skew_seconds = '0'")
    later = opened(caller, order)
    later.call("refund_status")
    revoke_key(prefix=AgentKey.objects.get().prefix, actor="test")
    error_of(later.request("tools/call", PROPOSE), 401)
    assert RefundAction.objects.count() == 0


def test_who_asks_too_often_waits_and_what_is_recorded_stands(
    caller: Caller, settings: Any
) -> None:
    settings.SESSION_REQUESTS_PER_MINUTE = 3
    tools = opened(caller)
    for _ in range(3):
        tools.call("propose_refund", **WORDS)
    response = tools.request("tools/call", PROPOSE)
    error = error_of(response, 429)
    assert error["data"] == {"type": "urn:refund-once:problem:rate-limited"}
    assert 1 <= int(response["Retry-After"]) <= 60
    assert "stands as it is" in error["message"]
    opened(caller).call("refund_status")
    assert RefundAction.objects.count() == 1


def test_the_token_is_taken_from_the_header_only(caller: Caller) -> None:
    tools = opened(caller)
    body = json.dumps(tools.message("tools/list"))
    response = Client().post(
        f"/mcp?access_token={tools.token}",
        body,
        content_type="application/json",
        headers=tools.headers("tools/list"),
    )
    assert response.status_code == 401


def test_a_page_of_another_site_is_refused(caller: Caller) -> None:
    tools = opened(caller)
    for origin in ("https://evil.example", "null", "http://[", "http://testserver.evil.example"):
        response = tools.request("tools/call", PROPOSE, Origin=origin)
        assert error_of(response, 403)["message"] == "Invalid Origin header. Nothing was done."
    assert RefundAction.objects.count() == 0


def test_a_page_of_this_site_and_no_page_at_all_may_call(caller: Caller) -> None:
    for origin in ("http://testserver", "https://testserver:8443", ""):
        assert opened(caller).request("tools/list", Origin=origin).status_code == 200


def test_there_is_no_stream_and_no_session_to_end(caller: Caller) -> None:
    tools = opened(caller)
    for method in ("GET", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"):
        response = tools.send(b"", method=method)
        assert (response.status_code, response["Allow"]) == (405, "POST")
        if method != "HEAD":
            assert error_of(response, 405)["data"]["type"].endswith(":method-not-allowed")


def test_the_versions_that_are_spoken_are_told_to_whoever_asks_for_another(caller: Caller) -> None:
    tools = opened(caller)
    message, headers = tools.message("tools/list"), tools.headers("tools/list")
    error = error_of(tools.send(message, **headers | {"MCP-Protocol-Version": "1999-01-01"}), 400)
    assert error["code"] == -32022
    assert error["data"] == {
        "type": "urn:refund-once:problem:invalid-field",
        "supported": [NOW, *LEGACY],
        "requested": "1999-01-01",
    }


NOT_CARRIED = ('"\\ud800"', "1e999", "-1e400", "9" * 5_000, "NaN", "Infinity")
PARSERS = re.compile(r"msgspec|Expected|at `\$|truncated|malformed|lone|surrogate", re.IGNORECASE)


def test_no_words_of_a_parser_leave(caller: Caller) -> None:
    """What neither reader can carry is refused whole, also where nobody reads it."""
    tools = opened(caller)
    before = rows()
    for value in NOT_CARRIED:
        body = json.dumps(tools.message("tools/call", PROPOSE)).replace('"by hand"', value)
        response = tools.send(body.encode(), **tools.headers("tools/call", PROPOSE))
        error = error_of(response, 400)
        assert error["code"] == -32700, value[:9]
        assert not PARSERS.search(error["message"]), error
    wrongs: tuple[dict[str, Any], ...] = (
        *({"id": {}}, {"jsonrpc": "1.0"}),
        *({"method": 5}, {"params": []}),
    )
    for wrong in wrongs:
        message = tools.message("tools/call", PROPOSE) | wrong
        error = error_of(tools.send(message, **tools.headers("tools/call", PROPOSE)), 400)
        assert error["data"]["type"].endswith(":invalid-field")
        assert not PARSERS.search(error["message"]), error
    assert rows() == before


# ---- What is a message ---------------------------------------------------------------------------


def test_what_is_not_one_json_object_is_a_parse_error(caller: Caller) -> None:
    tools = opened(caller)
    before = rows()
    for body in MALFORMED:
        error = error_of(tools.send(body, **{"MCP-Protocol-Version": "2025-11-25"}), 400)
        assert error["code"] == -32700, body[:16]
        assert error["message"].endswith("Nothing was done.")
    assert rows() == before


@pytest.mark.parametrize("era", ERAS)
def test_a_batch_is_refused_whole(caller: Caller, era: str) -> None:
    tools = opened(caller, era=era)
    batch = [tools.message("tools/call", PROPOSE, id=number) for number in (1, 2)]
    assert error_of(tools.send(batch, **tools.headers("tools/call", PROPOSE)), 400)
    assert RefundAction.objects.count() == 0


TWO_WAYS = (
    '"id": 1, "id": 2',
    '"method": "tools/list", "method": "tools/call"',
    '"params": {}, "params": {"name": "propose_refund"}',
    '"params": {"name": "refund_status", "name": "propose_refund"}',
    '"params": {"arguments": {}, "arguments": {"amount_minor": 1}}',
    '"params": {"arguments": {"amount_minor": 1, "amount_minor": 2}}',
    '"id": 1.5',
    '"id": 1e3',
    '"id": 9007199254740992',
    f'"id": {"9" * 5_000}',
    '"id": "\\ud800"',
    '"id": "\\u0000"',
    '"method": "tools/call\\u0000"',
    '"params": {"name": "\\udc00"}',
    '"params": {"name": 1.5}',
    '"params": 1.5',
)


def test_a_message_that_could_be_read_in_two_ways_is_refused(caller: Caller) -> None:
    tools = opened(caller)
    before = rows()
    for change in TWO_WAYS:
        error = error_of(tools.send(f'{{"jsonrpc": "2.0", {change}}}'.encode()), 400)
        assert error["code"] == -32602, change
    assert rows() == before


@pytest.mark.parametrize("era", ERAS)
def test_what_is_not_json_rpc_is_refused(caller: Caller, era: str) -> None:
    tools = opened(caller, era=era)
    wrong: dict[str, list[Any]] = {
        "id": [True, None, {}, []],
        "jsonrpc": ["1.0", 2],
        "method": [None, ["tools/call"]],
        "params": [[], "x", None],
    }
    for name, values in wrong.items():
        for value in values:
            message = tools.message("tools/call", PROPOSE) | {name: value}
            error = error_of(tools.send(message, **tools.headers("tools/call", PROPOSE)), 400)
            assert error["code"] == -32600, (name, value)
    assert RefundAction.objects.count() == 0


@pytest.mark.parametrize("era", ERAS)
def test_an_id_comes_back_as_it_was_sent(caller: Caller, era: str) -> None:
    tools = opened(caller, era=era)
    for id_ in (0, -1, 2**53 - 1, "", "x" * 50_000, "\u202e\U0001f600"):
        assert json.loads(tools.request("tools/list", id=id_).content)["id"] == id_


def test_a_body_that_is_too_large_is_413(caller: Caller) -> None:
    tools = opened(caller)
    for size in (64 * 1024 + 1, 300_000):
        body = json.dumps(tools.message("tools/call", PROPOSE)).ljust(size).encode()
        error = error_of(tools.send(body, **tools.headers("tools/call", PROPOSE)), 413)
        assert error["message"] == "The body is larger than 65536 bytes. Nothing was done."
    assert RefundAction.objects.count() == 0


def test_another_content_type_is_415(caller: Caller) -> None:
    tools = opened(caller)
    body = json.dumps(tools.message("tools/call", PROPOSE)).encode()
    for content_type, headers in (
        ("text/plain", {}),
        ("application/x-www-form-urlencoded", {}),
        ("multipart/form-data; boundary=x", {}),
        ("application/json-rpc", {}),
        ("", {}),
        ("application/json", {"Content-Encoding": "gzip"}),
    ):
        sent = {"Content-Type": content_type, **tools.headers("tools/call", PROPOSE), **headers}
        error_of(tools.send(body, **sent), 415)
    # Told by what stands before every address.
    other = tools.send(body, **{"Content-Type": "application/json; charset=utf-16"})
    assert other.status_code == 415
    assert RefundAction.objects.count() == 0


@pytest.mark.parametrize(
    ("status", "body", "environ"),
    [
        (411, b"{}", {"HTTP_TRANSFER_ENCODING": "chunked"}),
        (400, b"", {"CONTENT_LENGTH": "16"}),
        (400, b"{}", {"CONTENT_LENGTH": "16"}),
    ],
)
def test_a_body_that_did_not_come_whole_is_refused(
    caller: Caller, status: int, body: bytes, environ: dict[str, Any]
) -> None:
    given = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/mcp",
        "CONTENT_TYPE": "application/json",
        "HTTP_AUTHORIZATION": f"Bearer {opened(caller).token}",
        "wsgi.input": io.BytesIO(body),
    }
    client = Client(raise_request_exception=False)
    error_of(client.request(**given | environ), status)
    # A stranger is told so before a body is read.
    given = given | environ | {"HTTP_AUTHORIZATION": "Bearer x"}
    assert client.request(**given).status_code == 401


# ---- What else clients send ----------------------------------------------------------------------


@pytest.mark.parametrize("era", LEGACY)
def test_a_client_of_2025_opens_with_initialize(caller: Caller, era: str) -> None:
    tools = opened(caller, era=era)
    asked = {
        "protocolVersion": era,
        # Whatever JSON allows.
        "capabilities": {"sampling": {}, "experimental": {"x": [1.5, 1e3, {"y": None}]}},
        "clientInfo": {"name": "by hand", "version": "1.0"},
    }
    answer = tools.result("initialize", asked)
    assert answer["protocolVersion"] == era
    assert answer["capabilities"] == {"tools": {}}
    assert answer["serverInfo"]["name"] == "refund-once"
    assert "one refund" in answer["instructions"]
    unknown = tools.result("initialize", asked | {"protocolVersion": "1999-01-01"})
    assert unknown["protocolVersion"] == "2025-11-25"
    response = tools.request("tools/list")
    assert not response.has_header("Mcp-Session-Id")
    assert tools.result("ping") == {}


def test_a_client_of_2026_may_discover_first(caller: Caller) -> None:
    tools = opened(caller)
    answer = tools.result("server/discover")
    assert answer["supportedVersions"] == list(ERAS)
    assert "one refund" in answer["instructions"]
    tools.era = "2027-01-01"
    response = tools.request("tools/list")
    assert error_of(response, 400)["data"]["supported"] == list(ERAS)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Mcp-Method", ""),
        ("Mcp-Method", "tools/list"),
        ("Mcp-Name", ""),
        ("Mcp-Name", "refund_status"),
        ("Mcp-Name", "=?base64?!?="),
        ("Mcp-Name", "=?base64?/w==?="),
        ("MCP-Protocol-Version", "2026-07-28\u00e9"),
    ],
)
def test_headers_that_do_not_fit_the_body_are_refused(
    caller: Caller, header: str, value: str
) -> None:
    tools = opened(caller)
    headers = tools.headers("tools/call", PROPOSE) | {header: value}
    error_of(tools.send(tools.message("tools/call", PROPOSE), **headers), 400)
    assert RefundAction.objects.count() == 0


def test_a_name_may_come_in_base64(caller: Caller) -> None:
    headers = {"Mcp-Method": "tools/call", "Mcp-Name": "=?base64?cmVmdW5kX3N0YXR1cw==?="}
    tools = opened(caller)
    message = tools.message("tools/call", {"name": "refund_status"})
    response = tools.send(message, **{"MCP-Protocol-Version": NOW}, **headers)
    assert response.status_code == 200


@pytest.mark.parametrize("era", ERAS)
def test_a_notification_does_nothing(caller: Caller, era: str) -> None:
    tools = opened(caller, era=era)
    for method, params in (
        ("notifications/initialized", {}),
        ("notifications/cancelled", {"requestId": 1, "reason": "too slow"}),
        ("notifications/progress", {"progressToken": 1, "progress": 0.5}),
        ("tools/call", PROPOSE),
    ):
        message = tools.message(method, params)
        del message["id"]
        response = tools.send(message, **tools.headers(method, params))
        assert (response.status_code, response.content) == (202, b"")
    assert RefundAction.objects.count() == 0


METHODS = (
    "prompts/list",
    "resources/list",
    "resources/read",
    "completion/complete",
    "logging/setLevel",
    "sampling/createMessage",
    "elicitation/create",
    "tasks/list",
    "subscriptions/listen",
    "tools/Call",
    "approve_refund",
    "x" * 10_000,
)


@pytest.mark.parametrize("era", ERAS)
def test_an_unknown_method_is_not_there(caller: Caller, era: str) -> None:
    tools = opened(caller, era=era)
    for method in METHODS:
        error = error_of(tools.request(method, {}), 404 if era == NOW else 200)
        assert error["code"] == -32601, method


@pytest.mark.parametrize("era", ERAS)
def test_an_unknown_tool_is_not_there(caller: Caller, era: str) -> None:
    tools = opened(caller, era=era)
    before = rows()
    for name in (
        "approve_refund",
        "issue_refund",
        "Propose_refund",
        "propose_refund\u200b",
        "x" * 9,
    ):
        params = {"name": name, "arguments": WORDS}
        header = "=?base64?cHJvcG9zZV9yZWZ1bmTigIs=?=" if not name.isascii() else name
        headers = {"Mcp-Name": header} if era == NOW else {}
        message, others = tools.message("tools/call", params), tools.headers("tools/list")
        if era == NOW:
            others["Mcp-Method"] = "tools/call"
        assert error_of(tools.send(message, **others, **headers), 200)["code"] == -32602
    assert rows() == before


def test_a_call_without_a_name_or_with_a_list_of_arguments_is_refused(caller: Caller) -> None:
    tools = opened(caller, era="2025-11-25")
    before = rows()
    params: dict[str, Any]
    for params in ({}, {"name": 1}, {"name": None}, {"name": ["propose_refund"]}):
        assert error_of(tools.request("tools/call", params), 200)["code"] == -32602
    for name in TOOLS:
        for arguments in ([], "x", 1, True, [WORDS]):
            params = {"name": name, "arguments": arguments}
            assert error_of(tools.request("tools/call", params), 200)["code"] == -32602
    assert rows() == before


def test_there_is_one_page_of_tools(caller: Caller) -> None:
    tools = opened(caller)
    cursors: list[Any] = ["", "2", "x" * 5_000, 1, 1.5, {}]
    for cursor in cursors:
        assert error_of(tools.request("tools/list", {"cursor": cursor}), 200)["code"] == -32602
    assert tools.result("tools/list", {"cursor": None})["tools"]


METAS: tuple[dict[str, Any], ...] = (
    {"progressToken": 1},
    {"progressToken": 1.5},
    {"progressToken": 2**70},
    {"progressToken": "x"},
    {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}},
    {"example.com/x": {"a": {"b": {"c": {"d": {"e": {"f": {"g": [1e3, -0.0, None]}}}}}}}},
    {"order_id": "another", "request_id": "8", "agent": "agent-2"},
)


@pytest.mark.parametrize("era", ERAS)
def test_meta_may_hold_anything_and_chooses_nothing(caller: Caller, era: str) -> None:
    for meta in METAS:
        tools = opened(caller, era=era)
        answer = tools.result("tools/call", {**PROPOSE, "_meta": meta})["structuredContent"]
        assert answer["outcome"] == "recorded"
        assert answer["action_id"].endswith(":request-7")
    assert set(RefundAction.objects.values_list("request_id", flat=True)) == {"7"}


FORGED: tuple[tuple[dict[str, Any], int | None], ...] = (
    ({"inputResponses": {"elicitation-0": {"action": "accept", "content": {"x": 1.5}}}}, None),
    ({"inputResponses": "x"}, None),
    ({"requestState": None}, None),
    ({"requestState": "x"}, -32602),
    ({"requestState": 1}, -32602),
    ({"requestState": "eyJ4IjoxfQ:1:forged"}, -32602),
    ({"task": {"ttl": 60_000}}, None),
    ({"order_id": "another", "session": "x", "score": 0.5}, None),
)


@pytest.mark.parametrize("era", ERAS)
def test_answers_to_questions_that_were_never_asked_change_nothing(
    caller: Caller, era: str
) -> None:
    for given, code in FORGED:
        order = builders.order()
        response = opened(caller, order, era=era).request("tools/call", {**PROPOSE, **given})
        if code is not None:
            assert error_of(response, 200)["code"] == code
            assert not order.actions.exists()
            continue
        answer = json.loads(response.content)["result"]["structuredContent"]
        assert (answer["outcome"], order.actions.get().request_id) == ("recorded", "7")


def test_a_person_signed_in_in_the_same_browser_is_nobody_here(caller: Caller) -> None:
    tools = opened(caller)
    tools.client.force_login(builders.person())
    assert tools.request("tools/call", PROPOSE, Authorization="").status_code == 401
    response = tools.request("tools/call", PROPOSE)
    assert response.status_code == 200
    assert not response.has_header("Vary")


def test_a_mistake_of_ours_around_the_tools_tells_nothing(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(*_: Any, **__: Any) -> None:
        raise RuntimeError("password=hunter2")

    tools = opened(caller)
    monkeypatch.setattr("agents.mcp.require_json", mistaken)
    response = tools.request("tools/call", PROPOSE)
    assert error_of(response, 500)["code"] == -32603
    assert b"hunter2" not in response.content
