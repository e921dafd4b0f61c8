"""What tests of the engine share."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.hand_store import Clock, HandStore, findings, small_settings


@pytest.fixture
def directory(tmp_path):
    """A place where syncs cost nothing, for tests that simulate what a sync does."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="broker-test-") as made:
        yield Path(made)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_store(directory, clock):
    """Opens and starts a store, always in the same directory; at the end the last is closed and its check finds nothing."""
    opened = []

    def open_one(disk=None, **changes):
        opened.append(HandStore(small_settings(directory / "store", **changes), clock, disk).begin())
        return opened[-1]

    yield open_one
    for store in reversed(opened):
        store.close()
    if opened:
        assert findings(opened[-1].root, settings=opened[-1].settings) == []
