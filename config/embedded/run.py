"""Run one command with throwaway servers and a development environment:

python -m config.embedded.run .venv/bin/python manage.py check
"""

from __future__ import annotations

import os
import subprocess
import sys

from config.development import OFFLINE
from config.embedded.servers import Servers


def main() -> int:
    if os.environ.get("DATABASE_URL"):
        return subprocess.run(sys.argv[1:], check=False).returncode
    with Servers() as servers:
        environment = (
            OFFLINE
            | os.environ
            | {"DATABASE_URL": servers.postgres.url(), "REDIS_URL": servers.valkey.url()}
        )
        return subprocess.run(sys.argv[1:], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
