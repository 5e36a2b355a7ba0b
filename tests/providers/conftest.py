from collections.abc import Iterator

import pytest

from providers.sandbox import Sandbox, Settings


@pytest.fixture(scope="session")
def running_sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(running_sandbox: Sandbox) -> Sandbox:
    """One sandbox for all, empty and set as at the start. `reset` alone keeps the settings."""
    running_sandbox.reset()
    running_sandbox.settings(**Settings().as_dict())
    return running_sandbox
