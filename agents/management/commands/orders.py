"""`manage.py orders import FILE|-` and `manage.py orders import-stripe --since …`."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar

from django.core.management.base import BaseCommand, CommandError
from django.db import InterfaceError, OperationalError, transaction

from agents.order_lines import OrderLine, read_order_lines, require_addressable
from effects.clock import database_now
from effects.outcomes import Unreadable
from kernel.errors import InvalidInput
from kernel.identity import require_identifier
from providers.port import ListedPayment, PaymentPage
from providers.registry import payment_provider
from providers.stripe.accounts import ACCOUNT_PATTERN
from refunds.import_payments import ImportedPayment, became, import_payment
from refunds.orders import Mirrored, OrderFacts, mirror_order

ACTOR = "operator:orders"
PROVIDER = "stripe"
PROGRESS_EVERY_SECONDS = 2.0
# How long a page that cannot be read is waited for in all: weather passes, an outage does not.
TRY_AGAIN_SECONDS = (1, 5, 15, 60)
# Stripe's own limit for the name of a metadata key. https://docs.stripe.com/api/metadata
_METADATA = re.compile(r"metadata\.([^\[\]]{1,40})")
_ACCOUNT = re.compile(ACCOUNT_PATTERN)
_INTERRUPTED = 130  # what a shell calls an end by Ctrl-C
_Read = TypeVar("_Read")
_AGAIN = "Run it again to go on: what was imported is passed over."


class Command(BaseCommand):
    """Refused lines go to stdout (or --refused FILE), progress and the summary to stderr."""

    help = "Import orders from JSON lines, or from the payments that Stripe has."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)

        load = verbs.add_parser(
            "import", help="one order a line: order_id and the fields of PUT /orders/{order_id}"
        )
        load.add_argument("file", help="a file of JSON lines; - is stdin")

        stripe = verbs.add_parser(
            "import-stripe", help="captured payments that name their order in their metadata"
        )
        stripe.add_argument(
            "--since", required=True, type=_moment, help="2026-11-01, or 2026-11-01T08:00:00Z"
        )
        stripe.add_argument("--until", type=_moment, help="before this; default: now")
        stripe.add_argument(
            "--account", default="", type=_account, help="acct_…, alias:NAME or alias:NAME/acct_…"
        )
        stripe.add_argument(
            "--order-id-from",
            default="metadata.order_id",
            type=_metadata_key,
            metavar="metadata.KEY",
            help="where a payment names its order (default metadata.order_id)",
        )
        for verb in (load, stripe):
            verb.add_argument(
                "--refused", type=Path, help="write what is refused here, not to stdout"
            )
            verb.add_argument(
                "--dry-run", action="store_true", help="say what would be done, and do nothing"
            )

    def handle(self, *args: Any, **options: Any) -> None:
        with ExitStack() as files:
            stream, size_bytes = None, None
            if options["verb"] == "import":
                stream, size_bytes = _input(options["file"], files=files)
            refused: Any = self.stdout
            if options["refused"] is not None:
                refused = files.enter_context(_opened(options["refused"], beside=stream))
            tally = Tally(
                stderr=self.stderr,
                refused=refused,
                dry_run=options["dry_run"],
                noun="lines" if options["verb"] == "import" else "payments",
            )
            with tally.to_its_end():
                if stream is not None:
                    import_lines(stream, size_bytes=size_bytes, tally=tally)
                else:
                    import_stripe(
                        since=options["since"],
                        until=options["until"] or database_now(),
                        account=options["account"],
                        key=options["order_id_from"],
                        tally=tally,
                    )


# -- JSON lines -----------------------------------------------------------------------------------


def import_lines(stream: BinaryIO, *, size_bytes: int | None, tally: Tally) -> None:
    """Mirror each line's order by itself, so that what was done stays when this is ended."""
    done_bytes = 0
    for line in read_order_lines(stream):
        done_bytes += line.size_bytes
        problems = [problem.model_dump() for problem in line.problems]
        if line.facts is not None:
            try:
                mirrored = _mirror(line.facts, dry_run=tally.dry_run)
            except InvalidInput as error:
                problems = [{"field": error.field, "reason": error.reason}]
            else:
                tally.count(became(mirrored))
        if problems:
            tally.refuse(_refused_line(line, problems=problems))
        tally.tell_progress(
            at=f"line {line.number}", of=done_bytes / size_bytes if size_bytes else None
        )


