"""Rate limits: how often one credential may ask. A key and each session count by themselves.

Redis counts for all processes together, in a sliding window. When Redis is away or does not answer
in time, requests are served all the same and each process counts by itself: a limit must never be
why a refund cannot be asked for.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from functools import cache

import redis
from django.conf import settings
from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from redis.backoff import NoBackoff
from redis.retry import Retry

from agents.callers import Caller
from kernel.away import Away

log = logging.getLogger(__name__)

# What a request can lose to a Redis that takes connections and answers nothing: an answer usually
# takes less than a millisecond.
REDIS_TIMEOUT_SECONDS = 0.2
# While Redis is away, one request of a process loses that much in this long, and no other.
ASK_AGAIN_SECONDS = 5.0


def seconds_to_wait(caller: Caller, *, is_over: bool = False) -> int | None:
    """Count one request of this caller. None: it may go on; else after so many seconds, 1 or more.

    A request that must wait is not counted. What comes with a secret that is over counts by itself:
    whoever kept an old one must not use up what the key's new one may do.
    """
    session = caller.session
    if session is None:
        limit = RateLimitItemPerMinute(settings.AGENT_REQUESTS_PER_MINUTE)
        what = "key-over" if is_over else "key"
        return _counter(settings.REDIS_URL).count(limit, what, caller.key.prefix)
    limit = RateLimitItemPerMinute(settings.SESSION_REQUESTS_PER_MINUTE)
    return _counter(settings.REDIS_URL).count(limit, "session", session.prefix)


def redis_answers() -> bool:
    """Whether requests are counted for all processes together right now. Asks Redis."""
    return _counter(settings.REDIS_URL).answers()


class Counter:
    """Counts in Redis while it answers, and in the memory of this process while it does not."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=REDIS_TIMEOUT_SECONDS,
            socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
            # By itself it tries three times, with pauses.
            retry=Retry(NoBackoff(), 0),
        )
        storage = RedisStorage(
            url,
            connection_pool=self._redis.connection_pool,
            # One Redis may serve several installations.
            key_prefix=f"refund-once:{settings.INSTANCE}:rates",
        )
        self._shared = SlidingWindowCounterRateLimiter(storage)
        self._own: SlidingWindowCounterRateLimiter | None = None
        self._lock = threading.Lock()
        self._away = Away(ask_again_seconds=ASK_AGAIN_SECONDS)

    def count(self, limit: RateLimitItem, *who: str) -> int | None:
        """See `seconds_to_wait`."""
        if self._away.may_ask():
            try:
                answer = _count(self._shared, limit, who)
            except redis.RedisError as error:
                if self._away.went():
                    log.warning(
                        "Redis does not answer: requests are counted by each process alone until "
                        "it does.",
                        extra={"action": "rates.redis_away", "error": type(error).__name__},
                    )
            else:
                if self._away.answered():
                    log.warning(
                        "Redis answers again: requests are counted for all processes together.",
                        extra={"action": "rates.redis_back"},
                    )
                return answer
        return _count(self._in_memory(), limit, who)

    def answers(self) -> bool:
        """Whether Redis answers now."""
        try:
            return bool(self._redis.ping())
        except redis.RedisError:
            return False

    def _in_memory(self) -> SlidingWindowCounterRateLimiter:
        """Made when it is needed first, since it starts a thread that clears what is over."""
        with self._lock:
            if self._own is None:
                self._own = SlidingWindowCounterRateLimiter(MemoryStorage())
            return self._own


@cache
def _counter(url: str) -> Counter:
    return Counter(url)


def _count(
    limiter: SlidingWindowCounterRateLimiter, limit: RateLimitItem, who: tuple[str, ...]
) -> int | None:
    if limiter.hit(limit, *who):
        return None
    until = limiter.get_window_stats(limit, *who).reset_time - time.time()
    return min(max(1, math.ceil(until)), limit.get_expiry())
