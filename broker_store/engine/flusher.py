"""Syncing: the log within half a second or at once, queues and index in rounds, then the checkpoint
(docs/durability.md section 5).

Two workers, so that a group of sends never waits for thousands of queue files:

* `LogFlusher` brings the log to the disk. With SYNC_FLUSH each append hands over to it; all sends that
  arrived while it synced are covered by its next sync (group commit).
* `RoundFlusher` captures the dispatched position P, its store time and where each queue ends, syncs every
  queue and index file, then the record of these ends (`engine/start/ends.py`), and only then sets the
  checkpoint's stamps to that time. Files that are full do not wait for the round.

A round, in time:

    capture                 wait                 sync              add a block        write and sync
    P, its time, ends ───► flushed >= P ───►  queues, index ───►  to `ends` ───►  the checkpoint's stamps

    log     ...............P.......flushed........wrote
            | stamps claim | later records

The order is what a start after a power cut relies on. A stamp never claims what is not on the disk, and below
the stamps every queue's end is known. A power cut between two steps leaves older stamps beside newer files,
which claims less than there is.

A failed sync is final: the error leaves the step, the worker ends, the store turns read-only. The system
reports an error of write-back once, so a second sync would report success for pages that are lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.region import Region
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.write_path import WritePath
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.rows import WriterContext
from broker_store.engine.start.end_sums import index_ends, queue_change
from broker_store.engine.start.ends import EndsFile
from broker_store.errors import DiskFullError, StoreError
from broker_store.formats import checkpoint
from broker_store.formats.checkpoint import Checkpoint
from broker_store.kernels import context as c

# With a step each second, and one more that waits for the log, every unit is on the disk within 30 s.
MAX_ROUND_MS = 28_000


class CheckpointFile:
    """The checkpoint file. `stamps` are those that were last written and synced."""

    def __init__(self, disk: Disk, path: Path):
        self._disk, self._path = disk, path
        self._region: Region | None = None
        self.stamps = Checkpoint()
        self.found = False

    def load(self) -> None:
        """Read the stamps; a missing or short file counts as zero stamps (docs/durability.md section 5)."""
        raw = self._disk.read_file(self._path)
        if raw is None or len(raw) < checkpoint.LAYOUT.size:
            self.found, self.stamps = False, Checkpoint()
        else:
            self.found, self.stamps = True, checkpoint.decode(raw)

    def write(self, stamps: Checkpoint) -> None:
        """Write the stamps and sync them. Raises SyncError."""
        if self._region is None:
            if self._disk.exists(self._path) and self._disk.size_of(self._path) == checkpoint.FILE_BYTES:
                self._region = self._disk.open_region(self._path)
            else:
                self._disk.unlink(self._path, missing_ok=True)
                self._region = self._disk.create_region(self._path, checkpoint.FILE_BYTES)
                self._region.allocate(0, checkpoint.FILE_BYTES)
                self._disk.sync_directory(self._path.parent)
        self._region.write(0, checkpoint.encode(stamps)[: checkpoint.LAYOUT.size])
        self._region.sync(0, checkpoint.FILE_BYTES)
        self.stamps = stamps

    def close(self) -> None:
        if self._region is not None:
            self._region.close()
            self._region = None


class LogFlusher:
    """The step that syncs the log. `on_flushed(position)` is called in the worker's thread."""

    def __init__(
        self,
        log: CommitLog,
        stored: Callable[[], int],
        on_flushed: Callable[[int], None],
        write_path: WritePath,
    ):
        self._log, self._stored, self._on_flushed, self._write_path = log, stored, on_flushed, write_path
        # Written by the worker's thread; the loop reads them without a lock, each alone.
        self.count = 0
        self.last_duration_ms = 0.0
        self.max_duration_ms = 0.0
        # Of the messages of this run, how many at least are on the disk; None while that of older ones is not
        # sure. A start sets it before the worker runs.
        self.messages: int | None = None

    def step(self, now_ms: int) -> bool:
        # The count first: what is synced below then covers at least as many.
        stored = self._stored()
        wrote, flushed = self._log.committed, self._log.flushed
        if wrote <= flushed:
            return False
        started = time.perf_counter()
        self._log.sync(wrote)
        seconds = time.perf_counter() - started
        self._write_path.synced(seconds, wrote - flushed)
        self.last_duration_ms = seconds * 1000
        self.max_duration_ms = max(self.max_duration_ms, self.last_duration_ms)
        self.count += 1
        self.messages = stored
        self._on_flushed(wrote)
        return False


class _Due(NamedTuple):
    """What the next round records once the log is synced: the dispatched position P, its store time, and (row
    address, next unit) of queues that are not recorded so."""

    position: int
    dispatched_ms: int
    changed: list[tuple[int, int]]


