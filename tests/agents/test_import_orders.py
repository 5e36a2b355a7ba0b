"""`manage.py orders import`: strict, in any order, as often as wanted, in little memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from codecs import BOM_UTF8
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from agents.order_lines import read_order_lines
from agents.strict_json import BODY_BYTES_MAX
from config.development import CHECKOUT
from refunds.models import Order, RefundEvent
from tests import builders
from tests.agents.conftest import order_body
from tests.stack import fresh_database


def line(order_id: str, **changes: Any) -> str:
    payment = {"provider": "stripe", "payment_intent": f"pi_{order_id}"}
    return json.dumps({"order_id": order_id, **order_body(payment=payment), **changes})


def lines_file(folder: Path, *lines: str | bytes) -> Path:
    file = folder / "orders.jsonl"
    file.write_bytes(
        b"".join((one if isinstance(one, bytes) else one.encode()) + b"\n" for one in lines)
    )
    return file


def run(*arguments: Any) -> tuple[list[dict[str, Any]], str]:
    """What was refused, and what was said on stderr."""
    out, err = StringIO(), StringIO()
    call_command("orders", "import", *map(str, arguments), stdout=out, stderr=err)
    return [json.loads(one) for one in out.getvalue().splitlines()], err.getvalue()


def refused_by(*arguments: Any) -> tuple[list[dict[str, Any]], str]:
    """The same of an import that does not end well."""
    out, err = StringIO(), StringIO()
    with pytest.raises(CommandError) as error:
        call_command("orders", "import", *map(str, arguments), stdout=out, stderr=err)
    assert error.value.returncode != 0
    return [json.loads(one) for one in out.getvalue().splitlines()], str(error.value)


# -- what it does ---------------------------------------------------------------------------------


@pytest.mark.django_db
def test_each_line_is_an_order_as_put_would_have_it(tmp_path: Path) -> None:
    whole = line(
        "4821",
        customer={"ref": "cus_88", "email": "ada@example.com", "risk": "low"},
        shipping_minor=500,
        lines=[{"line_id": "gid://a/1", "amount_minor": 19_500}],
        source_version=7,
    )
    refused, said = run(lines_file(tmp_path, whole, "", "  ", line("4822")))
    assert refused == []
    assert said.strip() == "2 lines: 2 created, 0 changed, 0 unchanged, 0 older, 0 refused."
    order = Order.objects.get(order_id="4821")
    assert (order.captured_minor, order.payment_ref, order.source_version) == (20_000, "pi_4821", 7)
    assert order.details == {
        "shipping_minor": 500,
        "lines": [{"line_id": "gid://a/1", "amount_minor": 19_500}],
        "risk": "low",
    }
    assert order.compare_due_at is not None


@pytest.mark.django_db
def test_it_can_be_run_again_and_an_older_line_never_overwrites_a_newer(tmp_path: Path) -> None:
    file = lines_file(
        tmp_path,
        line("1", source_version=3),
        line("2", source_version=3),
        line("1", source_version=2, captured_minor=1),
        line("2", source_version=4, captured_minor=15_000),
    )
    _, said = run(file)
    assert said.strip() == "4 lines: 2 created, 1 changed, 0 unchanged, 1 older, 0 refused."
    events = RefundEvent.objects.count()
    _, said = run(file)
    assert said.strip() == "4 lines: 0 created, 0 changed, 2 unchanged, 2 older, 0 refused."
    assert RefundEvent.objects.count() == events
    assert dict(Order.objects.values_list("order_id", "captured_minor")) == {
        "1": 20_000,
        "2": 15_000,
    }


@pytest.mark.django_db
def test_a_dry_run_says_what_would_be_done_and_writes_nothing(tmp_path: Path) -> None:
    run(lines_file(tmp_path, line("1")))
    file = lines_file(tmp_path, line("1", captured_minor=10_000), line("2"))
    _, said = run(file, "--dry-run")
    assert said.startswith("Dry run, nothing was written. 2 lines: 1 created, 1 changed")
    assert list(Order.objects.values_list("order_id", "captured_minor")) == [("1", 20_000)]


@pytest.mark.parametrize(
    ("bad", "field", "reason"),
    [
        (line("1", surprise=1), "surprise", "is not a known field"),
        (
            line("1").replace('"currency"', '"currency": "EUR", "currency"'),
            "currency",
            "is given twice",
        ),
        (line("1").replace("20000", "20000.0"), "captured_minor", "must be a JSON integer"),
        (line("1").replace("20000", "2e4"), "captured_minor", "must be a JSON integer"),
        (line("1").replace("20000", "NaN"), "captured_minor", "must be a JSON integer"),
        (line("1", captured_minor="200"), "captured_minor", "must be a JSON integer"),
        (line("1", captured_minor=True), "captured_minor", "must be a JSON integer"),
        (line("1", customer={"ref": "c"}), "customer.email", "is required"),
        (line("1", placed_at="yesterday"), "placed_at", "must be a time with its zone"),
        (line("1").replace('"1"', '"a:b"'), "order_id", "must be 1 to 64 characters"),
        (line("1").replace('"1"', '"."'), "order_id", "must not be . or .."),
        (line("1").replace('"1"', '".."'), "order_id", "must not be . or .."),
        (json.dumps(order_body()), "order_id", "is required"),
        ("not json", "line", "is not one JSON value"),
        ("[1]", "line", "must be a JSON object"),
        (b'{"order_id": "\xff"}', "line", "is not UTF-8"),
        ("x" * (BODY_BYTES_MAX + 1), "line", "is longer than"),
        ("x" * (5 * BODY_BYTES_MAX), "line", "is longer than"),
    ],
)
@pytest.mark.django_db
def test_what_cannot_be_accepted_is_refused_by_line_and_name_and_the_rest_is_imported(
    tmp_path: Path, bad: str | bytes, field: str, reason: str
) -> None:
    file = lines_file(tmp_path, line("before"), bad, line("after"))
    (refused,), said = refused_by(file)
    assert refused["line"] == 2
    (found,) = refused["fields"]
    assert found["field"] == field
    assert reason in found["reason"]
    assert (
        refused["text"][:10]
        == (bad if isinstance(bad, str) else bad.decode("utf-8", "replace"))[:10]
    )
    assert "3 lines: 2 created, 0 changed, 0 unchanged, 0 older, 1 refused" in said
    assert set(Order.objects.values_list("order_id", flat=True)) == {"before", "after"}


@pytest.mark.django_db
def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text(f"{line('1')}\r\n{line('2')}")
    assert "2 created" in run(file)[1]


@pytest.mark.django_db
def test_what_refunds_stand_on_is_refused_and_stays(tmp_path: Path) -> None:
    run(lines_file(tmp_path, line("1")))
    builders.action(Order.objects.get(order_id="1"))
    other = line("1", payment={"provider": "stripe", "payment_intent": "pi_other"})
    (refused,), _ = refused_by(lines_file(tmp_path, other))
    assert refused["fields"][0]["field"] == "payment.payment_intent"
    assert Order.objects.get().payment_ref == "pi_1"


@pytest.mark.django_db
def test_what_is_refused_goes_to_a_file_that_can_be_repaired(tmp_path: Path) -> None:
    refused = tmp_path / "refused.jsonl"
    told, _ = refused_by(lines_file(tmp_path, "{", line("1")), "--refused", refused)
    assert told == []
    (found,) = [json.loads(one) for one in refused.read_text().splitlines()]
    assert (found["line"], found["order_id"], found["text"]) == (1, None, "{")


@pytest.mark.django_db
def test_stdin_is_read_and_what_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lines_file(tmp_path, line("1")).open("rb") as stdin:
        monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": stdin}))
        assert "1 created" in run("-")[1]
    with pytest.raises(CommandError, match=r"cannot be read.*Nothing was imported"):
        run(tmp_path / "none")


@pytest.mark.parametrize("named", ["itself", "by a link", "by a second name", "as stdin"])
@pytest.mark.django_db
def test_the_input_is_never_emptied_for_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    file = lines_file(tmp_path, line("1"))
    refused = file
    if named == "by a link":
        refused = tmp_path / "link.jsonl"
        refused.symlink_to(file)
    elif named == "by a second name":
        refused = tmp_path / "second.jsonl"
        refused.hardlink_to(file)
    with file.open("rb") as stdin:
        monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": stdin}))
        _, said = refused_by("-" if named == "as stdin" else file, "--refused", refused)
    assert f"--refused {refused} is the file that is imported" in said
    assert "Nothing was imported" in said
    assert file.read_text() == f"{line('1')}\n"
    assert Order.objects.count() == 0


def test_an_input_that_is_not_there_empties_nothing(tmp_path: Path) -> None:
    refused = tmp_path / "refused.jsonl"
    refused.write_text("{}")
    _, said = refused_by(tmp_path / "none", "--refused", refused)
    assert "cannot be read" in said
    assert refused.read_text() == "{}"


@pytest.mark.django_db
def test_a_mark_before_the_first_line_is_passed_over_and_nowhere_else(tmp_path: Path) -> None:
    (refused,), said = refused_by(lines_file(tmp_path, f"\ufeff{line('1')}", f"\ufeff{line('2')}"))
    assert "1 created" in said
    assert (refused["line"], refused["fields"][0]["field"]) == (2, "line")
    assert Order.objects.get().order_id == "1"


@pytest.mark.parametrize("mark", [b"", BOM_UTF8])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("more", [-1, 0, 1, 2, 3, 4, BODY_BYTES_MAX])
def test_a_line_may_be_as_long_as_a_body_whatever_it_ends_with(
    mark: bytes, end: bytes, more: int
) -> None:
    text = b"x" * (BODY_BYTES_MAX + more)
    after = b"y\n" if end else b""
    first, *rest = read_order_lines(BytesIO(mark + text + end + after))
    (problem,) = first.problems
    assert ("is longer than" in problem.reason) == (more > 0)
    assert first.text == text[:BODY_BYTES_MAX].decode()
    assert first.size_bytes == len(mark + text + end)
    assert [(one.number, one.text) for one in rest] == ([(2, "y")] if end else [])


# -- how it does it -------------------------------------------------------------------------------


def start(file: Path, *, database: str, refused: Path) -> subprocess.Popen[str]:
    """The command as an operator starts it."""
    return subprocess.Popen(
        [sys.executable, "manage.py", "orders", "import", str(file), "--refused", str(refused)],
        cwd=CHECKOUT,
        env=os.environ | {"DATABASE_URL": database},
        stderr=subprocess.PIPE,
        text=True,
    )


def count(database: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT count(*) FROM refunds_order").fetchone()
    assert row is not None
    return int(row[0])


def test_killed_in_the_middle_it_goes_on_where_it_was(tmp_path: Path) -> None:
    file = lines_file(tmp_path, *(line(str(number)) for number in range(300)))
    refused = tmp_path / "refused.jsonl"
    with fresh_database() as database:
        first = start(file, database=database, refused=refused)
        deadline = time.monotonic() + 60
        while count(database) < 40:
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(first.pid, signal.SIGKILL)
        first.communicate(timeout=30)
        there = count(database)
        assert 40 <= there < 300
        second = start(file, database=database, refused=refused)
        _, said = second.communicate(timeout=90)
        assert second.returncode == 0, said
        assert f"300 lines: {300 - there} created, 0 changed, {there} unchanged" in said
        assert count(database) == 300


def test_a_long_file_takes_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    """Refused lines go through the same reader and need no database, so many are quick."""
    few = lines_file(tmp_path, *[line("1", surprise="x" * 2_000)] * 100)
    short_kib = peak_kib(few, tmp_path)
    many = tmp_path / "many.jsonl"
    with many.open("w") as stream:
        for number in range(10_000):
            stream.write(f"{line(str(number), surprise='x' * 2_000)}\n")
    assert many.stat().st_size > 20_000_000
    assert peak_kib(many, tmp_path) < short_kib + 8_000


def peak_kib(file: Path, folder: Path) -> int:
    """The most memory that an import of this file held, in KiB."""
    program = (
        "import resource, sys, django\n"
        "django.setup()\n"
        "from django.core.management import CommandError, call_command\n"
        "try:\n"
        "    call_command('orders', 'import', sys.argv[1], '--refused', sys.argv[2])\n"
        "except CommandError:\n"
        "    pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(file), str(folder / "refused.jsonl")],
        cwd=CHECKOUT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "config.settings"},
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    return int(done.stdout.strip().splitlines()[-1])
