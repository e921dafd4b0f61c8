"""What the threads of the process and its event loop did in the last minute.

    each PROBE_NS    a kernel ends ──► how long until Python goes on: the wait for the interpreter lock
                     a call to the loop ──► how long until the loop makes it: the wait for the loop
    each second      /proc/self/task/<thread>/schedstat: processor time, and the wait for a processor
    each collection  gc.callbacks: how long it stopped every thread

Python counts no waits of single threads for the interpreter lock, so the probe's waits stand for those of any
thread that wakes, and of any kernel that ran without the lock.

The loop makes one call after another, a turn. Libuv offers no hook for a turn, so its length is known from
the call that waited for its end. A turn that began just after a probe is up to PROBE_NS longer than that.
While a call waits longer than a probe's rest, the stack of the loop's thread is read: it shows where the loop
is.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import numpy as np

from broker_store.engine.status.histograms import Histograms
from broker_store.engine.status.last_minute import KEPT_SECONDS, LastMinute
from broker_store.engine.worker import WorkerThread
from broker_store.facts.distributions import Distribution, distribution
from broker_store.kernels.lock_probe import TIMESPEC_WORDS, rest
from broker_store.units import Moment, Small

PROBE_NS = 25_000_000
MAX_TURNS = 8  # of the last minute that are given one by one
LOOP = "event loop"
TASKS = Path("/proc/self/task")
GENERATIONS = 3
_LOOP_LINE, _LOCK_LINE = range(2)
_NS_PER_US, _NS_PER_MS = 1_000, 1_000_000
_POOL_NUMBER = re.compile(r"[-_ ]\d+(_\d+)?( \(.*\))?$")
_OWN = ("broker_store", "mqadmin")
_RUNS_THE_LOOP = "asyncio.runners"  # below this frame nothing belongs to a turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A long turn of the loop."""

    at_ms: Moment
    took_us: float  # at least; see the module's docstring
    where: str | None  # the function and line that the loop was in; None when it was not seen there


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopWaits(Distribution):
    """How long a call waits for the loop, in microseconds."""

    longest_turns: list[Turn]  # of the last minute, longest first, one of a second


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWaits(Distribution):
    """How long a kernel or a thread that is done waits for the interpreter lock, in microseconds."""

    switch_interval_us: float  # after so long a thread that has the lock is asked to give it away


@dataclass(frozen=True, slots=True, kw_only=True)
class Collections:
    """Garbage collections of one generation; each stops every thread that runs Python."""

    generation: Small  # 0 is the youngest; 2 scans all that is not set apart
    count: Small  # in the last minute
    total_us: float
    longest_us: float | None
    count_since_start: Small
    total_us_since_start: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadWork:
    """What the threads of one name did in the last minute; those of a pool count as one."""

    name: str
    threads: Small
    processor_ms: float | None  # None where the system does not count it
    share: float | None  # of one core
    waited_ms: float | None  # for a processor, ready to run
    longest_step_us: float | None  # of a worker: with its waits for the disk; None for other threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """One second of the last minute; None for what was not measured in it."""

    loop_us: float | None  # the longest wait for the loop
    lock_us: float | None  # the longest wait for the interpreter lock
    collected_us: float | None  # the sum of all collections
    processor_ms: float | None  # of the whole process


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadFacts:
    """The threads and the loop of the broker's process, over the last minute."""

    at_ms: Moment
    lately_ms: int | None  # what is measured over; None before the second sample
    cores: Small  # that the process may use
    processor_ms: float | None  # of all threads, also of those that have ended
    loop: LoopWaits
    lock: LockWaits
    collections: list[Collections]
    threads: list[ThreadWork]  # most processor time first
    seconds: list[Second]  # of the last minute, oldest first


class Counted(NamedTuple):
    """What the system counted of a thread since its begin, in nanoseconds."""

    processor_ns: int
    waited_ns: int


class _Sample(NamedTuple):
    at_ms: int
    process_ns: int
    tasks: dict[int, Counted] | None  # by thread number; None where the system does not count


@dataclass(slots=True)
class _Call:
    """A call that waits for the loop."""

    at_ns: int
    where: str | None = None


_current: ThreadTimes | None = None  # of this process, between its `start` and its `stop`


def of_process() -> ThreadFacts | None:
    """The facts of this process; None when nothing measures it. Any thread."""
    times = _current
    return None if times is None else times.facts()


