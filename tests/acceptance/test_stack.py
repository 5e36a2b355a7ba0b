"""The stack itself: it starts by the Procfile, survives its parts being killed, leaves nothing."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request

import psycopg
import pytest

from config.processes import end_strays
from config.stack import Stack
from tests.stack import MakeStack, with_path


def status(url: str) -> int:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return int(answer.status)


def refused(url: str) -> tuple[int, set[str]]:
    """The status of an answer that is none of success, and the problems it names."""
    with pytest.raises(urllib.error.HTTPError) as error:
        status(url)
    with error.value:
        return error.value.code, set(json.load(error.value)["problems"])


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_part_answers_and_a_killed_one_can_be_started_again(stack: Stack) -> None:
    assert status(f"{stack.url}/healthz") == 200
    assert status(f"{stack.url}/readyz") == 200
    assert status(f"{stack.url}/admin/login/") == 200
    assert status(f"{stack.url}/static/admin/css/base.css") == 200
    for name in ("worker", "beat", "web", "sandbox"):
        before = stack.processes[name][0].pid
        stack.kill(name)
        assert [kind for kind, _, _ in stack.dead()] == [name]
        stack.restart(name)
        assert stack.processes[name][0].pid != before
    assert stack.dead() == []
    assert status(f"{stack.url}/readyz") == 200


def test_nothing_is_left_running_after_stop(make_stack: MakeStack) -> None:
    stack = make_stack()
    pids = [child.pid for group in stack.processes.values() for child in group]
    stack.stop(timeout_seconds=3)
    assert len(pids) == 4
    assert not any(running(pid) for pid in pids)


def test_what_a_killed_starter_left_behind_is_ended_by_the_next(make_stack: MakeStack) -> None:
    stack = make_stack(web=0, beat=0)
    left = stack.processes["worker"][0]
    assert "worker-1" in end_strays(stack.folder)
    assert not left.alive


def test_the_web_process_is_ready_without_its_broker(make_stack: MakeStack) -> None:
    nowhere = "redis://127.0.0.1:1/0"
    stack = make_stack(workers=0, beat=0, env={"REDIS_URL": nowhere})
    assert status(f"{stack.url}/readyz") == 200


def test_without_its_database_the_web_process_lives_and_is_not_ready(
    make_stack: MakeStack,
) -> None:
    stack = make_stack(workers=0, beat=0)
    with psycopg.connect(stack.database_url, autocommit=True) as connection:
        connection.execute("DELETE FROM django_migrations WHERE app = 'sessions'")
        assert refused(f"{stack.url}/readyz") == (503, {"migrations"})
        name = connection.info.dbname
    with psycopg.connect(with_path(stack.database_url, "postgres"), autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
    assert refused(f"{stack.url}/readyz") == (503, {"database"})
    assert status(f"{stack.url}/healthz") == 200
