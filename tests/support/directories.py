"""The directory of a test that makes stores: in memory, where a sync costs nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
MIN_FREE_BYTES = 4 << 30


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory in memory, unless there is no room or the test is of a real disk (mark `on_disk`).

    For the `conftest.py` of rooms whose tests sync stores thousands of times. The directory is removed at the
    end of the test.
    """
    on_disk = (
        request.node.get_closest_marker("on_disk")
        or not os.access(MEMORY, os.W_OK)
        or shutil.disk_usage(MEMORY).free < MIN_FREE_BYTES
    )
    with tempfile.TemporaryDirectory(dir=None if on_disk else MEMORY, prefix="broker-test-") as made:
        yield Path(made)
