"""What tests of the engine share."""

import tempfile
from pathlib import Path

import pytest

from broker_store.engine.store import MessageStore
from tests.support.directories import tmp_path  # noqa: F401  (a fixture)
from tests.support.hand_store import Clock, HandStore, findings, small_settings

_MAX_CHECKED = 3  # tests that lead hundreds of lives check each themselves


@pytest.fixture
def directory(tmp_path):  # noqa: F811
    """One that is gone before `what_is_left_is_sound` looks, for tests that leave a store damaged."""
    with tempfile.TemporaryDirectory(dir=tmp_path) as made:
        yield Path(made)


@pytest.fixture(autouse=True)
def what_is_left_is_sound(monkeypatch, tmp_path):  # noqa: F811
    """The stores that a test closed last, in order, are checked when it ends: whatever it did, it leaves them
    whole.

    `tmp_path` is asked for so that it is still there.
    """
    closed = {}
    close = MessageStore.close

    def close_and_note(store):
        close(store)
        failed = store.flags.keys() & {"sync_failed", "dispatch_failed"}
        if store.state == "closed" and not failed and not store.settings.inspect:
            closed.pop(store.root, None)
            closed[store.root] = store.settings

    monkeypatch.setattr(MessageStore, "close", close_and_note)
    yield
    for root, settings in list(closed.items())[-_MAX_CHECKED:]:
        if root.is_dir():
            assert findings(root, settings=settings) == []


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_store(directory, clock):
    """Opens and starts a store, always in the same directory; at the end the last is closed and its check
    finds nothing."""
    opened = []

    def open_one(disk=None, **changes):
        opened.append(HandStore(small_settings(directory / "store", **changes), clock, disk).begin())
        return opened[-1]

    yield open_one
    for store in reversed(opened):
        store.close()
    if opened:
        assert findings(opened[-1].root, settings=opened[-1].settings) == []
