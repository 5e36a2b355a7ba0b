"""Named places where a harness may kill or freeze this process.

Inert unless `CRASH_POINTS_DIR` names a folder. There, a file named like a point arms it once:
the process that takes the file (by renaming it to `<point>.fired-<pid>`) obeys its content:

- `kill` (or empty): SIGKILL this process
- `kill-group`: SIGKILL the whole process group (a worker and its pool)
- `freeze SECONDS`: sleep that long, then go on as if nothing had happened

Each constant is used in exactly one place in the code; a test keeps it so.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from django.conf import settings

BEFORE_CLAIM_COMMITS = "before-claim-commits"
AFTER_CLAIM = "after-claim"
BEFORE_BYTES_LEAVE = "before-bytes-leave"
AFTER_ANSWER = "after-answer"
DURING_RECORD = "during-record"
AFTER_RECORD = "after-record"
AFTER_ROUND_OPENED = "after-round-opened"
AFTER_ROUND_READ = "after-round-read"
DURING_ROUND_RECORD = "during-round-record"
AFTER_LEASE_SWEPT = "after-lease-swept"
DURING_ESCALATION = "during-escalation"

# The points after the bytes left and after the provider committed lie inside the provider: the
# sandbox holds its answer there (`hang-after-execution`) while the harness kills the worker.
CRASH_POINTS = (
    BEFORE_CLAIM_COMMITS,
    AFTER_CLAIM,
    BEFORE_BYTES_LEAVE,
    AFTER_ANSWER,
    DURING_RECORD,
    AFTER_RECORD,
    AFTER_ROUND_OPENED,
    AFTER_ROUND_READ,
    DURING_ROUND_RECORD,
    AFTER_LEASE_SWEPT,
    DURING_ESCALATION,
)


def crash_point(name: str) -> None:
    """Do nothing, unless the harness armed this point."""
    folder = settings.CRASH_POINTS_DIR
    if not folder:
        return
    armed = Path(folder) / name
    fired = armed.with_name(f"{name}.fired-{os.getpid()}")
    try:
        armed.rename(fired)  # one process wins; the others find no file
    except FileNotFoundError:
        return
    order = fired.read_text().split() or ["kill"]
    if order[0] == "freeze":
        time.sleep(float(order[1]))
    elif order[0] == "kill-group":
        os.killpg(os.getpgid(0), signal.SIGKILL)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
