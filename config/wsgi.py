"""The web process: `gunicorn config.wsgi`."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

from django.core.wsgi import get_wsgi_application
from django.utils.http import parse_header_parameters

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

_django = get_wsgi_application()

from config.celery import app  # noqa: E402  # after Django's set-up

# A caller waits while the hint is given. A broker that takes connections and answers nothing holds
# it for three times this long, since the client tries three times (measured). Workers are more
# patient: a slow answer must not cost them a connection.
HINT_TIMEOUT_SECONDS = 1.0
if "socket_timeout" in app.conf.broker_transport_options:
    app.conf.broker_transport_options = {
        **app.conf.broker_transport_options,
        "socket_timeout": HINT_TIMEOUT_SECONDS,
    }


def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Django, without the content types that it stumbles over.

    Django decodes the query string with any codec of Python that the content type names, before
    the first middleware, and Python has some that decode no text at all, like rot13. Such a one
    becomes one that decodes everything and that every address refuses by itself.
    """
    if not _names_text(environ.get("CONTENT_TYPE", "")):
        environ["CONTENT_TYPE"] = "text/plain; charset=latin-1"
    return _django(environ, start_response)


def _names_text(content_type: str) -> bool:
    """Whether the charset of a content type, if it names one, is an encoding of text."""
    _, parameters = parse_header_parameters(content_type)
    try:
        return bool(codecs.lookup(parameters.get("charset", "utf-8"))._is_text_encoding)
    except (LookupError, ValueError):
        return True  # Django falls back to UTF-8 for what it does not know
