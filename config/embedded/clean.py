"""Remove the private folder of this checkout, after ending what was left running in it."""

from __future__ import annotations

import shutil
import sys

from config.embedded.places import FolderLock, private_folder
from config.processes import end_strays


def main() -> None:
    folder = private_folder()
    used = [
        path.parent for path in folder.rglob("in-use.lock") if not FolderLock(path.parent).take()
    ]
    if used:
        sys.exit(
            f"Something is running in {used[0]} (make up, make demo or a test run). Nothing was "
            "removed. Stop it first."
        )
    end_strays(folder)
    shutil.rmtree(folder)
    print(f"removed {folder}")


if __name__ == "__main__":
    main()
