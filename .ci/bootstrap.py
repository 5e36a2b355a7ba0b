"""Make the environments from the hash-locked requirements, or find that they are already right.

    python .ci/bootstrap.py run        .venv: what `make demo` and `make up` need
    python .ci/bootstrap.py dev        .venv: that, and the tests and checks
    python .ci/bootstrap.py examples   .venv-agents, .venv-langchain, examples/js/node_modules

A stamp inside each environment names what was installed and by which Python; it is written last. No
stamp means the making was cut short, and it is begun again. Standard library only: this runs before
anything is installed.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOUSE = Path(__file__).resolve().parent.parent
RUN = ("requirements.txt", "requirements-local.txt")
DEV = (*RUN, "requirements-dev.txt")
AGENTS = ("examples/python/requirements-agents.txt",)
LANGCHAIN = ("examples/python/requirements-langchain.txt",)
NODE_MODULES = HOUSE / "examples" / "js" / "node_modules"
NODE_FILES = ("examples/js/package.json", "examples/js/package-lock.json")


class Failed(Exception):
    """Said to the person who ran make; nothing more is done."""


def say(sentence: str) -> None:
    print(f"[deps] {sentence}", flush=True)


def fingerprint(name: str) -> str:
    return hashlib.sha256((HOUSE / name).read_bytes()).hexdigest()


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Two makes at once (a demo beside a test run) must not install into each other."""
    with open(HOUSE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_stamp(path: Path, *, folder: Path) -> dict[str, str]:
    try:
        stamp = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    # Programs in a virtual environment name their interpreter by its path: moved, they are dead.
    return stamp if isinstance(stamp, dict) and stamp.get("made at") == str(folder) else {}


def write_stamp(path: Path, *, folder: Path, names: tuple[str, ...]) -> None:
    path.write_text(
        json.dumps({"made at": str(folder)} | {n: fingerprint(n) for n in names}, indent=1)
    )


@dataclass(frozen=True, slots=True)
class Venv:
    """One virtual environment, and all lock files that can ever be installed into it."""

    name: str
    files: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return HOUSE / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> Path:
        return self.folder / "installed.json"

    def make_ready(self, wanted: tuple[str, ...]) -> None:
        """Install what is wanted and missing; begin again when it was cut short or moved."""
        with alone(self.name):
            have = read_stamp(self.stamp, folder=self.folder)
            if self.folder.exists() and not (have and self.works()):
                say(f"{self.name} was cut short, moved, or made by another Python: begun again")
                shutil.rmtree(self.folder)
                have = {}
            if all(have.get(name) == fingerprint(name) for name in wanted):
                return
            if not self.folder.exists():
                self.make()
            self.stamp.unlink(missing_ok=True)
            # All files that apply, so that pip sees shared packages once, with one set of hashes.
            names = tuple(name for name in self.files if name in wanted or name in have)
            self.install(names)
            write_stamp(self.stamp, folder=self.folder, names=names)
            say(f"{self.name} is ready")

    def works(self) -> bool:
        """Whether its interpreter starts and is this version."""
        ask = "import sys; print(sys.version_info[:3])"
        try:
            answer = subprocess.run(
                [str(self.python), "-c", ask], capture_output=True, text=True, timeout=60
            )
        except OSError:
            return False
        return answer.stdout.strip() == str(sys.version_info[:3])

    def make(self) -> None:
        say(f"making {self.name} with Python {sys.version.split()[0]}")
        made = subprocess.run(
            [sys.executable, "-m", "venv", str(self.folder)], capture_output=True, text=True
        )
        if made.returncode != 0:
            raise Failed(
                f"{made.stdout}{made.stderr}\n[deps] Python could not make a virtual environment; "
                "nothing was installed. On Debian and Ubuntu: apt-get install python3-venv, then "
                "run make again."
            )

    def install(self, names: tuple[str, ...]) -> None:
        """pip's own work, told in one short line for each package."""
        total = sum(
            line[:1].isalnum() for name in names for line in (HOUSE / name).read_text().splitlines()
        )
        say(f"{self.name}: installing up to {total} packages from {', '.join(names)}")
        command = [str(self.python), "-m", "pip", "install", "--require-hashes", "--no-input"]
        command += ["--disable-pip-version-check", "--progress-bar", "off"]
        for name in names:
            command += ["-r", name]
        lines: list[str] = []
        started = time.monotonic()
        with subprocess.Popen(
            command, cwd=HOUSE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as pip:
            assert pip.stdout is not None
            count = 0
            for line in pip.stdout:
                lines.append(line)
                if line.startswith("Collecting "):
                    count += 1
                    say(f"{self.name}: {count:3} {line.split()[1]}")
                elif line.startswith("Installing collected"):
                    say(f"{self.name}: unpacking (the longest step)")
        if pip.returncode != 0:
            sys.stderr.write("".join(lines[-25:]))
            raise Failed(
                f"[deps] pip failed (its last lines are above); {self.name} is not ready. Run make "
                "again to retry."
            )
        say(f"{self.name}: installed in {time.monotonic() - started:.0f} s")


MAIN = Venv(".venv", DEV)
AGENTS_VENV = Venv(".venv-agents", AGENTS)
LANGCHAIN_VENV = Venv(".venv-langchain", LANGCHAIN)


def make_node_modules() -> None:
    """What examples/js/package-lock.json names, by the npm that .venv-agents holds.

    npm takes the folder away before it fills it, and the stamp with it.
    """
    with alone("examples/js/.node_modules"):
        stamp = NODE_MODULES / "installed.json"
        have = read_stamp(stamp, folder=NODE_MODULES)
        if all(have.get(name) == fingerprint(name) for name in NODE_FILES):
            return
        say("examples/js/node_modules: npm installs what package-lock.json names")
        started = time.monotonic()
        # npm is itself a Node program, and finds Node on the path. No package needs to run anything
        # when it is installed, so none may.
        path = f"{AGENTS_VENV.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        npm = subprocess.run(
            [
                str(AGENTS_VENV.folder / "bin" / "npm"),
                "ci",
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
            ],
            cwd=NODE_MODULES.parent,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
        )
        if npm.returncode != 0:
            raise Failed(
                f"{npm.stdout[-2000:]}{npm.stderr[-2000:]}\n[deps] npm failed (its last lines are "
                "above); examples/js/node_modules is not ready. Run make again to retry."
            )
        write_stamp(stamp, folder=NODE_MODULES, names=NODE_FILES)
        say(f"examples/js/node_modules: installed in {time.monotonic() - started:.0f} s")


def make_agents_and_node() -> None:
    AGENTS_VENV.make_ready(AGENTS)
    make_node_modules()


def make_examples() -> None:
    """All three at once: each waits for the network most of the time."""
    with ThreadPoolExecutor() as makers:
        making = [
            makers.submit(make_agents_and_node),
            makers.submit(LANGCHAIN_VENV.make_ready, LANGCHAIN),
        ]
    for one in making:
        one.result()


def main() -> None:
    try:
        if sys.argv[1] == "examples":
            make_examples()
        else:
            MAIN.make_ready({"run": RUN, "dev": DEV}[sys.argv[1]])
    except Failed as failed:
        sys.exit(str(failed))


if __name__ == "__main__":
    os.umask(0o022)
    main()
