"""What can be set. Everything the outside world does not document about Stripe is a field here."""

from dataclasses import dataclass, fields
from typing import Any, Literal

DAY_SECONDS = 86_400

# Keys that work out of the box, so that a first call needs no set-up.
DEFAULT_ACCOUNTS: dict[str, list[str]] = {
    "acct_sandbox": ["sk_test_sandbox"],
    "acct_second": ["sk_test_second"],
}
DEFAULT_CONNECTED: dict[str, str] = {"acct_connected": "acct_sandbox"}

# The version stripe-python 16.1.0 sends; used for callers that send none and for webhook payloads.
DEFAULT_API_VERSION = "2026-10-28.endive"


@dataclass(slots=True)
class Settings:
    """One field per choice; README.md says which are documented, recorded or unknown."""

    api_version: str = DEFAULT_API_VERSION

    # Idempotency. 24 h is a documented floor, not a promise to forget: None keeps keys for ever.
    key_retention_seconds: float | None = DAY_SECONDS
    idempotency_scope_with_stripe_account: Literal["connected", "platform"] = "connected"
    compare_api_version: bool = False
    echo_key_on_errors: bool = True
    cache_resource_missing: bool = True
    cache_insufficient_balance: bool = True
    should_retry_on_500: Literal["true", "false", "absent"] = "false"
    should_retry_on_409: Literal["true", "false", "absent"] = "absent"

    # Limits. None: no limit, so that benchmarks measure the caller and not this.
    rate_limit_per_second: int | None = None
    rate_limit_sends_code: bool = True
    charge_lock_wait_seconds: float = 2.0
    charge_lock_seconds: float = 0.0
    latency_ms: float = 0.0

    # Refunds in time, on the sandbox clock. None: only when the control API says so.
    pending_settles_after_seconds: float | None = 5.0
    late_failure_after_seconds: float | None = 5.0
    reference_after_seconds: float | None = 3.0
    amount_refunded_counts_pending: bool = True
    amount_refunded_drops_on_failure: bool = True

    # Balance. Not enforced: most tests do not want to fund an account first.
    enforce_balance: bool = False
    insufficient_balance: Literal["pending", "error"] = "pending"

    # Whether a customer's balance takes more than one currency.
    customer_currencies: Literal["many", "one"] = "many"

    # Webhooks. Stripe documents "3 times over a few hours" for sandboxes, not the times.
    webhook_retry_delays_seconds: tuple[float, ...] = (60.0, 3600.0, 10_800.0)
    webhook_timeout_seconds: float = 10.0
    webhook_delay_seconds: float = 0.0
    webhook_copies: int = 1
    webhook_order: Literal["sent", "reversed"] = "sent"
    webhooks_paused: bool = False
    events_kept_seconds: float = 30 * DAY_SECONDS

    # How many lines of the request log are kept in memory.
    requests_kept: int = 50_000

    def change(self, **changes: Any) -> None:
        """Set fields by name. Raises ValueError for a name or a value that does not fit."""
        known, defaults = {field.name for field in fields(self)}, Settings()
        fitted = {}
        for name, value in changes.items():
            if name not in known:
                raise ValueError(f"There is no setting {name!r}. Nothing was changed.")
            fitted[name] = _fit(name, getattr(defaults, name), value)
        for name, value in fitted.items():
            setattr(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


_CHOICES: dict[str, tuple[str, ...]] = {
    "idempotency_scope_with_stripe_account": ("connected", "platform"),
    "should_retry_on_500": ("true", "false", "absent"),
    "should_retry_on_409": ("true", "false", "absent"),
    "insufficient_balance": ("pending", "error"),
    "webhook_order": ("sent", "reversed"),
    "customer_currencies": ("many", "one"),
}
_MAY_BE_NONE = {
    "key_retention_seconds",
    "rate_limit_per_second",
    "pending_settles_after_seconds",
    "late_failure_after_seconds",
    "reference_after_seconds",
}


def _fit(name: str, default: Any, value: Any) -> Any:
    """A JSON value, or text from the command line, as the type of this setting."""
    wrong = ValueError(f"Setting {name} cannot be {value!r}. Nothing was changed.")
    if value is None or value in ("none", "null"):
        if name in _MAY_BE_NONE:
            return None
        raise wrong
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise wrong
        return value
    if isinstance(default, bool):
        if value in (True, False, "true", "false"):
            return value in (True, "true")
        raise wrong
    try:
        if isinstance(default, tuple):
            parts = value.split(",") if isinstance(value, str) else value
            return tuple(float(part) for part in parts if part != "")
        if isinstance(default, str):
            return str(value)
        if name in ("rate_limit_per_second", "webhook_copies", "requests_kept"):
            return int(value)
        return float(value)
    except (TypeError, ValueError):
        raise wrong from None
