"""How often a person's yes is handed to a paused run: once, or as badly as it happens.

Every framework here can ask a person before it calls a tool. That is for display: the approval that
counts is Refund Once's, given once and bound to the amount. A framework's may arrive twice, by a
double click, a webhook that is delivered again or a worker that was started again, and most
frameworks then call the tool twice. In a program of your own, `await resume()` is all.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")


async def deliver(resume: Callable[[], Awaitable[Result]], approval: str) -> Result:
    """Continue the paused run; what came of it.

    `approval`: "once", "twice" (one after the other), or "twice_at_once". A framework may refuse
    the second one: the last that got through is the answer, and the first refusal is raised when
    none did.
    """
    if approval == "twice_at_once":
        came = await asyncio.gather(resume(), resume(), return_exceptions=True)
    else:
        came = []
        for _ in range(2 if approval == "twice" else 1):
            came += await asyncio.gather(resume(), return_exceptions=True)
    through = [result for result in came if not isinstance(result, BaseException)]
    if not through:
        raise came[0]
    return through[-1]


def show(name: str, arguments: object) -> None:
    """What a person is shown before the yes."""
    print(f"The agent wants to call {name} with {arguments}")
