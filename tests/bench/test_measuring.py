"""The bench's own arithmetic: what it says about a refund must be true of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.machine import Meter, memory_mb
from bench.measured import Run, latencies_ms, medians
from bench.plain_sql import ACTION_PK, ORDER_ID, ORDER_PK, REQUEST_ID, Captured, pgbench_script
from bench.world import procfile_pool

BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
UUID = "670a8abf5ece4c6e9a2e308d8befb3e8"
HASH = "670a8abf5ece4c6e9a2e308d8befb3e8" * 2


def test_the_cpu_time_of_a_grandchild_is_its_groups() -> None:
    child = subprocess.Popen(
        ["sh", "-c", f'"{sys.executable}" -c "$0"; read wait', BURN],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        meter = Meter(groups={"theirs": [child.pid], "nobody": [-1]})
        with meter:
            while meter._now().cpu["theirs"] < 0.3:
                assert child.poll() is None
        assert 0.2 < meter.cpu_seconds["theirs"] < 2
        assert meter.cpu_seconds["nobody"] == 0
        assert memory_mb([child.pid]) > 0
    finally:
        child.communicate(b"\n", timeout=30)


def test_percentiles_are_of_the_nearest_rank() -> None:
    found = latencies_ms([0.001 * number for number in range(1, 101)])
    assert found == pytest.approx({"p50_ms": 50.0, "p99_ms": 99.0})


def test_a_median_hides_no_slow_run() -> None:
    runs = [Run(label="a", count=10, seconds=seconds) for seconds in (1.0, 2.0, 10.0)]
    (median,) = medians(runs).values()
    assert (median.per_second, median.spread, median.runs) == (5.0, (1.0, 10.0), 3)


def test_the_pgbench_script_keeps_nothing_of_the_refund_it_was_made_from() -> None:
    script = pgbench_script(
        Captured(
            steps={
                "propose": [
                    "BEGIN",
                    f'INSERT INTO "refunds_refundaction" VALUES ({ORDER_PK}, '
                    f"'refund:order-{ORDER_ID}:request-{REQUEST_ID}', '{HASH}') RETURNING id",
                    "COMMIT",
                ],
                "claim": [f"UPDATE a SET token = '{UUID}'::uuid WHERE id = {ACTION_PK}"],
                "record": [f"SELECT 1 WHERE token = '{UUID}'::uuid"],
            }
        )
    )
    assert str(ORDER_PK) not in script
    assert str(ACTION_PK) not in script
    assert f"'{UUID}'" not in script
    # One token is one variable in every statement; a hash is no token.
    assert script.count("'00000000000040008000:b_uuid0'") == 2
    assert HASH in script
    assert "RETURNING id \\gset b_action_\n" in script
    assert f"request-{REQUEST_ID}:b_request'" in script


def test_the_procfile_names_its_pool_where_the_bench_looks_for_it() -> None:
    pool, slots = procfile_pool()
    assert pool == "prefork"  # docs/decisions/0016-worker-pool.md
    assert slots > 0
