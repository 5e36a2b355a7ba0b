"""A development machine's environment: a running stack's, or made up for offline commands."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
DATA_DIR = CHECKOUT / ".data"
#: NAME=value lines, written by `make up` and `make demo` as long as they run; readable by its owner
#: only.
STACK_ENV = DATA_DIR / "stack.env"

# Commands of manage.py that need settings but no server.
OFFLINE_COMMANDS = frozenset(
    {
        "check",
        "collectstatic",
        "docs",
        "help",
        "makemigrations",
        "shell",
        "version",
        "--help",
        "--version",
    }
)

# Values that let the settings load, and that no server would accept. Port 1 is never ours.
OFFLINE = {
    "DATABASE_URL": "postgresql://offline@127.0.0.1:1/offline",
    "REDIS_URL": "redis://127.0.0.1:1/0",
    "STRIPE_API_KEY": "sk_test_offline",
    "STRIPE_API_BASE": "http://127.0.0.1:1",
    "STRIPE_WEBHOOK_SECRETS": "whsec_offline",
    "SECRET_KEY": "offline: signs nothing that anybody ever sees, and is long enough",
    "INSTANCE": "offline",
    "CASE_OWNER": "offline",
    "DEVELOPMENT": "1",
}


def find_environment(command: str) -> str | None:
    """Fill os.environ when it names neither a database nor a broker. None, or why there is nothing
    to use.

    What is set already always wins.
    """
    if os.environ.get("DATABASE_URL") or os.environ.get("REDIS_URL"):
        return None
    found: dict[str, str] = {}
    if STACK_ENV.exists() and _somebody_runs_it():
        lines = STACK_ENV.read_text().splitlines()
        found = dict(line.split("=", 1) for line in lines if "=" in line)
    elif command in OFFLINE_COMMANDS:
        found = OFFLINE
    if not found:
        return (
            "Neither DATABASE_URL nor REDIS_URL is set, and no `make up` is running in this "
            "checkout.\n"
            f"`{command}` needs a database. Nothing was done. Either start `make up` (or `make "
            f"demo`) in "
            "another terminal and run this again beside it, or set the environment (README, "
            "Environment)."
        )
    for name, value in found.items():
        os.environ.setdefault(name, value)
    return None


def _somebody_runs_it() -> bool:
    """Whether the starter of the stack lives; a killed one leaves its file behind."""
    from config.embedded.places import FolderLock  # not needed where the environment is complete

    lock = FolderLock(STACK_ENV.parent)
    if lock.take():
        lock.release()
        return False
    return True
