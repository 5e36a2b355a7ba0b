"""A port in use is said plainly, and never taken from the program that has it."""

from __future__ import annotations

import socket
from collections.abc import Generator

import pytest

from config.processes import ServerError, port_is_free
from config.up import chosen_port


@pytest.fixture
def taken() -> Generator[int]:
    """A port that another program listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_port_that_was_asked_for_and_is_taken_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    monkeypatch.setenv("PORT", str(taken))
    with pytest.raises(ServerError, match=f"Port {taken} is in use by another program"):
        chosen_port()


def test_a_default_port_that_is_taken_is_replaced_and_said(
    monkeypatch: pytest.MonkeyPatch, taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PORT", raising=False)
    monkeypatch.setattr("config.up.DEFAULT_PORT", taken)
    other = chosen_port()
    assert other != taken
    assert port_is_free(other)
    assert f"port {taken} is in use by another program; using {other}" in capsys.readouterr().out


@pytest.mark.parametrize("asked", ["eighty", "0", "70000"])
def test_a_port_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("PORT", asked)
    with pytest.raises(ServerError, match="PORT must be a number"):
        chosen_port()