def _mirror(facts: OrderFacts, *, dry_run: bool) -> Mirrored:
    with transaction.atomic():
        mirrored = mirror_order(facts=facts, actor=ACTOR)
        if dry_run:
            transaction.set_rollback(True)
    return mirrored


def _refused_line(line: OrderLine, *, problems: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "line": line.number,
        "order_id": line.order_id or None,
        "fields": problems,
        "text": line.text,
    }


# -- Stripe ---------------------------------------------------------------------------------------


def import_stripe(
    *, since: datetime, until: datetime, account: str, key: str, tally: Tally
) -> None:
    """Mirror the order of each captured payment of a time, newest first, page by page."""
    if since >= until:
        raise CommandError("--since must be before --until. Nothing was read.")
    if not payment_provider(PROVIDER).capabilities.lists_payments:
        raise CommandError("This provider cannot list its payments. Nothing was read.")
    cursor = ""
    while True:
        read_at = database_now()
        page = _page(since=since, until=until, account=account, cursor=cursor, tally=tally)
        for payment in page.payments:
            _take(payment, account=account, key=key, read_at=read_at, tally=tally)
            tally.tell_progress(at=f"payments of {payment.created_at:%Y-%m-%d %H:%M} UTC")
        if not page.next_cursor:
            return
        cursor = page.next_cursor


def _take(
    payment: ListedPayment, *, account: str, key: str, read_at: datetime, tally: Tally
) -> None:
    order_id = payment.metadata.get(key, "")
    if not payment.is_paid:
        tally.count("not captured")
        return
    if not order_id:
        tally.count(f"without {key}")
        return
    refusal = {"payment_intent": payment.totals.payment_ref, "order_id": order_id}

    def work() -> ImportedPayment | Unreadable:
        return import_payment(
            payment=payment,
            provider=PROVIDER,
            account=account,
            order_id=order_id,
            read_at=read_at,
            actor=ACTOR,
        )

    try:
        require_addressable(order_id)
        if tally.dry_run:
            require_identifier(order_id, field="order_id")
            tally.count("would be imported or compared")
            return
        imported = _read_again(work, tally=tally)
    except InvalidInput as error:
        tally.refuse({**refusal, "fields": [{"field": error.field, "reason": error.reason}]})
        return
    if isinstance(imported, Unreadable):
        reason = f"its refunds could not be read ({imported.reason})"
        tally.refuse({**refusal, "fields": [{"field": "payment_intent", "reason": reason}]})
        return
    tally.count(imported.became)
    tally.differing += imported.differs


def _page(
    *, since: datetime, until: datetime, account: str, cursor: str, tally: Tally
) -> PaymentPage:
    page = _read_again(
        lambda: payment_provider(PROVIDER).list_payments(
            since=since, until=until, account=account, cursor=cursor
        ),
        tally=tally,
    )
    if isinstance(page, Unreadable):
        said = f": {page.evidence.message}" if page.evidence.message else ""
        raise CommandError(f"Stripe could not be read ({page.reason}){said}. {_AGAIN}")
    return page


def _read_again(read: Callable[[], _Read | Unreadable], *, tally: Tally) -> _Read | Unreadable:
    """What a read brings, with pauses between tries, since imports are long and limits are short.

    What a person must repair is not tried again.
    """
    for pause_seconds in TRY_AGAIN_SECONDS:
        found = read()
        if not isinstance(found, Unreadable) or found.misconfigured:
            return found
        tally.say(f"Stripe could not be read ({found.reason}); again in {pause_seconds} s.")
        time.sleep(pause_seconds)
    return read()


# -- what is told ---------------------------------------------------------------------------------


