"""Who calls: an agent key in `Authorization: Bearer …`, and nowhere else."""

from __future__ import annotations

from django.http import HttpRequest
from ninja.security import HttpBearer

from agents.keys import find_key
from agents.models import AgentKey


class AgentBearer(HttpBearer):
    """Answers the key, which Ninja puts on `request.auth`; None is a 401."""

    def authenticate(self, request: HttpRequest, token: str) -> AgentKey | None:
        """One query. A missing, wrong and revoked key look the same to the caller."""
        return find_key(token)
