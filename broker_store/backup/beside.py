"""The other backups of a store in the directory of one: which shares files with it, and which are removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from broker_store.backup import manifest
from broker_store.backup.manifest import Manifest
from broker_store.engine.disk.disk import Disk
from broker_store.errors import StoreError


class Earlier(NamedTuple):
    """The newest whole backup of a store in the directory of a new one, None without one; and a sentence for
    each that cannot be used."""

    directory: Path | None
    notes: list[str]


def newest_beside(disk: Disk, target: Path, store: str) -> Earlier:
    notes: list[str] = []
    found = [
        (made.taken_ms, path) for path, made in _whole_beside(disk, target, notes) if made.store == store
    ]
    return Earlier(max(found)[1] if found else None, notes)


def remove_older(disk: Disk, target: Path, made: Manifest, keep: int) -> list[str]:
    """Remove whole backups of the store of a new one that are beside it, but for the newest `keep` with it.
    Return the names of those that were removed. One that cannot be read stays. Raises StoreError."""
    older = [(one.taken_ms, path) for path, one in _whole_beside(disk, target, []) if one.store == made.store]
    removed = []
    for _, path in sorted(older, reverse=True)[keep - 1 :]:
        # First what makes it whole: what an interrupted removal leaves is no backup
        disk.unlink(path / manifest.FILE_NAME)
        disk.sync_directory(path)
        _remove(disk, path)
        removed.append(path.name)
    return removed


def _whole_beside(disk: Disk, target: Path, notes: list[str]) -> Iterator[tuple[Path, Manifest]]:
    for name in disk.list_names(target.parent):
        path = target.parent / name
        if path != target and disk.is_directory(path) and disk.exists(path / manifest.FILE_NAME):
            try:
                yield path, manifest.read(disk, path)
            except StoreError as error:
                notes.append(f"no file is shared with {path}: {error}")


def _remove(disk: Disk, directory: Path) -> None:
    """Remove a directory with all that is in it. A link is removed, and not what it leads to."""
    for name in disk.list_names(directory):
        path = directory / name
        if disk.is_directory(path):
            _remove(disk, path)
        else:
            disk.unlink(path)
    disk.remove_directory(directory)
