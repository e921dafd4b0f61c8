"""A store with files so small that they roll, whose clock, disk and workers are in the hands of the test."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from broker_store.check.walk import check_store
from broker_store.config.store import StoreSettings
from broker_store.engine import workers
from broker_store.engine.disk.disk import Disk
from broker_store.engine.store import MessageStore
from broker_store.formats import properties
from broker_store.messages import Message

START_MS = 1_700_000_000_000
_ANOTHER_HOUR = f"{(time.localtime(START_MS / 1000).tm_hour + 12) % 24:02d}"


class Clock:
    """Milliseconds since 1970, moved on by hand."""

    def __init__(self, now_ms: int = START_MS):
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


class HandWorker:
    """A worker without a thread: the test runs its step."""

    def __init__(self, name, step, interval_s, on_failure, niceness=0):
        self.name, self._step, self._on_failure = name, step, on_failure
        self.interval_s = interval_s
        self.nudges = 0
        self.last_error: BaseException | None = None

    def start(self) -> None:
        pass

    def nudge(self) -> None:
        self.nudges += 1

    hand_over = nudge

    def stop(self, limit_s: float = 2.0) -> bool:
        return True

    def run(self, now_ms: int) -> None:
        """What the thread does between two waits."""
        if self.last_error is not None:
            return
        try:
            while self._step(now_ms):
                pass
        except BaseException as error:
            self.last_error = error
            self._on_failure(self.name, error)


def small_settings(root: Path, **changes) -> StoreSettings:
    """Log files of 16 KiB, queue files of 20 units, index files of 16 slots and 64 entries."""
    return StoreSettings(
        **{
            "store_path_root_dir": root,
            "mapped_file_size_commit_log": 16384,
            "mapped_file_size_consume_queue": 400,
            "max_hash_slot_num": 16,
            "max_index_num": 64,
            "delete_when": _ANOTHER_HOUR,
            **changes,
        }
    )


def message(
    topic="topic", queue_id=0, body=b"body", tag=None, keys=(), unique=None, more=None, **changes
) -> Message:
    pairs = {"KEYS": " ".join(keys) or None, "TAGS": tag, "UNIQ_KEY": unique, **(more or {})}
    return Message(topic, queue_id, body, properties.encode(pairs), born_timestamp=START_MS, **changes)


class HandStore(MessageStore):
    """Opened and started, with workers that run when the test steps them."""

    def __init__(self, settings: StoreSettings, clock: Clock | None = None, disk: Disk | None = None, **more):
        self.clock = clock or Clock()
        super().__init__(settings, disk=disk, clock=self.clock, wake=lambda function: function(), **more)

    def begin(self) -> HandStore:
        self.open()
        self.start()
        return self

    def start(self) -> None:
        with patch.object(workers, "Worker", HandWorker):
            super().start()

    def worker(self, name: str) -> HandWorker:
        return next(worker for worker in self._workers.all if worker.name == name)

    def flush(self) -> None:
        """The log flusher's turn."""
        self.worker("log-flusher").run(self.clock())

    def commit(self) -> None:
        """The committer's turn, due or not."""
        self._parts.committer._last_ms = 0
        self.worker("log-committer").run(self.clock())

    def round(self) -> None:
        """The round flusher's turn, due or not."""
        worker = self.worker("round-flusher")
        self._parts.round_flusher._last_round_ms = 0
        worker.run(self.clock())

    def prepare(self) -> None:
        self.worker("preallocator").run(self.clock())

    def look_at_disk(self) -> None:
        self.worker("retention").run(self.clock())

    def die(self) -> None:
        """End as kill -9 ends it: nothing is synced, no file is closed in order, the lock is free."""
        self._parts.state.enter("closed")
        self.reads.close()
        self._parts.checkpoint.close()
        for part in (self.queue_table, self.log):
            part.close()
        for file in self.index.files:
            file.unmap()
        for spare in self.index.spares:
            spare.unmap()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


@contextmanager
def opened(root: Path, clock: Clock | None = None, disk: Disk | None = None, **changes):
    """A started store, closed in order at the end."""
    store = HandStore(small_settings(root, **changes), clock, disk).begin()
    try:
        yield store
    finally:
        store.close()


def findings(root: Path, disk: Disk | None = None, settings: StoreSettings | None = None) -> list[str]:
    """What check_store says is wrong, warnings included."""
    report = check_store(root, settings or small_settings(root), disk=disk)
    return [str(finding) for finding in report.findings if finding.severity != "note"]
