"""The threads of a running store.

    log-flusher      syncs the log: nudged by each put with SYNC_FLUSH, else by time
    log-committer    copies the log from the buffers of the pool to its files, where there is a pool
    round-flusher    syncs queues and index, then the record of ends and the checkpoint
    preallocator     makes room in the log and the next index file ahead of the writer
    retention        disk use, the lock, log files that were removed (engine/retention/cleaning.py)
    prover           compares files that a start did not read with their recorded sums, once
    timer-flusher    syncs the timer's wheel and log

A worker that fails ends all writing of the process: a failed sync is final (docs/durability.md), and so is an
unexpected error.
"""

from __future__ import annotations

from broker_store.engine.retention.cleaning import Cleaning
from broker_store.engine.store_parts import StoreParts
from broker_store.engine.worker import Worker
from broker_store.errors import StoreError, SyncError

MAX_FLUSH_WAIT_S = 0.5


class StoreWorkers:
    """`start` and `stop` are called by the thread that starts and closes the store."""

    def __init__(self, parts: StoreParts, cleaning: Cleaning):
        self._parts, self._cleaning = parts, cleaning
        self.all: list[Worker] = []

    def start(self) -> None:
        parts, settings = self._parts, self._parts.settings
        flush_s = min(settings.flush_interval_commit_log / 1000, MAX_FLUSH_WAIT_S)
        round_s = settings.flush_interval_consume_queue / 1000
        clean_s = settings.clean_resource_interval / 1000
        timer_s = settings.timer_flush_interval_ms / 1000
        flusher = Worker("log-flusher", parts.log_flusher.step, flush_s, self._failed)
        preallocator = Worker("preallocator", self._prepare, 1.0, self._failed, niceness=5)
        rounds = Worker("round-flusher", parts.round_flusher.step, round_s, self._failed)
        self.all = [
            flusher,
            rounds,
            preallocator,
            Worker("retention", self._cleaning.step, clean_s, self._failed),
            Worker("prover", parts.unproved.step, 3600.0, self._failed, niceness=5),
            Worker("timer-flusher", parts.timer_files.step, timer_s, self._failed),
        ]
        wakes_committer: Worker | None = None
        if parts.committer is not None:
            commit_s = settings.commit_interval_commit_log / 1000
            committer = Worker("log-committer", parts.committer.step, commit_s, self._failed)
            self.all.insert(0, committer)
            wakes_committer = committer if settings.wake_commit_when_put_message else None
        for worker in self.all:
            worker.start()

        def sync_queues() -> None:
            parts.round_flusher.is_pressed = True
            rounds.nudge()

        parts.host.hand_work_to(flusher, preallocator, sync_queues, wakes_committer)

    def stop(self) -> None:
        """Stop all. For a failed worker the flag sync_failed is set here too: its wake-up may not have
        reached the loop yet, and the system reports a failed sync only once."""
        for worker in self.all:
            worker.stop()
            if worker.last_error is not None:
                self._parts.state.set_flag("sync_failed", f"{worker.name}: {worker.last_error}")

    def _prepare(self, now_ms: int) -> bool:
        """Take the preallocator's step. An error of the disk is left to the writer, which will meet it
        too."""
        try:
            did = self._parts.log.prepare()
            return self._parts.index.prepare() or did
        except SyncError:
            raise
        except StoreError:
            return False

    def _failed(self, name: str, error: BaseException) -> None:
        """End all writing. Worker's thread."""
        self._parts.wake(lambda: self._parts.confirmation.stop_writing(f"{name}: {error}"))
