"""Reading a policy's parameters strictly: the only way in for what a person or a file says.

Every field is there, no other is, nothing is rounded or guessed. What the rules could misread,
and what could not mean what its writer thought (a limit that holds below the one that asks, a
reason that is not on the list), is refused by the field's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import cache
from itertools import pairwise
from typing import Any
from zoneinfo import available_timezones

from kernel.errors import InvalidInput
from kernel.identity import require_identifier
from kernel.money import AMOUNT_MINOR_MAX, require_currency
from kernel.strict_json import shown_name
from policies.decision import Verdict
from policies.facts import SCOPES
from policies.parameters import Limit, Parameters, Tier
from providers.stripe.accounts import ACCOUNT_PATTERN

# Longer than any card payment can be refunded or disputed; more is a slip of the keyboard.
WINDOW_SECONDS_MAX = 2 * 366 * 24 * 3600
WINDOW_DAYS_MAX = 10 * 366
# More than a merchant's largest table; a decision reads all of it.
ITEMS_MAX = 200
COUNT_MAX = 10**6
# Three permissions exist: to decide at all, and for tier 2 and 3.
TIER_MAX = 3
PEOPLE_MAX = 3
# A rate is older only over a long holiday; with more the limits are those of another month.
RATE_AGE_DAYS_MAX = 31
ANOMALY_FACTOR_MAX = 1000
_ACCOUNT = re.compile(f"stripe:{ACCOUNT_PATTERN}")
_VELOCITY_SCOPES = ("agent", "customer", "order")
_BUDGET_SCOPES = ("agent", "total")
_GOODWILL_SCOPES = ("goodwill_agent", "goodwill_total")
# HOLD is for what changes by itself, which a sold line does not.
_FINAL_SALE_VERDICTS = tuple(v.name for v in Verdict if v is not Verdict.HOLD)

Reader = Callable[[Any, str], None]
# Found by walking through the machine's files.
_time_zones = cache(available_timezones)


def read_parameters(value: object) -> Parameters:
    """Parameters out of JSON, strictly: every field, no other, no rounding.

    Raises InvalidInput naming the field.
    """
    wanted = [item.name for item in fields(Parameters)]
    if not isinstance(value, dict):
        raise InvalidInput(field="parameters", reason="must be an object")
    for name in sorted(value.keys() - set(wanted), key=str):
        raise InvalidInput(field=shown_name(str(name)), reason="is not a known parameter")
    for name in wanted:
        if name not in value:
            raise InvalidInput(field=name, reason="is required")
        _READERS[name](value[name], name)
    parameters = Parameters.from_json(value)
    _fits_together(parameters)
    return parameters


def require_valid(parameters: Parameters) -> Parameters:
    """The same parameters, where every one is as strictly valid as if it had been read.

    Raises InvalidInput naming the field.
    """
    return read_parameters(_as_lists(asdict(parameters)))


def _as_lists(value: Any) -> Any:
    """Tuples as the lists that they are in JSON."""
    if isinstance(value, dict):
        return {name: _as_lists(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_as_lists(item) for item in value]
    return value


def _fits_together(parameters: Parameters) -> None:
    """What one field says about another."""
    for name, reasons in (
        ("ceiling_by_reason_base_minor", parameters.ceiling_by_reason_base_minor),
        ("tier_by_reason", parameters.tier_by_reason),
        ("return_reasons", parameters.return_reasons),
        *((f"reasons_by_agent.{a}", own) for a, own in parameters.reasons_by_agent.items()),
    ):
        for reason in reasons:
            if reason not in parameters.reasons:
                raise InvalidInput(field=name, reason=f"{reason!r} is not one of the reasons")
    tiers = {row.tier for row in parameters.tiers}
    for reason, tier in parameters.tier_by_reason.items():
        if tier not in tiers:
            raise InvalidInput(
                field=f"tier_by_reason.{reason}", reason=f"there is no tier {tier} in tiers"
            )


# -- single values --------------------------------------------------------------------------------


def _whole(largest: int, *, smallest: int = 0) -> Reader:
    def read(value: Any, field: str) -> None:
        # A boolean is an int to Python, and not to anybody else.
        if type(value) is not int or not smallest <= value <= largest:
            raise InvalidInput(
                field=field, reason=f"must be an integer from {smallest} to {largest}"
            )

    return read


def _optional(read: Reader) -> Reader:
    return lambda value, field: None if value is None else read(value, field)


def _boolean(value: Any, field: str) -> None:
    if type(value) is not bool:
        raise InvalidInput(field=field, reason="must be true or false")


def _one_of(*words: str) -> Reader:
    def read(value: Any, field: str) -> None:
        if not isinstance(value, str) or value not in words:
            raise InvalidInput(field=field, reason=f"must be one of {', '.join(words)}")

    return read


def _currency(value: Any, field: str) -> None:
    if require_currency(value, field=field) != value:
        raise InvalidInput(field=field, reason=f"{value!r}: use capitals")


def _identifier(value: Any, field: str) -> None:
    require_identifier(value, field=field)


def _account(value: Any, field: str) -> None:
    if not isinstance(value, str) or not _ACCOUNT.fullmatch(value):
        raise InvalidInput(
            field=field, reason="must be an account of a provider, like stripe: or stripe:acct_1"
        )


def _time_zone(value: Any, field: str) -> None:
    if not isinstance(value, str) or value not in _time_zones():
        raise InvalidInput(
            field=field, reason="must be the name of a time zone, like Europe/Berlin"
        )


_amount = _whole(AMOUNT_MINOR_MAX)
_count = _whole(COUNT_MAX)


# -- many values ----------------------------------------------------------------------------------


def _each(read: Reader, *, at_least: int = 0) -> Reader:
    """A list of different items."""

    def read_list(value: Any, field: str) -> None:
        if not isinstance(value, list) or not at_least <= len(value) <= ITEMS_MAX:
            raise InvalidInput(
                field=field, reason=f"must be a list of {at_least} to {ITEMS_MAX} items"
            )
        for item in value:
            read(item, field)
        if len(set(value)) != len(value):
            raise InvalidInput(field=field, reason="names something twice")

    return read_list


def _by(read_name: Reader, read_value: Reader) -> Reader:
    """An object of values by name."""

    def read(value: Any, field: str) -> None:
        if not isinstance(value, dict) or len(value) > ITEMS_MAX:
            raise InvalidInput(
                field=field, reason=f"must be an object of at most {ITEMS_MAX} members"
            )
        for name, item in value.items():
            read_name(name, field)
            read_value(item, f"{field}.{name}")

    return read


def _rows(
    of: type[Any], readers: dict[str, Reader], check: Callable[[list[Any], str], None]
) -> Reader:
    """A list of objects with exactly the fields of a dataclass; `check` sees all of them."""

    def read(value: Any, field: str) -> None:
        if not isinstance(value, list) or len(value) > ITEMS_MAX:
            raise InvalidInput(field=field, reason=f"must be a list of at most {ITEMS_MAX} objects")
        for number, row in enumerate(value):
            if not isinstance(row, dict) or row.keys() != readers.keys():
                raise InvalidInput(
                    field=f"{field}[{number}]",
                    reason=f"must be an object with exactly {', '.join(readers)}",
                )
            for name, read_value in readers.items():
                read_value(row[name], f"{field}[{number}].{name}")
        check([of(**row) for row in value], field)

    return read


def _check_tiers(tiers: list[Tier], field: str) -> None:
    if not tiers or tiers[-1].up_to_base_minor is not None:
        raise InvalidInput(
            field=field, reason="must end with a tier without an end (up_to_base_minor null)"
        )
    for lower, higher in pairwise(tiers):
        if lower.up_to_base_minor is None:
            raise InvalidInput(field=field, reason="only the last tier is without an end")
        if higher.tier <= lower.tier or higher.people < lower.people:
            raise InvalidInput(
                field=field, reason="each tier must be above the one before, with as many people"
            )
        if higher.up_to_base_minor is not None and (
            higher.up_to_base_minor <= lower.up_to_base_minor
        ):
            raise InvalidInput(field=field, reason="up_to_base_minor must rise from tier to tier")


def _check_limits(limits: list[Limit], field: str) -> None:
    seen = set()
    for number, limit in enumerate(limits):
        at = f"{field}[{number}]"
        if limit.window not in SCOPES[limit.scope]:
            windows = ", ".join(SCOPES[limit.scope])
            raise InvalidInput(
                field=f"{at}.window", reason=f"{limit.scope} is counted in {windows}"
            )
        if (limit.scope, limit.window) in seen:
            raise InvalidInput(field=at, reason="this scope and window have a limit already")
        seen.add((limit.scope, limit.window))
        pairs = (
            (limit.review_count, limit.hold_count),
            (limit.review_base_minor, limit.hold_base_minor),
        )
        if all(review is None and hold is None for review, hold in pairs):
            raise InvalidInput(field=at, reason="limits nothing; leave it out")
        for review, hold in pairs:
            if review is not None and hold is not None and review > hold:
                raise InvalidInput(
                    field=at, reason="the figure that holds must not be below the one that asks"
                )


def _limits(scopes: tuple[str, ...]) -> Reader:
    return _rows(
        Limit,
        {
            "scope": _one_of(*scopes),
            "window": _one_of(*sorted({window for s in scopes for window in SCOPES[s]})),
            "review_count": _optional(_count),
            "review_base_minor": _optional(_amount),
            "hold_count": _optional(_count),
            "hold_base_minor": _optional(_amount),
        },
        _check_limits,
    )


_READERS: dict[str, Reader] = {
    "ceiling_minor": _by(_currency, _amount),
    "reasons": _each(_identifier, at_least=1),
    "review_beside_open": _boolean,
    "same_amount_window_seconds": _whole(WINDOW_SECONDS_MAX),
    "unsearchable_ceiling_minor": _amount,
    "base_currency": _currency,
    "rate_max_age_days": _whole(RATE_AGE_DAYS_MAX),
    "ceiling_by_reason_base_minor": _by(_identifier, _amount),
    "ceiling_by_agent_base_minor": _by(_identifier, _amount),
    "tiers": _rows(
        Tier,
        {
            "tier": _whole(TIER_MAX, smallest=1),
            "up_to_base_minor": _optional(_amount),
            "people": _whole(PEOPLE_MAX, smallest=1),
        },
        _check_tiers,
    ),
    "tier_by_reason": _by(_identifier, _whole(TIER_MAX, smallest=1)),
    "reasons_by_agent": _by(_identifier, _each(_identifier)),
    "accounts_by_agent": _by(_identifier, _each(_account)),
    "velocity": _limits(_VELOCITY_SCOPES),
    "budgets": _limits(_BUDGET_SCOPES),
    "goodwill_budgets": _limits(_GOODWILL_SCOPES),
    "goodwill_reasons": _each(_identifier),
    "anomaly_factor": _whole(ANOMALY_FACTOR_MAX),
    "anomaly_floor_count": _whole(COUNT_MAX, smallest=1),
    "window_days": _whole(WINDOW_DAYS_MAX),
    "window_from": _one_of("placed", "delivered"),
    "time_zone": _time_zone,
    "method_window_days": _by(_identifier, _whole(WINDOW_DAYS_MAX, smallest=1)),
    "final_sale_verdict": _one_of(*_FINAL_SALE_VERDICTS),
    "return_reasons": _each(_identifier),
    "return_above_base_minor": _optional(_amount),
    "component_caps": _boolean,
    "risk_review": _each(_identifier),
    "risk_deny": _each(_identifier),
    "risk_required": _boolean,
    "probation_refunds": _count,
    "order_max_age_seconds": _whole(WINDOW_SECONDS_MAX),
    "sample_qa_per_mille": _whole(1000),
}
