"""Which Stripe account a call is for: how an `account` text becomes a key and a header.

| account | whose money |
|---|---|
| `""` | the platform's own account, `STRIPE_API_KEY` |
| `acct_…` | a connected account (Connect direct charge): `STRIPE_API_KEY` and `Stripe-Account` |
| `alias:NAME` | a second platform account, the key called NAME in `STRIPE_API_KEYS` |
| `alias:NAME/acct_…` | a connected account of that second platform |
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

ACCOUNT_PATTERN = (
    r"(?:alias:(?P<alias>[A-Za-z0-9_-]{1,64})(?:/(?P<connected>acct_[A-Za-z0-9]{1,64}))?"
    r"|(?P<own>acct_[A-Za-z0-9]{1,64}))?"
)
_ACCOUNT = re.compile(ACCOUNT_PATTERN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The API key to use and the connected account to name ("" for none)."""

    api_key: str = field(repr=False)
    stripe_account: str


def credentials_for(
    account: str, *, api_key: str, more_api_keys: dict[str, str]
) -> Credentials | None:
    """The credentials of an account, or None when there are none for it."""
    match = _ACCOUNT.fullmatch(account)
    if match is None:
        return None
    alias = match["alias"]
    key = api_key if alias is None else more_api_keys.get(alias)
    if not key:
        return None
    return Credentials(api_key=key, stripe_account=match["connected"] or match["own"] or "")
