"""One request and what comes of it, without doing it: the calls are generators of steps.

A call yields a `Request` and is sent its `Answer` or `Lost`, or yields a `Pause` and is sent
nothing; what it returns is the call's result. clients.py drives these steps, once blocking and once
with asyncio, so that no decision is written twice.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from refund_once_client.answers import ProblemDetails, Unreadable, read_json
from refund_once_client.problems import TYPE_PREFIX, NoAnswer, Problem

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request. `path` begins after the service's own address; bodies are sent as given.

    `within_seconds` shortens the time that the client gives each request, where it is less.
    """

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    within_seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Nothing is sent for this long."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole HTTP answer, from whomever. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """No whole answer. `is_sent` False: it is certain that the request never left."""

    why: str
    is_sent: bool


Step: TypeAlias = Request | Pause
Came: TypeAlias = Answer | Lost | None
Steps: TypeAlias = Generator[Step, Came, T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often and how long one call goes on. Every bound is meant: none of them is "for ever".

    No request is sent more than `tries_max` times in a row, and none is begun later than
    `total_seconds` after the call. Pauses begin at `pause_first_seconds`, double up to
    `pause_max_seconds`, and are shortened by up to half at random, so that a crowd that lost the
    service at one moment does not come back at one moment. A longer Retry-After is kept.
    """

    tries_max: int = 4
    # What a merchant's own job can wait for. An outage that is longer is the next job's.
    total_seconds: float = 60.0
    pause_first_seconds: float = 0.5
    pause_max_seconds: float = 8.0

    def __post_init__(self) -> None:
        if type(self.tries_max) is not int or self.tries_max < 1:
            raise ValueError("tries_max must be an int of at least 1")
        if not is_duration(self.total_seconds) or self.total_seconds <= 0:
            raise ValueError("total_seconds must be a number above 0, and not infinite")
        for name in ("pause_first_seconds", "pause_max_seconds"):
            if not is_duration(getattr(self, name)):
                raise ValueError(f"{name} must be a number of at least 0, and not infinite")


def is_duration(seconds: object) -> bool:
    """A number of at least 0 that a clock can be asked for: no NaN, and not for ever."""
    return type(seconds) in (int, float) and 0 <= seconds < math.inf  # type: ignore[operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time that one call has.

    Nothing is begun after `ends_at`. At `cut_at`, which most calls do not have, what was begun is
    given up as well.
    """

    patience: Patience
    clock: Callable[[], float]
    ends_at: float
    cut_at: float | None = None

    def cut(self, request: Request) -> Request:
        """The request, with no more time than there is."""
        if self.cut_at is None:
            return request
        return replace(request, within_seconds=self.cut_at - self.clock())

    @property
    def is_over(self) -> bool:
        """Nothing more may be begun."""
        return self.clock() > self.ends_at

    def pause(self, number: int, unclear: Unclear) -> Pause | None:
        """What to wait after try `number`, counted from 1; None when that is too long."""
        doubled = self.patience.pause_first_seconds * 2 ** min(number - 1, 30)
        longest = min(doubled, self.patience.pause_max_seconds)
        seconds = longest * random.uniform(0.5, 1)  # noqa: S311  # spreads load, guards nothing
        seconds = max(seconds, unclear.retry_after_seconds or 0)
        return None if self.clock() + seconds > self.ends_at else Pause(seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclear:
    """What came proves neither that the request was carried out nor that it was not.

    But for `may_have_acted` False: then it was not, and only for now.
    """

    why: str
    may_have_acted: bool
    problem: Problem | None = None
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp:
    """As many tries as allowed, all Unclear. `last` is the service's last word, if it had one."""

    tried: tuple[str, ...]
    last: Problem | None
    retry_after_seconds: float | None


# What a read function is given; anything else is a problem, or of somebody between us.
_SUCCESSES = (200, 201, 204, 304)
# A whole number of seconds; a date, as a proxy may send, is not worth a clock that may be wrong.
_SECONDS = re.compile(r"[0-9]{1,9}")


def ask(request: Request) -> Generator[Step, Came, Answer | Lost]:
    """Send one request, once."""
    came = yield request
    if came is None:
        raise TypeError("a request was driven like a pause")
    return came


def judge(came: Answer | Lost, read: Callable[[Answer], T]) -> T | Problem | Unclear:
    """What an answer proves. `read` makes the result of a success; Unreadable is no answer.

    Only what this service itself says is believed: a 404 of a proxy's does not mean that an action
    does not exist.
    """
    if isinstance(came, Lost):
        return Unclear(why=came.why, may_have_acted=came.is_sent)
    if came.status in _SUCCESSES:
        try:
            return read(came)
        except Unreadable as error:
            return Unclear(why=f"a {came.status} of which {error}", may_have_acted=True)
    problem = _problem(came)
    if problem is None:
        return Unclear(
            why=f"a {came.status} that is not of this service",
            may_have_acted=True,
            retry_after_seconds=_retry_after_seconds(came),
        )
    if problem.status == 429 or problem.status >= 500:
        return Unclear(
            why=f"{problem.status} {problem.kind}",
            may_have_acted=problem.status != 429,  # counted before anything else is looked at
            problem=problem,
            retry_after_seconds=problem.retry_after_seconds,
        )
    return problem


def insist(
    request: Request, read: Callable[[Answer], T], window: Window
) -> Steps[T | Problem | GaveUp]:
    """Send a request that is harmless to repeat until it is answered, or the window is over."""
    tried: list[str] = []
    number = 0
    while True:
        number += 1
        judged = judge((yield from ask(window.cut(request))), read)
        if not isinstance(judged, Unclear):
            return judged
        tried.append(f"{request}: {judged.why}")
        pause = window.pause(number, judged)
        if pause is None or number >= window.patience.tries_max:
            return GaveUp(
                tried=tuple(tried),
                last=judged.problem,
                retry_after_seconds=judged.retry_after_seconds,
            )
        yield pause


def result_of(outcome: T | Problem | GaveUp, request: Request) -> T:
    """The result itself. Raises Problem or NoAnswer."""
    if isinstance(outcome, Problem):
        raise outcome
    if isinstance(outcome, GaveUp):
        raise outcome.last or NoAnswer(call=str(request), tried=outcome.tried)
    return outcome


def _problem(answer: Answer) -> Problem | None:
    try:
        details = read_json(ProblemDetails, answer.body)
    except Unreadable:
        return None
    if not details.type.startswith(TYPE_PREFIX) or details.status != answer.status:
        return None
    return Problem(details, retry_after_seconds=_retry_after_seconds(answer))


def _retry_after_seconds(answer: Answer) -> float | None:
    text = answer.headers.get("retry-after", "")
    return float(text) if _SECONDS.fullmatch(text) else None
