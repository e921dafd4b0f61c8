"""Where the program's own files lie: in a checkout, or in an installed copy."""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import version
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_WITH_STATIC_FILES = ("django", "django-ninja", "django-rq", "django-unfold")


def base_directory() -> Path:
    """Return the directory with templates, static files, `manage.py` and the requirements."""
    of_installed = _PACKAGE / "files"  # setup.py makes it
    return of_installed if of_installed.is_dir() else _PACKAGE.parent


def static_root(base: Path) -> Path:
    """Return where collected static files are.

    Those of an installed copy are named by what they are made of: a directory that an earlier version left is
    not used.
    """
    if base == _PACKAGE.parent:
        return base / "staticfiles"
    digest = hashlib.sha256()
    for path in sorted((base / "static").rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(base)}\0".encode() + path.read_bytes())
    for name in _WITH_STATIC_FILES:
        digest.update(f"{name}\0{version(name)}\0".encode())
    return Path(sys.prefix) / "var" / "headpond" / f"static-{digest.hexdigest()[:16]}"
