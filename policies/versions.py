"""Policy versions: appending one, and the one in force."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from django.db import connection, transaction

from effects.clock import database_now
from kernel.canonical import canonical_json, sha256_hex
from policies.models import PolicyEvent, PolicyVersion
from policies.parameters import Limit, Parameters, Tier
from policies.read_parameters import require_valid

# What a small shop can run with unchanged: refunds up to 100 units of its currency by policy alone,
# the reasons a support agent meets every day, and a person for everything that looks like a second
# refund of the same thing. What needs facts that not every shop states (lines, delivery, risk,
# payment method) says nothing until they are stated. Base amounts are US dollars: a shop that sells
# in another currency makes that its base currency, or imports the day's rates.
DEFAULT_PARAMETERS = Parameters(
    ceiling_minor={
        "USD": 100_00,
        "EUR": 100_00,
        "GBP": 100_00,
        "CAD": 100_00,
        "AUD": 100_00,
        "CHF": 100_00,
        "JPY": 10_000,
        "KWD": 30_000,
    },
    reasons=(
        "requested_by_customer",
        "duplicate",
        "damaged",
        "not_received",
        "wrong_item",
        "late",
        "cancelled",
        "goodwill",
    ),
    # Whoever answers the customers decides the daily business, somebody senior what would be felt,
    # and nobody alone what could hurt the shop.
    tiers=(
        Tier(tier=1, up_to_base_minor=500_00),
        Tier(tier=2, up_to_base_minor=2_000_00),
        Tier(tier=3, up_to_base_minor=None, people=2),
    ),
    velocity=(
        # One a minute is more than support of a small shop asks for; five a minute is a loop.
        Limit(scope="agent", window="hour", review_count=60, hold_count=300),
        # A customer with the sixth refund of a month, or the 500 that one refund would need a
        # person for five times over, is worth a look; so is one with two a month all year.
        Limit(scope="customer", window="30_days", review_count=5, review_base_minor=500_00),
        Limit(scope="customer", window="365_days", review_count=24),
        # Many small refunds of one order are one large one.
        Limit(scope="order", window="ever", review_base_minor=500_00),
    ),
    budgets=(
        # Twenty of the largest refunds that policy allows alone, in a day by one agent; fifty in
        # all. What holds is what would need the shop's attention today, whatever the reason.
        Limit(scope="agent", window="day", review_base_minor=2_000_00, hold_base_minor=10_000_00),
        Limit(scope="total", window="day", review_base_minor=5_000_00, hold_base_minor=20_000_00),
    ),
    # Goodwill has no invoice behind it: a few hundred a month, then somebody asks why.
    goodwill_budgets=(
        Limit(scope="goodwill_agent", window="30_days", review_base_minor=500_00),
        Limit(scope="goodwill_total", window="30_days", review_base_minor=1_000_00),
    ),
    # Five times the day's mean, and never before 30 in an hour: a Monday morning is no anomaly.
    anomaly_factor=5,
    anomaly_floor_count=30,
    # Asked only where the merchant marks lines; a refund against its own terms is a person's gift.
    final_sale_verdict="REVIEW",
    # The merchant's own words, where it states any. Not required: most shops state none.
    risk_review=("elevated", "high", "blocked"),
    # Off: it would ask a person about every part of an order that is refunded without lines.
    component_caps=False,
    # One in fifty is looked at afterwards: enough to notice what no rule has a name for.
    sample_qa_per_mille=20,
)


def first_parameters(*, base_currency: str) -> Parameters:
    """What an installation begins with: the default, its limits counted in its own currency.

    The figures stay as they are, in minor units of that currency: 500.00 EUR, or 50,000 JPY.
    """
    return replace(DEFAULT_PARAMETERS, base_currency=base_currency)


def publish(*, parameters: Parameters, published_by: str, note: str = "") -> PolicyVersion:
    """Append a policy version, which is in force once this commits.

    For the installation and for programs with the database in their hands. People draft and
    another one publishes: `policies.drafts`. Raises InvalidInput naming the parameter.
    """
    require_valid(parameters)
    with transaction.atomic():
        lock_versions()
        return append(parameters=parameters, published_by=published_by, note=note)


def lock_versions() -> None:
    """Let everybody read versions and one publish, until this transaction ends.

    No row can be locked that would make a second publisher see the first one's new row.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {PolicyVersion._meta.db_table} IN SHARE ROW EXCLUSIVE MODE")


def append(*, parameters: Parameters, published_by: str, note: str, **people: Any) -> PolicyVersion:
    """The next version and its event, under `lock_versions`.

    `people`: `editor`, `publisher` and `draft`, or none of them.
    """
    last = in_force()
    now = database_now()
    version = PolicyVersion.objects.create(
        number=last.number + 1 if last else 1,
        parameters=parameters.as_json(),
        parameters_hash=hash_of(parameters),
        published_by=published_by,
        published_at=now,
        note=note,
        **people,
    )
    PolicyEvent.objects.create(
        kind=PolicyEvent.Kind.PUBLISHED,
        actor=published_by[:80],
        person=people.get("publisher"),
        at=now,
        draft=people.get("draft"),
        version=version,
        data={"number": version.number, "parameters_hash": version.parameters_hash},
    )
    return version


def hash_of(parameters: Parameters) -> str:
    """SHA-256 of the parameters in canonical JSON. Raises InvalidInput where there is none."""
    return sha256_hex(canonical_json(parameters.as_json()))


def in_force() -> PolicyVersion | None:
    """The version that decides now; None: none was published."""
    return PolicyVersion.objects.order_by("-number").first()


def parameters_in_force() -> Parameters | None:
    """The parameters that decide now; None: none were published.

    One query, and a second one the first time a process asks for a version.
    """
    versions = PolicyVersion.objects.order_by("-number")
    row = versions.values_list("number", "parameters_hash").first()
    return None if row is None else parameters_of(number=row[0], parameters_hash=row[1])


def editor_in_force() -> int | None:
    """The id of the user who last edited the policy in force; None: no person of this site did.

    Whoever it is approves nothing under it.
    """
    return PolicyVersion.objects.order_by("-number").values_list("editor_id", flat=True).first()


@lru_cache(maxsize=16)
def _parameters_by_hash(parameters_hash: str, number: int) -> Parameters:
    """Versions are immutable, so a process reads each once. The hash keeps tests apart."""
    row = PolicyVersion.objects.get(number=number, parameters_hash=parameters_hash)
    return Parameters.from_json(row.parameters)


def parameters_of(*, number: int, parameters_hash: str) -> Parameters:
    """The parameters of one version; a query the first time a process asks."""
    return _parameters_by_hash(parameters_hash, number)
