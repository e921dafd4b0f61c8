"""The only thread class of the package: repeats a step until there is nothing to do, then waits to be nudged.

A job is `step(now_ms) -> bool`: it does one piece of work and returns whether there was any. Tests call the
step; a `Worker` runs it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

from broker_store.engine.status.last_minute import LastMinute

HAND_OVER_S = 0.0002  # a thread wakes in 0.02 ms; on a busy machine the caller must not wait longer


class Worker:
    """Runs `step` in a thread; waits at most `interval_s` between rounds without work. End it with `stop`.

    `on_failure(name, error)` is called once for an exception that left the step, and the worker ends. A
    thread with a `niceness` yields the CPU to others on a busy machine.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[int], bool],
        interval_s: float,
        on_failure: Callable[[str, BaseException], None],
        niceness: int = 0,
    ):
        self.name = name
        self._step, self._interval_s, self._on_failure, self._niceness = (
            step,
            interval_s,
            on_failure,
            niceness,
        )
        self._nudged = threading.Event()
        self._idle = False
        self._begun = threading.Lock()  # released when a step begins
        self._begun.acquire()
        self._stopping = False
        self._thread = WorkerThread(self)
        self.last_run_ms: int | None = None
        self.longest_steps = LastMinute()  # seconds that a step took; written by the worker's thread
        self.last_error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def nudge(self) -> None:
        """Wake the worker: there is work. Any thread; cheap when it was nudged already."""
        self._nudged.set()

    def hand_over(self, limit_s: float = HAND_OVER_S) -> None:
        """Nudge, and let an idle worker begin its step before the caller goes on. One thread at a time may
        call it.

        A woken thread waits for the interpreter lock until the thread that woke it blocks, or for the switch
        interval. Without the wait here a sync would begin only after the caller has finished all its work.
        """
        if not self._idle:
            self._nudged.set()
            return
        self._begun.acquire(blocking=False)  # left over from a step without a waiting caller
        self._nudged.set()
        self._begun.acquire(timeout=limit_s)

    def stop(self, limit_s: float = 2.0) -> bool:
        """Let the current step end and stop; return False when it did not end within the limit.
        Idempotent."""
        self._stopping = True
        self._nudged.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(limit_s)
        return not self._thread.is_alive()

    def run(self) -> None:
        """Run steps until `stop`; what the worker's thread calls."""
        try:
            if self._niceness:
                with contextlib.suppress(OSError):  # where the system refuses it, the others only wait longer
                    # Linux keeps the niceness per thread, and takes the thread's id here.
                    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
            while not self._stopping:
                self._nudged.clear()
                if self._begun.locked():
                    self._begun.release()
                self.last_run_ms = int(time.time() * 1000)
                began_s = time.perf_counter()
                has_more = self._step(self.last_run_ms)
                self.longest_steps.note_largest(self.last_run_ms // 1000, time.perf_counter() - began_s)
                if not has_more and not self._stopping:
                    self._idle = True
                    self._nudged.wait(self._interval_s)
                    self._idle = False
        except BaseException as error:
            self.last_error = error
            self._on_failure(self.name, error)


class WorkerThread(threading.Thread):
    """The thread of a worker, from which facts/threads.py finds the worker."""

    def __init__(self, worker: Worker):
        super().__init__(target=worker.run, name=worker.name, daemon=True)
        self.worker = worker
