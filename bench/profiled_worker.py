"""A Celery worker of the Procfile's kind under pyinstrument; run by bench/profile.py.

The pool is solo: the task runs in the thread that the profiler samples.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pyinstrument import Profiler

from bench.profile import OUT_ENV
from config.celery import app

#: Samples of a millisecond: a refund takes tens of them.
INTERVAL_SECONDS = 0.001


def main() -> None:
    profiler = Profiler(interval=INTERVAL_SECONDS, async_mode="disabled")
    profiler.start()
    try:
        app.worker_main(
            [
                *("worker", "--pool", "solo", "--without-gossip", "--without-mingle"),
                *("-O", "fair", "-Q", "dispatch,slow", "--loglevel", "INFO"),
            ]
        )
    except SystemExit:
        pass  # how a Celery worker ends
    finally:
        session = profiler.stop()
        records: list[Any] = [
            [[_frame(identifier) for identifier in stack], seconds]
            for stack, seconds in session.frame_records
        ]
        Path(os.environ[OUT_ENV]).write_text(json.dumps(records))


def _frame(identifier: str) -> str:
    """`path NUL function NUL line`, from pyinstrument's `function NUL path NUL line …`."""
    function, path, line = identifier.split("\x00")[:3]
    return "\x00".join((path, function, line.partition("\x01")[0]))


if __name__ == "__main__":
    main()