class RoundFlusher:
    """The step that syncs queues and index and then moves the stamps; a round each `interval_ms` when
    something changed."""

    def __init__(
        self,
        context: WriterContext,
        log: CommitLog,
        queues: ConsumeQueues,
        index: HashIndex,
        checkpoint_file: CheckpointFile,
        ends: EndsFile,
        interval_ms: int,
    ):
        self._context, self._log, self._queues, self._index = context, log, queues, index
        self._checkpoint, self._ends = checkpoint_file, ends
        self._interval_ms = min(interval_ms, MAX_ROUND_MS)
        # Written by the thread that runs steps: the worker's, and after it ended the one that closes the
        # store. `position` and `last_duration_ms` are read by the loop, each alone.
        self._last_round_ms = 0
        self.position: int | None = None  # the P of the last stamp
        self.last_duration_ms: float | None = None  # of the last round
        self._due: _Due | None = None  # captured, and waits for the log
        self.is_pressed = False  # set by the loop: sync all queues now, so that they can be unmapped

    def step(self, now_ms: int) -> bool:
        if self.is_pressed:
            self.is_pressed = False
            self._queues.sync()
        self._sync_full()
        if now_ms - self._last_round_ms < self._interval_ms:
            return False
        if self._due is None:
            # Captured once and kept: under a steady load the newest P is never on the disk yet, but this one
            # is by the next step.
            self._due = self._dispatched()
        return self._sync(self._due, now_ms)

    def round(self, now_ms: int) -> bool:
        """Run one whole round up to now; return True when something was synced."""
        return self._sync(self._dispatched(), now_ms)

    def finish(self, now_ms: int) -> bool:
        """Run the last round of a store that takes nothing more: after it the record of ends covers
        everything. Return False when the disk is full. Raises StoreError."""
        self.round(now_ms)
        try:
            if self.position is not None:
                self._record(self.position, self._context.changed_ends(), is_final=True)
        except DiskFullError:
            return False
        return True

    def _sync_full(self) -> None:
        for queue in self._queues.unsynced():
            if queue.has_full_unsynced:
                queue.sync()
        self._index.sync(only_full=True)

    def _dispatched(self) -> _Due:
        """Capture what the next round brings to the disk.

        One kernel call, which holds the interpreter lock, sets both words of the context, so they belong
        together. The ends of queues are read first, so no record of theirs lies beyond P.
        """
        view = self._context.view
        changed = self._context.changed_ends()
        dispatched_ms = view[c.LAST_DISPATCHED_MS]
        return _Due(view[c.DISPATCH_BASE] + view[c.DISPATCH_AT], dispatched_ms, changed)

    def _record(self, position: int, changed: list[tuple[int, int]], is_final: bool = False) -> None:
        """Add changed ends to the record of ends. Raises DiskFullError; the next call adds them then."""
        queues, changes = [], []
        for address, following in changed:
            queue = self._queues.find_row(address)
            if queue is None:
                continue
            try:
                changes.append(
                    queue_change(queue, self._ends.queues.get((queue.topic, queue.queue_id), {}), following)
                )
            except StoreError:
                if queue.closed:  # the loop deleted the topic meanwhile
                    continue
                raise
            queue.row[c.Q_RECORDED] = following
            queues.append(queue)
        self._ends.write(
            position, changes, index_ends(self._index, self._ends.index, with_slots=is_final), is_final
        )
        # The loop may have removed these queues from the record before their rows were added.
        self._ends.forget([(queue.topic, queue.queue_id) for queue in queues if queue.closed])

    def _sync(self, due: _Due, now_ms: int) -> bool:
        position, dispatched_ms = due.position, due.dispatched_ms
        if self._log.flushed < position:
            return False
        self._due = None
        if position == self.position:
            return False
        started = time.perf_counter()
        self._queues.sync()
        self._index.sync()
        try:
            self._record(position, due.changed)
        except DiskFullError:
            return False  # the stamps stay as they are, and the next step tries again
        stamps = self._checkpoint.stamps
        self._checkpoint.write(
            Checkpoint(
                physic_msg_timestamp=max(dispatched_ms, stamps.physic_msg_timestamp),
                logics_msg_timestamp=max(dispatched_ms, stamps.logics_msg_timestamp),
                # Apache keeps an index file whose end is not above this; another record of the same ms may
                # follow.
                index_msg_timestamp=max(dispatched_ms - 1, stamps.index_msg_timestamp, 0),
                master_flushed_offset=stamps.master_flushed_offset,
                confirm_phy_offset=stamps.confirm_phy_offset,
            )
        )
        self.position = position
        self._last_round_ms = now_ms
        self.last_duration_ms = (time.perf_counter() - started) * 1000
        return True
