"""docker-compose.yml names commands that work: they are the Procfile's, and they are started here.

There is no container engine in a test; what an image would hold is this checkout, and the servers
are the test run's.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.development import CHECKOUT, OFFLINE
from config.processes import Process, free_port
from config.stack import READY_SECONDS, procfile
from tests.stack import fresh_broker, fresh_database

COMPOSE: dict[str, Any] = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("migrate", "web", "worker", "beat")


def command(name: str) -> list[str]:
    """A service's command as a container would run it."""
    return [word.replace("$$", "$") for word in SERVICES[name]["command"]]


def seconds(duration: str) -> int:
    found = re.fullmatch(r"(\d+)s", duration)
    assert found, duration
    return int(found.group(1))


@pytest.mark.parametrize("name", OURS)
def test_the_commands_are_the_procfiles(name: str) -> None:
    assert command(name) == ["sh", "-c", procfile()[name]]


def test_the_web_process_opens_no_door_but_its_port() -> None:
    # gunicorn would else listen on a control socket in the home folder of whoever runs it.
    assert "--no-control-socket" in procfile()["web"].split()


def test_the_web_process_does_not_hang_up_on_a_client_that_is_busy() -> None:
    # By its default, 2 s, gunicorn closes a connection that is new or idle. An agent's process that
    # was busy so long then sends a proposal into it and never learns what became of it. HTTP
    # clients let go of an idle connection after 4 (Node) or 5 (httpx), proxies after 60 seconds.
    words = procfile()["web"].split()
    assert int(words[words.index("--keep-alive") + 1]) > 60


@pytest.mark.parametrize("name", OURS)
def test_ours_run_as_an_ordinary_user_and_may_finish_a_provider_call(name: str) -> None:
    assert SERVICES[name]["user"].split(":")[0] not in ("0", "root")
    # PROVIDER_TOTAL_TIMEOUT_SECONDS is 30; the record comes after it.
    assert seconds(SERVICES[name]["stop_grace_period"]) >= 60


def test_data_lies_in_named_volumes_and_every_server_has_a_health_check() -> None:
    for name in ("postgres", "redis"):
        volume = SERVICES[name]["volumes"][0].split(":")[0]
        assert volume in COMPOSE["volumes"]
    for name in ("postgres", "redis", "web", "worker"):
        assert SERVICES[name]["healthcheck"]["test"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What .env and the compose file would give, with the addresses of the test's servers."""
    dotenv = {
        name: OFFLINE[name]
        for name in (
            *("STRIPE_API_KEY", "STRIPE_API_BASE", "STRIPE_WEBHOOK_SECRETS", "SECRET_KEY"),
            *("INSTANCE", "CASE_OWNER"),
        )
    }
    with fresh_database() as database, fresh_broker() as broker:
        yield {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **dotenv,
            **{k: v for k, v in SERVICES["web"]["environment"].items() if "${" not in v},
            "DATABASE_URL": database,
            "REDIS_URL": broker,
            "WEB_BIND": "127.0.0.1",
            # The health check must not depend on it.
            "ALLOWED_HOSTS": "desk.example.com",
            "PORT": str(free_port()),
        }


@pytest.fixture(scope="module")
def image(environment: dict[str, str]) -> None:
    """What the Dockerfile does to the checkout beyond copying it: it collects static files."""
    (line,) = re.findall(
        r"^RUN (.*collectstatic.*)$", (CHECKOUT / "Dockerfile").read_text(), flags=re.MULTILINE
    )
    bare = {"PATH": environment["PATH"]}
    subprocess.run(shlex.split(line), cwd=CHECKOUT, env=bare, check=True)


def test_the_services_start_by_these_commands_and_are_healthy(
    environment: dict[str, str], image: None, tmp_path: Path
) -> None:
    def service(name: str) -> Process:
        return Process(
            name=name, command=command(name), env=environment, folder=tmp_path, cwd=CHECKOUT
        )

    migrate = service("migrate")
    migrate.start()
    assert migrate.wait(timeout_seconds=60) == 0, migrate.last_words()

    running = [service(name) for name in ("web", "worker", "beat")]
    web, worker, beat = running
    try:
        for process in running:
            process.start()
        # Inside its container the service listens on 8000.
        check = SERVICES["web"]["healthcheck"]["test"]
        probe = [word.replace(":8000", f":{environment['PORT']}") for word in check[1:]]

        def healthy() -> bool:
            asked = subprocess.run(probe, env=environment, capture_output=True, check=False)
            return asked.returncode == 0

        web.wait_until(healthy, timeout_seconds=READY_SECONDS)
        worker.wait_until(
            lambda: " ready." in worker.words_since_start(), timeout_seconds=READY_SECONDS
        )
        ping = SERVICES["worker"]["healthcheck"]["test"][1].replace("$$", "$")
        asked = subprocess.run(
            ["sh", "-c", ping],
            cwd=CHECKOUT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert asked.returncode == 0, asked.stdout + asked.stderr
        assert beat.alive, beat.last_words()
    finally:
        for process in running:
            process.stop(timeout_seconds=5)
    assert web.exit_status == 0, web.last_words()
