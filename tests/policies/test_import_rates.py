"""A day's reference rates are pinned, from the bank's file or from one's own."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects.clock import database_now
from kernel.errors import InvalidInput
from policies.import_rates import FILE_BYTES_MAX, _read, import_rates
from policies.models import ReferenceRate

# As published at ecb.europa.eu/stats/eurofxref/eurofxref-daily.xml, shortened.
ECB = b"""<?xml version="1.0" encoding="UTF-8"?>
<gesmes:Envelope xmlns:gesmes="http://www.gesmes.org/xml/2002-08-01"
    xmlns="http://www.ecb.int/vocabulary/2002-08-01/eurofxref">
\t<gesmes:subject>Reference rates</gesmes:subject>
\t<gesmes:Sender>
\t\t<gesmes:name>European Central Bank</gesmes:name>
\t</gesmes:Sender>
\t<Cube>
\t\t<Cube time='2025-01-15'>
\t\t\t<Cube currency='USD' rate='1.0823'/>
\t\t\t<Cube currency='JPY' rate='164.27'/>
\t\t\t<Cube currency='IDR' rate='17234.56'/>
\t\t</Cube>
\t</Cube>
</gesmes:Envelope>
"""
CSV = b"day,currency,rate\n2025-01-15,EUR,1\n2025-01-15,USD,1.0823\n"


def pinned() -> dict[tuple[date, str], Decimal]:
    return {(row.day, row.currency): row.rate for row in ReferenceRate.objects.all()}


@pytest.mark.django_db
def test_the_bank_s_file_is_read_with_the_euro_as_its_reference() -> None:
    imported = import_rates(data=ECB, source="eurofxref-daily.xml")
    day = date(2025, 1, 15)
    assert imported.added == tuple(f"{day} {c}" for c in ("EUR", "USD", "JPY", "IDR"))
    assert pinned() == {
        (day, "EUR"): Decimal(1),
        (day, "USD"): Decimal("1.0823"),
        (day, "JPY"): Decimal("164.27"),
        (day, "IDR"): Decimal("17234.56"),
    }
    assert {row.source for row in ReferenceRate.objects.all()} == {"eurofxref-daily.xml"}


@pytest.mark.django_db
def test_a_second_import_of_a_day_changes_nothing_and_says_so() -> None:
    import_rates(data=ECB, source="first")
    before = list(ReferenceRate.objects.order_by("pk").values())
    again = import_rates(data=ECB, source="second")
    assert (again.added, len(again.known), again.differing) == ((), 4, ())
    other = import_rates(data=ECB.replace(b"1.0823", b"1.0824"), source="third")
    assert (other.added, len(other.known)) == ((), 3)
    assert other.differing == ("2025-01-15 USD",)
    assert list(ReferenceRate.objects.order_by("pk").values()) == before


@pytest.mark.django_db
def test_one_s_own_file_adds_what_the_bank_s_lacks() -> None:
    import_rates(data=ECB, source="bank")
    own = CSV + b"\n2025-01-15,KWD,0.3327\n"
    imported = import_rates(data=own, source="own")
    assert imported.added == ("2025-01-15 KWD",)
    assert imported.known == ("2025-01-15 EUR", "2025-01-15 USD")


@pytest.mark.django_db
def test_rates_for_one_dollar_do_not_mix_with_rates_for_one_euro() -> None:
    import_rates(data=ECB, source="bank")
    with pytest.raises(InvalidInput, match="for one EUR are pinned, and these are for one USD"):
        import_rates(data=b"day,currency,rate\n2025-01-15,USD,1\n2025-01-15,KWD,0.3", source="own")
    assert len(pinned()) == 4


@pytest.mark.django_db
def test_a_file_with_one_wrong_line_pins_nothing() -> None:
    tomorrow = (database_now() + timedelta(days=3)).date().isoformat().encode()
    for data, told in (
        (CSV + b"2025-01-15,JPY,minus\n", "rate of JPY"),
        (b"day,currency,rate\n2025-01-15,USD,1.1\n", "the reference currency is missing"),
        (CSV.replace(b"2025-01-15", tomorrow), "is in the future"),
    ):
        with pytest.raises(InvalidInput, match=told):
            import_rates(data=data, source="x")
    assert pinned() == {}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "must begin with the head"),
        (b"<", "not well-formed"),
        (b"<Envelope/>", "no rates in it"),
        (b"<Cube currency='USD' rate='1'/>", "before any day"),
        (ECB.replace(b"2025-01-15", b"15.01.2025"), "must be a day like"),
        (ECB.replace(b"2025-01-15", b"2025-02-30"), "must be a day like"),
        (ECB.replace(b"rate='1.0823'", b""), "rate of USD"),
        (ECB.replace(b"1.0823", b"1,0823"), "rate of USD"),
        (ECB.replace(b"1.0823", b"1e5"), "rate of USD"),
        (ECB.replace(b"1.0823", b"NaN"), "rate of USD"),
        (ECB.replace(b"1.0823", b"0.0"), "rate of USD"),
        (ECB.replace(b"1.0823", b"-1"), "rate of USD"),
        (ECB.replace(b"1.0823", b"1.00000000001"), "rate of USD"),
        (ECB.replace(b"1.0823", "\u0661".encode()), "rate of USD"),
        (ECB.replace(b"'JPY'", b"'USD'"), "stands twice"),
        (ECB.replace(b"'JPY'", b"'YEN?'"), "three-letter"),
        (ECB[:-20], "not well-formed"),
        (CSV.replace(b"currency", b"ccy"), "must begin with the head"),
        (CSV + b"2025-01-15,JPY\n", "line 4"),
        (CSV + b"2025-01-15,USD,2\n", "stands twice"),
        (CSV + b"\xff", "UTF-8"),
        (CSV + b'2025-01-15,"JPY,1', "CSV"),
        (b"x" * (FILE_BYTES_MAX + 1), "larger than"),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        _read(data)


ENTITIES = b"""<?xml version="1.0"?>
<!DOCTYPE x [<!ENTITY a "%s">%s]>
<x><Cube time="2025-01-15"><Cube currency="USD" rate="&j;"/></Cube></x>
""" % (
    b"a" * 100,
    b"".join(
        b'<!ENTITY %c "%s">' % (name, b"&%c;" % (name - 1) * 10) for name in range(ord("b"), 107)
    ),
)


@pytest.mark.parametrize(
    "data",
    [
        ENTITIES,
        b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><x/>',
        b'<!DOCTYPE x [<!ENTITY y SYSTEM "http://127.0.0.1/">]><x>&y;</x>',
    ],
)
def test_no_entity_is_declared_fetched_or_expanded(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="declares a document type"):
        _read(data)


def reads(data: bytes) -> bool:
    try:
        return bool(_read(data))
    except InvalidInput:
        return False


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda t: t.encode("utf-8", "replace")))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert not reads(data[:10])
    for before in (b"<", CSV, ECB):
        reads(before + data)
    assert reads(CSV)
    assert reads(ECB)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("rate", "is_refused"),
    [("120", False), ("120.0000000001", True), ("80", False), ("79.99", True)],
)
def test_a_rate_may_move_by_a_fifth_and_no_further(rate: str, is_refused: bool) -> None:
    import_rates(data=b"day,currency,rate\n2025-01-02,EUR,1\n2025-01-02,JPY,5", source="older")
    import_rates(
        data=b"day,currency,rate\n2025-01-15,EUR,1\n2025-01-15,JPY,100",
        source="x",
        unusual_allowed=True,
    )
    before = pinned()
    data = f"day,currency,rate\n2025-01-16,EUR,1\n2025-01-16,JPY,{rate}".encode()
    if not is_refused:
        assert import_rates(data=data, source="x").added
        return
    with pytest.raises(InvalidInput, match=r"JPY is \S+, and was 100 on 2025-01-15"):
        import_rates(data=data, source="x")
    assert pinned() == before


@pytest.mark.django_db
def test_days_of_one_file_are_compared_with_one_another() -> None:
    days = b"2025-01-16,JPY,1\n2025-01-16,EUR,1\n2025-01-15,EUR,1\n2025-01-15,JPY,164\n"
    with pytest.raises(InvalidInput, match="2025-01-16 JPY is 1, and was 164 on 2025-01-15"):
        import_rates(data=b"day,currency,rate\n" + days, source="x")
    assert pinned() == {}


@pytest.mark.django_db
def test_a_day_in_another_reference_is_converted_before_it_is_compared() -> None:
    import_rates(data=CSV, source="for one euro")
    own = b"day,currency,rate\n2025-01-16,USD,1\n2025-01-16,EUR,0.92\n"
    assert len(import_rates(data=own, source="for one dollar").added) == 2
    with pytest.raises(InvalidInput, match=r"EUR is 92, and was 0\.92 on 2025-01-16"):
        import_rates(data=own.replace(b"0.92", b"92").replace(b"-16", b"-17"), source="slip")
