"""Remember that another server does not answer, so that few callers find it out again."""

from __future__ import annotations

import threading
import time


class Away:
    """Whether a server is away, as the callers of this process saw it last. Thread-safe.

    While it is away, one caller in `ask_again_seconds` asks it, and nobody else until that one
    knows; a burst that began before the first of them knew asks once each.
    """

    def __init__(self, *, ask_again_seconds: float) -> None:
        self._ask_again_seconds = ask_again_seconds
        self._lock = threading.Lock()
        self._is_away = False
        self._ask_again_at = 0.0

    def may_ask(self) -> bool:
        """Whether to ask: always, or once in a while when it was away the last time."""
        with self._lock:
            if not self._is_away:
                return True
            now = time.monotonic()
            if now < self._ask_again_at:
                return False
            self._ask_again_at = now + self._ask_again_seconds
            return True

    def went(self) -> bool:
        """It did not answer. True when that is new."""
        with self._lock:
            was_away, self._is_away = self._is_away, True
            self._ask_again_at = time.monotonic() + self._ask_again_seconds
        return not was_away

    def answered(self) -> bool:
        """It answered. True when it was away before."""
        if not self._is_away:
            return False
        with self._lock:
            was_away, self._is_away = self._is_away, False
        return was_away
