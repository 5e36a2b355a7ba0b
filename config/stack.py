"""The whole product as running processes: servers, sandbox, web, workers, beat.

`make up`, `make demo`, the acceptance tests and the benches all start it from here, by the commands
of the Procfile. Whoever starts a Stack stops it; a Stack whose starter was killed is ended by the
next one in the same folder.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from config.development import CHECKOUT, OFFLINE
from config.embedded.servers import Servers
from config.environment import Refusal, read_environment
from config.processes import Process, ServerError, end_strays, free_port, uninterrupted

#: Imports, forks and a first connection; a machine under load takes several seconds.
READY_SECONDS = 60.0
#: The key the sandbox knows from the start.
SANDBOX_API_KEY = "sk_test_sandbox"


def procfile() -> dict[str, str]:
    """The commands of the Procfile by name."""
    lines = (CHECKOUT / "Procfile").read_text().splitlines()
    return dict(re.split(r":\s+", line, maxsplit=1) for line in lines if line.strip())


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  # always http://127.0.0.1
            return bool(answer.status == 200)
    except OSError:
        return False


class Stack:
    """One running product.

    - `folder`: logs (`web.log`, `worker-1.log`, …) and the servers' data.
    - `env`: overrides. DATABASE_URL and REDIS_URL in it (or in os.environ): no server is started.
      STRIPE_API_BASE in it: no sandbox is started.
    - `servers`: started ones to use, else `Servers(servers_folder)`; None and no folder: throwaway.
    - `workers`, `beat`, `web`: how many of each; 0 for none. `web` beyond 1 share nothing but rows.
    - `sandbox_state`: a file that keeps the provider's world from run to run.
    - `sandbox_settings`: of providers/sandbox/settings.py, by name.
    - `webhooks`: whether the sandbox delivers its events to the first web process, which does not
      take any in 0.1.
    - `port`: of the first web process; None: a free one.
    - `migrate`: False when the database is known to be migrated.
    - `say`: told each step in a short sentence.
    """

    def __init__(
        self,
        *,
        folder: Path,
        env: Mapping[str, str] | None = None,
        servers: Servers | None = None,
        servers_folder: Path | None = None,
        workers: int = 1,
        beat: int = 1,
        web: int = 1,
        sandbox: bool = True,
        sandbox_state: Path | None = None,
        sandbox_settings: Mapping[str, str] | None = None,
        webhooks: bool = False,
        port: int | None = None,
        migrate: bool = True,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.folder = folder
        self.processes: dict[str, list[Process]] = {}
        self.servers = servers
        self._own_servers = False
        self._servers_folder = servers_folder
        self._counts = {"web": web, "worker": workers, "beat": beat}
        self._with_sandbox = sandbox
        self._sandbox_state = sandbox_state
        self._sandbox_settings = dict(sandbox_settings or {})
        self._webhooks = webhooks and web > 0
        self._migrate = migrate
        self._say = say
        self._ports = [port or free_port(), *(free_port() for _ in range(web - 1))]
        self.env = self._environment(env or {})

    # ---- addresses

    @property
    def url(self) -> str:
        """The first web process: http://127.0.0.1:PORT"""
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def urls(self) -> list[str]:
        """All web processes."""
        return [f"http://127.0.0.1:{port}" for port in self._ports]

    @property
    def sandbox_url(self) -> str:
        """Where the product sends its provider calls."""
        return self.env["STRIPE_API_BASE"]

    @property
    def database_url(self) -> str:
        return self.env["DATABASE_URL"]

    @property
    def redis_url(self) -> str:
        return self.env["REDIS_URL"]

    # ---- life

    def start(self) -> None:
        """Start everything and wait until it answers; when one part fails, stop all and raise.

        0. Refuse an environment that the product would refuse, before any process sees it.
        1. End what a killed starter left in this folder.
        2. Servers, unless addresses were given.
        3. The sandbox, unless a provider's address was given.
        4. Migrations.
        5. Web, workers, beat.
        """
        self._check_environment()
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in end_strays(self.folder):
            self._say(f"ended {name}, left behind by an earlier run")
        try:
            self._start_servers()
            self._start_sandbox()
            if self._migrate:
                self._say("applying migrations")
                self.manage("migrate", "--noinput", "--verbosity", "0")
            for kind, count in self._counts.items():
                self.processes[kind] = [self._child(kind, index) for index in range(count)]
            for kind in self._counts:
                for child in self.processes[kind]:
                    self._say(f"starting {child.name}")
                    child.start()
            for kind in self._counts:
                for index, child in enumerate(self.processes[kind]):
                    self._wait_until_ready(kind, index, child)
        except BaseException:
            self.stop(timeout_seconds=5)
            raise

    def stop(self, *, timeout_seconds: float = 20) -> None:
        """Stop everything this Stack started, and nothing else. May be called twice.

        Signals that ask this program to end are ignored until it is done.
        """
        with uninterrupted():
            self._stop(timeout_seconds)

    def _stop(self, timeout_seconds: float) -> None:
        children = [child for group in self.processes.values() for child in group]
        for child in children:
            if child.alive:
                os.kill(child.pid, child.stop_signal)  # all at once; each is waited for below
        for child in children:
            child.stop(timeout_seconds=timeout_seconds)
        self.processes = {}
        if self.servers is not None and self._own_servers:
            self.servers.stop()
            self.servers = None

    def kill(self, name: str, number: int = signal.SIGKILL, *, index: int = 0) -> None:
        """Send a signal to one process and all its children; wait for it to end when it is SIGKILL.

        `name` is "web", "worker", "beat" or "sandbox".
        """
        child = self.processes[name][index]
        child.signal_group(number)
        if number == signal.SIGKILL:
            child.wait(timeout_seconds=10)

    def restart(self, name: str, *, index: int = 0) -> None:
        """Start one process again, stopping it first when it still runs; wait until it is ready."""
        child = self.processes[name][index]
        child.stop(timeout_seconds=5)
        child.start()
        self._wait_until_ready(name, index, child)

    def dead(self) -> list[tuple[str, int, Process]]:
        """Processes that ended although nobody stopped them: kind, index, process."""
        return [
            (kind, index, child)
            for kind, group in self.processes.items()
            for index, child in enumerate(group)
            if not child.alive
        ]

    def manage(self, *arguments: str) -> str:
        """Run a command of manage.py against this stack and return what it printed."""
        command = Process(
            name=f"manage-{arguments[0]}-{secrets.token_hex(3)}",
            command=[sys.executable, "manage.py", *arguments],
            env=self.env,
            folder=self.folder,
            cwd=CHECKOUT,
        )
        command.start()
        status = command.wait(timeout_seconds=300)
        command.stop()
        said = command.log_path.read_text(errors="replace")
        command.log_path.unlink()
        if status != 0:
            raise ServerError(f"manage.py {' '.join(arguments)} ended with {status}:\n{said}")
        return said

    def __enter__(self) -> Stack:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(timeout_seconds=10)

    # ---- parts

    def _environment(self, overrides: Mapping[str, str]) -> dict[str, str]:
        inherited = dict(os.environ)
        # The programs that the Procfile names by their short names.
        inherited["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{inherited.get('PATH', '')}"
        made_up = {
            name: value
            for name, value in OFFLINE.items()
            # Addresses are found at start, and must not look like given ones.
            if name not in ("DATABASE_URL", "REDIS_URL", "STRIPE_API_BASE")
        } | {
            "STRIPE_API_KEY": SANDBOX_API_KEY,
            "SECRET_KEY": secrets.token_urlsafe(48),
            "STRIPE_WEBHOOK_SECRETS": f"whsec_{secrets.token_urlsafe(24)}",
            "INSTANCE": "development",
            "CASE_OWNER": "case-owner",
            "PYTHONUNBUFFERED": "1",
        }
        return made_up | inherited | dict(overrides)

    def _check_environment(self) -> None:
        # Addresses that are found at start, and cannot be wrong.
        later = {name: OFFLINE[name] for name in ("DATABASE_URL", "REDIS_URL")}
        later["STRIPE_API_BASE"] = ""
        try:
            read_environment(later | self.env)
        except Refusal as refusal:
            raise ServerError(str(refusal)) from None

    def _start_servers(self) -> None:
        if self.env.get("DATABASE_URL") and self.env.get("REDIS_URL"):
            return
        if self.servers is None:
            self._say("starting Postgres and Valkey")
            self.servers = Servers(self._servers_folder)
            self._own_servers = True
            self.servers.start()
        # One of the two may have been given.
        self.env.setdefault("DATABASE_URL", self.servers.postgres.url())
        self.env.setdefault("REDIS_URL", self.servers.valkey.url())

    def _start_sandbox(self) -> None:
        if "STRIPE_API_BASE" in self.env or not self._with_sandbox:
            return
        self._say("starting the provider's sandbox")
        port_file = self.folder / "sandbox.port"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "providers.sandbox", "--port-file", str(port_file)]
        if self._sandbox_state is not None:
            command += ["--state", str(self._sandbox_state)]
        for name, value in self._sandbox_settings.items():
            command += ["--set", f"{name}={value}"]
        # Nothing of the product's: the sandbox must know no more than Stripe does. Secrets go by
        # the environment, since everybody on the machine can read a command line.
        needed = {"PATH", "HOME", "TMPDIR"}
        env = {name: value for name, value in self.env.items() if name in needed}
        if (api_key := self.env["STRIPE_API_KEY"]) != SANDBOX_API_KEY:
            env["SANDBOX_ACCOUNTS"] = f"acct_given={api_key}"
        if self._webhooks:
            command += ["--webhook-url", f"{self.url}/webhooks/stripe"]
            env["SANDBOX_WEBHOOK_SECRET"] = self.env["STRIPE_WEBHOOK_SECRETS"].split(",")[0]
        sandbox = Process(
            name="sandbox", command=command, env=env, folder=self.folder, cwd=CHECKOUT
        )
        self.processes["sandbox"] = [sandbox]
        sandbox.start()
        sandbox.wait_until(port_file.exists, timeout_seconds=READY_SECONDS)
        port = port_file.read_text().strip()
        self.env["STRIPE_API_BASE"] = f"http://127.0.0.1:{port}"
        # A sandbox that is started again must be found where the workers look for it.
        sandbox.command += ["--port", port]

    def _child(self, kind: str, index: int) -> Process:
        env = dict(self.env)
        if kind == "web":
            env |= {"PORT": str(self._ports[index]), "WEB_BIND": "127.0.0.1"}
        if kind == "worker":
            env["WORKER_NAME"] = f"worker{index + 1}"
        return Process(
            name=f"{kind}-{index + 1}",
            command=["sh", "-c", procfile()[kind]],
            env=env,
            folder=self.folder,
            cwd=CHECKOUT,
        )

    def _wait_until_ready(self, kind: str, index: int, child: Process) -> None:
        if kind == "web":
            url = f"{self.urls[index]}/readyz"
            child.wait_until(lambda: _answers(url), timeout_seconds=READY_SECONDS)
        elif kind == "sandbox":
            port = int(self.sandbox_url.rpartition(":")[2])
            child.wait_until(lambda: _listens(port), timeout_seconds=READY_SECONDS)
        else:
            # Neither listens anywhere: their own words tell (beat: its banner).
            words = {"worker": " ready.", "beat": " is starting."}[kind]
            child.wait_until(
                lambda: words in child.words_since_start(), timeout_seconds=READY_SECONDS
            )


def _listens(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
    except urllib.error.HTTPError:
        return True  # any answer is an answer
    except OSError:
        return False
    return True
