"""Remove what this checkout's servers and stacks keep, after ending what was left running there."""

from __future__ import annotations

import shutil
import sys

from config.development import DATA_DIR
from config.embedded.places import FolderLock, private_folder
from config.processes import end_strays


def main() -> None:
    folders = [folder for folder in {private_folder(), DATA_DIR} if folder.exists()]
    for folder in folders:
        for lock in folder.rglob("in-use.lock"):
            if not FolderLock(lock.parent).take():
                sys.exit(
                    f"{lock.parent} is in use (make up, make demo or a test run). Nothing was "
                    "removed. Stop it first."
                )
    for folder in folders:
        end_strays(folder)
        shutil.rmtree(folder)
        print(f"removed {folder}")


if __name__ == "__main__":
    main()
