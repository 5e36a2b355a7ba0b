"""The web process: `gunicorn config.wsgi`."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

application = get_wsgi_application()

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
