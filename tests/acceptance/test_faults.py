"""Every fault of the sandbox against the whole stack, held against the table in docs/faults.md.

The table is written by `python -m tests.acceptance.test_faults`, read by people, and checked here:
a fault that ends otherwise than the table says fails the test.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from config.development import CHECKOUT
from providers.sandbox import FAULTS
from tests.acceptance.world import World, payment_of, running_world

pytestmark = pytest.mark.timeout(300)

TABLE = CHECKOUT / "docs" / "faults.md"
# These take the whole provider away, so each is tried when nothing else is on its way.
WHOLE_PROVIDER = ("refuse-connection", "connect-timeout")
# These pause their account until a person has repaired the key: each has an account of its own.
MISCONFIGURED = ("unauthorized-401", "forbidden-403", "not-found-404")
# Faults of the list are only met when a list is read: the look before the first send.
PARAMETERS: dict[str, dict[str, Any]] = {
    "slow": {"seconds": 3},
    "executed-late": {"seconds": 1},
    "hang-before-execution": {"seconds": 5},
    "hang-after-execution": {"seconds": 5},
    "refuse-connection": {"seconds": 1},
    "connect-timeout": {"seconds": 2},
}


@dataclass(frozen=True)
class Row:
    """One fault's fate: as it was at once, as it ended, and what the provider then held."""

    fault: str
    at_once: str
    in_the_end: str
    refunds: int

    def as_markdown(self) -> str:
        wire = FAULTS[self.fault].wire
        return f"| `{self.fault}` | {wire} | {self.at_once} | {self.in_the_end} | {self.refunds} |"


def account_of(fault: str) -> str:
    """The connected account that its order was paid to; "" for the platform's own."""
    return f"acct_{fault.replace('-', '')}" if fault in MISCONFIGURED else ""


def start(world: World, fault: str) -> str:
    """Arm a fault for one request of an order named after it, and propose its refund."""
    action_id = f"refund:order-{fault}:request-r1"
    if FAULTS[fault].match["method"] == "GET":
        match = {"method": "GET", "params": {"payment_intent": payment_of(fault)}}
    else:
        match = {"idempotency_key": action_id}
    if account := account_of(fault):
        world.provider.call("account", id=account, platform="acct_sandbox")
    world.order(order_id=fault, account=account)
    world.provider.fault(fault, match=match, **PARAMETERS.get(fault, {}))
    status, body = world.propose(fault)
    assert status == 201, body
    return action_id


def fate(world: World, fault: str) -> Row:
    """What became of it, from its history, its row, its cases and the provider's ledger."""
    action_id = f"refund:order-{fault}:request-r1"
    states = world.states(action_id)
    at_once = states[states.index("SUBMITTING") + 1]
    ended = world.action(action_id)["state"]
    cases = world.open_cases(action_id)
    in_the_end = ended + (f", case: {', '.join(cases)}" if cases else "")
    return Row(fault, at_once, in_the_end, len(world.refunds(action_id)))


def run_all(world: World) -> dict[str, Row]:
    """Try every fault once, on an order of its own, and wait until everything is at rest."""
    rows: dict[str, Row] = {}
    together = [fault for fault in FAULTS if fault not in WHOLE_PROVIDER]
    # A refund that exists already, for the answer that belongs to another one.
    world.order(order_id="bystander")
    world.propose("bystander")
    world.rest()
    for fault in together:
        start(world, fault)
    for fault in MISCONFIGURED:
        scope = f"account:stripe:{account_of(fault)}"
        world.until(f"{scope} to be paused", partial(_is_on, world, scope))
        world.manage("pause", "off", scope, "--by", "operator")
    world.rest(seconds=150)
    for fault in together:
        rows[fault] = fate(world, fault)
    for fault in WHOLE_PROVIDER:
        action_id = start(world, fault)
        world.until(f"{action_id} at rest", lambda: not world.restless(), seconds=90)
        rows[fault] = fate(world, fault)
    return {fault: rows[fault] for fault in FAULTS}


def _is_on(world: World, scope: str) -> bool:
    sql = "SELECT 1 FROM effects_switch WHERE ended_at IS NULL AND scope = %s"
    return bool(world.query(sql, scope))


def written_rows() -> dict[str, Row]:
    """The table as it stands in docs/faults.md."""
    found = {}
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            fault = cells[0].strip("`")
            found[fault] = Row(fault, cells[2], cells[3], int(cells[4]))
    return found


@pytest.fixture(scope="module")
def outcome() -> Iterator[tuple[dict[str, Row], list[str]]]:
    with running_world(workers=2) as world:
        world.lift_limits()
        yield run_all(world), world.problems()


def test_no_fault_pays_twice_or_leaves_anything_wrong(
    outcome: tuple[dict[str, Row], list[str]],
) -> None:
    rows, problems = outcome
    assert problems == []
    assert max(row.refunds for row in rows.values()) == 1


def test_every_fault_ends_as_the_table_says(outcome: tuple[dict[str, Row], list[str]]) -> None:
    rows, _ = outcome
    assert {row.as_markdown() for row in rows.values()} == {
        row.as_markdown() for row in written_rows().values()
    }


HEADER = """# Faults

Every way the provider's sandbox can misbehave, met by the whole stack: a refund is proposed over
HTTP, the fault happens once to its request (or to the look before it), and everything is left to
itself until it is over or a person's. *At once* is the state the attempt itself led to, *in the
end* where the action came to rest. The last column is the provider's own ledger: never above 1.

Written by `python -m tests.acceptance.test_faults`; checked by `tests/acceptance/test_faults.py`.
For the three that pause the account (401, 403, 404) the switch was turned off again, as a person
does after repairing the key.

| fault | on the wire | at once | in the end | refunds at the provider |
| --- | --- | --- | --- | --- |
"""


def main() -> int:
    """Write docs/faults.md from a run of its own."""
    with running_world(workers=2) as world:
        world.lift_limits()
        rows = run_all(world)
        problems = world.problems()
    Path(TABLE).write_text(HEADER + "\n".join(r.as_markdown() for r in rows.values()) + "\n")
    print(f"{len(rows)} faults written to {TABLE.name}; problems: {problems or 'none'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
