"""The one safe way to propose a refund and lose the answer: read first, then the identical request.

A proposal's identity is its action id, made of the merchant's own order and request ids. The
service records one action under it, for ever. So a proposal may be sent again as often as one
likes, as long as it is the same one; what pays a customer twice is the same wish under new ids.
"""

from __future__ import annotations

from dataclasses import dataclass

from refund_once_client.answers import Action, ProblemDetails, Unreadable, read_json
from refund_once_client.exchange import (
    Answer,
    GaveUp,
    Request,
    Steps,
    Window,
    ask,
    insist,
    judge,
)
from refund_once_client.problems import TYPE_PREFIX, OutcomeUnknown, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What makes two proposals of one action the same."""

    action_id: str
    amount_minor: int
    currency: str
    reason: str

    def differing(self, action: Action) -> tuple[str, ...]:
        """What is another in an action of this id."""
        return tuple(
            name
            for name in ("amount_minor", "currency", "reason")
            if getattr(action, name) != getattr(self, name)
        )

    def read(self, answer: Answer) -> Action:
        """The action of this id. Raises Unreadable, also for an answer about another one."""
        action = read_json(Action, answer.body)
        if action.action_id != self.action_id:
            raise Unreadable("the action is another one")
        return action

    def read_own(self, answer: Answer) -> Action:
        """The action that this proposal made. Raises Unreadable."""
        action = self.read(answer)
        if self.differing(action):
            raise Unreadable("the action has other content")
        return action


def propose(
    *, request: Request, read_back: Request, content: Content, window: Window
) -> Steps[Action]:
    """Propose once, whatever is lost on the way.

    1. Send the proposal. Answered: an action is the result, and a problem is raised.
    2. Not answered: pause, and read the action by its id. Found: it is the result, or, with other
       content, an action-conflict.
    3. Not there (404): go to 1, with the identical request.
    4. Not readable, or sent as often or as long as is allowed: OutcomeUnknown.

    A no to a later one of the identical requests says nothing about an earlier one that was lost:
    something between us may still hold it and deliver it when the answer to it is another. So that
    is OutcomeUnknown, too, except an action-conflict: the id is then taken for ever.

    The request is made by the caller, once: nothing here can change what is sent.
    """
    tried: list[str] = []
    last: Problem | None = None
    may_be_recorded = False
    for number in range(1, window.patience.tries_max + 1):
        judged = judge((yield from ask(request)), content.read_own)
        if isinstance(judged, Action):
            return judged
        if isinstance(judged, Problem):
            if not may_be_recorded or judged.kind == "action-conflict":
                raise judged
            tried.append(f"{request}: {judged.status} {judged.kind}")
            last = judged
            break
        tried.append(f"{request}: {judged.why}")
        last = judged.problem
        may_be_recorded |= judged.may_have_acted

        pause = window.pause(number, judged)
        if pause is None:
            break
        yield pause
        found = yield from insist(read_back, content.read, window)
        if isinstance(found, Action):
            return _same(found, content)
        if isinstance(found, GaveUp):
            tried += found.tried
            last = found.last or last
            break
        tried.append(f"{read_back}: {found.status} {found.kind}")
        if found.kind != "action-unknown":
            last = found
            break
        if window.is_over:
            break
    if last is not None and not may_be_recorded:
        raise last
    raise OutcomeUnknown(
        action_id=content.action_id,
        may_be_recorded=may_be_recorded,
        tried=tuple(tried),
        last=last,
    )


def _same(found: Action, content: Content) -> Action:
    """The action, when it is of this content. Raises Problem as the service does for others."""
    differing = content.differing(found)
    if not differing:
        return found
    raise Problem(
        ProblemDetails(
            type=f"{TYPE_PREFIX}action-conflict",
            title="These ids were used before with other content",
            status=409,
            detail=f"{found.action_id} exists with another {', '.join(differing)}. Nothing was "
            "changed. Look at the action; do not choose other ids to get round it.",
            instance="",
            differing=differing,
            action=found,
        )
    )
