"""Threads and the loop: waits that are known, turns that are long, collections, and processor time."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading

import pytest

from broker_store.engine.status.last_minute import KEPT_SECONDS, LastMinute
from broker_store.engine.worker import Worker
from broker_store.facts import threads
from broker_store.facts.threads import LOOP, Counted, ThreadTimes, place_in_turn

US, MS, S = 1_000, 1_000_000, 1_000_000_000
NOW_MS = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def counts():
    """What the system counts of each thread, by its number; None: nothing."""
    return {}


@pytest.fixture
def times(clock, counts):
    calls = []
    times = ThreadTimes(calls.append, clock, count=lambda: dict(counts) if counts is not None else None)
    times.calls = calls
    times.start(threading.get_ident())
    yield times
    times.stop()


def test_before_anything_is_measured_nothing_is_zero(times):
    facts = times.facts()
    assert (facts.lately_ms, facts.processor_ms, facts.loop.lately.p99, facts.lock.lately.p99) == (None,) * 4
    assert facts.loop.longest_turns == []
    assert all(second.loop_us is second.lock_us is second.processor_ms is None for second in facts.seconds)
    assert len(facts.seconds) == KEPT_SECONDS


def test_a_wait_for_the_lock_is_in_its_second(times, clock):
    times.note_lock_wait(30 * US)
    clock.ms += 5_000
    times.note_lock_wait(400 * US)
    times.note_lock_wait(100 * US)
    facts = times.facts()
    assert (facts.seconds[-6].lock_us, facts.seconds[-1].lock_us, facts.seconds[-2].lock_us) == (
        30,
        400,
        None,
    )
    assert (facts.lock.lately.count, facts.lock.since_start.longest) == (3, 400)


def test_a_minute_later_a_wait_is_only_in_the_sum_since_the_start(times, clock):
    times.note_lock_wait(30 * US)
    for _ in range(KEPT_SECONDS + 2):
        times.sample()
        clock.ms += 1_000
    facts = times.facts()
    assert (facts.lock.lately.count, facts.lock.since_start.count) == (0, 1)
    assert all(second.lock_us is None for second in facts.seconds)


def test_the_loop_is_asked_once_until_it_answers(times):
    times.ask_loop()
    times.ask_loop()
    assert len(times.calls) == 1
    times.calls.pop()()
    times.ask_loop()
    assert len(times.calls) == 1
    facts = times.facts()
    assert facts.loop.lately.count == 1
    assert facts.loop.longest_turns[0].took_us > 0


def test_a_loop_that_is_held_up_shows_where(clock):
    """The loop itself: a call that waits for another thread is where the loop is found."""
    asked, release = threading.Event(), threading.Event()

    async def main():
        loop = asyncio.get_running_loop()
        times = ThreadTimes(loop.call_soon_threadsafe, clock, count=dict)
        times.start(threading.get_ident())

        def probe():
            asked.wait(10)
            times.ask_loop()
            times.ask_loop()
            release.set()

        thread = threading.Thread(target=probe)
        thread.start()
        _hold_the_loop(asked, release)
        thread.join()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        times.stop()
        return times.facts()

    (turn,) = asyncio.run(main()).loop.longest_turns
    # No function of the program is in that turn: the innermost of any is named.
    assert turn.where is not None and turn.where.startswith("threading.")


def _hold_the_loop(asked, release):
    asked.set()
    release.wait(10)


def test_a_function_of_the_program_is_named_with_its_line():
    frames = []

    def step(now_ms):
        frames.append(sys._getframe())
        worker.stop()
        return False

    worker = Worker("w", step, 1.0, lambda name, error: None)
    worker.run()
    assert place_in_turn(frames[0]).startswith("broker_store.engine.worker.Worker.run, line ")
    assert place_in_turn(None) is None


def test_the_longest_turn_of_each_second_is_kept_longest_first(times, clock):
    for took_ms, where in ((3, "a"), (40, "b"), (5, "c")):
        times.note_turn(took_ms * MS, where)
    clock.ms += 2_000
    times.note_turn(90 * MS, None)
    turns = times.facts().loop.longest_turns
    assert [(turn.took_us, turn.where) for turn in turns] == [(90_000, None), (40_000, "b")]
    assert turns[0].at_ms == clock.ms - 90
    clock.ms += 59_000
    assert [turn.took_us for turn in times.facts().loop.longest_turns] == [90_000]


def test_a_collection_is_counted_in_its_generation(times):
    before = times.facts().collections
    gc.collect(1)
    gc.collect(2)
    after = times.facts().collections
    assert [now.count_since_start - was.count_since_start for was, now in zip(before, after, strict=True)][
        1:
    ] == [1, 1]
    assert after[2].count == 1 and 0 < after[2].longest_us <= after[2].total_us
    times.stop()
    gc.collect(2)
    assert times.facts().collections[2].count_since_start == after[2].count_since_start


def test_processor_time_is_counted_between_samples(times, clock, counts):
    own = threading.get_native_id()
    counts[own] = Counted(5 * S, 1 * S)
    counts[1] = Counted(7 * S, 0)
    times.sample()
    clock.ms += 500
    counts[own] = Counted(50 * S, 1 * S)
    times.sample()  # too early
    assert times.facts().lately_ms is None
    clock.ms += 1_500
    counts[own] = Counted(6 * S, 1 * S + 250 * MS)
    counts[2] = Counted(300 * MS, 0)  # began since
    counts[1] = Counted(1 * S, 0)  # another thread with the number of one that ended
    times.sample()
    facts = times.facts()
    by_name = {work.name: work for work in facts.threads}
    assert facts.lately_ms == 2_000
    assert (by_name[LOOP].processor_ms, by_name[LOOP].waited_ms, by_name[LOOP].share) == (1_000, 250, 0.5)
    assert (by_name["not Python's"].threads, by_name["not Python's"].processor_ms) == (2, 1_300)
    assert facts.threads[0].name == "not Python's"
    assert facts.processor_ms is not None and facts.seconds[-1].processor_ms is not None


def test_a_system_that_does_not_count_gives_no_zeros(clock):
    times = ThreadTimes(lambda call: None, clock, count=lambda: None)
    times.sample()
    clock.ms += 1_000
    times.sample()
    loop = next(work for work in times.facts().threads if work.name == LOOP)
    assert (loop.processor_ms, loop.share, loop.waited_ms, loop.threads) == (None, None, None, 1)


def test_threads_of_a_pool_are_one_row_and_a_worker_has_its_longest_step(times, clock):
    ended = threading.Event()
    pool = [threading.Thread(target=ended.wait, args=(10,), name=f"cold-read_{n}") for n in range(2)]
    second_step = threading.Event()
    steps = iter((True, False))

    def step(now_ms):
        if not (has_more := next(steps)):
            second_step.set()
            ended.wait(10)
        return has_more

    worker = Worker("flusher-of-a-test", step, 10.0, lambda name, error: None)
    for thread in (*pool, worker):
        thread.start()
    assert second_step.wait(10)
    clock.ms = worker.last_run_ms
    facts = times.facts()
    ended.set()
    worker.stop()
    for thread in pool:
        thread.join()
    by_name = {work.name: work for work in facts.threads}
    assert (by_name["cold-read"].threads, by_name["cold-read"].longest_step_us) == (2, None)
    assert by_name["flusher-of-a-test"].longest_step_us > 0


def test_the_system_counts_this_thread():
    found = threads.counted()
    assert found is None or found[threading.get_native_id()].processor_ns > 0


def test_a_step_probes_and_samples(times, clock):
    assert times.step(clock.ms) is True
    facts = times.facts()
    assert facts.lock.since_start.count == 1 and len(times.calls) == 1


def test_the_last_minute_forgets_what_is_older_and_bears_a_clock_that_goes_back():
    minute = LastMinute()
    minute.note_largest(100, 5)
    minute.note_largest(100, 3)
    minute.add(101, 2)
    minute.add(101, 2)
    assert minute.values(101)[-2:] == [5, 4] and minute.largest(101) == 5
    assert minute.largest(100 + KEPT_SECONDS) == 4
    assert minute.largest(101 + KEPT_SECONDS) is None
    minute.note_largest(40, 1)  # its place held second 100
    assert minute.values(40)[-1] == 1 and minute.values(101)[-2:] == [None, 4]
