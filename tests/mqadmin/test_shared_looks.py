"""Scans that serve all callers: which caller waits for one, and how it is throttled."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker_store import throttle
from mqadmin.shared_looks import SharedLooks


@pytest.fixture
def rests(monkeypatch):
    """The rests that were taken, in seconds; each piece takes long."""
    taken = []
    monkeypatch.setattr(
        throttle.Throttle.__init__, "__defaults__", (iter(range(1000)).__next__, taken.append)
    )
    return taken


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as threads:
        yield threads


def test_a_gentle_look_hurries_once_somebody_waits_for_it(rests, threads):
    looks, rested, somebody_waits = SharedLooks(1), threading.Event(), threading.Event()

    def make():
        throttle.pause()
        rested.set()
        assert somebody_waits.wait(10)
        throttle.pause()
        return {}

    gentle = threads.submit(throttle.throttled, looks.of, "key", make)
    assert rested.wait(10) and len(rests) == 1
    hurried, hurry = threading.Event(), throttle.Throttle.stop_throttling
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(throttle.Throttle, "stop_throttling", lambda self: (hurry(self), hurried.set()))
        waits = threads.submit(looks.of, "key", make)
        assert hurried.wait(10)
    somebody_waits.set()
    assert waits.result(10) is gentle.result(10)
    assert len(rests) == 1


def test_gentle_looks_one_after_another_rest(rests):
    looks = SharedLooks(1)
    for _ in range(2):
        throttle.throttled(looks.of, object(), lambda: throttle.pause() or {})
    assert len(rests) == 2


def test_a_look_that_begins_while_somebody_waits_hurries_from_its_beginning(rests):
    looks = SharedLooks(1)
    looks._waiting.add("somebody")
    throttle.throttled(looks.of, "key", lambda: throttle.pause() or {})
    assert rests == []
