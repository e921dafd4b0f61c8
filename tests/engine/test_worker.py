"""A worker repeats its step while there is work, waits to be nudged, and ends with what its step raised."""

import os
import threading
import time

from broker_store.engine.worker import Worker


def test_it_repeats_while_there_is_work_and_again_when_nudged():
    left, idle = [3], threading.Semaphore(0)

    def step(now_ms):
        if left[0] == 0:
            idle.release()
            return False
        left[0] -= 1
        return True

    worker = Worker("test", step, 60, lambda *_: None)
    worker.start()
    assert idle.acquire(timeout=5) and left == [0]
    left[0] = 2
    worker.nudge()
    assert idle.acquire(timeout=5) and left == [0]
    assert worker.stop() and worker.stop()


def test_it_wakes_by_itself_after_its_interval():
    seen = threading.Semaphore(0)
    worker = Worker("test", lambda now_ms: bool(seen.release()), 0.001, lambda *_: None)
    worker.start()
    assert all(seen.acquire(timeout=5) for _ in range(3))
    assert worker.stop()


def test_what_the_step_raises_is_reported_once_and_kept_and_the_worker_ends():
    told = []
    error = ValueError("broken")
    done = threading.Event()

    def step(now_ms):
        raise error

    def failed(name, raised):
        told.append((name, raised))
        done.set()

    worker = Worker("test", step, 60, failed)
    worker.start()
    assert done.wait(5) and worker.stop()
    assert told == [("test", error)] and worker.last_error is error


def test_it_may_stop_itself():
    stopped = []
    done = threading.Event()

    def step(now_ms):
        stopped.append(worker.stop())
        done.set()
        return False

    worker = Worker("test", step, 60, lambda *_: None)
    worker.start()
    assert done.wait(5)
    assert worker.stop() and stopped == [False]


def test_its_thread_alone_yields_if_it_has_a_niceness():
    seen = []
    done = threading.Semaphore(0)

    def step(now_ms):
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        done.release()
        return False

    worker = Worker("test", step, 60, lambda *_: None, niceness=5)
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    worker.start()
    assert done.acquire(timeout=5) and worker.stop()
    assert seen == [5] and os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_who_hands_over_goes_on_when_the_step_has_begun():
    seen, idle = [], threading.Semaphore(0)

    def step(now_ms):
        seen.append(now_ms)
        return False

    worker = Worker("test", step, 60, lambda *_: None)
    worker._nudged = _TellsOfWaiting(idle)
    worker.start()
    for number in range(1, 20):
        assert idle.acquire(timeout=5) and len(seen) == number
        worker.hand_over(limit_s=5)
        assert not worker._nudged.is_set(), "the worker has taken the nudge"
    assert worker.stop()


def test_nobody_waits_for_a_step_that_is_under_way_or_a_worker_that_ended():
    begun, go_on = threading.Semaphore(0), threading.Event()
    worker = Worker("test", lambda now_ms: begun.release() or not go_on.wait(5), 60, lambda *_: None)
    worker.start()
    assert begun.acquire(timeout=5)
    before = time.monotonic()
    worker.hand_over(limit_s=60)
    go_on.set()
    assert begun.acquire(timeout=5) and worker.stop()
    worker.hand_over(limit_s=60)
    assert time.monotonic() - before < 30


class _TellsOfWaiting(threading.Event):
    def __init__(self, waiting: threading.Semaphore):
        super().__init__()
        self._waiting = waiting

    def wait(self, timeout=None):
        self._waiting.release()
        return super().wait(timeout)
