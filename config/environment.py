"""The environment, typed. Whatever is wrong with it is told at once, in one list, at boot.

Every name is public (README, "Environment"). Durations are seconds and may be fractions, so that a
test can live through a lease in half a second.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

# Stripe forgets a key 24 hours after its first use: https://docs.stripe.com/api/idempotent_requests
PROVIDER_KEY_LIFE_SECONDS = 24 * 60 * 60

# Secret (sk_) and restricted (rk_) keys: https://docs.stripe.com/keys
_API_KEY = re.compile(r"(?:sk|rk)_\S+")
_API_KEY_EXPECTED = "must be a secret or restricted key of Stripe: it begins with sk_ or rk_"
# 32 random letters and digits hold more than 128 bits.
SECRET_KEY_CHARACTERS_MIN = 32

# Exit status of a program that refuses to start because of how it was called (sysexits' EX_USAGE is
# 64, but shells, argparse and make all use 2).
EXIT_STATUS_REFUSED = 2


class Timeouts(BaseSettings):
    """The durations whose order keeps money safe. `problems()` says which are out of order."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True)

    #: To open a connection to the provider.
    provider_connect_timeout_seconds: PositiveFloat = 3
    #: Between two reads of its answer.
    provider_read_timeout_seconds: PositiveFloat = 20
    #: For the whole request, however slowly the bytes trickle. Hard.
    provider_total_timeout_seconds: PositiveFloat = 30
    #: How long a claimed action belongs to its worker. After it, the action is UNKNOWN.
    submit_lease_seconds: PositiveFloat = 60
    #: Celery raises SoftTimeLimitExceeded in the task.
    task_soft_time_limit_seconds: PositiveFloat = 90
    #: Celery kills the process that runs the task.
    task_hard_time_limit_seconds: PositiveFloat = 120
    #: Redis hands an unacknowledged message to another worker.
    broker_visibility_timeout_seconds: PositiveFloat = 300
    #: How long after a send "not found" can be believed.
    settle_seconds: PositiveFloat = 120
    #: The age of a key past which nothing is sent under it any more.
    key_resend_seconds: PositiveFloat = 20 * 60 * 60

    def problems(self) -> list[str]:
        """One sentence for each pair of durations that stands in an unsafe order."""
        request = self.provider_connect_timeout_seconds + self.provider_read_timeout_seconds
        total = self.provider_total_timeout_seconds
        lease = self.submit_lease_seconds
        soft = self.task_soft_time_limit_seconds
        hard = self.task_hard_time_limit_seconds
        visibility = self.broker_visibility_timeout_seconds
        found = []
        if request > total:
            found.append(
                "PROVIDER_CONNECT_TIMEOUT_SECONDS + PROVIDER_READ_TIMEOUT_SECONDS "
                f"({request:g}) must not exceed PROVIDER_TOTAL_TIMEOUT_SECONDS ({total:g}): a "
                f"request must "
                "be able to fail by its own timeouts before it is cut off."
            )
        if total >= lease:
            found.append(
                f"PROVIDER_TOTAL_TIMEOUT_SECONDS ({total:g}) must be below SUBMIT_LEASE_SECONDS "
                f"({lease:g}): or a request is still on the wire when another worker takes over."
            )
        if lease >= soft:
            found.append(
                f"SUBMIT_LEASE_SECONDS ({lease:g}) must be below TASK_SOFT_TIME_LIMIT_SECONDS "
                f"({soft:g}): "
                "or a task is interrupted while it still owns the action."
            )
        if soft >= hard:
            found.append(
                f"TASK_SOFT_TIME_LIMIT_SECONDS ({soft:g}) must be below "
                f"TASK_HARD_TIME_LIMIT_SECONDS "
                f"({hard:g}): or a task is killed before it can record what it knows."
            )
        if hard >= visibility:
            found.append(
                f"TASK_HARD_TIME_LIMIT_SECONDS ({hard:g}) must be below "
                f"BROKER_VISIBILITY_TIMEOUT_SECONDS ({visibility:g}): or the broker runs a live "
                f"task again."
            )
        if lease + total >= self.settle_seconds:
            found.append(
                f"SETTLE_SECONDS ({self.settle_seconds:g}) must be above SUBMIT_LEASE_SECONDS + "
                f'PROVIDER_TOTAL_TIMEOUT_SECONDS ({lease + total:g}): or "not found" is believed '
                f"while "
                "a request may still arrive."
            )
        if self.key_resend_seconds >= PROVIDER_KEY_LIFE_SECONDS:
            found.append(
                f"KEY_RESEND_SECONDS ({self.key_resend_seconds:g}) must be below the "
                f"{PROVIDER_KEY_LIFE_SECONDS} seconds that Stripe remembers a key: or a repeated "
                f"request "
                "is a second refund."
            )
        return found


