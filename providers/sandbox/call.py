"""One API call on its way through the endpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .forms import Params

if TYPE_CHECKING:
    from .store import Account, World


@dataclass(slots=True)
class Call:
    """What an endpoint may know: who asks, with which parameters, and the ids in the path."""

    world: World
    account: Account
    request_id: str
    idempotency_key: str | None
    params: Params
    ids: list[str] = field(default_factory=list)
    # Set by the fault list-lags: refunds younger than this are not listed.
    list_lag_seconds: float = 0.0
    # Cleared by a fault: what this call does fires no events.
    with_events: bool = True
