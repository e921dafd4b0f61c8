"""What pyproject.toml cannot state of the build: the files beside the packages, and the pinned extras.

An installed copy has templates, static files, the glossary and the requirements in `mqadmin/files`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FILES = ("manage.py", "docs/GLOSSARY.md", "requirements-core.txt", "requirements.txt")
FOLDERS = ("templates", "static")


class BuildWithFiles(build_py):
    """Builds the packages, and puts the files beside them where an installed copy finds them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # the checkout has them
            return
        place = Path(self.build_lib) / "mqadmin" / "files"
        shutil.rmtree(place, ignore_errors=True)
        for name in FILES:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, place / name)
        for name in FOLDERS:
            shutil.copytree(ROOT / name, place / name)


def pins(name: str) -> list[str]:
    """Return the requirements of a file, also of those that it includes."""
    found = []
    for line in (ROOT / name).read_text().splitlines():
        if line.startswith("-r "):
            found += pins(line.removeprefix("-r ").strip())
        elif line and not line.startswith("#"):
            found.append(line)
    return found


setup(
    cmdclass={"build_py": BuildWithFiles},
    extras_require={
        "server": pins("requirements-core.txt"),
        "otlp": pins("requirements-otlp.txt"),
        "pipeline": pins("requirements.txt"),
    },
)
