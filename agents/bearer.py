"""Who calls: an agent key in `Authorization: Bearer …`, and nowhere else."""

from __future__ import annotations

from django.http import HttpRequest
from ninja.security import HttpBearer

from agents.keys import find_key
from agents.models import AgentKey
from agents.strict_json import require_whole_body


class AgentBearer(HttpBearer):
    """Answers the key, which Ninja puts on `request.auth`; None is a 401."""

    def authenticate(self, request: HttpRequest, token: str) -> AgentKey | None:
        """One query. A missing, wrong and revoked key look the same to the caller.

        Raises ProblemFound (400, 411) for a body that did not come whole. It is looked at here, as
        the one place before every call that no stranger gets to: reading a body takes time.
        """
        key = find_key(token)
        if key is not None and request.method in ("POST", "PUT"):
            require_whole_body(request)
        return key
