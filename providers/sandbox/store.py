"""Everything the sandbox knows: accounts and their objects, behind one lock, optionally on disk.

The journal is a file of JSON lines, one line for each transaction. What one request did (the
refund, its events, and the answer kept under its idempotency key) is therefore on disk as a whole
or not at all; a torn last line, left by a kill, is dropped when the file is read again.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import refund_states
from .clock import Clock, Scheduler
from .faults import FaultScript
from .idempotency import KeyRecord, Keys
from .limits import ChargeLocks, RateLimiter
from .requests_log import RequestLog
from .settings import DEFAULT_ACCOUNTS, DEFAULT_CONNECTED, Settings
from .webhooks import Webhooks

Object = dict[str, Any]


class Account:
    """One Stripe account. Objects are their wire form plus private fields that start with `_`."""

    def __init__(self, id: str, platform: str | None = None) -> None:
        self.id = id
        self.platform = platform
        self.tables: dict[str, dict[str, Object]] = {}
        self.refund_ids_by_charge: dict[str, list[str]] = {}
        self.available_minor: dict[str, int] = {}

    def table(self, kind: str) -> dict[str, Object]:
        """Objects of one kind by id, oldest first."""
        return self.tables.setdefault(kind, {})

    def get(self, kind: str, id: str) -> Object | None:
        return self.table(kind).get(id)

    def refunds_of(self, charge_id: str) -> list[Object]:
        """A charge's refunds, oldest first."""
        refunds = self.table("refund")
        return [refunds[id] for id in self.refund_ids_by_charge.get(charge_id, ())]


class World:
    """The whole sandbox but for its sockets. `lock` guards all of it; hold it only briefly."""

    def __init__(self, *, settings: Settings | None = None, journal: Path | None = None) -> None:
        self.settings: Settings = settings or Settings()
        self.lock = threading.RLock()
        self.stopping = threading.Event()
        self.clock = Clock()
        self.scheduler = Scheduler(self.clock)
        self.keys = Keys()
        self.faults = FaultScript()
        self.charge_locks = ChargeLocks(self.lock)
        self.rate_limiter = RateLimiter()
        self.log = RequestLog(self.settings)
        self.webhooks = Webhooks(self)
        self.accounts: dict[str, Account] = {}
        self.account_by_api_key: dict[str, Account] = {}
        self._depth = 0
        self._lines: list[list[Any]] = []
        self._journal: Any = None
        for account, api_keys in DEFAULT_ACCOUNTS.items():
            self.add_account(account, api_keys=api_keys)
        for account, platform in DEFAULT_CONNECTED.items():
            self.add_account(account, platform=platform)
        if journal is not None:
            self._open(journal)

    def resume(self) -> None:
        """Go on with what an earlier run left due or undelivered. Webhook endpoints come first."""
        with self.transaction():
            for account in self.accounts.values() if self._journal is not None else ():
                refund_states.resume(self, account)

    # Changing things

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the lock and put everything that changes meanwhile into one journal line."""
        with self.lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._write()

    def put(self, account: Account, obj: Object) -> None:
        """Add an object, or say that it was changed in place."""
        kind, id = obj["object"], obj["id"]
        table = account.table(kind)
        if kind == "refund" and id not in table:
            account.refund_ids_by_charge.setdefault(obj["charge"], []).append(id)
        table[id] = obj
        self._note("object", account.id, obj)

    def add_account(
        self, id: str, *, api_keys: list[str] | None = None, platform: str | None = None
    ) -> Account:
        account = self.accounts.get(id) or Account(id, platform)
        self.accounts[id] = account
        for api_key in api_keys or []:
            self.account_by_api_key[api_key] = account
        self._note("account", id, api_keys or [], account.platform)
        return account

    def add_balance(self, account: Account, currency: str, amount_minor: int) -> None:
        available = account.available_minor
        available[currency] = available.get(currency, 0) + amount_minor
        self._note("balance", account.id, currency, available[currency])

    def keep_key(self, record: KeyRecord) -> None:
        self.keys.keep(record)
        self._note("key", asdict(record))

    def drop_key(self, record: KeyRecord) -> None:
        self.keys.drop(record)
        self._note("unkey", record.scope, record.key)

    def clock_changed(self) -> None:
        self._note("clock", self.clock.offset_seconds)

    def reset(self) -> None:
        """Forget objects, keys, faults, the log and the clock. Accounts, settings and webhook
        endpoints stay."""
        with self.transaction():
            for id, account in list(self.accounts.items()):
                fresh = Account(id, account.platform)
                self.accounts[id] = fresh
                for api_key, owner in self.account_by_api_key.items():
                    if owner is account:
                        self.account_by_api_key[api_key] = fresh
            self.keys.clear()
            self.faults.clear()
            self.log.clear()
            self.charge_locks.clear()
            self.scheduler.clear()
            self.webhooks.forget()
            self.clock.reset()
            self._note("reset")

    # The journal

    def _note(self, *entry: Any) -> None:
        if self._journal is not None:
            self._lines.append(list(entry))
            if self._depth == 0:
                self._write()

    def _write(self) -> None:
        if self._journal is not None and self._lines:
            line = json.dumps(self._lines, ensure_ascii=False, separators=(",", ":"))
            self._lines.clear()
            # One write of one line; fsync is not needed to survive the kill of a process.
            self._journal.write(line.encode() + b"\n")
            self._journal.flush()

    def _open(self, path: Path) -> None:
        """Read what an earlier run left, drop a torn last line, and go on writing behind it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = 0
        if path.exists():
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n"):
                        break
                    try:
                        for entry in json.loads(line):
                            self._replay(entry)
                    except (ValueError, KeyError, TypeError) as problem:
                        raise SystemExit(
                            f"{path} is not a sandbox state file: line {number} cannot be read "
                            f"({problem}). Nothing was changed. Move the file away to start empty."
                        ) from problem
                    whole += len(line)
            os.truncate(path, whole)
        self._journal = path.open("ab")

    def _replay(self, entry: list[Any]) -> None:
        match entry:
            case ["object", account, obj]:
                self.put(self.accounts[account], obj)
            case ["account", id, api_keys, platform]:
                self.add_account(id, api_keys=api_keys, platform=platform)
            case ["balance", account, currency, amount_minor]:
                self.accounts[account].available_minor[currency] = amount_minor
            case ["key", record]:
                self.keys.keep(KeyRecord(**record))
            case ["unkey", scope, key]:
                self.keys.drop_named(scope, key)
            case ["clock", offset_seconds]:
                self.clock.offset_seconds = offset_seconds
            case ["reset"]:
                self.reset()
            case _:
                raise ValueError(f"unknown entry {entry[:1]}")

    def close(self) -> None:
        with self.lock:
            if self._journal is not None:
                self._write()
                self._journal.close()
                self._journal = None
