"""Compile the requirements files: exact pins, hashes, and the why of each direct dependency.

The why stands once, behind the pin in `requirements*.in`; here it is carried into the lock file, so
that whoever reads `requirements.txt` knows what each line is for. No registry address is written.
"""

import re
import subprocess
import sys
from pathlib import Path

NAMES = (
    *("requirements", "requirements-local", "requirements-dev", "bench/requirements"),
    *("examples/python/requirements-agents", "examples/python/requirements-langchain"),
)
HEADER = "# Made by `make lock` from {name}.in: edit that file. Installed with --require-hashes.\n"


def normalised(name: str) -> str:
    """A distribution's name as PyPI compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def reasons(source: str) -> dict[str, str]:
    """The why of each direct dependency, by normalised name; a missing one is an error."""
    found: dict[str, str] = {}
    for line in source.splitlines():
        if not line.strip() or line.startswith(("#", "-c")):
            continue
        pin, _, why = line.partition("  # ")
        if not why:
            sys.exit(f"{pin!r} has no why. Write it behind the pin: 'name==1.2  # why'.")
        found[normalised(re.split(r"[\[=<>;~! ]", pin, maxsplit=1)[0])] = why.strip()
    return found


def compile_one(name: str) -> None:
    source = Path(f"{name}.in")
    target = Path(f"{name}.txt")
    print(f"locking {target}", flush=True)
    subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal"),
            *("--python-version", "3.11", "--generate-hashes", "--no-annotate", "--no-header"),
            *("--no-emit-index-url", "--no-emit-find-links", *sys.argv[1:]),
            *("--output-file", str(target), str(source)),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    why = reasons(source.read_text())
    lines = [HEADER.format(name=name)]
    for line in target.read_text().splitlines(keepends=True):
        pin = re.match(r"[A-Za-z0-9][\w.-]*", line)
        if pin and (reason := why.pop(normalised(pin.group()), None)):
            lines.append(f"\n# {reason}\n")
        lines.append(line)
    if why:
        sys.exit(f"{target} lacks {', '.join(why)}, which {source} asks for.")
    target.write_text("".join(lines))


for each in NAMES:
    compile_one(each)
