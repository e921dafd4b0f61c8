"""The settings of the type checker: which rooms are strict, a list that only grows. No room is left out."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
OVERRIDES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
STRICT = {"access", "formats", "protocol", "client", "facts", "sql92", "tools"}


def _modules(setting: str) -> set[str]:
    return {module for override in OVERRIDES if override.get(setting) for module in override["module"]}


def test_strict_rooms_are_strict():
    strict = {f"broker_store.{room}.*" for room in STRICT}
    assert _modules("disallow_untyped_defs") == strict
    assert not strict & _modules("ignore_errors")


def test_errors_are_shown_of_every_module():
    assert _modules("ignore_errors") == set()


def test_what_the_checker_shall_not_see_has_a_code_and_a_reason():
    wrong = []
    for top in ("broker_store", "mqadmin"):
        for file in sorted((ROOT / top).rglob("*.py")):
            for number, line in enumerate(file.read_text().splitlines(), 1):
                if re.search(r"# type: ignore(?!\[[a-z, -]+\]  # \w)", line):
                    wrong.append(f"{file.relative_to(ROOT)}:{number}")
    assert wrong == []
