"""Publishing a policy version, and the one in force."""

from __future__ import annotations

from functools import lru_cache

from django.db import connection, transaction

from effects.clock import database_now
from kernel.canonical import canonical_json, sha256_hex
from policies.models import PolicyVersion
from policies.parameters import Parameters

# What a small shop can run with unchanged: refunds up to 100 units of its currency by policy alone,
# the reasons a support agent meets every day, and a person for everything that looks like a second
# refund of the same thing.
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
)


def publish(*, parameters: Parameters, published_by: str, note: str = "") -> PolicyVersion:
    """Append a policy version, which is in force once this commits."""
    text = canonical_json(parameters.as_json())
    with transaction.atomic():
        # No row can be locked that would make a second publisher see the first one's new row. This
        # lock lets everybody read and one write.
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {PolicyVersion._meta.db_table} IN SHARE ROW EXCLUSIVE MODE")
        last = PolicyVersion.objects.order_by("-number").first()
        return PolicyVersion.objects.create(
            number=last.number + 1 if last else 1,
            parameters=parameters.as_json(),
            parameters_hash=sha256_hex(text),
            published_by=published_by,
            published_at=database_now(),
            note=note,
        )


@lru_cache(maxsize=16)
def _parameters_by_hash(parameters_hash: str, number: int) -> Parameters:
    """Versions are immutable, so a process reads each once. The hash keeps tests apart."""
    row = PolicyVersion.objects.get(number=number, parameters_hash=parameters_hash)
    return Parameters.from_json(row.parameters)


def parameters_of(*, number: int, parameters_hash: str) -> Parameters:
    """The parameters of one version; a query the first time a process asks."""
    return _parameters_by_hash(parameters_hash, number)
