"""Control of a rebuild of the index while the store runs. An administrator or damage causes it.

`IndexRebuild` does the work, in a worker of its own. This module begins and ends it, and states what a lookup
by key may miss meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.dispatcher import Dispatcher
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.index.rebuild import IndexRebuild
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.confirmation import Confirmation
from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.rows import WriterContext
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.status.store_state import RebuildProgress
from broker_store.engine.store_state import StoreState
from broker_store.engine.worker import Worker
from broker_store.errors import MisuseError, StoreClosedError, StoreError, SyncError
from broker_store.kernels import context as c


class IndexRebuilding:
    """Loop's thread, except `file_differs` and the step of the worker."""

    def __init__(
        self,
        disk: Disk,
        root: Path,
        log: CommitLog,
        index: HashIndex,
        dispatcher: Dispatcher[ConsumeQueue],
        context: WriterContext,
        ends: EndsFile,
        state: StoreState,
        confirmation: Confirmation,
        *,
        is_enabled: bool,
        clock: Callable[[], int],
        wake: Callable[[Callable[[], None]], None],
    ):
        self._disk, self._root, self._log, self._index = disk, root, log, index
        self._dispatcher, self._context, self._ends = dispatcher, context, ends
        self._state, self._confirmation = state, confirmation
        self._is_enabled, self._clock, self._wake = is_enabled, clock, wake
        # The first index file that is not as recorded, until the index is built again.
        self._damaged: str | None = None
        self._rebuild: IndexRebuild | None = None  # the last one; the worker's step advances it
        self.worker: Worker | None = None

    def begin(self) -> RebuildProgress:
        """Begin to rebuild the index from the log, beside the old one; return the `progress`. Raises
        MisuseError, StoreClosedError."""
        if not self._is_enabled:
            raise MisuseError("messageIndexEnable is off: there is no index to rebuild")
        if not self._state.is_writable:
            raise StoreClosedError("the store takes no writes now, so its index is not rebuilt")
        if self._rebuild is None or self._rebuild.state != "running":
            self._rebuild = IndexRebuild(
                self._disk,
                self._root,
                self._index.geometry,
                self._log,
                lambda: self._dispatcher.dispatched,
                self._context.view[c.MAX_RECORD],
                self._clock,
            )
            self.worker = Worker("index-rebuild", self._step, 0.2, self._worker_failed)
            self.worker.start()
        return self._rebuild.progress()

    def progress(self) -> RebuildProgress:
        """Return how far the rebuild is, or the last one came."""
        if self._rebuild is None:
            return RebuildProgress(state="idle", done_bytes=0, total_bytes=0, error=None)
        return self._rebuild.progress()

    def cancel(self) -> RebuildProgress:
        if self._rebuild is not None:
            self._rebuild.cancel()
        return self.progress()

    def stop(self) -> None:
        """End the worker; a run that is not done is cancelled."""
        if self._rebuild is not None:
            self._rebuild.cancel()
        self._retire_worker()
        if self._rebuild is not None and self._rebuild.state == "running":
            self._rebuild.end("cancelled")

    def file_differs(self, name: str) -> None:
        """React to an index file that is not as the record of ends says. Worker's thread."""
        self._ends.doubt()
        self._wake(lambda: self._repair(name))

    def _repair(self, name: str) -> None:
        """Rebuild the index, once for all its damaged files."""
        if self._damaged is None and self._state.is_open:
            self._damaged = name
            self._state.set_flag(
                "index_damaged",
                f"index/{name} is not as it was recorded: the index is built again from the log, and "
                f"lookups by key may miss messages until then",
            )
            if self._state.is_writable:
                self.begin()

    @property
    def doubt(self) -> str | None:
        """Why a lookup by key may miss a message: the index is damaged. None when it is not."""
        if self._damaged is None:
            return None
        progress, what = self.progress(), f"the index is damaged (index/{self._damaged})"
        if progress.state == "running":
            return (
                f"{what} and is being built again: {progress.done_bytes:,} of "
                f"{progress.total_bytes:,} bytes are done"
            )
        was_cancelled = progress.state == "cancelled"
        why = progress.error or ("that was cancelled" if was_cancelled else "the store takes no writes")
        return f"{what} and was not built again: {why}"

    def _step(self, now_ms: int) -> bool:
        """Run the step of the rebuild. Worker's thread. An error fails the rebuild, not the store."""
        rebuild = self._rebuild
        assert rebuild is not None  # it stays once there is one
        try:
            if rebuild.step():
                return True
        except SyncError:
            rebuild.end("failed", "a sync failed")
            raise
        except StoreError as error:
            rebuild.end("failed", str(error))
        if rebuild.is_ready:
            self._wake(self._finish)
        return False

    def _worker_failed(self, name: str, error: BaseException) -> None:
        """End all writing: a failed sync is final, and so is an unexpected error. Worker's thread."""
        self._wake(lambda: self._confirmation.stop_writing(f"{name}: {error}"))

    def _finish(self) -> None:
        rebuild = self._rebuild
        if rebuild is None or not rebuild.is_ready or not self._state.is_open:
            return
        try:
            rebuild.finish(self._index)
            self._damaged = None
            self._state.clear_flag("index_damaged")
        except SyncError as error:
            rebuild.end("failed", str(error))
            self._confirmation.stop_writing(str(error))
        except StoreError as error:
            rebuild.end("failed", str(error))
        self._retire_worker()

    def _retire_worker(self) -> None:
        if self.worker is not None:
            worker, self.worker = self.worker, None
            worker.stop()
