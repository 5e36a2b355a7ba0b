"""The machine finds bugs: each of these is planted into a copy of the source, and must be caught.

A patch names the exact text it replaces. When the source moves on so that the text is gone, the
test says so; it cannot rot into a patch that changes nothing. `PLANT=all` plants the further ones
too, which CI does not wait for; `PLANT=switch` those with that word in their name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from config.development import CHECKOUT
from tests.stack import with_path

ROOMS = (
    *("kernel", "effects", "providers", "policies", "approvals", "refunds", "reconciliation"),
    *("agents", "console", "config", "tests", "manage.py", "pyproject.toml"),
)
# With one seed a catch is a fact about the patch, not about luck.
SEED = 4821
EXAMPLES_MAX = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """`patches` are (file, text there, text instead); `caught_as` a pattern of the machine's or
    the database's own words."""

    patches: tuple[tuple[str, str, str], ...]
    caught_as: str
    in_ci: bool = False


_RELEASED_WHILE_UNKNOWN = (
    "refunds/kind.py",
    "_HOLDS_RESERVATION = (State.UNKNOWN, State.PENDING)",
    "_HOLDS_RESERVATION = (State.PENDING,)",
)
_UNKNOWN_MEANS_NOT_SENT = (
    (
        "effects/record.py",
        '    if isinstance(outcome, Unknown):\n        return ""\n    return "not_executed"',
        '    return "not_executed"',
    ),
    (
        "effects/record.py",
        "    elif isinstance(outcome, NotSent | RateLimited | Misconfigured):\n",
        "    elif isinstance(outcome, NotSent | RateLimited | Misconfigured | Unknown):\n",
    ),
)

BUGS = {
    "a key with a random part": Bug(
        patches=(
            (
                "effects/claim.py",
                "    look_first = kind.must_look_first(locked=locked)\n",
                '    key += f":{uuid4().hex[:8]}"\n'
                "    look_first = kind.must_look_first(locked=locked)\n",
            ),
        ),
        caught_as=r"was paid 2 times|was sent under 2 keys|has 2 refunds",
        in_ci=True,
    ),
    "unknown is retried blindly": Bug(
        patches=_UNKNOWN_MEANS_NOT_SENT,
        caught_as=r"is AUTHORIZED, and the provider has paid it|count as not executed",
        in_ci=True,
    ),
    "unknown is retried blindly under a new key": Bug(
        patches=(
            *_UNKNOWN_MEANS_NOT_SENT,
            (
                "effects/claim.py",
                "    look_first = kind.must_look_first(locked=locked)\n",
                '    key += f":try{action.attempt_count}"\n'
                "    look_first = kind.must_look_first(locked=locked)\n",
            ),
        ),
        caught_as=r"was paid 2 times|was sent under \d keys|has paid it|count as not",
    ),
    "a reservation is released on a timeout": Bug(
        patches=(_RELEASED_WHILE_UNKNOWN,),
        caught_as=r'violates check constraint "refund_in_flight_is_reserved"',
        in_ci=True,
    ),
    "a reservation is released on a timeout, and Postgres lets it": Bug(
        patches=(
            _RELEASED_WHILE_UNKNOWN,
            (
                "refunds/migrations/0001_initial.py",
                '("reserved_minor", models.F("amount_minor")),\n'
                '                    _connector="OR",\n'
                "                ),\n"
                '                name="refund_in_flight_is_reserved",',
                '("reserved_minor__gte", 0),\n'
                '                    _connector="OR",\n'
                "                ),\n"
                '                name="refund_in_flight_is_reserved",',
            ),
        ),
        caught_as=r"refunded or in flight of \d+, and no incident",
        in_ci=True,
    ),
    "a claim without a look at the version": Bug(
        patches=(
            (
                "refunds/kind.py",
                "            if changed:\n                return Back(\n",
                "            if not locked:\n                return Back(\n",
            ),
        ),
        caught_as=r"although its approval is (stale|over)|recheck and does not fit the balance",
        in_ci=True,
    ),
    "a key is used past its life": Bug(
        patches=(
            (
                "effects/claim.py",
                "    if locked.now - first_use >= resend_limit:\n",
                "    if locked.now - first_use < timedelta(0):\n",
            ),
            ("effects/send.py", "        and now - key_first_used_at < resend\n", ""),
        ),
        caught_as=r"was sent again after|its key is too old|has 2 refunds",
    ),
    "the settle time is ignored": Bug(
        patches=(
            (
                "reconciliation/settle.py",
                "    if last_claim is not None and reading.read_at < settled_at(last_claim):\n",
                "    if last_claim is not None and reading.read_at < last_claim:\n",
            ),
        ),
        caught_as=r"and the provider has paid it|count as not executed",
    ),
    "an answer closes the newest attempt": Bug(
        patches=(
            (
                "effects/record.py",
                "        locked, attempt = found\n",
                "        locked, attempt = found\n"
                "        attempt = kind.attempt_model._default_manager.filter(\n"
                "            action=locked.action\n"
                '        ).latest("number")\n'
                "        attempt.is_closed = attempt.closed_at is not None\n",
            ),
        ),
        caught_as=r"and the provider has paid it|count as not executed|no unresolved|unresolved",
    ),
    "a lease that is over means not sent": Bug(
        patches=(
            (
                "reconciliation/leases.py",
                '        open_attempts.update(closed_at=locked.now, outcome="no_answer")\n',
                "        open_attempts.update(\n"
                '            closed_at=locked.now, outcome="no_answer", resolution="not_executed"\n'
                "        )\n",
            ),
            (
                "reconciliation/leases.py",
                "            target=State.UNKNOWN,\n",
                "            target=State.AUTHORIZED,\n",
            ),
        ),
        caught_as=r"and the provider has paid it|count as not executed",
    ),
    "no look before the send": Bug(
        patches=(
            (
                "refunds/kind.py",
                "        if not self.promises(action=locked.action).searchable:\n"
                "            return False\n",
                "        if self.promises(action=locked.action).searchable:\n"
                "            return False\n",
            ),
        ),
        caught_as=r"beside a refund made elsewhere",
    ),
    "the balance is not compared": Bug(
        patches=(
            (
                "refunds/kind.py",
                '            captured_minor__gte=taken + F("disputed_minor")',
                '            captured_minor__gte=F("disputed_minor")',
            ),
            (
                "policies/rules.py",
                "    if facts.amount_minor > facts.refundable_minor:\n        in_flight",
                "    if facts.amount_minor < 0:\n        in_flight",
            ),
        ),
        caught_as=r"it does not fit the balance|refunded or in flight of",
    ),
    "an answer is adopted unverified": Bug(
        patches=(
            (
                "providers/stripe/classify.py",
                '    if differs:\n        return "mismatch"',
                '    if differs == "never":\n        return "mismatch"',
            ),
        ),
        caught_as=r"which is not its refund|the provider never showed it so",
    ),
    "beats wait for one another": Bug(
        patches=(("reconciliation/due.py", "skip_locked=True, ", ""),),
        caught_as=r"lock timeout",
    ),
    "beliefs come before identity": Bug(
        patches=(
            (
                "refunds/propose.py",
                "    if known is not None:\n        return _answer_known",
                "    believed = proposal.refunded_so_far_minor\n"
                "    if known is not None and believed not in (None, known.order.refunded_minor):\n"
                "        return StaleBelief(\n"
                "            refunded_minor=known.order.refunded_minor, believed_minor=0\n"
                "        )\n"
                "    if known is not None:\n        return _answer_known",
            ),
        ),
        caught_as=r"proposed again was answered StaleBelief",
    ),
    "the fence is open": Bug(
        patches=(
            (
                "effects/send.py",
                "    return (\n        not is_stopped\n",
                "    return claimed is not None or (\n        not is_stopped\n",
            ),
        ),
        caught_as=r"outside of every lease|provider has paid it",
    ),
    "a kill switch stops nothing": Bug(
        patches=(
            ("refunds/kind.py", "        if beside.switches:\n", "        if not beside:\n"),
            ("effects/send.py", "        not is_stopped\n        and ", "        "),
        ),
        caught_as=r"was claimed although .*a kill switch is on",
    ),
    "nobody is told": Bug(
        patches=(
            (
                "reconciliation/escalate.py",
                "    cases.open_case(\n        kind=Case.Kind.UNKNOWN_OUTCOME,\n",
                "    dict(\n        kind=Case.Kind.UNKNOWN_OUTCOME,\n",
            ),
        ),
        caught_as=r"is UNKNOWN, never due, and nobody's",
    ),
    "a refusal ends what another attempt may have done": Bug(
        patches=(
            (
                "effects/record.py",
                "    if others or locked.action.state not in _OPEN_QUESTION:\n"
                "        return  # the history",
                "    if locked.action.state not in _OPEN_QUESTION:\n        return  # the history",
            ),
        ),
        caught_as=r"has an unresolved attempt and cannot become FAILED_FINAL|has paid it",
    ),
}


