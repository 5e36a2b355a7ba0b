"""Child processes that are always ended by whoever started them, or by the next one to come.

Each child leads its own session, so that a signal to its group reaches its children and nobody
else. It is written down (pid and start time) before anything depends on it: when the starter was
killed, the next start in the same folder ends what was left behind, and only that.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

#: Longest that a process may take to obey its stop signal, unless its owner says otherwise.
STOP_SECONDS = 20.0


#: Ctrl-C, `kill`, and a terminal that was closed.
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ServerError(Exception):
    """A process of the stack did not start. The message says what to do."""


@contextmanager
def uninterrupted() -> Generator[None]:
    """For a clean-up: whoever asks a second time would leave half of the processes running."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs handlers in the main thread only
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: it was not set by Python, and cannot be set again from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def free_port() -> int:
    """A loopback TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int, *, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _start_time(pid: int) -> str | None:
    """When the process started, in the system's own words; None when it does not run.

    Beside the pid it tells a process from a later one that got the same number.
    """
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] == "Z" else fields[19]
    asked = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or None


def _signal_group(pid: int, started: str | None, number: int) -> None:
    """Signal the group that the process led, unless its number belongs to somebody else by now.

    The system gives no process the number of a group that still has members.
    """
    if _start_time(pid) not in (None, started):
        return
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # nobody is left in it


class Process:
    """One child. `command` is run as it stands, with `env` as its whole environment, as
    `user` when that is given (and we are root)."""

    def __init__(
        self,
        *,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        cwd: Path | None = None,
        user: pwd.struct_passwd | None = None,
        stdin: bytes | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.env = dict(env)
        self.folder = folder
        self.log_path = folder / f"{name}.log"
        self.cwd = cwd
        self.user = user
        self.stdin = stdin
        self.stop_signal = stop_signal
        self._popen: subprocess.Popen[bytes] | None = None
        self._started: str | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """The pid of the running (or last) child."""
        if self._popen is None:
            raise ServerError(f"{self.name} was never started.")
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return None if self._popen is None else self._popen.poll()

    def start(self) -> None:
        if self.alive:
            raise ServerError(f"{self.name} is running already (pid {self.pid}).")
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._popen = subprocess.Popen(
                self.command,
                cwd=self.cwd,
                env=self.env,
                user=None if self.user is None else self.user.pw_uid,
                group=None if self.user is None else self.user.pw_gid,
                extra_groups=None if self.user is None else [],
                stdin=subprocess.DEVNULL if self.stdin is None else subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started = _start_time(self.pid)
        self._write_down()
        if self.stdin is not None and self._popen.stdin is not None:
            self._popen.stdin.write(self.stdin)
            self._popen.stdin.close()

    def signal_group(self, number: int) -> None:
        """Send a signal to the child and to everything in its process group.

        Also when the child itself is gone: its own children may not be.
        """
        _signal_group(self.pid, self._started, number)

    def stop(self, *, timeout_seconds: float = STOP_SECONDS) -> None:
        """Ask it to end; when it does not, end its whole group."""
        if self._popen is None:
            return
        if self.alive:
            self._popen.send_signal(self.stop_signal)
            try:
                self._popen.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                pass
        self.signal_group(signal.SIGKILL)
        self._popen.wait()
        self._record.unlink(missing_ok=True)

    def wait(self, *, timeout_seconds: float) -> int:
        """Wait for it to end by itself and return its exit status."""
        if self._popen is None:
            raise ServerError(f"{self.name} was never started.")
        return self._popen.wait(timeout_seconds)

    def wait_until(self, ready: Callable[[], bool], *, timeout_seconds: float) -> None:
        """Poll `ready` until it answers True. ServerError when the process ends or time is over."""
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            if not self.alive:
                raise ServerError(
                    f"{self.name} ended with status {self.exit_status} before it was ready. "
                    f"Its last words ({self.log_path}):\n{self.last_words()}"
                )
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{self.name} was not ready after {timeout_seconds:g} s. "
                    f"Its last words ({self.log_path}):\n{self.last_words()}"
                )
            time.sleep(0.03)

    def last_words(self, *, lines: int = 20) -> str:
        """The end of its log."""
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    def words_since_start(self) -> str:
        """What it wrote since it was last started."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    @property
    def _record(self) -> Path:
        return self.folder / f"{self.name}.pid.json"

    def _write_down(self) -> None:
        self._record.write_text(
            json.dumps(
                {
                    "pid": self.pid,
                    "started": self._started,
                    "stop_signal": int(self.stop_signal),
                }
            )
        )


def end_strays(folder: Path) -> list[str]:
    """End what an earlier, killed starter left running in this folder; return the names ended.

    Only processes written down here whose start time still matches are touched. The caller holds
    the folder's lock, so that nobody living owns them.
    """
    ended = []
    for record in sorted(folder.rglob("*.pid.json")):
        try:
            said = json.loads(record.read_text())
            pid, started, number = int(said["pid"]), said["started"], int(said["stop_signal"])
        except (OSError, ValueError, KeyError):
            record.unlink(missing_ok=True)  # cut short while being written
            continue
        if started is not None and _start_time(pid) == started:
            ended.append(record.name.removesuffix(".pid.json"))
            os.kill(pid, number)
            deadline = time.monotonic() + STOP_SECONDS
            while _start_time(pid) == started and time.monotonic() < deadline:
                time.sleep(0.05)
        _signal_group(pid, started, signal.SIGKILL)
        record.unlink(missing_ok=True)
    return ended
