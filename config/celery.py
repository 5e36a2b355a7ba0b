"""The Celery application: `celery -A config worker`, `celery -A config beat`."""

from __future__ import annotations

import os

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("refund_once")
# Celery keeps the "current app" per thread; without a default, a web thread other than the one that
# imported this would publish through an unconfigured app.
app.set_default()
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Being connected is the point: Celery then leaves LOGGING of the settings alone."""
