"""Publish the default policy, so that a new installation decides something sensible."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import migrations
from django.utils import timezone

from kernel.canonical import canonical_json, sha256_hex
from policies.versions import first_parameters


def publish_default(apps: Any, schema_editor: Any) -> None:
    parameters = first_parameters(base_currency=settings.BASE_CURRENCY).as_json()
    apps.get_model("policies", "PolicyVersion").objects.create(
        number=1,
        parameters=parameters,
        parameters_hash=sha256_hex(canonical_json(parameters)),
        published_by="installation",
        published_at=timezone.now(),
        note="The default policy.",
    )


class Migration(migrations.Migration):
    dependencies = [("policies", "0001_initial")]

    operations = [migrations.RunPython(publish_default, migrations.RunPython.noop)]
