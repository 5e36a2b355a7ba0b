"""MCP by hand: the two eras of the protocol as raw HTTP, without any client library."""

from __future__ import annotations

import json
from typing import Any

from django.test import Client

from refunds.models import Order
from tests import builders
from tests.agents.conftest import Caller, read

NOW, LEGACY = "2026-07-28", ("2025-11-25", "2025-06-18", "2025-03-26")
TOOLS = ("get_refundable", "propose_refund", "refund_status", "withdraw_refund")
# All that a model may say.
WORDS: dict[str, Any] = {"amount_minor": 7_900, "reason": "damaged"}


class Tools:
    """What a host gives to a model: the tools of one session, over one era of the protocol."""

    def __init__(self, token: str, *, era: str = NOW) -> None:
        self.token = token
        self.era = era
        self.client = Client(raise_request_exception=False)

    def send(self, body: Any, *, method: str = "POST", **headers: str) -> Any:
        """One request; answers Django's response. A header given as "" is not sent."""
        sent = {
            "Authorization": f"Bearer {self.token}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            **headers,
        }
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.generic(
            method,
            "/mcp",
            data,
            content_type=sent.pop("Content-Type"),
            headers={name: value for name, value in sent.items() if value},
        )

    def request(self, method: str, params: Any = None, *, id: Any = 1, **headers: str) -> Any:
        """One JSON-RPC request as this era wants it; answers Django's response."""
        return self.send(
            self.message(method, params, id=id), **self.headers(method, params), **headers
        )

    def message(self, method: str, params: Any = None, *, id: Any = 1) -> dict[str, Any]:
        """The body of one request."""
        params = dict(params or {})
        if self.era == NOW:
            params["_meta"] = {
                "io.modelcontextprotocol/protocolVersion": NOW,
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": "by hand", "version": "1"},
                **params.get("_meta", {}),
            }
        return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}

    def headers(self, method: str, params: Any = None) -> dict[str, str]:
        """The headers of one request."""
        if self.era == "2025-03-26" or method == "initialize":
            return {}
        headers = {"MCP-Protocol-Version": self.era}
        if self.era == NOW:
            headers["Mcp-Method"] = method
            if method == "tools/call":
                headers["Mcp-Name"] = params["name"]
        return headers

    def result(self, method: str, params: Any = None) -> Any:
        """The result of a request that must have one."""
        response = self.request(method, params)
        assert response.status_code == 200, (response.status_code, response.content)
        answer = json.loads(response.content)
        assert "error" not in answer, answer
        return answer["result"]

    def called(self, name: str, **arguments: Any) -> Any:
        """The whole result of a tool."""
        return self.result("tools/call", {"name": name, "arguments": arguments})

    def call(self, name: str, **arguments: Any) -> Any:
        """What a tool that must answer says; structured and as text, which must be the same."""
        result = self.called(name, **arguments)
        assert result["isError"] is False, result
        [content] = result["content"]
        assert json.loads(content["text"]) == result["structuredContent"]
        return result["structuredContent"]

    def refused(self, name: str, **arguments: Any) -> str:
        """The words of a tool that must refuse its arguments."""
        result = self.called(name, **arguments)
        assert result["isError"] is True, result
        assert "structuredContent" not in result
        [content] = result["content"]
        text: str = content["text"]
        assert text.endswith("; nothing was done.")
        return text


def opened(caller: Caller, order: Order | None = None, *, era: str = NOW, **binding: Any) -> Tools:
    """Tools of a new session for request "7" of an order."""
    order = order or builders.order()
    body = {"order_id": order.order_id, "request_id": "7", **binding}
    return Tools(read(caller.call("POST", "/sessions", body), 201)["token"], era=era)
