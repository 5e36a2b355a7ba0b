"""A day's reference rates, from the European Central Bank's file or from a CSV of one's own.

A rate that is there is pinned: decisions were made by it. So a second import of a day changes
nothing; it can only add currencies that the first one lacked.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from xml.parsers import expat

from django.db import transaction

from effects.clock import database_now
from kernel.errors import InvalidInput
from kernel.money import require_currency
from policies.models import ReferenceRate

# The bank's file of one day has 2 kB; that of all days since 1999 is not meant to be read here.
FILE_BYTES_MAX = 1024 * 1024
CSV_COLUMNS = ["day", "currency", "rate"]
# What the column holds: 10 digits before the point and 10 after it.
# Between two working days no currency of a shop moves so far; a point in the wrong place does.
UNUSUAL_PERCENT = 20
_RATE = re.compile(r"[0-9]{1,10}(\.[0-9]{1,10})?", re.ASCII)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Units of `currency` for one unit of the reference currency, whose own rate is 1."""

    day: date
    currency: str
    rate: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What an import did: currencies that were added, were there, and are there with another rate.

    Each is named like `2026-11-30 USD`.
    """

    added: tuple[str, ...]
    known: tuple[str, ...]
    differing: tuple[str, ...]


def import_rates(*, data: bytes, source: str, unusual_allowed: bool = False) -> Imported:
    """Pin the rates of a file. Raises InvalidInput and writes nothing when it cannot be read.

    1. Read the file: XML as the bank publishes it, anything else as CSV.
    2. Each day's reference currency (the one at 1) must be that of the rates pinned before.
    3. Day by day: a rate far from the newest earlier one is refused, unless `unusual_allowed`.
    4. Insert what is not there; what is there stays, whatever the file says.
    """
    rates = _read(data)
    now = database_now()
    for rate in rates:
        # Published in the afternoon of its day; a day ahead is another zone, more is a mistake.
        if rate.day > (now + timedelta(days=1)).date():
            raise InvalidInput(field="day", reason=f"{rate.day} is in the future")
    with transaction.atomic():
        before = {
            (row.day, row.currency): row.rate
            for row in ReferenceRate.objects.filter(day__in={rate.day for rate in rates})
        }
        _refuse_another_reference(rates=rates, before=before)
        unusual: list[str] = []
        for day in sorted({rate.day for rate in rates}):
            of_day = [rate for rate in rates if rate.day == day]
            new = [rate for rate in of_day if (day, rate.currency) not in before]
            unusual += _unusual(new, reference=_references(of_day)[0])
            ReferenceRate.objects.bulk_create(
                [
                    ReferenceRate(
                        day=rate.day,
                        currency=rate.currency,
                        rate=rate.rate,
                        source=source[:80],
                        imported_at=now,
                    )
                    for rate in new
                ]
            )
        if unusual and not unusual_allowed:
            raise InvalidInput(
                field="rate",
                reason=f"differs by more than {UNUSUAL_PERCENT} % from the newest earlier day's: "
                f"{'; '.join(unusual)}",
            )
    return Imported(
        added=_named(r for r in rates if (r.day, r.currency) not in before),
        known=_named(r for r in rates if before.get((r.day, r.currency)) == r.rate),
        differing=_named(r for r in rates if before.get((r.day, r.currency), r.rate) != r.rate),
    )


def _named(rates: Iterable[Rate]) -> tuple[str, ...]:
    return tuple(f"{rate.day} {rate.currency}" for rate in rates)


def _refuse_another_reference(
    *, rates: list[Rate], before: dict[tuple[date, str], Decimal]
) -> None:
    for day in sorted({rate.day for rate in rates}):
        mine = _references([rate for rate in rates if rate.day == day])
        if not mine:
            raise InvalidInput(
                field="rate", reason=f"of {day}: the reference currency is missing, at rate 1"
            )
        pinned = {currency for (of, currency), rate in before.items() if of == day and rate == 1}
        if pinned and not pinned & set(mine):
            raise InvalidInput(
                field="rate",
                reason=f"of {day}: rates for one {sorted(pinned)[0]} are pinned, and these are "
                f"for one {mine[0]}",
            )


def _references(of_day: list[Rate]) -> list[str]:
    return sorted(rate.currency for rate in of_day if rate.rate == 1)


def _unusual(new: list[Rate], *, reference: str) -> list[str]:
    """Those of one day that are far from the newest earlier day's of the same currency.

    Where that day counted in another reference its rates are converted; where they cannot be,
    there is nothing to compare with.
    """
    if not new:
        return []
    earlier = {
        row.currency: row
        for row in ReferenceRate.objects.filter(day__lt=new[0].day)
        .order_by("currency", "-day")
        .distinct("currency")
    }
    found = []
    for rate in new:
        was, one = earlier.get(rate.currency), earlier.get(reference)
        if was is None or one is None:
            continue
        # rate / (was / one), without a division.
        if abs(rate.rate * one.rate - was.rate) * 100 > UNUSUAL_PERCENT * was.rate:
            before = f"{was.rate / one.rate:.10f}".rstrip("0").rstrip(".")
            found.append(
                f"{rate.day} {rate.currency} is {rate.rate:f}, and was {before} on {was.day}"
            )
    return found


def _read(data: bytes) -> list[Rate]:
    if len(data) > FILE_BYTES_MAX:
        raise InvalidInput(field="file", reason=f"is larger than {FILE_BYTES_MAX} bytes")
    rates = _read_xml(data) if data.lstrip().startswith(b"<") else _read_csv(data)
    seen = set()
    for rate in rates:
        if (rate.day, rate.currency) in seen:
            raise InvalidInput(field="currency", reason=f"{rate.currency} stands twice")
        seen.add((rate.day, rate.currency))
    if not rates:
        raise InvalidInput(field="file", reason="has no rates in it")
    return rates


def _read_xml(data: bytes) -> list[Rate]:
    """The bank's eurofxref-daily.xml: nested `Cube` elements with `time`, `currency`, `rate`.

    https://www.ecb.europa.eu/stats/policy_and_exchange_rates/euro_reference_exchange_rates. A file
    that declares a document type is refused, and with it every entity.
    """
    rates: list[Rate] = []
    days: list[date] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        if name.rpartition("}")[2] != "Cube":
            return
        if "time" in attributes:
            days.append(_day(attributes["time"]))
            rates.append(Rate(day=days[-1], currency="EUR", rate=Decimal(1)))
        if "currency" in attributes or "rate" in attributes:
            if not days:
                raise InvalidInput(field="file", reason="has a rate before any day")
            rates.append(_rate(days[-1], attributes.get("currency"), attributes.get("rate")))

    def doctype(*_: object) -> None:
        raise InvalidInput(field="file", reason="declares a document type, which no such file does")

    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartElementHandler = start
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise InvalidInput(field="file", reason=f"is not well-formed XML: {error}") from None
    return rates


def _read_csv(data: bytes) -> list[Rate]:
    """Lines of `day,currency,rate` under that head, like `2026-11-30,USD,1.0823`."""
    try:
        text = data.decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(field="file", reason=f"is not CSV in UTF-8: {error}") from None
    if not rows or [cell.strip() for cell in rows[0]] != CSV_COLUMNS:
        raise InvalidInput(field="file", reason=f"must begin with the head {','.join(CSV_COLUMNS)}")
    rates = []
    for number, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        if len(row) != len(CSV_COLUMNS):
            raise InvalidInput(field=f"line {number}", reason="must have three columns")
        day, currency, rate = (cell.strip() for cell in row)
        rates.append(_rate(_day(day), currency, rate))
    return rates


def _day(text: str) -> date:
    try:
        if not _DAY.fullmatch(text):
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            field="day", reason=f"{text[:40]!r} must be a day like 2026-11-30"
        ) from None


def _rate(day: date, currency: str | None, text: str | None) -> Rate:
    code = require_currency(currency, field="currency")
    if text is None or not _RATE.fullmatch(text) or not Decimal(text):
        raise InvalidInput(
            field=f"rate of {code}",
            reason="must be a positive number with at most 10 digits on either side of the point",
        )
    return Rate(day=day, currency=code, rate=Decimal(text))
