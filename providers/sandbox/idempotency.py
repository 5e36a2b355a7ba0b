"""Idempotency keys as API v1 treats them: account-wide, compared, in flight or done, pruned.

Sources: Stripe's "Idempotent requests" and "Advanced error handling"; the texts of the errors from
public issue threads. The first answer is kept once the endpoint has begun to execute, 500 included;
parameter failures, 409, 429 and 401 are not kept; another path or other parameters is a 400; a key
may be forgotten once it is at least 24 hours old, and is then a new request.
"""

from dataclasses import dataclass

from . import errors

KEY_CHARACTERS_MAX = 255


@dataclass(slots=True)
class KeyRecord:
    """One key's first request. `status` None: that request is still in flight."""

    scope: str
    key: str
    path: str
    params: str  # canonical JSON
    api_version: str
    created: float
    request_id: str
    status: int | None = None
    body: str = ""


class Keys:
    """Callers hold the world's lock."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], KeyRecord] = {}

    def begin(
        self, fresh: KeyRecord, *, retention_seconds: float | None, compare_api_version: bool
    ) -> KeyRecord:
        """The record to go by: `fresh` itself for a new key, else the finished first request.

        Raises StripeError 409 while the first request is in flight, 400 for another path or other
        parameters.
        """
        name = (fresh.scope, fresh.key)
        first = self._records.get(name)
        if first is not None and self._prunable(first, fresh.created, retention_seconds):
            first = None
        if first is None:
            self._records[name] = fresh
            return fresh
        if first.status is None:
            raise errors.key_in_use(fresh.key)
        if first.path != fresh.path:
            raise errors.key_other_path(fresh.key, first=first.path, now=fresh.path)
        if first.params != fresh.params or (
            compare_api_version and first.api_version != fresh.api_version
        ):
            raise errors.key_other_params(fresh.key)
        return first

    def keep(self, record: KeyRecord) -> None:
        self._records[record.scope, record.key] = record

    def drop(self, record: KeyRecord) -> None:
        """Forget a key whose request did not execute; never somebody else's newer record."""
        if self._records.get((record.scope, record.key)) is record:
            del self._records[record.scope, record.key]

    def drop_named(self, scope: str, key: str) -> None:
        self._records.pop((scope, key), None)

    def prune(self, *, now: float, older_than_seconds: float | None) -> list[KeyRecord]:
        """Take out all finished keys of at least this age and return them. None: whatever age."""
        gone = [
            record
            for record in self._records.values()
            if record.status is not None
            and (older_than_seconds is None or now - record.created >= older_than_seconds)
        ]
        for record in gone:
            self.drop(record)
        return gone

    def all(self) -> list[KeyRecord]:
        return list(self._records.values())

    def clear(self) -> None:
        self._records.clear()

    @staticmethod
    def _prunable(record: KeyRecord, now: float, retention_seconds: float | None) -> bool:
        return (
            retention_seconds is not None
            and record.status is not None
            and now - record.created >= retention_seconds
        )
