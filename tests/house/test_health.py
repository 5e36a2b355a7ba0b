"""Health is told to whoever asks, by whatever name."""

from __future__ import annotations

import pytest
from django.test import Client


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_check_by_an_address_that_is_no_allowed_host_is_answered(
    client: Client, path: str
) -> None:
    answer = client.get(path, HTTP_HOST="10.0.0.7:8000")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")


@pytest.mark.parametrize("path", ["/metrics", "/admin/login/", "/healthz/"])
def test_nothing_else_is_answered_under_a_name_that_is_not_allowed(
    client: Client, path: str
) -> None:
    assert client.get(path, HTTP_HOST="10.0.0.7:8000").status_code == 400
