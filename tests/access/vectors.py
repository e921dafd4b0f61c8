"""The vectors of Apache's access control (tests/golden/README.md)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

DIRECTORY = Path(__file__).parent.parent / "golden" / "access"


def rows(name: str) -> list[dict]:
    """Return the rows of a file."""
    path = DIRECTORY / name
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in raw.splitlines()]
