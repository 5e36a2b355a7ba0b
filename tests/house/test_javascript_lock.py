"""What the JavaScript examples install is fixed: which packages, which bytes, no code of theirs."""

import json
import re
from typing import Any

from config.development import CHECKOUT

EXAMPLES = CHECKOUT / "examples" / "js"


def _locked() -> dict[str, Any]:
    packages: dict[str, Any] = json.loads((EXAMPLES / "package-lock.json").read_text())["packages"]
    del packages[""]  # the examples themselves
    return packages


def test_every_dependency_is_one_exact_version() -> None:
    """npm takes an older major without a word when Node is too old for a newer one."""
    wanted: dict[str, str] = json.loads((EXAMPLES / "package.json").read_text())["dependencies"]
    locked = _locked()
    for name, version in wanted.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), name
        assert locked[f"node_modules/{name}"]["version"] == version


def test_every_locked_package_has_a_hash_and_no_address() -> None:
    """Without an address npm asks whatever registry the machine is set to."""
    for name, package in _locked().items():
        assert package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package, name


def test_no_package_runs_code_when_it_is_installed() -> None:
    assert [name for name, package in _locked().items() if "hasInstallScript" in package] == []
