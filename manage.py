#!/usr/bin/env python
"""Commands for operators. Beside a running `make up` it uses that stack; else the environment."""

from __future__ import annotations

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit("Django is not installed here. Run `make deps`, then .venv/bin/python manage.py …")
    from config.development import find_environment

    if problem := find_environment(sys.argv[1] if len(sys.argv) > 1 else "help"):
        print(problem, file=sys.stderr)
        sys.exit(2)
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
