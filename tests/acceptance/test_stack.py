"""The stack itself: it starts by the Procfile, survives its parts being killed, leaves nothing."""

from __future__ import annotations

import os
import urllib.request

from config.processes import end_strays
from config.stack import Stack
from tests.stack import MakeStack


def status(url: str) -> int:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return int(answer.status)


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


def test_readyz_does_not_ask_the_broker_but_asks_for_migrations(make_stack: MakeStack) -> None:
    nowhere = "redis://127.0.0.1:1/0"
    stack = make_stack(workers=0, beat=0, env={"REDIS_URL": nowhere})
    assert status(f"{stack.url}/readyz") == 200
