"""Who calls: an agent with its key, or a model's tools with a session of that agent."""

from __future__ import annotations

from dataclasses import dataclass

from agents.models import AgentKey, AgentSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One proved caller. `session` is None when the merchant's backend itself calls."""

    key: AgentKey
    session: AgentSession | None = None

    @property
    def actor(self) -> str:
        """As history names it; the same with and without a session."""
        return f"agent:{self.key.prefix}"

    @property
    def credential(self) -> str:
        """What it called with, by its public part: `key:<prefix>` or `session:<prefix>`."""
        session = self.session
        return f"key:{self.key.prefix}" if session is None else f"session:{session.prefix}"
