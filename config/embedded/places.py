"""Where the embedded servers keep their files, and who may use a folder now.

An ordinary user: `.data/` of the checkout. Root: Postgres refuses to run as root, and its
unprivileged user may be unable to reach the checkout (`/root/…`), so the folder lies under
/var/tmp, named after the checkout's path.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path
from typing import IO

from config.development import CHECKOUT, DATA_DIR
from config.processes import ServerError, end_strays

#: Exists on every Unix, owns nothing, may do nothing.
UNPRIVILEGED_USER = "nobody"


def is_root() -> bool:
    return os.geteuid() == 0


def server_user() -> pwd.struct_passwd | None:
    """The user Postgres must run as, or None: as ourselves."""
    if not is_root():
        return None
    try:
        return pwd.getpwnam(UNPRIVILEGED_USER)
    except KeyError:
        raise ServerError(
            f"Postgres cannot run as root, and there is no user {UNPRIVILEGED_USER!r} to run it "
            "as. Nothing was started. Run make as an ordinary user, or set DATABASE_URL and "
            "REDIS_URL to servers of your own."
        ) from None


def everyone_may_enter(path: Path) -> bool:
    """Whether any user can reach into the folder: it and each of its parents are o+x."""
    return all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.parents))


def private_folder() -> Path:
    """The folder of this checkout's servers, made when missing."""
    if not is_root():
        DATA_DIR.mkdir(mode=0o700, exist_ok=True)
        return DATA_DIR
    name = f"refund-once-{hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:10]}"
    parents = [Path("/var/tmp"), Path(tempfile.gettempdir())]  # noqa: S108  # checked below
    for parent in parents:
        if not (parent.is_dir() and everyone_may_enter(parent)):
            continue
        folder = parent / name
        folder.mkdir(mode=0o755, exist_ok=True)
        found = folder.lstat()
        # The name can be guessed: somebody else's folder or link of that name is not ours to use.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0:
            raise ServerError(
                f"{folder} exists and does not belong to root. Nothing was started. Remove it, or "
                "set DATABASE_URL and REDIS_URL to servers of your own."
            )
        folder.chmod(0o755)  # a tight umask must not lock the server's user out
        return folder
    raise ServerError(
        f"None of {', '.join(map(str, parents))} can be entered by {UNPRIVILEGED_USER!r}, whom "
        "Postgres must run as when started by root. Nothing was started. Run make as an ordinary "
        "user, or set DATABASE_URL and REDIS_URL to servers of your own."
    )


class FolderLock:
    """Says that a living process uses the folder. The system lets go of it when that one dies."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "in-use.lock"
        self._file: IO[str] | None = None

    def take(self) -> bool:
        """Take it, or answer False when somebody living has it."""
        file = self._path.open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def ephemeral_folder() -> tuple[Path, FolderLock]:
    """A new folder for servers that live as long as their starter, and the lock that says so.

    Folders whose starter was killed are emptied on the way: their servers are ended by pid.
    """
    base = private_folder()
    # One at a time: a folder just made and not yet locked must not look abandoned to another.
    with (base / "sweep.lock").open("a") as sweeping:
        fcntl.flock(sweeping, fcntl.LOCK_EX)
        _sweep(base)
        folder = Path(tempfile.mkdtemp(prefix="ephemeral-", dir=base))
        folder.chmod(0o755 if is_root() else 0o700)
        lock = FolderLock(folder)
        lock.take()
    return folder, lock


def _sweep(base: Path) -> None:
    for old in base.glob("ephemeral-*"):
        lock = FolderLock(old)
        try:
            if lock.take():
                end_strays(old)
                shutil.rmtree(old, ignore_errors=True)
                lock.release()
        except FileNotFoundError:
            pass  # somebody else swept it a moment ago
