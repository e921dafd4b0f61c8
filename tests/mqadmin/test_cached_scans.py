"""Scans that serve all callers: which callers wait for one, and when it is throttled meanwhile."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker_store import throttle
from mqadmin.cluster.embedded.cached_scans import CachedScans


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


def test_a_throttled_scan_goes_on_at_full_speed_once_a_caller_waits_for_it(rests, threads):
    scans, rested, a_caller_waits = CachedScans(1), threading.Event(), threading.Event()

    def make():
        throttle.pause()
        rested.set()
        assert a_caller_waits.wait(10)
        throttle.pause()
        return {}

    throttled = threads.submit(throttle.throttled_by, throttle.Throttle(), scans.of, "key", make)
    assert rested.wait(10) and len(rests) == 1
    stopped, stop = threading.Event(), throttle.Throttle.stop_throttling
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(throttle.Throttle, "stop_throttling", lambda self: (stop(self), stopped.set()))
        waits = threads.submit(scans.of, "key", make)
        assert stopped.wait(10)
    a_caller_waits.set()
    assert waits.result(10) is throttled.result(10)
    assert len(rests) == 1


def test_throttled_scans_one_after_another_rest(rests):
    scans = CachedScans(1)
    for _ in range(2):
        throttle.throttled_by(throttle.Throttle(), scans.of, object(), lambda: throttle.pause() or {})
    assert len(rests) == 2


def test_a_scan_that_begins_while_a_caller_waits_is_not_throttled(rests):
    scans = CachedScans(1)
    scans._waiting.add("a caller")
    throttle.throttled_by(throttle.Throttle(), scans.of, "key", lambda: throttle.pause() or {})
    assert rests == []


@pytest.mark.parametrize(("fresh_s", "made"), [(60.0, 1), (0.0, 3)])
def test_a_cheap_scan_serves_later_callers_only_while_it_is_fresh(fresh_s, made):
    scans, results = CachedScans(0, fresh_s), []
    for number in range(3):
        results.append(scans.of("key", lambda number=number: [number]))
    assert len({result[0] for result in results}) == made


def test_a_dear_scan_serves_later_callers_also_where_a_cheap_one_does_not():
    scans, made = CachedScans(1_000_000, fresh_s=0.0), []

    def make():
        made.append(sum(range(100_000)))
        return made

    for _ in range(3):
        scans.of("key", make)
    assert len(made) == 1
