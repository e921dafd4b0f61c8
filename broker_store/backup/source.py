"""The store that a backup is made of: where its files are, and how far the broker that runs on it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker_store.backup.copying import Copier
from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.status.live_page import LivePosition
from broker_store.errors import StoreError, StoreLockedError

MAX_WAIT_S = 30.0  # for the broker to sync what was copied: it does so each half second
_POLL_S = 0.02


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is saved. `live` returns the positions of the broker that runs on the store, None without one."""

    settings: StoreSettings
    live: Callable[[], LivePosition | None]
    # Other files of the data directory, as (file, name in the backup); one that is absent is left out
    others: Sequence[tuple[Path, str]] = ()
    # Saves the dashboard's database into the directory; returns the file's name, None where it saves none
    save_database: Callable[[Path], str | None] = lambda directory: None
    notes: Sequence[str] = ()

    @property
    def root(self) -> Path:
        return self.settings.store_path_root_dir

    @property
    def log_directory(self) -> Path:
        assert self.settings.store_path_commit_log is not None  # StoreSettings sets it
        return self.settings.store_path_commit_log


class SourceStore:
    """The store while a backup of it is made: held if no broker runs on it, else watched."""

    def __init__(self, source: Source, disk: Disk, copier: Copier, sleep: Callable[[float], None]):
        self._source, self._disk, self._copier, self._sleep = source, disk, copier, sleep
        self._pid: int | None = None  # of the broker that runs

    @contextmanager
    def held(self) -> Iterator[LivePosition | None]:
        """Hold a store on which no broker runs, so that none starts meanwhile. Yield the positions of the
        broker that runs on it, else None."""
        if not self._disk.is_directory(self._source.log_directory):
            raise StoreError(
                f"{self._source.root} is no store: it has no directory commitlog. Name the data directory of "
                f"a broker with --data"
            )
        live = self._source.live()
        if live is not None:
            self._pid = live.pid
            yield live
            return
        try:
            lock = self._disk.lock(self._source.root / "lock")
        except StoreLockedError as error:
            raise StoreLockedError(
                f"{error}, which has not published how far it is: a start or a repair may be under way, or "
                f"Apache's broker runs. Try again when it is done"
            ) from None
        try:
            yield None
        finally:
            lock.release()

    def now(self) -> LivePosition:
        """Return the positions of the broker that the backup began with. Raises StoreError when it is
        gone."""
        live = self._source.live()
        if live is None or live.pid != self._pid:
            raise StoreError(
                f"{self._source.root}: the broker stopped or was started again during the backup: make the "
                f"backup again"
            )
        return live

    def closed_to(self, live: LivePosition | None) -> int:
        """Return the log offset below which log files do not change any more."""
        if live is not None:
            return live.flushed
        ends = EndsFile(self._disk, self._source.root / ENDS)
        ends.load()
        return ends.position

    def synced(self, live: LivePosition | None) -> LivePosition | None:
        """Wait until the broker has synced its log beyond all that was dispatched by now; return its
        positions. Raises StoreError."""
        if live is None:
            return None
        self._copier.begin("wait for the broker's next sync")
        copied_ms, dispatched, waited_s = now_ms(), None, 0.0
        while waited_s < MAX_WAIT_S:
            live = self.now()
            # What the page showed before the last file was copied may be less than what was copied
            if dispatched is None and live.updated_ms > copied_ms:
                dispatched = live.dispatched
            if dispatched is not None and live.flushed >= dispatched:
                return live
            self._sleep(_POLL_S)
            waited_s += _POLL_S
        raise StoreError(
            f"{self._source.root}: the broker has not synced its log for {MAX_WAIT_S:.0f} s: manage.py store "
            f"status shows why"
        )
