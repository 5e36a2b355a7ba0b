"""Both servers together, for as long as somebody needs them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import TracebackType

from config.embedded.places import FolderLock, ephemeral_folder
from config.embedded.postgres import Postgres
from config.embedded.valkey import Valkey


class Servers:
    """A Postgres and a Valkey under one folder.

    Without a folder: throwaway servers, fast (no fsync), gone with their data at `stop`.
    With one: data is kept there from start to start, through power cuts too.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._lock: FolderLock | None = None
        self.ephemeral = folder is None
        if folder is None:
            folder, self._lock = ephemeral_folder()
        self.folder = folder
        self.postgres = Postgres(folder / "postgres", durable=not self.ephemeral)
        self.valkey = Valkey(folder / "valkey")

    def start(self) -> None:
        """Start both, or neither."""
        try:
            self.valkey.start()
            self.postgres.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self.postgres.stop()
        self.valkey.stop()
        if self.ephemeral:
            shutil.rmtree(self.folder, ignore_errors=True)
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> Servers:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