class Environment(Timeouts):
    """Everything the environment says. Secrets never appear in a log or a traceback."""

    # ---- where things are
    #: postgresql://user:password@host:port/name
    database_url: SecretStr
    #: redis://host:port/number: the broker, and where requests are counted.
    redis_url: SecretStr
    #: Another broker than Redis (RabbitMQ: amqp://…).
    broker_url: SecretStr | None = None

    # ---- the payment provider
    #: The key refunds are made with. Prefer a restricted key: write refunds, read payments.
    stripe_api_key: SecretStr
    #: Keys of further platform accounts by alias: `eu=sk_live_…,us=sk_live_…`.
    stripe_api_keys: Annotated[dict[str, SecretStr], NoDecode] = Field(default_factory=dict)
    #: Empty: Stripe itself. The sandbox's address in development.
    stripe_api_base: str = ""
    #: One or more, separated by commas, so that a secret can be rotated.
    stripe_webhook_secrets: Annotated[tuple[SecretStr, ...], NoDecode]

    # ---- who we are
    #: Names this installation in the provider's metadata; two installations on one account must
    #: differ.
    instance: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,40}$")]
    #: Signs sessions and forms of the staff site. Random, 32 characters or more.
    secret_key: SecretStr
    #: Host names this service answers to, separated by commas.
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ("localhost", "127.0.0.1")
    #: https://desk.example.com, when TLS ends at a proxy.
    csrf_trusted_origins: Annotated[tuple[str, ...], NoDecode] = ()
    #: User name of the person who owns cases that nobody else owns.
    case_owner: Annotated[str, Field(min_length=1, max_length=150)]
    #: User name of the person who gets cases past their due time. Empty: `CASE_OWNER`.
    case_escalation_owner: Annotated[str, Field(max_length=150)] = ""
    #: What the first policy counts its limits in: the currency you sell in most. Later policies say
    #: it themselves.
    base_currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    #: Plain HTTP on this machine: cookies are not marked secure.
    development: bool = False
    #: DEBUG, INFO, WARNING or ERROR.
    log_level: Annotated[str, Field(pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"
    #: How long a database connection is kept: 0 in workers (Celery closes it around each task
    #: anyway), more in the web process (the Procfile says so).
    conn_max_age_seconds: Annotated[int, Field(ge=0)] = 0

    # ---- callers
    #: How many requests an agent's key may make in a minute, over all processes. More: 429.
    agent_requests_per_minute: Annotated[int, Field(ge=1)] = 6000
    #: The same for each session: what the tools of one conversation may ask.
    session_requests_per_minute: Annotated[int, Field(ge=1)] = 120

    # ---- rhythms
    #: How often the sweep looks for authorised refunds that no worker was told of.
    dispatch_sweep_seconds: PositiveFloat = 5
    #: How often the sweep looks for whatever is due to be found out.
    reconcile_sweep_seconds: PositiveFloat = 15
    #: Waits before the first, second and third try.
    reconcile_delays_seconds: Annotated[
        tuple[PositiveFloat, PositiveFloat, PositiveFloat], NoDecode
    ] = (
        30,
        120,
        600,
    )
    #: After this long in UNKNOWN a person takes over, however many tries there were.
    reconcile_window_seconds: PositiveFloat = 24 * 60 * 60
    #: How long a proposal waits for a person, and how long an approval holds.
    approval_ttl_seconds: PositiveFloat = 24 * 60 * 60
    #: How often a refund that the provider has not settled is read again.
    pending_poll_seconds: PositiveFloat = 60 * 60
    #: A payment's refunds read this recently need not be read again before a send.
    look_fresh_seconds: PositiveFloat = 120
    #: How long the owner of a case has; some kinds have less (docs/operations.md).
    case_due_seconds: PositiveFloat = 4 * 60 * 60
    #: How far apart the two look-ups must lie that let people declare a request not executed.
    case_looks_apart_seconds: PositiveFloat = 60 * 60

    # ---- the fault harness
    #: A folder of switches that make named crash points kill the process. Tests only.
    crash_points_dir: str = ""

    # Before-validators run from the last to the first: this one after the split.
    @field_validator("reconcile_delays_seconds", mode="before")
    @classmethod
    def _three(cls, value: object) -> object:
        if isinstance(value, tuple) and len(value) != 3:
            raise ValueError(
                f"three numbers are needed, separated by commas, like 30,120,600; there are "
                f"{len(value)}"
            )
        return value

    @field_validator(
        "stripe_webhook_secrets",
        "allowed_hosts",
        "csrf_trusted_origins",
        "reconcile_delays_seconds",
        mode="before",
    )
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("stripe_api_keys", mode="before")
    @classmethod
    def _split_pairs(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [part.strip().partition("=") for part in value.split(",") if part.strip()]
        if not all(alias and key for alias, _, key in pairs):
            raise ValueError("must look like alias=key,alias=key")
        return {alias: key for alias, _, key in pairs}

    @field_validator("stripe_webhook_secrets")
    @classmethod
    def _at_least_one(cls, value: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if not value:
            raise ValueError("at least one is needed, or webhooks cannot be believed")
        return value

    @field_validator("secret_key")
    @classmethod
    def _long(cls, value: SecretStr) -> SecretStr:
        if len(value.get_secret_value().strip()) < SECRET_KEY_CHARACTERS_MIN:
            raise ValueError(f"must have {SECRET_KEY_CHARACTERS_MIN} characters or more, at random")
        return value

    @field_validator("stripe_api_key")
    @classmethod
    def _api_key(cls, value: SecretStr) -> SecretStr:
        if not _API_KEY.fullmatch(value.get_secret_value()):
            raise ValueError(_API_KEY_EXPECTED)
        return value

    @field_validator("stripe_api_keys")
    @classmethod
    def _each_api_key(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for alias, key in value.items():
            if not _API_KEY.fullmatch(key.get_secret_value()):
                raise ValueError(f"{alias} {_API_KEY_EXPECTED}")
        return value

    @field_validator("database_url")
    @classmethod
    def _postgres(cls, value: SecretStr) -> SecretStr:
        if not value.get_secret_value().startswith(("postgresql://", "postgres://")):
            raise ValueError("must look like postgresql://user:password@host:5432/name")
        return value

    @field_validator("redis_url")
    @classmethod
    def _redis(cls, value: SecretStr) -> SecretStr:
        if not value.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must look like redis://host:6379/0")
        return value

    def problems(self) -> list[str]:
        """The timeouts out of order, and combinations that must not meet."""
        found = super().problems()
        keys = (self.stripe_api_key, *self.stripe_api_keys.values())
        live = any(key.get_secret_value().startswith(("sk_live_", "rk_live_")) for key in keys)
        if live and self.crash_points_dir:
            found.append(
                "CRASH_POINTS_DIR is set together with a live Stripe key: crash points kill "
                "workers in "
                "the middle of a refund and belong to tests. Unset one of the two."
            )
        if live and self.development:
            found.append(
                "DEVELOPMENT is set together with a live Stripe key. `make up` and `make demo` set "
                "it: unset STRIPE_API_KEY for them. In production, unset DEVELOPMENT."
            )
        if live and self.stripe_api_base and not self.stripe_api_base.startswith("https://"):
            found.append(
                "STRIPE_API_BASE is not https:// and a live Stripe key is set: the key would "
                "travel readable. Unset STRIPE_API_BASE, or use a test key."
            )
        return found

    @property
    def next_in_line(self) -> str:
        """Who gets cases past their due time: CASE_ESCALATION_OWNER, else CASE_OWNER."""
        return self.case_escalation_owner or self.case_owner

    @property
    def broker(self) -> str:
        """The broker's address: BROKER_URL, else REDIS_URL."""
        return (self.broker_url or self.redis_url).get_secret_value()


@dataclass(frozen=True, slots=True)
class Refusal(Exception):
    """The environment cannot be used. `problems` are sentences for a person."""

    problems: tuple[str, ...]

    def __str__(self) -> str:
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        return (
            f"Refund Once does not start: {len(self.problems)} problem(s) in the "
            f"environment.\n{lines}\n"
            "Nothing was started or sent. The README lists every variable (Environment); "
            "`make up` sets them all for development."
        )


def _sentences(error: ValidationError) -> list[str]:
    sentences = []
    for problem in error.errors(include_input=False, include_url=False):
        name = str(problem["loc"][0]).upper() if problem["loc"] else "environment"
        if problem["type"] == "missing":
            sentences.append(f"{name} is not set.")
        else:
            sentences.append(f"{name}: {problem['msg'].removeprefix('Value error, ')}.")
    return sentences


def read_environment(given: Mapping[str, str] | None = None) -> Environment:
    """The environment of this process, or Refusal with every problem found.

    `given` are values by name, in capitals, that stand before those of the process; what is no
    variable of ours in them is passed over.
    """
    values: dict[str, Any] = {
        name.lower(): value
        for name, value in (given or {}).items()
        if name.lower() in Environment.model_fields
    }
    try:
        environment = Environment(**values)
    except ValidationError as error:
        problems = _sentences(error)
        try:
            problems += Timeouts(**values).problems()
        except ValidationError:
            pass  # told above, as Environment has these fields too
        raise Refusal(tuple(problems)) from None
    if problems := environment.problems():
        raise Refusal(tuple(problems))
    return environment


def environment_or_exit() -> Environment:
    """As `read_environment`, but a refusal is printed and ends the program with status 2."""
    try:
        return read_environment()
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        raise SystemExit(EXIT_STATUS_REFUSED) from None
