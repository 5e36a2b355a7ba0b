"""The private servers: what they survive, what they refuse, and whom they leave alone."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest

from config.embedded.places import FolderLock, ephemeral_folder, is_root, private_folder
from config.embedded.postgres import Postgres
from config.embedded.valkey import Valkey
from config.processes import ServerError, end_strays


@pytest.fixture
def folder() -> Generator[Path]:
    """A folder that the servers' user can reach, which pytest's tmp_path is not for root."""
    path, lock = ephemeral_folder()
    yield path
    end_strays(path)
    shutil.rmtree(path)
    lock.release()


def test_postgres_keeps_its_data_when_it_is_killed_and_its_starter_too(folder: Path) -> None:
    first = Postgres(folder / "postgres", durable=True)
    first.start()
    with first.connect() as connection:
        connection.execute("CREATE TABLE kept AS SELECT 79 AS amount")
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait(timeout_seconds=5)  # as init does for a starter that is dead

    second = Postgres(folder / "postgres", durable=True)  # its starter knows nothing of the first
    second.start()
    with second.connect() as connection:
        assert connection.execute("SELECT amount FROM kept").fetchone() == (79,)
    second.stop()
    first.stop()


def test_a_server_left_running_by_a_killed_starter_is_replaced(folder: Path) -> None:
    left = Postgres(folder / "postgres", durable=False)
    left.start()
    new = Postgres(folder / "postgres", durable=False)
    new.start()
    assert not left.process.alive
    assert new.process.alive
    new.stop()
    left.stop()


def test_a_cluster_that_was_cut_short_is_made_again(folder: Path) -> None:
    half = folder / "postgres" / "data.making"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    postgres = Postgres(folder / "postgres", durable=False)
    postgres.start()
    postgres.stop()
    assert not half.exists()


@pytest.mark.parametrize(
    ("version", "said"), [("15\n", "PostgreSQL 15; this is 18"), (None, "not a Postgres data")]
)
def test_a_foreign_data_folder_is_refused_and_left_as_it_is(
    folder: Path, version: str | None, said: str
) -> None:
    data = folder / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "theirs").write_text("kept")
    if version is not None:
        (data / "PG_VERSION").write_text(version)
    with pytest.raises(ServerError, match=said):
        Postgres(folder / "postgres", durable=True).start()
    assert (data / "theirs").read_text() == "kept"


def test_postgres_wants_its_password_and_listens_on_loopback_only(folder: Path) -> None:
    postgres = Postgres(folder / "postgres", durable=False)
    postgres.start()
    try:
        with postgres.connect() as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
            assert connection.execute("SHOW unix_socket_directories").fetchone() == ("",)
            assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
        wrong = postgres.url().replace(postgres.password, "guessed")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)
        secret = folder / "postgres" / "password"
        assert secret.stat().st_mode & 0o077 == 0
    finally:
        postgres.stop()


@pytest.mark.skipif(not is_root(), reason="an ordinary user's server runs as that user")
def test_started_by_root_postgres_runs_as_nobody_and_nothing_outside_changes(folder: Path) -> None:
    def outside() -> list[tuple[Path, int, int]]:
        parents = [folder, *folder.parents]
        return [(path, path.stat().st_mode, path.stat().st_uid) for path in parents]

    before = outside()
    postgres = Postgres(folder / "postgres", durable=False)
    postgres.start()
    try:
        assert Path(f"/proc/{postgres.process.pid}").stat().st_uid != 0
        assert outside() == before
    finally:
        postgres.stop()


def test_valkey_comes_back_on_the_same_address_with_nothing_in_it(folder: Path) -> None:
    valkey = Valkey(folder / "valkey")
    valkey.start()
    try:
        url = valkey.url(3)
        with valkey.connect(3) as client:
            client.set("a-hint", "lost")
        valkey.restart()
        assert valkey.url(3) == url
        with valkey.connect(3) as client:
            assert client.get("a-hint") is None
    finally:
        valkey.stop()


def test_the_folder_of_a_killed_starter_is_swept_and_a_living_ones_is_not() -> None:
    abandoned, lock = ephemeral_folder()
    server = Valkey(abandoned / "valkey")
    server.start()
    lock.release()  # as the system does for a killed process
    living, living_lock = ephemeral_folder()
    try:
        assert not abandoned.exists()
        # Told to end is not gone at once on a busy machine; one that stays raises here.
        server.process.wait(timeout_seconds=10)
        again, again_lock = ephemeral_folder()
        assert living.exists()
        again_lock.release()
        shutil.rmtree(again)
    finally:
        living_lock.release()
        shutil.rmtree(living)
        server.stop()


def test_a_lock_is_had_by_one_at_a_time(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    assert first.take()
    assert not second.take()
    first.release()
    assert second.take()
    second.release()


def test_everything_lies_in_the_private_folder() -> None:
    folder, lock = ephemeral_folder()
    try:
        assert folder.parent == private_folder()
    finally:
        lock.release()
        shutil.rmtree(folder)
