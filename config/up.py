"""`make up`: the whole product on this machine, until Ctrl-C.

Data is kept in `.data/` from run to run. With DATABASE_URL, REDIS_URL or STRIPE_API_BASE set, those
are used instead of what would be started here.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from config.development import DATA_DIR, STACK_ENV
from config.embedded.places import FolderLock, private_folder
from config.processes import (
    END_SIGNALS,
    ServerError,
    end_strays,
    free_port,
    port_is_free,
    uninterrupted,
)
from config.stack import Stack

#: A process that ends this often in a row is not started again: something is wrong with it.
RESTARTS_MAX = 3
#: Running this long makes a process sound again.
SOUND_AFTER_SECONDS = 60.0
#: Where the web process listens unless PORT says otherwise.
DEFAULT_PORT = 8000
#: What manage.py needs to work beside the running stack.
PUBLISHED = (
    "DATABASE_URL",
    "REDIS_URL",
    "STRIPE_API_KEY",
    "STRIPE_API_BASE",
    "STRIPE_WEBHOOK_SECRETS",
    "SECRET_KEY",
    "INSTANCE",
    "CASE_OWNER",
    "DEVELOPMENT",
)


def say(sentence: str) -> None:
    print(f"[up] {sentence}", flush=True)


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def kept_secrets() -> dict[str, str]:
    """Secrets made once for this checkout, so that log-ins survive a restart."""
    path = DATA_DIR / "secrets.env"
    if not path.exists():
        _write_private(
            path,
            f"SECRET_KEY={secrets.token_urlsafe(48)}\n"
            f"STRIPE_WEBHOOK_SECRETS=whsec_{secrets.token_urlsafe(24)}\n",
        )
    try:
        kept = dict(line.split("=", 1) for line in path.read_text().splitlines() if line.strip())
    except ValueError:  # also for bytes that are no text
        kept = {}
    if not {"SECRET_KEY", "STRIPE_WEBHOOK_SECRETS"} <= kept.keys():
        raise ServerError(
            f"{path} cannot be read as NAME=value lines with SECRET_KEY and "
            "STRIPE_WEBHOOK_SECRETS. Nothing was started. Delete it: new secrets are made, and "
            "everybody has to log in again."
        )
    return kept


def chosen_port() -> int:
    """PORT, or 8000, or, when that one is taken and was not asked for, a free one, said aloud."""
    asked = os.environ.get("PORT")
    if asked is not None and not (asked.isdecimal() and 0 < int(asked) < 65_536):
        raise ServerError(
            f"PORT must be a number from 1 to 65535, not {asked!r}. Nothing was started."
        )
    port = int(asked) if asked else DEFAULT_PORT
    if port_is_free(port):
        return port
    if asked:
        raise ServerError(
            f"Port {port} is in use by another program. Nothing was started. Stop that program, or "
            "choose another: PORT=8001 make up"
        )
    other = free_port()
    say(f"port {port} is in use by another program; using {other} (PORT=… chooses one)")
    return other


@contextmanager
def persistent_stack(*, env: dict[str, str] | None = None) -> Generator[Stack]:
    """The stack of this checkout, started, and published for manage.py until it is stopped."""
    DATA_DIR.mkdir(mode=0o700, exist_ok=True)
    lock = FolderLock(DATA_DIR)
    if not lock.take():
        raise ServerError(
            "`make up` or `make demo` is running in this checkout already. Nothing was started. "
            "Stop it with Ctrl-C in its terminal first."
        )
    try:
        folder = DATA_DIR / "logs"
        # Before a port is chosen: what is left of a killed run may still hold it.
        for name in end_strays(folder):
            say(f"ended {name}, left behind by an earlier run")
        stack = Stack(
            folder=folder,
            servers_folder=private_folder(),
            sandbox_state=DATA_DIR / "sandbox.state",
            env={k: v for k, v in kept_secrets().items() if k not in os.environ} | (env or {}),
            port=chosen_port(),
            say=say,
        )
        try:
            stack.start()
            lines = [f"{name}={stack.env[name]}\n" for name in PUBLISHED if name in stack.env]
            _write_private(STACK_ENV, "".join(lines))
            yield stack
        finally:
            with uninterrupted():
                say("stopping")
                STACK_ENV.unlink(missing_ok=True)
                stack.stop()
                say("stopped")
    finally:
        lock.release()


def watch(stack: Stack) -> None:
    """Start again what ended by itself, a few times; ServerError when it keeps ending."""
    failures: dict[str, list[float]] = {}
    while True:
        time.sleep(0.5)
        for kind, index, process in stack.dead():
            now = time.monotonic()
            recent = [t for t in failures.get(process.name, []) if now - t < SOUND_AFTER_SECONDS]
            failures[process.name] = [*recent, now]
            if len(recent) >= RESTARTS_MAX:
                raise ServerError(
                    f"{process.name} ended {len(recent) + 1} times within {SOUND_AFTER_SECONDS:g} "
                    f"s. Its last words ({process.log_path}):\n{process.last_words()}"
                )
            say(f"{process.name} ended with status {process.exit_status}; starting it again")
            stack.restart(kind, index=index)


def interrupt_on_signals() -> None:
    """SIGINT, SIGTERM and a closed terminal end this program once, by way of `finally`.

    SIGINT by name: a shell that starts a program in the background (`make up &` in a script) lets
    it ignore SIGINT, and Python leaves it so. From the first signal on all three are ignored: a
    second one must not cut the clean-up short.
    """

    def interrupt(number: int, frame: object) -> None:
        for each in END_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in END_SIGNALS:
        signal.signal(number, interrupt)


def main() -> int:
    interrupt_on_signals()
    try:
        with persistent_stack() as stack:
            say(f"staff site   {stack.url}/admin/")
            say(
                "log-in       .venv/bin/python manage.py createsuperuser --username "
                + stack.env["CASE_OWNER"]
            )
            say(f"HTTP API     {stack.url}/api/v1/docs")
            say(f"provider     {stack.sandbox_url}")
            say(f"logs         {stack.folder}")
            say("Ctrl-C stops everything.")
            watch(stack)
    except KeyboardInterrupt:
        return 0
    except ServerError as error:
        print(f"[up] {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
