"""Two ways Stripe says "not now": the request rate of an account, and the lock on an object."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from . import errors


class RateLimiter:
    """At most `per_second` requests of one account in any second of real time."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def allows(self, account: str, per_second: int | None) -> bool:
        if per_second is None:
            return True
        now = time.monotonic()
        with self._lock:
            recent = self._recent.setdefault(account, deque())
            while recent and recent[0] <= now - 1:
                recent.popleft()
            if len(recent) >= per_second:
                return False
            recent.append(now)
            return True


class ChargeLocks:
    """One request at a time per charge or customer; who waits too long gets 429 `lock_timeout`."""

    def __init__(self, lock: threading.RLock) -> None:
        self._freed = threading.Condition(lock)
        self._held: set[str] = set()
        self._held_until: dict[str, float] = {}

    @contextmanager
    def holding(self, charge: str, *, wait_seconds: float) -> Iterator[None]:
        """Hold one charge. Raises StripeError 429 when it is not free within `wait_seconds`."""
        deadline = time.monotonic() + wait_seconds
        with self._freed:
            while self._taken(charge):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise errors.lock_timeout()
                self._freed.wait(min(left, 0.05))
            self._held.add(charge)
        try:
            yield
        finally:
            with self._freed:
                self._held.discard(charge)
                self._freed.notify_all()

    def hold_for(self, charge: str, seconds: float) -> None:
        """Something else at Stripe works on this charge for a while (real time)."""
        with self._freed:
            self._held_until[charge] = time.monotonic() + seconds

    def clear(self) -> None:
        with self._freed:
            self._held_until.clear()
            self._freed.notify_all()

    def _taken(self, charge: str) -> bool:
        return charge in self._held or self._held_until.get(charge, 0) > time.monotonic()
