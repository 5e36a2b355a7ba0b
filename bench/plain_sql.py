"""The floor: the same commits as plain SQL, by pgbench, on the same Postgres.

The script is not written by hand. One refund is proposed, claimed, sent and recorded in this
process, its statements are kept as Postgres got them, and what belongs to that one refund (ids,
tokens) is replaced by pgbench variables. So it is always what the product executes now, in the same
transactions, without Python, Django, Celery, HTTP and the provider.

The tables are empty copies in a schema of their own: same columns, indexes and CHECKs; no triggers
and no foreign keys. What those cost is the product's, not the floor's.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.measured import BenchError, Run
from bench.world import AMOUNT_MINOR, World
from config.embedded.postgres import USER, binaries

SCHEMA = "plain"
TABLES = (
    "refunds_order",
    "refunds_refundaction",
    "refunds_refundattempt",
    "refunds_refundevent",
    "policies_decisionrecord",
)
#: Many more than one run uses, so that two refunds hardly meet on one.
ORDERS = 20_000
#: So much that an order which is met again never runs out.
CAPTURED_MINOR = 10**12
#: Ids of the refund that is captured: numbers and words that mean nothing else anywhere.
ORDER_PK, ACTION_PK, ATTEMPT_PK = 700_000_001, 710_000_001, 720_000_001
ORDER_ID, REQUEST_ID = "benchorder", "benchrequest"
Result = TypeVar("Result")
_UUID = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The statements of one refund, in order, by step of its way."""

    steps: dict[str, list[str]]

    @property
    def commits(self) -> int:
        return sum(sql == "COMMIT" for statements in self.steps.values() for sql in statements)


