"""What others wrote and we ship: it is what its note says, byte for byte."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

VENDOR = Path(__file__).resolve().parents[2] / "static" / "vendor"


@pytest.mark.parametrize("directory", sorted(path.name for path in VENDOR.iterdir()))
def test_every_file_is_named_with_its_hash(directory):
    note = json.loads((VENDOR / directory / "vendor.json").read_text())
    assert note["name"] and note["version"] and note["license"]
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (VENDOR / directory).iterdir()
        if path.name != "vendor.json"
    }
    assert files == note["sha256"]
