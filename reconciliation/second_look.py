"""The second way to look: the resource's totals, beside the list of its effects.

A list is matched by our metadata; totals are another object of the provider that knows nothing of
it. What both do not show has been looked for in two ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from effects.clock import database_now
from effects.kinds import EffectKind, Locked, Totals
from effects.outcomes import Listing, LookUp, Unreadable
from effects.record import evidence_json
from effects.transitions import note

BY_LIST = "list"
BY_TOTALS = "totals"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondLook:
    """What the totals showed; `read_at` is database time just before they were read."""

    totals: Totals | Unreadable
    read_at: datetime


def look_again(*, kind: EffectKind, action: Any, look: LookUp) -> SecondLook | None:
    """Read the totals, with no transaction open. None: unreadable list, or no such way."""
    if not isinstance(look, Listing):
        return None
    read_at = database_now()
    totals = kind.read_totals(action=action, listing=look)
    return None if totals is None else SecondLook(totals=totals, read_at=read_at)


def note_second_look(
    *, kind: EffectKind, locked: Locked, second: SecondLook, actor: str, data: dict[str, Any]
) -> str:
    """Append what the totals showed to the history; returns what they leave unexplained, or ""."""
    totals = second.totals
    seen: dict[str, Any] = {"method": BY_TOTALS, "read_at": second.read_at.isoformat()}
    if isinstance(totals, Unreadable):
        unexplained = ""
        seen |= {
            "result": "unreadable",
            "reason": totals.reason,
            **evidence_json(totals.evidence),
        }
    else:
        unexplained = totals.unexplained
        seen |= {
            "result": "inconclusive" if unexplained else "absent",
            "absent": not unexplained,
            "why_inconclusive": unexplained,
            **totals.evidence,
        }
    note(
        kind=kind,
        locked=locked,
        event=f"{kind.name}.totals_read",
        actor=actor,
        data=seen | data,
    )
    return unexplained
