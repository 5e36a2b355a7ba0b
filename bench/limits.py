"""What counting the limits costs, by how many refunds there are in the windows.

Beside it runs the other statement of a decision, which reads the order and what is open on it and
does not grow with the shop.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from bench.world import World, running_world

#: Refunds a day, and as many days as the longest window that is counted for everybody.
DAILY = (100, 1_000, 10_000)
DAYS = 30
AGENTS = 5
CUSTOMERS = 20_000
#: One in so many refunds is goodwill.
GOODWILL_EVERY = 20
REPEATS = 15

# Rows as the product leaves them, without its triggers: a month cannot be waited for.
_ORDERS = """
    INSERT INTO refunds_order (order_id, version, source_version, currency, captured_minor,
        refunded_minor, reserved_minor, disputed_minor, settled_otherwise_minor, dispute_state,
        provider, account, payment_ref, payment_method, customer_ref, customer_email, details,
        created_at, updated_at)
    SELECT 'limit-' || n, 1, 0, 'USD', 10000, 0, 0, 0, 0, 'none', 'stripe', '', 'pi_limit' || n, '',
        'cus_' || (n %% %(customers)s::int), '', '{}', now(), now()
    FROM generate_series(%(first)s::int, %(last)s::int) n
"""
_ACTIONS = """
    INSERT INTO refunds_refundaction (action_id, state, payload, payload_hash, provider, account,
        proposed_by, request_ref, generation, attempt_count, tries, decided_by, bound_version,
        bound_facts, authorized_at, approval_round, review_tier, review_people, provider_ref,
        provider_status, created_at, updated_at, state_since, order_id, request_id, amount_minor,
        currency, reason, reserved_minor, decision_count, lines, instance)
    SELECT 'refund:order-' || o.order_id || ':request-1', 'SUCCEEDED', '{}', '', 'stripe', '',
        'agent-' || (n %% %(agents)s::int), '', 1, 1, 0, 'policy', 1, '{}', at, 1, 1, 1, 're_' || n,
        'succeeded', at, at, at, o.id, '1', 100, 'USD',
        CASE WHEN n %% %(goodwill)s::int = 0 THEN 'goodwill' ELSE 'damaged' END, 0, 1, '[]', 'bench'
    FROM generate_series(%(first)s::int, %(last)s::int) n
    JOIN refunds_order o ON o.order_id = 'limit-' || n,
    LATERAL (SELECT now() - make_interval(days => %(days)s::int) * random() AS at) times
"""


def cost_of_limits(*, say: Callable[[str], None]) -> None:
    """Print milliseconds and the ratio for each size of shop."""
    with running_world(say=say) as world:
        print("| refunds a day | rows | limits ms | the rest of the facts ms | ratio |")
        print("|---|---|---|---|---|")
        before = 0
        for daily in DAILY:
            _fill(world, first=before + 1, last=daily * DAYS)
            before = daily * DAYS
            limits_ms, beside_ms = _measure()
            print(
                f"| {daily:,} | {before:,} | {limits_ms:.1f} | {beside_ms:.1f} "
                f"| {limits_ms / beside_ms:.1f} |"
            )


def _fill(world: World, *, first: int, last: int) -> None:
    import psycopg

    values = {
        "first": first,
        "last": last,
        "customers": CUSTOMERS,
        "agents": AGENTS,
        "goodwill": GOODWILL_EVERY,
        "days": DAYS,
    }
    with psycopg.connect(world.servers.postgres.url(), autocommit=True) as server:
        server.execute("SET session_replication_role = replica")
        server.execute(_ORDERS, values)
        server.execute(_ACTIONS, values)
        server.execute("ANALYZE refunds_order, refunds_refundaction")


def _measure() -> tuple[float, float]:
    """Medians in milliseconds, in turn: the statement of the limits, and the other one."""
    from effects.clock import database_now
    from policies.versions import DEFAULT_PARAMETERS
    from refunds.facts import read_beside
    from refunds.models import Order
    from refunds.usage import used_lately

    order = Order.objects.get(order_id="limit-7")
    limits: list[float] = []
    beside: list[float] = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        used_lately(
            order=order,
            action_id="",
            proposer="agent-1",
            parameters=DEFAULT_PARAMETERS,
            now=database_now(),
        )
        between = time.perf_counter()
        read_beside(order=order, action_id="", proposer="agent-1")
        limits.append(between - began)
        beside.append(time.perf_counter() - between)
    return statistics.median(limits) * 1000, statistics.median(beside) * 1000
