"""A data directory made of a backup. Each file is compared with the manifest while it is copied.

The store is put together under another name and gets its own last, so a restore that is interrupted leaves
no store that a broker could open. Nothing is linked: what a broker writes later must not change the backup.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from broker_store.backup import manifest
from broker_store.backup.copying import Copier
from broker_store.backup.manifest import Manifest, SavedFile
from broker_store.backup.moment import cut, find_cut, move_positions
from broker_store.backup.recovered import LogRange, recover
from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.errors import DamagedStoreError, StoreError
from broker_store.units import Small

_UNFINISHED = "store.restoring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    data: str  # the data directory
    backup: str
    files: Small
    log_begin: int
    log_end: int
    # Records from this log offset on were stored after the moment and are left out; None: no moment, or none
    cut_at: int | None


class Restore:
    """One restore, into a directory that is empty or absent; with `until_ms` without the records that were
    stored after that time."""

    def __init__(self, backup: Path, data: Path, disk: Disk, copier: Copier, until_ms: int | None = None):
        self._backup, self._data, self._disk, self._copier = backup, data, disk, copier
        self._until_ms = until_ms

    def run(self) -> Restored:
        """Restore. Raises StoreError: the directory has then no store."""
        made = manifest.read(self._disk, self._backup)
        self._require_empty()
        self._disk.make_directory(self._data)
        needed = sum(file.data_bytes for file in made.files)
        self._copier.total_bytes = needed
        self._copier.require_room(self._data, needed, f"a restore of {self._backup}")
        self._copier.begin("files")
        for saved in made.files:
            self._copy(saved)
        store = self._data / _UNFINISHED
        self._disk.make_directory(store, sync=False)
        cut_at, log = self._cut(made, store)
        self._copier.begin("bring all of it to the disk")
        self._disk.sync_file_system(self._data)
        self._disk.rename(store, self._data / manifest.STORE)
        self._disk.sync_directory(self._data)
        return Restored(
            data=str(self._data),
            backup=str(self._backup),
            files=len(made.files),
            log_begin=log.begin,
            log_end=log.end,
            cut_at=cut_at,
        )

    def _cut(self, made: Manifest, store: Path) -> tuple[int | None, LogRange]:
        """Leave out what was stored after the moment. Return from where on, and the log that is left."""
        whole = LogRange(made.log_begin, made.log_end)
        if self._until_ms is None:
            return None, whole
        until_ms, settings = self._until_ms, settings_of(made)
        self._copier.begin("the cut of the log")
        place = find_cut(self._disk, store / "commitlog", settings.mapped_file_size_commit_log, until_ms)
        if place is None:
            return None, whole
        cut(self._disk, store, place, until_ms)
        self._copier.begin("recovery")
        log = recover(self._disk, store, settings, lambda opened: move_positions(opened, until_ms))
        return place.log_offset, log

    def _require_empty(self) -> None:
        self._disk.require_directory(self._data)
        if self._disk.list_names(self._data):
            raise StoreError(
                f"{self._data} is not empty: a backup is restored into an empty or new directory alone. Move "
                f"it away, or choose another; remove what is left of an interrupted restore"
            )

    def _copy(self, saved: SavedFile) -> None:
        source, target = self._backup / saved.path, self._data / _place(saved)
        if not self._disk.exists(source):
            raise _damaged(source, "is missing")
        self._disk.size_of(source)  # raises unless it is a regular file
        self._disk.make_directory(target.parent, sync=False)
        is_cloned = self._disk.clone(source, target)
        found = self._copier.sum_of(target) if is_cloned else self._copier.copy(source, target)
        if found != (saved.size_bytes, saved.data_bytes, saved.crc):
            raise _damaged(source, "is not as it was saved")


def settings_of(made: Manifest) -> StoreSettings:
    """Return the settings with which the store of a backup must be opened."""
    sizes = {one.name: getattr(made.sizes, one.name) for one in fields(made.sizes)}
    return StoreSettings(
        mapped_file_size_timer_log=made.timer_log_file_bytes,
        message_delay_level=made.delay_levels,
        **{name: size for name, size in sizes.items() if size is not None},
    )


def _place(saved: SavedFile) -> Path:
    """Return where a file of the backup belongs in the data directory, as long as the restore runs."""
    top, separator, rest = saved.path.partition("/")
    return Path(_UNFINISHED, rest) if top == manifest.STORE and separator else Path(saved.path)


def _damaged(path: Path, what: str) -> DamagedStoreError:
    return DamagedStoreError(
        what,
        file=str(path),
        advice="All faults: manage.py backup verify. Choose another backup; what was restored is no store, "
        "remove it.",
    )