def _wanted() -> list[str]:
    asked = os.environ.get("PLANT", "")
    return [
        name
        for name, bug in BUGS.items()
        if asked == "all" or (asked in name if asked else bug.in_ci)
    ]


def _plant(bug: Bug, folder: Path) -> None:
    """Copy the rooms and patch the copy."""
    for room in ROOMS:
        source = CHECKOUT / room
        if source.is_dir():
            shutil.copytree(source, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / room)
    for file, there, instead in bug.patches:
        path = folder / file
        text = path.read_text()
        assert text.count(there) == 1, (
            f"{file} holds this {text.count(there)} times, not once. The source has moved on; move "
            f"the patch with it:\n{there}"
        )
        path.write_text(text.replace(there, instead))


@pytest.fixture
def database_url() -> Iterator[str]:
    """A database name of this test's own on the test run's server; pytest puts `test_` before."""
    name = f"planted_{os.getpid()}"
    yield with_path(os.environ["DATABASE_URL"], name)
    with psycopg.connect(
        with_path(os.environ["DATABASE_URL"], "postgres"), autocommit=True
    ) as connection:
        connection.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(
                sql.Identifier(f"test_{name}")
            )
        )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", _wanted())
def test_a_planted_bug_is_caught_by_the_machine(
    name: str, tmp_path: Path, database_url: str
) -> None:
    bug = BUGS[name]
    _plant(bug, tmp_path)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "MACHINE_"))}
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "tests/properties/test_machine.py", "-n", "0"),
            *("-p", "no:randomly", "-p", "no:cacheprovider", "--tb=short"),
        ],
        cwd=tmp_path,
        env=env
        | {
            "DATABASE_URL": database_url,
            "MACHINE_QUICK": "1",
            "MACHINE_SEED": os.environ.get("MACHINE_SEED", str(SEED)),
            "MACHINE_EXAMPLES": str(EXAMPLES_MAX),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    said = "\n".join(line for line in run.stdout.splitlines() if line.startswith("E  "))
    assert "1 failed" in run.stdout, f"not caught:\n{run.stdout[-4_000:]}\n{run.stderr[-2_000:]}"
    caught = re.search(bug.caught_as, said)
    assert caught, f"it failed, but not by {bug.caught_as!r}:\n{said[:3_000]}"
    steps = re.search(r"(\d+) steps before the first failure", run.stdout)
    print(f"caught {name!r} after {steps[1] if steps else '?'} steps: {caught[0]}")
