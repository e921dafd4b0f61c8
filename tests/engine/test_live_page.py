"""The live page shows other processes where the store is, and is used only when it was written whole and
lately."""

import struct
import subprocess
import sys

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.engine.status.live_page import LivePage, read_live_page
from tests.support.hand_store import HandStore, message, small_settings


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "live"


def test_what_was_published_last_is_read(path):
    page = LivePage(Disk(), path)
    assert read_live_page(Disk(), path) is None
    for number in (1, 2):
        page.publish(10, 60 + number, 50, 40, 30, 20, "recovering", 5, 9)
    found = read_live_page(Disk(), path)
    assert (
        found.minimum,
        found.wrote,
        found.confirmed,
        found.dispatched,
        found.flushed,
        found.checkpointed,
    ) == (10, 62, 50, 40, 30, 20)
    assert (found.state, found.step_done, found.step_of, found.is_alive) == ("recovering", 5, 9, True)
    page.close()
    assert not path.exists() and read_live_page(Disk(), path) is None


def test_a_page_that_is_being_written_or_is_none_is_not_read(path):
    page = LivePage(Disk(), path)
    page.publish(0, 0, 0, 0, 0, 0, "running")
    whole = path.read_bytes()
    for at, value in ((8, 3), (0, 1), (80, 77)):
        changed = bytearray(whole)
        struct.pack_into("=q", changed, at, value)
        path.write_bytes(changed)
        assert read_live_page(Disk(), path) is None
    path.write_bytes(whole[:50])
    assert read_live_page(Disk(), path) is None
    path.write_bytes(whole)
    page.close()


def test_a_page_of_a_dead_process_says_nothing(path):
    page = LivePage(Disk(), path)
    page.publish(0, 0, 0, 0, 0, 0, "running")
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True, text=True
    )
    changed = bytearray(path.read_bytes())
    struct.pack_into("=q", changed, 16, int(dead.stdout))
    path.write_bytes(changed)
    assert read_live_page(Disk(), path) is None
    page.close()


def test_a_store_publishes_at_each_tick_and_takes_the_page_away(tmp_path, path, clock):
    store = HandStore(small_settings(tmp_path / "store"), clock, live_page_path=path).begin()
    store.appender.put(message())
    store.tick()
    found = read_live_page(Disk(), path)
    assert (found.state, found.wrote, found.dispatched, found.flushed) == (
        "running",
        store.log.wrote,
        store.log.wrote,
        0,
    )
    store.close()
    assert not path.exists()
