"""`python -m bench`: what a refund costs, in one run, beside the same commits as plain SQL.

--quick     about a minute, one repeat: whether it works, not how fast it is
--limits    what counting the limits costs, by the size of the shop
--profile   where the time of a refund goes, instead of how many there are
--json FILE everything that was measured, run by run
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.limits import cost_of_limits
from bench.measured import BenchError, Run
from bench.plain_sql import PlainSQL, plain_sql
from bench.profile import profile_of_a_refund
from bench.report import machine_line, pools_table, product_table
from bench.world import World, procfile_pool, running_world
from config.processes import ServerError
from config.up import interrupt_on_signals

#: Provider latencies measured, milliseconds per call. A refund is two calls: a read and a send.
LATENCIES_MS = (0, 500)
#: Clients of pgbench: one, and as many as the web process has threads.
SQL_CLIENTS = (1, 8)
#: Threads that propose over HTTP, each on one connection.
HTTP_CLIENTS = 4
#: Refunds that may be on their way at once, for each that the workers can send at once: enough that
#: no worker waits for a proposal, few enough that a refund's time is not only its queue's.
IN_FLIGHT_PER_SLOT = 2
GEVENT_MISSING = (
    "gevent: not measured, it is not installed (.venv/bin/pip install --require-hashes -r "
    "bench/requirements.txt)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured. A count at 500 ms is per slot of the workers."""

    repeats: int
    count: int
    slow_count_per_slot: int
    alone_count: int
    sql_seconds: int
    pool_repeats: int
    pool_count: int
    pool_slow_count_per_slot: int
    pools: tuple[tuple[str, int], ...]


FULL = Size(
    repeats=3,
    count=300,
    slow_count_per_slot=10,
    alone_count=20,
    sql_seconds=3,
    pool_repeats=2,
    pool_count=200,
    pool_slow_count_per_slot=5,
    pools=(
        ("prefork", 2),
        ("prefork", 4),
        ("prefork", 8),
        ("prefork", 16),
        ("threads", 8),
        ("threads", 16),
        ("gevent", 16),
    ),
)
QUICK = Size(
    repeats=1,
    count=80,
    slow_count_per_slot=3,
    alone_count=5,
    sql_seconds=2,
    pool_repeats=1,
    pool_count=60,
    pool_slow_count_per_slot=2,
    pools=(("prefork", 4), ("threads", 16), ("gevent", 16)),
)


def say(sentence: str) -> None:
    """Progress goes to stderr, so that stdout is the result."""
    print(f"[bench] {sentence}", file=sys.stderr, flush=True)


def product_runs(world: World, floor: PlainSQL, size: Size) -> Iterator[Run]:
    """The product as the Procfile has it, each load once in each repeat, pgbench in between."""
    _, slots = procfile_pool()
    in_flight = IN_FLIGHT_PER_SLOT * slots
    for _ in range(size.repeats):
        for clients in SQL_CLIENTS:
            yield floor.run(
                clients=clients, seconds=size.sql_seconds, label=f"plain SQL, {clients} client(s)"
            )
            for latency_ms in LATENCIES_MS if clients > 1 else (0,):
                # The fast load runs beside each pgbench; the slow one waits, mostly.
                count = size.slow_count_per_slot * slots if latency_ms else size.count
                with world.latency(latency_ms):
                    yield world.end_to_end(
                        count=count,
                        in_flight=in_flight,
                        clients=HTTP_CLIENTS,
                        label=f"end to end, provider {latency_ms} ms",
                    )
        yield world.drain(count=size.count, label="drain, provider 0 ms")
        yield world.end_to_end(
            count=size.alone_count, in_flight=1, clients=1, label="one at a time, provider 0 ms"
        )


def pool_runs(world: World, size: Size) -> Iterator[Run]:
    """The same backlog for every pool, with a fast provider and a slow one."""
    has_gevent = importlib.util.find_spec("gevent") is not None
    for _ in range(size.pool_repeats):
        for pool, slots in size.pools:
            if pool == "gevent" and not has_gevent:
                continue
            world.use_pool(pool, slots)
            for latency_ms in LATENCIES_MS:
                count = size.pool_slow_count_per_slot * slots if latency_ms else size.pool_count
                with world.latency(latency_ms):
                    yield world.drain(count=count, label=f"{pool} {slots}, {latency_ms} ms")


def told(runs: Iterator[Run]) -> list[Run]:
    """All runs, each said as it ends."""
    kept = []
    for run in runs:
        say(
            f"{run.label}: {run.count} refunds, {run.per_second:.1f}/s "
            f"(others used {run.foreign_share:.0%} of the machine)"
        )
        kept.append(run)
    return kept


def measure(*, size: Size, pools: bool, json_file: Path | None) -> None:
    """Everything, printed as tables."""
    began = time.monotonic()
    with running_world(say=say) as world:
        floor = plain_sql(world, folder=world.stack.folder)
        world.start()
        world.warm_up()
        product = told(product_runs(world, floor, size))
        by_pool = told(pool_runs(world, size)) if pools else []
    say(f"{time.monotonic() - began:.0f} s")
    print(machine_line([*product, *by_pool]))
    print(product_table(product, commits=floor.commits))
    if by_pool:
        print(pools_table(by_pool))
        if importlib.util.find_spec("gevent") is None:
            print(GEVENT_MISSING)
    if json_file is not None:
        lines = [
            asdict(run) | {"per_second": run.per_second, "cpu_ms_each": run.cpu_ms_each}
            for run in (*product, *by_pool)
        ]
        json_file.write_text(json.dumps({"runs": lines}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="What a refund costs. See docs/bench.md."
    )
    parser.add_argument("--quick", action="store_true", help="about a minute; one repeat")
    parser.add_argument("--no-pools", action="store_true", help="only the Procfile's own pool")
    parser.add_argument("--profile", action="store_true", help="where the time of a refund goes")
    parser.add_argument("--limits", action="store_true", help="what counting the limits costs")
    parser.add_argument("--repeats", type=int, help="repeats of each load (full run: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run there")
    asked = parser.parse_args()
    size = QUICK if asked.quick else FULL
    interrupt_on_signals()
    work: Callable[[], None]
    if asked.profile:
        work = lambda: profile_of_a_refund(count=size.count, say=say)  # noqa: E731
    elif asked.limits:
        work = lambda: cost_of_limits(say=say)  # noqa: E731
    else:
        work = lambda: measure(  # noqa: E731
            size=size if asked.repeats is None else _repeated(size, asked.repeats),
            pools=not asked.no_pools,
            json_file=asked.json,
        )
    try:
        work()
    except KeyboardInterrupt:
        say("stopped; everything that was started has ended")
        return 130
    except (BenchError, ServerError) as error:
        say(f"No result. {error}")
        return 1
    return 0


def _repeated(size: Size, repeats: int) -> Size:
    from dataclasses import replace

    return replace(size, repeats=repeats, pool_repeats=repeats)


if __name__ == "__main__":
    sys.exit(main())
