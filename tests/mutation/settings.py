"""Settings for pure functions beside models: no database is reached, no page is imported."""

from config.typing_settings import *  # noqa: F403

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_fsm",
    "pgtrigger",
    "effects",
    "providers",
    "policies",
    "approvals",
    "refunds",
]