class ThreadTimes:
    """Measures the process from `start` to `stop`; one at a time. `step` is for a worker of its own.

    `post` has the loop call a function, from any thread. `clock` gives milliseconds since 1970.
    """

    def __init__(
        self,
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], int],
        *,
        count: Callable[[], dict[int, Counted] | None] | None = None,
    ):
        self._post, self._clock, self._count = post, clock, count or counted
        self._timespec = np.zeros(TIMESPEC_WORDS, dtype=np.int64)
        self._lines = Histograms(2)  # a line each for the loop's thread and the worker's
        self._loop_seconds, self._lock_seconds = LastMinute(), LastMinute()
        # Collections: written by the thread that collects, one at a time.
        self._collected = [LastMinute() for _ in range(GENERATIONS)]
        self._longest_collected = [LastMinute() for _ in range(GENERATIONS)]
        self._collection_counts = [LastMinute() for _ in range(GENERATIONS)]
        self._collections_of_run = [[0, 0] for _ in range(GENERATIONS)]  # count, nanoseconds
        self._collection_began_ns = 0
        self._processor_seconds = LastMinute()
        self._samples: deque[_Sample] = deque(maxlen=KEPT_SECONDS + 1)
        self._call: _Call | None = None  # set by the worker, taken by the loop
        self._turns: deque[Turn] = deque(maxlen=KEPT_SECONDS)  # the longest of each second; loop's thread
        self._loop_thread = 0

    def start(self, loop_thread: int) -> None:
        """Begin to measure collections. `loop_thread` is the ident of the loop's thread."""
        global _current
        _current, self._loop_thread = self, loop_thread
        gc.callbacks.append(self._note_collection)

    def stop(self) -> None:
        """End what `start` began; idempotent."""
        global _current
        if _current is self:
            _current = None
        if self._note_collection in gc.callbacks:
            gc.callbacks.remove(self._note_collection)

    # Measuring ------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> bool:
        """Probe once, and take a sample when a second is over; True, since there is always more."""
        ended_ns = rest(self._timespec.ctypes.data, PROBE_NS)
        self.note_lock_wait(time.perf_counter_ns() - ended_ns)
        self.ask_loop()
        self.sample()
        return True

    def note_lock_wait(self, waited_ns: int) -> None:
        waited_ns = max(0, waited_ns)
        self._lines.add(_LOCK_LINE, waited_ns)
        self._lock_seconds.note_largest(self._second(), waited_ns)

    def ask_loop(self) -> None:
        """Have the loop make a call, unless the last one still waits: then note where the loop is."""
        call = self._call
        if call is None:
            self._call = _Call(time.perf_counter_ns())
            self._post(self._answer)
        elif (frame := sys._current_frames().get(self._loop_thread)) is not None:
            call.where = place_in_turn(frame) or call.where

    def _answer(self) -> None:
        """Note how long the call waited. On the loop."""
        call, self._call = self._call, None
        if call is not None:
            self.note_turn(time.perf_counter_ns() - call.at_ns, call.where)

    def note_turn(self, waited_ns: int, where: str | None) -> None:
        """A call waited for the loop. On the loop."""
        self._lines.add(_LOOP_LINE, waited_ns)
        self._loop_seconds.note_largest(self._second(), waited_ns)
        at_ms = self._clock() - waited_ns // _NS_PER_MS
        turn = Turn(at_ms=at_ms, took_us=waited_ns / _NS_PER_US, where=where)
        last = self._turns[-1] if self._turns else None
        if last is None or last.at_ms // 1000 != at_ms // 1000:
            self._turns.append(turn)
        elif turn.took_us > last.took_us:
            self._turns[-1] = turn

    def _note_collection(self, phase: str, gc_info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began_ns = time.perf_counter_ns()
            return
        took_ns = time.perf_counter_ns() - self._collection_began_ns
        generation, second = gc_info["generation"], self._second()
        self._collected[generation].add(second, took_ns)
        self._longest_collected[generation].note_largest(second, took_ns)
        self._collection_counts[generation].add(second, 1)
        of_run = self._collections_of_run[generation]
        of_run[0] += 1
        of_run[1] += took_ns

    def sample(self) -> None:
        """Read what the system counted, when the last sample is a second old."""
        now_ms = self._clock()
        if self._samples and 0 <= now_ms - self._samples[-1].at_ms < 1000:
            return
        sample = _Sample(now_ms, time.process_time_ns(), self._count())
        if self._samples:
            last = self._samples[-1]
            self._processor_seconds.add(now_ms // 1000, sample.process_ns - last.process_ns)
        self._samples.append(sample)
        self._lines.sample(now_ms)

    # Facts ----------------------------------------------------------------------------------------

    def facts(self) -> ThreadFacts:
        """What is known now. Any thread."""
        now_ms = self._clock()
        samples = list(self._samples)
        first, last = (samples[0], samples[-1]) if len(samples) > 1 else (None, None)
        loop = distribution(self._lines, _LOOP_LINE, _NS_PER_US)
        lock = distribution(self._lines, _LOCK_LINE, _NS_PER_US)
        return ThreadFacts(
            at_ms=now_ms,
            lately_ms=None if first is None or last is None else last.at_ms - first.at_ms,
            cores=len(os.sched_getaffinity(0)),
            processor_ms=None
            if first is None or last is None
            else (last.process_ns - first.process_ns) / _NS_PER_MS,
            loop=LoopWaits(
                lately=loop.lately, since_start=loop.since_start, longest_turns=self._longest_turns(now_ms)
            ),
            lock=LockWaits(
                lately=lock.lately,
                since_start=lock.since_start,
                switch_interval_us=sys.getswitchinterval() * 1e6,
            ),
            collections=[self._collections(generation) for generation in range(GENERATIONS)],
            threads=sorted(
                _works(first, last, now_ms // 1000), key=lambda work: (-(work.processor_ms or 0), work.name)
            ),
            seconds=list(self._seconds(now_ms // 1000)),
        )

    def _longest_turns(self, now_ms: int) -> list[Turn]:
        lately = [turn for turn in list(self._turns) if turn.at_ms > now_ms - KEPT_SECONDS * 1000]
        return sorted(lately, key=lambda turn: -turn.took_us)[:MAX_TURNS]

    def _collections(self, generation: int) -> Collections:
        second = self._second()
        longest = self._longest_collected[generation].largest(second)
        count, total_ns = self._collections_of_run[generation]
        return Collections(
            generation=generation,
            count=int(_sum(self._collection_counts[generation].values(second))),
            total_us=_sum(self._collected[generation].values(second)) / _NS_PER_US,
            longest_us=None if longest is None else longest / _NS_PER_US,
            count_since_start=count,
            total_us_since_start=total_ns / _NS_PER_US,
        )

    def _seconds(self, second: int) -> Iterator[Second]:
        collected = zip(*(generation.values(second) for generation in self._collected), strict=True)
        for loop_ns, lock_ns, of_generations, process_ns in zip(
            self._loop_seconds.values(second),
            self._lock_seconds.values(second),
            collected,
            self._processor_seconds.values(second),
            strict=True,
        ):
            # Without any collection in a second that was measured, their sum is 0.
            is_measured = lock_ns is not None or any(value is not None for value in of_generations)
            yield Second(
                loop_us=_divided(loop_ns, _NS_PER_US),
                lock_us=_divided(lock_ns, _NS_PER_US),
                collected_us=_sum(of_generations) / _NS_PER_US if is_measured else None,
                processor_ms=_divided(process_ns, _NS_PER_MS),
            )

    def _second(self) -> int:
        return self._clock() // 1000


def counted() -> dict[int, Counted] | None:
    """What Linux counted of each thread of the process; None where it does not count."""
    found = {}
    try:
        for task in os.listdir(TASKS):
            try:
                processor, waited, _ = (TASKS / task / "schedstat").read_text().split()
            except (FileNotFoundError, ProcessLookupError):
                if not (TASKS / task).exists():
                    continue  # the thread has ended meanwhile
                return None  # a kernel without these counts
            found[int(task)] = Counted(int(processor), int(waited))
    except (OSError, ValueError):
        return None
    return found


def place_in_turn(frame: FrameType | None) -> str | None:
    """The innermost function of this program in a turn of the loop, with its line; else the innermost of any.
    None when the loop makes no call."""
    innermost = None
    while frame is not None:
        module = frame.f_globals.get("__name__", "?")
        if module == _RUNS_THE_LOOP:
            break
        place = f"{module}.{frame.f_code.co_qualname}, line {frame.f_lineno}"
        if module.partition(".")[0] in _OWN:
            return place
        innermost = innermost or place
        frame = frame.f_back
    return innermost


def _works(first: _Sample | None, last: _Sample | None, second: int) -> Iterator[ThreadWork]:
    """The work of the threads that run now, those of a pool as one."""
    names: dict[int, str] = {}
    longest: dict[str, float] = {}
    for thread in threading.enumerate():
        name = LOOP if thread is threading.main_thread() else _POOL_NUMBER.sub("", thread.name)
        if thread.native_id is not None:
            names[thread.native_id] = name
        if isinstance(thread, WorkerThread) and (step_s := thread.worker.longest_steps.largest(second)):
            longest[name] = max(step_s * 1e6, longest.get(name, 0))
    numbers = names.keys() if last is None or last.tasks is None else last.tasks.keys()
    by_name: dict[str, list[int]] = {}
    for number in numbers:
        by_name.setdefault(names.get(number, "not Python's"), []).append(number)
    for name, of_name in by_name.items():
        processor_ns, waited_ns = _added(first, last, of_name)
        lately_ms = 0 if first is None or last is None else last.at_ms - first.at_ms
        yield ThreadWork(
            name=name,
            threads=len(of_name),
            processor_ms=_divided(processor_ns, _NS_PER_MS),
            share=None if processor_ns is None or not lately_ms else processor_ns / _NS_PER_MS / lately_ms,
            waited_ms=_divided(waited_ns, _NS_PER_MS),
            longest_step_us=longest.get(name),
        )


def _added(
    first: _Sample | None, last: _Sample | None, numbers: list[int]
) -> tuple[int, int] | tuple[None, None]:
    """What threads used and waited between two samples, in nanoseconds; a thread that began between them has
    it all from then."""
    if first is None or last is None or first.tasks is None or last.tasks is None:
        return None, None
    none = Counted(0, 0)
    processor_ns = waited_ns = 0
    for number in numbers:
        before, after = first.tasks.get(number, none), last.tasks[number]
        if after.processor_ns < before.processor_ns:
            before = none  # another thread has the number of one that ended
        processor_ns += after.processor_ns - before.processor_ns
        waited_ns += after.waited_ns - before.waited_ns
    return processor_ns, waited_ns


def _divided(value: float | None, unit: int) -> float | None:
    return None if value is None else value / unit


def _sum(values: Iterable[float | None]) -> float:
    return sum(value for value in values if value is not None)
