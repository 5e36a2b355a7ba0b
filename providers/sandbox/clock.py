"""The sandbox's own time, and what is due in it."""

import heapq
import itertools
import threading
import time
import traceback
from collections.abc import Callable


class Clock:
    """Real time plus an offset, or frozen. Seconds since the epoch, as floats (never money)."""

    def __init__(self) -> None:
        self.offset_seconds = 0.0
        self.frozen_at: float | None = None

    def reset(self) -> None:
        self.offset_seconds, self.frozen_at = 0.0, None

    def now(self) -> float:
        return self.frozen_at if self.frozen_at is not None else time.time() + self.offset_seconds

    def advance(self, seconds: float) -> None:
        self.offset_seconds += seconds
        if self.frozen_at is not None:
            self.frozen_at += seconds

    def set(self, now: float) -> None:
        self.offset_seconds = now - time.time()
        if self.frozen_at is not None:
            self.frozen_at = now

    def freeze(self) -> None:
        self.frozen_at = self.now()

    def run(self) -> None:
        """End a freeze: time goes on from the frozen moment."""
        if self.frozen_at is not None:
            self.offset_seconds = self.frozen_at - time.time()
            self.frozen_at = None


class Scheduler:
    """Calls functions when the clock reaches their time, each once, in order of time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._changed = threading.Condition()
        self._running = threading.RLock()
        self._stopped = False
        self._thread = threading.Thread(target=self._loop, name="sandbox-scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(timeout=5)

    def at(self, when: float, act: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._due, (when, next(self._count), act))
            if self._due[0][0] == when:
                self._changed.notify()

    def clear(self) -> None:
        with self._changed:
            self._due.clear()

    def run_due(self) -> None:
        """Do everything that is due by now, in this thread; a clock change waits for it."""
        with self._running:
            while True:
                with self._changed:
                    if not self._due or self._due[0][0] > self._clock.now():
                        return
                    _, _, act = heapq.heappop(self._due)
                try:
                    act()
                except Exception:  # a bug; what else is due must still happen
                    traceback.print_exc()

    def _loop(self) -> None:
        while True:
            with self._changed:
                if self._stopped:
                    return
                wait = self._due[0][0] - self._clock.now() if self._due else 1.0
                if wait > 0:
                    # Never long: a clock that was moved or frozen is noticed without being told.
                    self._changed.wait(min(wait, 1.0))
                    continue
            self.run_due()