def capture() -> Captured:
    """Take one refund its whole way in this process, against a sandbox of its own."""
    from django.conf import settings
    from django.db import connection
    from django.test.utils import CaptureQueriesContext
    from django.utils import timezone

    from effects.claim import Claimed, claim
    from effects.record import record
    from effects.send import send
    from policies.models import PolicyVersion
    from policies.versions import parameters_of
    from providers.registry import override_provider
    from providers.sandbox import Sandbox
    from providers.stripe.adapter import StripeProvider
    from refunds.kind import REFUND
    from refunds.models import Order, RefundAction
    from refunds.propose import Proposal, propose_refund

    with connection.cursor() as cursor:
        for table, first in (
            ("refunds_refundaction", ACTION_PK),
            ("refunds_refundattempt", ATTEMPT_PK),
        ):
            cursor.execute(
                "SELECT setval(pg_get_serial_sequence(%s, 'id'), %s)", [table, first - 1]
            )
    steps: dict[str, list[str]] = {}

    def step(name: str, act: Callable[[], Result]) -> Result:
        with CaptureQueriesContext(connection) as queries:
            result = act()
        steps[name] = [query["sql"].rstrip().rstrip(";") for query in queries]
        return result

    now = timezone.now()
    in_force = PolicyVersion.objects.latest("number")
    with Sandbox() as sandbox:
        sandbox.payment(amount=CAPTURED_MINOR // 1000, currency="usd", id=f"pi_{ORDER_ID}")
        order = Order(
            id=ORDER_PK,
            order_id=ORDER_ID,
            currency="USD",
            captured_minor=CAPTURED_MINOR,
            provider="stripe",
            payment_ref=f"pi_{ORDER_ID}",
            customer_ref="customer-bench",
            customer_email="customer@example.com",
            created_at=now,
            updated_at=now,
        )
        order.save(force_insert=True)
        _copy_tables()
        provider = StripeProvider(
            api_key=sandbox.api_key,
            api_base=sandbox.url,
            connect_timeout_seconds=settings.PROVIDER_CONNECT_TIMEOUT_SECONDS,
            read_timeout_seconds=settings.PROVIDER_READ_TIMEOUT_SECONDS,
            total_timeout_seconds=settings.PROVIDER_TOTAL_TIMEOUT_SECONDS,
        )
        proposal = Proposal(
            order_id=ORDER_ID,
            request_id=REQUEST_ID,
            amount_minor=AMOUNT_MINOR,
            currency="USD",
            reason="requested_by_customer",
            proposer="bench",
        )
        with override_provider("stripe", provider):
            # Read once per process and kept; not part of every refund.
            parameters_of(number=in_force.number, parameters_hash=in_force.parameters_hash)
            step("propose", lambda: propose_refund(proposal=proposal))
            action_id = RefundAction.objects.get(pk=ACTION_PK).action_id
            claimed = step("claim", lambda: claim(kind=REFUND, action_id=action_id, worker="bench"))
            if not isinstance(claimed, Claimed):
                raise BenchError(f"the refund to capture was not claimed: {claimed!r}")
            sent = step("send", lambda: send(kind=REFUND, claimed=claimed))
            step(
                "record",
                lambda: record(kind=REFUND, token=claimed.token, sent=sent, actor="bench"),
            )
    if RefundAction.objects.get(pk=ACTION_PK).state != "SUCCEEDED":
        raise BenchError("the refund to capture did not succeed")
    return Captured(steps=steps)


def _copy_tables() -> None:
    """The schema of the floor, and its orders: copies of the captured one before it was used."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {SCHEMA}")
        for table in TABLES:
            cursor.execute(f"CREATE TABLE {SCHEMA}.{table} (LIKE public.{table} INCLUDING ALL)")
        cursor.execute(
            f"INSERT INTO {SCHEMA}.refunds_order OVERRIDING SYSTEM VALUE SELECT copy.*"
            " FROM refunds_order o, generate_series(1, %s) n,"
            " jsonb_populate_record(o, jsonb_build_object('id', n, 'order_id', %s || n,"
            " 'payment_ref', 'pi_' || %s || n)) copy WHERE o.id = %s",
            [ORDERS, ORDER_ID, ORDER_ID, ORDER_PK],
        )
        cursor.execute(f"ANALYZE {SCHEMA}.refunds_order")


def pgbench_script(captured: Captured) -> str:
    """The statements as a pgbench script for `-M simple`, which is how the product sends them."""
    statements = [sql for step in captured.steps.values() for sql in step]
    text = "\n".join(statements)
    uuids = {
        uuid: f"00000000000040008000:b_uuid{number}"
        for number, uuid in enumerate(dict.fromkeys(_UUID.findall(text)))
    }
    lines = [
        f"\\set b_order random(1, {ORDERS})",
        "\\set b_request random(1, 9000000000000000000)",
        *(
            f"\\set b_uuid{number} random(100000000000, 999999999999)"
            for number in range(len(uuids))
        ),
    ]
    for sql in statements:
        sql = _UUID.sub(lambda found: uuids[found.group()], sql)
        for found, variable in (
            (str(ORDER_PK), ":b_order"),
            (ORDER_ID, f"{ORDER_ID}:b_order"),
            (REQUEST_ID, f"{REQUEST_ID}:b_request"),
            (str(ACTION_PK), ":b_action_id"),
            (str(ATTEMPT_PK), ":b_attempt_id"),
        ):
            sql = sql.replace(found, variable)
        end = ";"
        if sql.startswith('INSERT INTO "refunds_refundaction"'):
            end = " \\gset b_action_"
        elif sql.startswith('INSERT INTO "refunds_refundattempt"'):
            end = " \\gset b_attempt_"
        lines.append(sql + end)
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSQL:
    """pgbench with that script, on a world's Postgres."""

    world: World
    script: Path
    commits: int

    def run(self, *, clients: int, seconds: int, label: str) -> Run:
        """BenchError unless each transaction of pgbench left one refund SUCCEEDED."""
        postgres = self.world.servers.postgres
        before = self._succeeded()
        meter = self.world.meter()
        with meter:
            done = subprocess.run(
                [
                    *(str(binaries() / "pgbench"), "-n", "-M", "simple", "-f", str(self.script)),
                    *("-c", str(clients), "-j", str(min(clients, 2)), "-T", str(seconds)),
                    *("-h", "127.0.0.1", "-p", str(postgres.port), "-U", USER, "refund_once"),
                ],
                env={
                    "PGPASSWORD": postgres.password,
                    "PGOPTIONS": f"-c search_path={SCHEMA},public",
                },
                capture_output=True,
                text=True,
                check=False,
            )
        rate = re.search(r"tps = ([\d.]+)", done.stdout)
        count = re.search(r"actually processed: (\d+)", done.stdout)
        if done.returncode != 0 or rate is None or count is None:
            raise BenchError(f"pgbench failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        made = self._succeeded() - before
        if made != int(count.group(1)):
            raise BenchError(
                f"pgbench says {count.group(1)} transactions, and {made} refunds are SUCCEEDED: "
                "the script does not do what the product does"
            )
        return Run(
            label=label,
            count=made,
            seconds=made / float(rate.group(1)),
            cpu_seconds={"postgres": meter.cpu_seconds["postgres"]},
            foreign_share=meter.foreign_share,
        )

    def _succeeded(self) -> int:
        query = f"SELECT count(*) FROM {SCHEMA}.refunds_refundaction WHERE state = 'SUCCEEDED'"
        row = self.world.watch.execute(query).fetchone()
        return int(row[0]) if row else 0


def plain_sql(world: World, *, folder: Path) -> PlainSQL:
    """Capture one refund and make the script of it. The world must be migrated, not yet started."""
    captured = capture()
    script = folder / "plain.pgbench.sql"
    script.write_text(pgbench_script(captured))
    return PlainSQL(world=world, script=script, commits=captured.commits)
