"""An operator's terminal beside a running stack: commands of manage.py, one after the other.

Each begins with nothing of the one before but imported code: its own connection, its own session.
To import everything again takes a second or two, and a story asks for up to twenty commands.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import IO

from config.development import CHECKOUT
from config.processes import ServerError
from config.stack import Stack


class Operator:
    """Starts with the first command. Whoever has one ends it with `close`."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._terminal: subprocess.Popen[str] | None = None

    def manage(self, *arguments: str) -> str:
        """Run a command of manage.py against the stack and return what it printed.

        Raises ServerError when its exit status is not 0.
        """
        terminal = self._start() if self._terminal is None else self._terminal
        self._terminal = terminal
        assert terminal.stdin is not None
        assert terminal.stdout is not None
        terminal.stdin.write(json.dumps(arguments) + "\n")
        terminal.stdin.flush()
        answer = terminal.stdout.readline()
        status, said = json.loads(answer) if answer else (terminal.wait(), "")
        if status != 0:
            raise ServerError(f"manage.py {' '.join(arguments)} ended with {status}:\n{said}")
        return str(said)

    def close(self) -> None:
        if self._terminal is not None:
            self._terminal.communicate(timeout=30)  # the end of its input is its end

    def _start(self) -> subprocess.Popen[str]:
        with (self._stack.folder / "operator.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.acceptance.operator"],
                cwd=CHECKOUT,
                env=self._stack.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )


def run(arguments: list[str]) -> tuple[int, str]:
    """One command: its exit status, and what it printed."""
    from django.core.management import execute_from_command_line

    said = io.StringIO()
    status = 0
    with redirect_stdout(said), redirect_stderr(said):
        try:
            execute_from_command_line(["manage.py", *arguments])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return status, said.getvalue()


def main(commands: IO[str], answers: IO[str]) -> None:
    """Read commands, one JSON list a line; answer each with [status, words]."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    for line in commands:
        answers.write(json.dumps(run(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    # Whatever else prints must not be taken for an answer.
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(sys.stdin, answers_to)
