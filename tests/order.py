"""Which tests go first, and which stay together, when several processes share them.

The longest begin first, so that at the end no process waits for another's. A file's tests go to one
process one after the other: a stack that they share is started once. Without xdist only the order
counts.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

#: Files that take longest, longest first, by their seconds on two quiet cores. A list that is old
#: costs only time.
LONGEST = (
    "tests/acceptance/test_kill_switch.py",
    "tests/acceptance/test_faults.py",
    "tests/frameworks/test_matrix_short.py",
    "tests/acceptance/test_crash_points.py",
    "tests/acceptance/test_campaign_short.py",
    "tests/properties/test_machine.py",
    "tests/acceptance/test_postgres_restarted.py",
    "tests/acceptance/test_credit_killed.py",
    "tests/acceptance/test_key_age.py",
    "tests/properties/test_planted_bugs.py",
)
#: Everything there starts servers and processes.
LONG = "tests/acceptance/"
#: Long tests that share nothing.
APART = "tests/properties/test_planted_bugs.py"


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def rank(file: str) -> int:
    """The smaller, the earlier."""
    if file in LONGEST:
        return LONGEST.index(file)
    return len(LONGEST) + (0 if file.startswith(LONG) else 1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps what pytest-django arranged, tests in a transaction before those that empty tables."""
    items.sort(key=lambda item: rank(file_of(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByFile(config, log)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist brings no types
    """Hands out neighbours of one file together, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        # Or the files with most tests would come first.
        config.option.loadscopereorder = False
        self._scopes: dict[str, str] = {}

    def schedule(self) -> None:
        if self.collection is None and self.registered_collections:
            self._scopes = scopes(next(iter(self.registered_collections.values())))
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._scopes[nodeid]


def scopes(nodeids: list[str]) -> dict[str, str]:
    """What each test is handed out with. A file that comes twice is two, each in its place."""
    found = {}
    times: Counter[str] = Counter()
    for file, neighbours in groupby(nodeids, file_of):
        times[file] += 1
        for nodeid in neighbours:
            found[nodeid] = nodeid if file == APART else f"{file} {times[file]}"
    return found
