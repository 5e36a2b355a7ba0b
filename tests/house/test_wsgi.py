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
    ("content_type", "status"),
    [
        ("application/x-www-form-urlencoded; charset=rot13", "415"),
        ("text/plain; charset=zlib", "415"),
        ("text/plain; charset=utf-8", "200"),
        ("text/plain; charset=klingon", "200"),
        ("", "200"),
    ],
)
def test_a_codec_that_decodes_no_text_is_refused_also_with_a_query(
    content_type: str, status: str
) -> None:
    answered: list[str] = []

    def start_response(line: str, headers: Any, exc_info: Any = None) -> Any:
        answered.append(line)

    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/healthz",
        "QUERY_STRING": "a=b",
        "CONTENT_TYPE": content_type,
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "wsgi.input": BytesIO(),
        "wsgi.url_scheme": "http",
    }
    list(application(environ, start_response))
    assert answered[0].startswith(status)
