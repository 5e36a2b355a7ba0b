"""What was used lately, for the limits: read by one statement, and one admission at a time.

The orders of two proposals differ, so their row locks do not keep them apart. What does are
advisory locks on whom the limits are about, taken before the sums are read and held until the
transaction ends: whoever comes next sees what was decided before it, reservations included.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from effects.clock import clock_sql
from policies.facts import SCOPES, WINDOWS_SECONDS, Usage
from policies.parameters import Parameters
from refunds.models import Order, RefundAction

_ACTIONS = RefundAction._meta.db_table
_ORDERS = Order._meta.db_table
# When an action counts: when it was last allowed, or, before that, when it was proposed. What was
# held for a day and is allowed now is money of now.
_COUNTS_AT = "COALESCE(a.authorized_at, a.created_at)"
_PROPOSED = "a.state NOT IN ('REJECTED', 'CANCELLED', 'EXPIRED')"
_LIVE = (
    "(a.state IN ('AUTHORIZED', 'SUBMITTING', 'UNKNOWN', 'PENDING', 'SUCCEEDED')"
    " OR a.reserved_minor > 0)"
)
# The agent's own are among everybody's: read once, told apart by `mine`.
_OF_ONE_AGENT = {"agent": "total", "goodwill_agent": "goodwill_total"}
_WHOSE = {
    "customer": (
        f"%(customer)s <> '' AND a.order_id IN"  # noqa: S608  # names of our own tables
        f" (SELECT o.id FROM {_ORDERS} o WHERE o.customer_ref = %(customer)s)"
    ),
    "order": "a.order_id = %(order)s",
    "total": "TRUE",
    "goodwill_total": "a.reason = ANY(%(goodwill)s)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedLately:
    """What the limits are compared with. `rates` are those of the newest day there are any for.

    `at` is database time when it was read: what is allowed on it counts from then, so that of two
    admissions the later one is also later in time, however long it waited for the earlier.
    `agent_succeeded` counts no further than the probation asks for; None: it asks for nothing.
    """

    at: datetime
    usage: tuple[Usage, ...] = ()
    rates: tuple[tuple[str, str], ...] = ()
    rates_day: str = ""
    rates_age_days: int | None = None
    agent_succeeded: int | None = None


def _one_admission_at_a_time(*, order: Order, proposer: str, parameters: Parameters) -> None:
    """Let nobody else decide against the same limits until this transaction ends.

    Taken in the order of their numbers and after the order's row lock, never before one: no two
    transactions can wait for each other.
    """
    scopes = {
        limit.scope
        for limit in (*parameters.velocity, *parameters.budgets, *parameters.goodwill_budgets)
    }
    names = set()
    if scopes & {"total", "goodwill_total"}:
        names.add("total")
    if scopes & {"agent", "goodwill_agent"} or parameters.anomaly_factor:
        names.add(f"agent:{proposer}")
    if "customer" in scopes and order.customer_ref:
        names.add(f"customer:{order.customer_ref}")
    if names:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_advisory_xact_lock(number) FROM unnest(%s::bigint[]) AS number",
                [sorted(_number(name) for name in names)],
            )


def used_lately(
    *,
    order: Order,
    action_id: str,
    proposer: str,
    parameters: Parameters | None,
    now: datetime,
    admitting: bool = False,
    before: datetime | None = None,
) -> UsedLately:
    """Count what others used in every window, this action left out. One statement.

    `parameters` are of the policy in force; without one there are no limits, and nothing is read.
    `admitting`: more may be allowed by what follows, so nobody else decides against the same limits
    until this transaction ends. Explaining and comparing wait for nobody.
    `before`: only what was allowed or proposed earlier. An action that has been admitted is not
    measured against what was admitted after it.
    """
    if parameters is None:
        return UsedLately(at=now)
    if admitting:
        _one_admission_at_a_time(order=order, proposer=proposer, parameters=parameters)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {clock_sql()}, {_USED}",  # our own constants
            {
                "agent": proposer,
                "customer": order.customer_ref,
                "order": order.pk,
                "goodwill": list(parameters.goodwill_reasons),
                "action_id": action_id,
                "now": now,
                "before": before,
                "probation": parameters.probation_refunds,
            },
        )
        at, rows, rates, succeeded = cursor.fetchone()
    day = rates["day"] if rates else ""
    return UsedLately(
        at=at,
        usage=tuple(_usage(scope, window, rows or []) for scope, window in _windows()),
        rates=tuple(sorted(rates["rates"].items())) if rates else (),
        rates_day=day,
        rates_age_days=rates["age"] if rates else None,
        agent_succeeded=succeeded if parameters.probation_refunds else None,
    )


def _windows() -> list[tuple[str, str]]:
    return [(scope, window) for scope, windows in SCOPES.items() for window in windows]


def _usage(scope: str, window: str, rows: list[dict[str, Any]]) -> Usage:
    column = SCOPES[scope].index(window)
    whole = _OF_ONE_AGENT.get(scope, scope)
    mine = [row for row in rows if row["scope"] == whole and (row["mine"] or scope == whole)]
    return Usage(
        scope=scope,
        window=window,
        count=sum(row[f"count_{column}"] for row in mine),
        sums_minor=_sums(mine, column=f"sum_{column}"),
    )


def _sums(rows: list[dict[str, Any]], *, column: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in rows:
        sums[row["currency"]] = sums.get(row["currency"], 0) + row[column]
    return {currency: sums[currency] for currency in sorted(sums) if sums[currency]}


def _number(name: str) -> int:
    """A 64-bit number for an advisory lock. Two names with one number only wait needlessly."""
    digest = hashlib.blake2b(f"refund-once limit {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _within(window: str) -> str:
    seconds = WINDOWS_SECONDS[window]
    if seconds is None:
        return "TRUE"
    return f"{_COUNTS_AT} > %(now)s - make_interval(secs => {seconds})"


def _select(scope: str, windows: tuple[str, ...]) -> str:
    """One scope: a row for each currency, the agent's own apart; a count and a sum for each
    window, widest last."""
    columns = ", ".join(
        f"count(*) FILTER (WHERE {_PROPOSED} AND {_within(window)}) AS count_{number}, "
        f"COALESCE(sum(a.amount_minor) FILTER (WHERE {_LIVE} AND {_within(window)}), 0)::bigint"
        f" AS sum_{number}"
        for number, window in enumerate(windows)
    )
    if len(windows) == 1:
        columns += ", NULL::bigint AS count_1, NULL::bigint AS sum_1"
    # Made of our own constants; what comes from outside is a parameter.
    return (
        f"SELECT '{scope}' AS scope, a.proposed_by = %(agent)s AS mine, a.currency, {columns}"  # noqa: S608
        f" FROM {_ACTIONS} a"
        f" WHERE {_WHOSE[scope]} AND {_within(windows[-1])} AND a.action_id <> %(action_id)s"
        f" AND (%(before)s::timestamptz IS NULL OR {_COUNTS_AT} < %(before)s)"
        " GROUP BY a.currency, mine"
    )


_USED = f"""
    (SELECT json_agg(used) FROM (
        {" UNION ALL ".join(_select(scope, SCOPES[scope]) for scope in _WHOSE)}
    ) used),
    (SELECT json_build_object(
        'day', r.day,
        'age', (%(now)s AT TIME ZONE 'UTC')::date - r.day,
        'rates', json_object_agg(r.currency, trim_scale(r.rate)::text)
    ) FROM policies_referencerate r
    WHERE r.day = (
        SELECT max(day) FROM policies_referencerate
        WHERE day <= (%(now)s AT TIME ZONE 'UTC')::date
    ) GROUP BY r.day),
    (SELECT count(*) FROM (
        SELECT 1 FROM {_ACTIONS} a
        WHERE a.proposed_by = %(agent)s AND a.state = 'SUCCEEDED' LIMIT %(probation)s
    ) few)
"""  # noqa: S608
