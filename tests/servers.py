"""Starts a private Postgres and Valkey once for a whole test run, before any settings are read.

Loaded with `-p tests.servers` (pyproject.toml). The processes of pytest-xdist inherit the addresses
through the environment; pytest-django makes one database for each of them. With DATABASE_URL and
REDIS_URL set, those servers are used and nothing is started.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from config.development import OFFLINE
from config.embedded.servers import Servers

ENVIRONMENT = OFFLINE | {"INSTANCE": "test", "CASE_OWNER": "case-owner", "LOG_LEVEL": "WARNING"}


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """A wrapper, because it must come before pytest-django's own hook, which imports settings."""
    started = {}
    if not os.environ.get("DATABASE_URL"):
        servers = Servers()
        servers.start()
        # Runs at the end however that comes, Ctrl-C included; a killed run is swept by the next.
        early_config.add_cleanup(servers.stop)
        started = {"DATABASE_URL": servers.postgres.url(), "REDIS_URL": servers.valkey.url()}
    for name, value in (ENVIRONMENT | started).items():
        os.environ.setdefault(name, value)
    return (yield)
