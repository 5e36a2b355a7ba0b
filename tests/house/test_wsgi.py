"""What is refused before Django can stumble over it."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest

from config.wsgi import application


@pytest.mark.django_db(
    transaction=True
)  # a request looks after the connection that an earlier test left open
@pytest.mark.parametrize(
    ("path", "content_type", "status"),
    [
        ("/nowhere", "application/x-www-form-urlencoded; charset=rot13", "415"),
        ("/nowhere", "text/plain; charset=zlib", "415"),
        ("/healthz", "text/plain; charset=rot13", "200"),
        ("/healthz", "text/plain; charset=utf-8", "200"),
        ("/healthz", "text/plain; charset=klingon", "200"),
        ("/healthz", "", "200"),
        ("/api/v1/orders/1", "application/json; charset=rot13", "415"),
        ("/api/v1/none", "application/json; charset=zlib", "415"),
        ("/mcp", "application/json; charset=rot13", "405"),
        ("/.well-known/oauth-protected-resource/mcp", "text/plain; charset=rot13", "415"),
    ],
)
def test_a_codec_that_decodes_no_text_is_refused_also_with_a_query(
    path: str, content_type: str, status: str
) -> None:
    answered: list[str] = []
    told: dict[str, str] = {}

    def start_response(line: str, headers: Any, exc_info: Any = None) -> Any:
        answered.append(line)
        told.update(headers)

    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": path,
        "QUERY_STRING": "a=b",
        "CONTENT_TYPE": content_type,
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "wsgi.input": BytesIO(),
        "wsgi.url_scheme": "http",
    }
    list(application(environ, start_response))
    assert answered[0].startswith(status)
    if path.startswith(("/api/", "/.well-known/")):
        assert told["Content-Type"] == "application/problem+json"
    if path.startswith(("/api/", "/.well-known/", "/mcp")):
        assert told["X-Request-ID"]
