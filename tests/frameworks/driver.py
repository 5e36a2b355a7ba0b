"""Runs the examples in their own Python: cells in on standard input, answers out, as JSON lines.

    in   {"id", "example", "mcp_url", "token", "model_url", "model", "prompt", "approval"}
    out  {"id", "answer", "error"}, in the order in which the runs end

All cells run at the same time, up to CELLS_AT_ONCE: a whole row costs one start of its framework.
This file knows nothing of the repository but the folder of the examples.
"""

import asyncio
import importlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

#: More only makes two cores slower, until the clients' own timeouts fire.
CELLS_AT_ONCE = int(os.environ.get("FRAMEWORKS_CELLS_AT_ONCE", "8"))
#: Longer than a held answer and every retry of a framework's model client together.
CELL_SECONDS_MAX = 120

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"


async def answer_of(cell: dict[str, Any]) -> dict[str, Any]:
    """Run one example; an exception is an answer too, as it would be to a job queue."""
    try:
        run = importlib.import_module(f"{cell['example']}_refund").run
        names = ("prompt", "mcp_url", "token", "model_url", "model", "approval")
        async with asyncio.timeout(CELL_SECONDS_MAX):
            answer = await run(**{name: cell[name] for name in names})
    except BaseException as error:  # a framework may cancel itself
        return {"id": cell["id"], "answer": None, "error": f"{type(error).__name__}: {error}"[:500]}
    return {"id": cell["id"], "answer": answer, "error": None}


async def main() -> None:
    """Until standard input ends, and then until the last run has ended."""
    # What a framework prints must not stand between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.path.insert(0, str(EXAMPLES))
    loop, cells = asyncio.get_running_loop(), asyncio.Queue[str | None]()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(cells.put_nowait, line)
        loop.call_soon_threadsafe(cells.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    slots = asyncio.Semaphore(CELLS_AT_ONCE)

    async def one(line: str) -> None:
        async with slots:
            answers.write(json.dumps(await answer_of(json.loads(line))) + "\n")

    async with asyncio.TaskGroup() as running:
        while (line := await cells.get()) is not None:
            running.create_task(one(line))


asyncio.run(main())
