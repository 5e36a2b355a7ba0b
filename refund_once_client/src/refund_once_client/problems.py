"""Everything that this client raises. What to do next stands in each message.

- `Problem`: the service, or this client before sending, refused. Definite.
- `OutcomeUnknown`: a proposal may or may not be recorded. Only ever the same ids again.
- `NoAnswer`: anything else was not answered. It is harmless to repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refund_once_client.answers import Action, FieldProblem, ProblemDetails

TYPE_PREFIX = "urn:refund-once:problem:"


class RefundOnceError(Exception):
    """What all of them are."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # So that they survive a task queue or a process pool, which pickle them.
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(
    kind: type[RefundOnceError], args: tuple[Any, ...], state: dict[str, Any]
) -> RefundOnceError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class Problem(RefundOnceError):
    """The service refused, for a reason that has a name (RFC 9457).

    `type` is the whole URN, `kind` its last part, like "action-conflict"; types keep their meaning.
    `fields` name what cannot be accepted, `action` is the action it is about, `differing` what of
    an action-conflict is another. `retry_after_seconds` is None where the service named no time.
    What this client refuses itself, before sending, is an "invalid-field" without an `instance`.
    """

    def __init__(
        self, details: ProblemDetails, *, retry_after_seconds: float | None = None
    ) -> None:
        where = f" ({details.instance})" if details.instance else ""
        super().__init__(f"{details.status} {details.title}: {details.detail}{where}")
        self.type = details.type
        self.title = details.title
        self.status = details.status
        self.detail = details.detail
        self.instance = details.instance
        self.fields: tuple[FieldProblem, ...] = details.fields or ()
        self.differing: tuple[str, ...] = details.differing or ()
        self.action: Action | None = details.action
        self.retry_after_seconds = retry_after_seconds

    @property
    def kind(self) -> str:
        """The type without its prefix: "order-unknown", "stale-balance", "rate-limited"…"""
        return self.type.removeprefix(TYPE_PREFIX)


class OutcomeUnknown(RefundOnceError):
    """No answer proves whether a proposal is recorded, and this client has stopped asking.

    `may_be_recorded` False: nothing that this call sent can have been recorded. `tried` says what
    came of each request, oldest first; `last` is the service's own last word, if it had one. That
    may be a no: it is about the request that it answered, not about one before it that was lost.
    """

    def __init__(
        self,
        *,
        action_id: str,
        may_be_recorded: bool,
        tried: tuple[str, ...],
        last: Problem | None,
    ) -> None:
        known = (
            "It may or may not be recorded, and is recorded once at most."
            if may_be_recorded
            else "Nothing that was sent now can have been recorded."
        )
        super().__init__(
            f"What became of {action_id} is not known. {known} Read it later by this id, or "
            "propose it again with exactly the same ids and content: both are safe. Never propose "
            f"it under another request id: the customer could be paid twice. ({'; '.join(tried)})"
        )
        self.action_id = action_id
        self.may_be_recorded = may_be_recorded
        self.tried = tried
        self.last = last


class NoAnswer(RefundOnceError):
    """A call that is harmless to repeat was not answered, as often and as long as was allowed."""

    def __init__(self, *, call: str, tried: tuple[str, ...]) -> None:
        super().__init__(
            f"{call} was not answered. It is harmless to call again. ({'; '.join(tried)})"
        )
        self.call = call
        self.tried = tried


def refused_here(field: str, reason: str) -> Problem:
    """What a field that must not be sent is to the caller, in the service's own words."""
    return Problem(
        ProblemDetails(
            type=f"{TYPE_PREFIX}invalid-field",
            title="A field cannot be accepted",
            status=422,
            detail=f"{field} {reason}. Nothing was sent.",
            instance="",
            fields=(FieldProblem(field=field, reason=reason),),
        )
    )
