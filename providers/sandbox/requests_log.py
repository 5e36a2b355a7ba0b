"""What reached the sandbox: one line for each request, also for those that got no answer."""

import itertools
from collections import deque
from typing import Any

from .settings import Settings

Line = dict[str, Any]


class RequestLog:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lines: deque[Line] = deque()
        self._count = itertools.count(1)

    def add(self, line: Line) -> Line:
        line = {"n": next(self._count), **line}
        self._lines.append(line)
        while len(self._lines) > self._settings.requests_kept:
            self._lines.popleft()
        return line

    def lines(self) -> list[Line]:
        return [dict(line) for line in list(self._lines)]

    def clear(self) -> None:
        self._lines.clear()