class Tally:
    """What became of the lines or payments so far, what is refused, and how it is told."""

    def __init__(self, *, stderr: Any, refused: TextIO, dry_run: bool, noun: str) -> None:
        self.dry_run = dry_run
        self.differing = 0
        self._stderr = stderr
        self._refused_to = refused
        self._noun = noun
        self._counts: Counter[str] = Counter(
            dict.fromkeys(("created", "changed", "unchanged", "older", "refused"), 0)
        )
        self._told_at = time.monotonic()

    def count(self, what: str) -> None:
        """One more of these."""
        self._counts[what] += 1

    def refuse(self, told: dict[str, Any]) -> None:
        """One that is refused, written at once: whoever ends this has what was refused so far."""
        self.count("refused")
        self._refused_to.write(f"{json.dumps(told, ensure_ascii=False)}\n")
        self._refused_to.flush()

    def say(self, sentence: str) -> None:
        """A sentence for the person who waits."""
        self._stderr.write(sentence)

    def tell_progress(self, *, at: str, of: float | None = None) -> None:
        """Where it stands, every few seconds. `of`: which part is done, where that is known."""
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_EVERY_SECONDS:
            self._told_at = now
            part = f" ({of:.0%})" if of is not None else ""
            self.say(f"{self._counts.total()} {self._noun}, {at}{part}: {self._words()}")

    @contextmanager
    def to_its_end(self) -> Iterator[None]:
        """Tell the summary however it ends. Raises CommandError where it did not do everything."""
        try:
            yield
        except KeyboardInterrupt:
            raise CommandError(
                f"{self._summary()}\nEnded before it was through. {_AGAIN}",
                returncode=_INTERRUPTED,
            ) from None
        except (OperationalError, InterfaceError) as error:
            raise CommandError(
                f"{self._summary()}\nThe database could not be used: {error}".rstrip()
                + f"\n{_AGAIN}"
            ) from None
        except CommandError as error:
            raise CommandError(f"{self._summary()}\n{error}") from None
        refused = self._counts["refused"]
        if refused:
            raise CommandError(
                f"{self._summary()}\n{refused} {self._noun} were refused and changed nothing; "
                "each is told with its reason. Repair them and import them again."
            )
        self.say(self._summary())

    def _summary(self) -> str:
        words = f"{self._counts.total()} {self._noun}: {self._words()}."
        if self.differing:
            words += (
                f" {self.differing} orders are not what Stripe shows: a case is open on each, "
                "unless a person closed it."
            )
        return f"Dry run, nothing was written. {words}" if self.dry_run else words

    def _words(self) -> str:
        return ", ".join(f"{number} {what}" for what, number in self._counts.items())


# -- arguments ------------------------------------------------------------------------------------


def _input(name: str, *, files: ExitStack) -> tuple[BinaryIO, int | None]:
    """The stream of that name and its size in bytes, if that can be known."""
    if name == "-":
        return sys.stdin.buffer, None
    try:
        stream: BinaryIO = files.enter_context(Path(name).open("rb"))  # noqa: SIM115  # it is one
        size_bytes = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise CommandError(f"It cannot be read: {error}. Nothing was imported.") from None
    return stream, size_bytes or None


def _opened(path: Path, *, beside: BinaryIO | None) -> TextIO:
    """The file for what is refused, emptied, unless it is the input itself by whatever name."""
    try:
        if beside is not None and _is_file(path, beside):
            raise CommandError(
                f"--refused {path} is the file that is imported: it would be emptied before it is "
                "read. Name another one. Nothing was imported."
            )
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"It cannot be written: {error}. Nothing was imported.") from None


def _is_file(path: Path, stream: BinaryIO) -> bool:
    """Whether this path leads to the file that the stream reads."""
    try:
        found, read = path.stat(), os.fstat(stream.fileno())
    except OSError:  # not there yet, or not to be had, which opening it will tell
        return False
    return stat.S_ISREG(read.st_mode) and os.path.samestat(found, read)


def _moment(text: str) -> datetime:
    """A day (its beginning in UTC), or a time with its zone."""
    try:
        moment = datetime.fromisoformat(text)
        if len(text) == len("2026-11-01"):
            return moment.replace(tzinfo=UTC)
        if moment.tzinfo is None:
            raise ValueError
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is neither a day like 2026-11-01 nor a time like 2026-11-01T08:00:00Z"
        ) from None
    return moment


def _account(text: str) -> str:
    if _ACCOUNT.fullmatch(text) is None:
        raise ArgumentTypeError(f"{text!r} is not acct_…, alias:NAME or alias:NAME/acct_…")
    return text


def _metadata_key(text: str) -> str:
    found = _METADATA.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is not like metadata.order_id")
    return found[1]
