"""Make `.venv` from the hash-locked requirements, or find that it is already right.

    python .ci/bootstrap.py run    what `make demo` and `make up` need
    python .ci/bootstrap.py dev    that, and the tests and checks

A stamp inside `.venv` names what was installed and by which Python; it is written last. No stamp
means the making was cut short, and it is begun again. Standard library only: this runs before
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
from pathlib import Path

HOUSE = Path(__file__).resolve().parent.parent
VENV = HOUSE / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed.json"
RUN = ("requirements.txt", "requirements-local.txt")
DEV = (*RUN, "requirements-dev.txt")


def say(sentence: str) -> None:
    print(f"[deps] {sentence}", flush=True)


def fingerprint(name: str) -> str:
    return hashlib.sha256((HOUSE / name).read_bytes()).hexdigest()


def works() -> bool:
    """Whether its interpreter starts and is this version."""
    ask = "import sys; print(sys.version_info[:3])"
    try:
        answer = subprocess.run(
            [str(PYTHON), "-c", ask], capture_output=True, text=True, timeout=60
        )
    except OSError:
        return False
    return answer.stdout.strip() == str(sys.version_info[:3])


def installed() -> dict[str, str]:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    # Programs in a virtual environment name their interpreter by its path: moved, they are dead.
    return stamp if isinstance(stamp, dict) and stamp.get("made at") == str(VENV) else {}


def make_venv() -> None:
    say(f"making .venv with Python {sys.version.split()[0]}")
    made = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True)
    if made.returncode != 0:
        sys.exit(
            f"{made.stdout}{made.stderr}\n[deps] Python could not make a virtual environment; "
            f"nothing was "
            "installed. On Debian and Ubuntu: apt-get install python3-venv, then run make again."
        )


def install(names: tuple[str, ...]) -> None:
    """pip's own work, told in one short line for each package."""
    total = sum(
        line[:1].isalnum() for name in names for line in (HOUSE / name).read_text().splitlines()
    )
    say(f"installing up to {total} packages from {', '.join(names)}")
    command = [str(PYTHON), "-m", "pip", "install", "--require-hashes", "--no-input"]
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
                say(f"{count:3} {line.split()[1]}")
            elif line.startswith("Installing collected"):
                say("unpacking (the longest step)")
    if pip.returncode != 0:
        sys.stderr.write("".join(lines[-25:]))
        sys.exit(
            "[deps] pip failed (its last lines are above); .venv is not ready. Run make again to "
            "retry."
        )
    say(f"installed in {time.monotonic() - started:.0f} s")


def main() -> None:
    wanted_names = {"run": RUN, "dev": DEV}[sys.argv[1]]
    # Two makes at once (a demo beside a test run) must not install into each other.
    with open(HOUSE / ".venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        have = installed()
        if VENV.exists() and not (have and works()):
            say(".venv was cut short, moved, or made by another Python: making it again")
            shutil.rmtree(VENV)
            have = {}
        missing = tuple(n for n in wanted_names if have.get(n) != fingerprint(n))
        if not missing:
            return
        if not VENV.exists():
            make_venv()
        STAMP.unlink(missing_ok=True)
        # All files that apply, so that pip sees shared packages once and with one set of hashes.
        names = tuple(n for n in DEV if n in wanted_names or n in have)
        install(names)
        STAMP.write_text(
            json.dumps({"made at": str(VENV)} | {n: fingerprint(n) for n in names}, indent=1)
        )
        say("ready")


if __name__ == "__main__":
    os.umask(0o022)
    main()
