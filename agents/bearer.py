"""Who calls: a key or a session's token in `Authorization: Bearer …`, and nowhere else."""

from __future__ import annotations

from django.http import HttpRequest
from ninja.security import HttpBearer

from agents.callers import Caller
from agents.keys import find_key
from agents.models import Scope
from agents.problems import Kind, ProblemFound
from agents.sessions import find_session
from agents.strict_json import require_whole_body


class AgentBearer(HttpBearer):
    """Answers the caller, which Ninja puts on `request.auth`; None is a 401.

    `scope` is what a key must be for; `sessions` says whether a session's token opens it, too.
    """

    def __init__(self, scope: Scope, *, sessions: bool = False) -> None:
        super().__init__()
        self.scope = scope
        self.sessions = sessions

    def authenticate(self, request: HttpRequest, token: str) -> Caller | None:
        """One query. A missing, wrong, revoked and expired credential look the same to the caller.

        Raises ProblemFound: 403 for a credential that is not for this; 400 and 411 for a body that
        did not come whole. It is looked at here, as the one place before every call that no
        stranger gets to: reading a body takes time.
        """
        caller = find_caller(token)
        if caller is None:
            return None
        if caller.session is not None and not self.sessions:
            raise ProblemFound(
                Kind.FORBIDDEN,
                detail="A session is for proposing and reading its one refund. Nothing was done.",
            )
        if caller.session is None and self.scope not in caller.key.scopes:
            raise ProblemFound(
                Kind.FORBIDDEN,
                detail=f"This key was made without the scope {self.scope.value}. Nothing was done.",
            )
        if request.method in ("POST", "PUT"):
            require_whole_body(request)
        return caller


def find_caller(token: str) -> Caller | None:
    """The caller that a key or a session's token proves, or None."""
    session = find_session(token)
    if session is not None:
        return Caller(key=session.key, session=session)
    key = find_key(token)
    return None if key is None else Caller(key=key)
