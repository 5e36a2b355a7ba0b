"""The product runs on what its requirements install, without what the tests bring along."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

from config.development import CHECKOUT

# Everything that the three kinds of process import, in an interpreter that cannot find modules of
# other distributions. The broker's transport is among it: it is loaded by its name at run time, so
# no import statement of ours shows what it needs.
PROGRAM = """
import sys
hidden = set(sys.argv[1].split(","))

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
import django
django.setup()
import config.wsgi, config.celery
from django.urls import get_resolver
get_resolver().url_patterns
config.celery.app.loader.import_default_modules()
with config.celery.app.connection() as connection:
    connection.transport
import celery.bin.worker, celery.bin.beat, celery.worker.worker, celery.beat
import celery.concurrency.prefork, celery.concurrency.thread, gunicorn.app.wsgiapp
import gunicorn.workers.gthread, providers.stripe.adapter, providers.sandbox, config.demo
"""


def normalised(name: str) -> str:
    """A distribution's name as PyPI compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_by(*names: str) -> set[str]:
    """The distributions that lock files name."""
    text = "\n".join((CHECKOUT / name).read_text() for name in names)
    pins = re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==", text, flags=re.MULTILINE)
    return {normalised(pin) for pin in pins}


@pytest.mark.django_db
def test_nothing_that_only_the_tests_bring_is_needed_at_run_time() -> None:
    required = installed_by("requirements.txt", "requirements-local.txt")
    owners = packages_distributions()
    hidden = [
        module for module, names in owners.items() if not {normalised(n) for n in names} & required
    ]
    # setuptools and pip come with the environment; the first puts a hook into every process of it.
    hidden = sorted({*hidden} - {"_distutils_hack", "setuptools", "pip", "pkg_resources"})
    assert "pytest" in hidden
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(hidden)],
        cwd=CHECKOUT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "config.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
