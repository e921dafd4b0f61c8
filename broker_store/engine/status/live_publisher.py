"""Updates the live page of a store (`engine/status/live_page.py`)."""

from __future__ import annotations

from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.dispatcher import Dispatcher
from broker_store.engine.flusher import RoundFlusher
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.confirmation import Confirmation
from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.status.live_page import LivePage
from broker_store.engine.store_state import StoreState
from broker_store.errors import StoreError


class LivePublisher:
    """Loop's thread; during a start the thread that recovers. Without a path nothing is published."""

    def __init__(
        self,
        disk: Disk,
        path: Path | None,
        log: CommitLog,
        dispatcher: Dispatcher[ConsumeQueue],
        round_flusher: RoundFlusher,
        state: StoreState,
        confirmation: Confirmation,
    ):
        self._disk, self._path, self._log, self._dispatcher = disk, path, log, dispatcher
        self._round_flusher, self._state, self._confirmation = round_flusher, state, confirmation
        self.page: LivePage | None = None  # while the store is held

    def open(self) -> None:
        if self._path is not None:
            self.page = LivePage(self._disk, self._path)

    def publish(self, step_done: int = 0, step_of: int = 0) -> None:
        """Write the page. No message depends on it: a failure is a flag, which the next success clears."""
        if self.page is None:
            return
        try:
            self.page.publish(
                self._log.minimum,
                self._log.wrote,
                self._confirmation.confirmed,
                self._dispatcher.dispatched,
                self._log.flushed,
                self._round_flusher.position or 0,
                self._state.value,
                step_done,
                step_of,
            )
        except StoreError as error:
            self._state.set_flag(
                "live_page_failed", f"jobs and commands cannot see where the store is: {error}"
            )
        else:
            self._state.clear_flag("live_page_failed")

    def close(self) -> None:
        if self.page is not None:
            try:
                self.page.close()
            except StoreError:
                pass  # a page that is left names a dead process, so readers ignore it
            self.page = None
