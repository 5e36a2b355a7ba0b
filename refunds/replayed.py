"""A replayed answer is old: what it says is taken from a fresh read."""

from __future__ import annotations

from dataclasses import replace

from effects.outcomes import Outcome, Pending, ProviderEffect, Refused, Succeeded, Unreadable


def as_it_stands(*, outcome: Succeeded | Pending, now: ProviderEffect | Unreadable) -> Outcome:
    """The outcome of a replayed success, by how the same effect was read just now."""
    if isinstance(now, Unreadable):
        # Executed for certain, how it stands today is not known: polled as PENDING.
        effect = replace(outcome.effect, settlement="pending")
        return Pending(effect=effect, evidence=outcome.evidence)
    if now.settlement == "failed":
        return Refused(code="failed", evidence=outcome.evidence, effect=now)
    if now.settlement == "succeeded":
        return Succeeded(effect=now, evidence=outcome.evidence)
    return Pending(effect=now, evidence=outcome.evidence)
