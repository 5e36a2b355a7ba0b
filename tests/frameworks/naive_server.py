"""The control: the refund tool as it is usually written. It pays at once, and has no key.

    .venv-agents/bin/python tests/frameworks/naive_server.py SANDBOX_URL PORT_FILE

The same four tools as Refund Once, with the same arguments, over the official MCP SDK; the bearer
token `naive_<payment intent>` says which payment it may refund. If the faults of the matrix did not
make this one pay twice, they would prove nothing about the other.
"""

import json
import os
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.transport_security import TransportSecuritySettings

SANDBOX_URL, PORT_FILE = sys.argv[1], Path(sys.argv[2])
SANDBOX_API_KEY = os.environ.get("SANDBOX_API_KEY", "sk_test_sandbox")

server = MCPServer("refunds", log_level="ERROR")


def payment_of(context: Context) -> str:
    """The payment that the caller's token names."""
    token = (context.headers or {}).get("authorization", "")
    return token.removeprefix("Bearer naive_")


def provider(method: str, path: str, fields: dict[str, Any]) -> dict[str, Any]:
    """One call to the provider, without an idempotency key."""
    form = urllib.parse.urlencode(fields)
    request = urllib.request.Request(
        f"{SANDBOX_URL}{path}" + (f"?{form}" if method == "GET" else ""),
        data=form.encode() if method == "POST" else None,
        method=method,
        headers={"Authorization": f"Bearer {SANDBOX_API_KEY}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ValueError(error.read().decode()) from error


@server.tool()
def get_refundable(context: Context) -> str:
    """How much of the order may be refunded."""
    payment = provider("GET", f"/v1/payment_intents/{payment_of(context)}", {})
    return f"up to {payment['amount_received']} {payment['currency']}"


@server.tool()
def propose_refund(context: Context, amount_minor: int, reason: str, note: str = "") -> str:
    """Refund the order."""
    refund = provider(
        "POST", "/v1/refunds", {"payment_intent": payment_of(context), "amount": amount_minor}
    )
    return f"refunded, {refund['id']}"


@server.tool()
def refund_status(context: Context) -> str:
    """What was refunded."""
    refunds = provider("GET", "/v1/refunds", {"payment_intent": payment_of(context)})
    return f"{len(refunds['data'])} refunds"


@server.tool()
def withdraw_refund() -> str:
    """Take a refund back."""
    return "a refund cannot be taken back"


def main() -> None:
    """Listen on a free port of loopback, and write its number down."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = server.streamable_http_app(
        stateless_http=True,
        json_response=True,
        transport_security=TransportSecuritySettings(allowed_hosts=["127.0.0.1:*"]),
    )
    PORT_FILE.with_suffix(".new").write_text(str(listener.getsockname()[1]))
    PORT_FILE.with_suffix(".new").rename(PORT_FILE)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


main()
