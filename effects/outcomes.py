"""What one request on the wire can come back with.

An outcome says what the *answer* proves, and nothing else. What follows from it, given the
other attempts of the same action, is decided by `effects.record`. Nothing here is an
exception: every one of these is an expected ending of a provider call (invariant I4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What came back on the wire, as far as a person or a later round may need it.

    `body_excerpt` is truncated by the adapter to 2,000 characters and holds no keys. `extra` is
    JSON-safe.
    """

    http_status: int | None = None
    request_id: str = ""
    replayed: bool = False
    error_code: str = ""
    message: str = ""
    body_excerpt: str = ""
    elapsed_ms: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderEffect:
    """One effect as the provider shows it, in the provider's own words: a refund, a store credit.

    `payment_ref` is what it belongs to: the payment of a refund, the customer of a store credit.
    `status` is the provider's status word; `settlement` is what it means to us:
    "succeeded", "pending", "requires_action" or "failed". `metadata` are the strings that we (or
    somebody else) put there.
    """

    ref: str
    amount_minor: int
    currency: str
    payment_ref: str
    status: str
    settlement: str
    created_at: datetime | None = None
    failure_reason: str = ""
    pending_reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The provider did it, and its answer matches what was sent."""

    effect: ProviderEffect
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The provider accepted it and has not settled it."""

    effect: ProviderEffect
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A definite refusal of this key, executed and therefore stored under it.

    `code` is our own word for it (`already_refunded`, `amount_over_remaining`, `disputed`,
    `not_refundable`, `insufficient_funds`, `invalid_parameter`, `failed`, …).
    `read_first` is set where the refusal may be the shadow of our own earlier effect (fully
    refunded, amount above what is left): it becomes final only after the provider was read.
    `effect` is set when the provider made an object and shows it failed or cancelled.
    """

    code: str
    evidence: Evidence
    read_first: bool = False
    effect: ProviderEffect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSent:
    """Proof that no byte of the request reached the provider."""

    reason: str
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimited:
    """The provider turned this attempt away before doing anything (429)."""

    evidence: Evidence
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Misconfigured:
    """Our credentials, mode or account are wrong; this attempt did nothing."""

    reason: str
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The provider may or may not have acted.

    `reason` is a machine word (`read_timeout`, `connection_reset`, `server_error`,
    `conflict`, `answer_mismatch`, `key_reused_with_other_content`, `deadline`, …).
    `incident` is set when this should never happen and a person must see it at once.
    """

    reason: str
    evidence: Evidence
    incident: bool = False


Outcome = Succeeded | Pending | Refused | NotSent | RateLimited | Misconfigured | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All effects the provider shows for one payment, all pages read."""

    effects: tuple[ProviderEffect, ...]
    evidence: Evidence
    pages: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """The provider could not be asked, or its answer could not be used. Proves nothing.

    `misconfigured` is set for 401/403/404: asking again will not help until a person acts.
    """

    reason: str
    evidence: Evidence
    misconfigured: bool = False


LookUp = Listing | Unreadable
