"""The directory in which a backup is made, and how each of its files came into it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from broker_store.backup import manifest
from broker_store.backup.copying import Copier
from broker_store.backup.manifest import SavedFile, SourceFile
from broker_store.engine.disk.disk import Disk
from broker_store.errors import StoreError


class Target:
    """A backup that is made. `earlier` is the backup whose files it shares; `may_link` False copies all, so
    the backup shares no block with the store."""

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        copier: Copier,
        *,
        earlier: Path | None,
        may_link: bool,
    ):
        self.directory, self.disk, self.copier = directory, disk, copier
        self.earlier_directory, self.may_link = earlier, may_link
        # The files of the earlier backup, by their names in it
        self.known: dict[str, SavedFile] = {} if earlier is None else manifest.read(disk, earlier).by_path
        # How each file came into the backup, by its name in it; a closed log file with its source
        self.how: dict[str, str] = {}
        self.sources: dict[str, SourceFile] = {}

    def require_empty(self) -> None:
        """Make the directory. Raises StoreError for one that is not empty."""
        self.disk.require_directory(self.directory)
        if self.disk.list_names(self.directory):
            raise StoreError(
                f"{self.directory} is not empty: a backup needs a directory of its own. Choose another name; "
                f"remove what is left of an interrupted backup"
            )
        self.disk.make_directory(self.directory)

    def make(self, directory: Path) -> None:
        self.disk.make_directory(directory, sync=False)

    def copy(self, path: Path, name: str, limit: int | None = None) -> None:
        """Copy a file; one that the broker removed meanwhile is left out."""
        target = self.directory / name
        self.make(target.parent)
        try:
            self.copier.copy(path, target, limit)
        except StoreError:
            if self.disk.exists(path):
                raise
            self.disk.unlink(target, missing_ok=True)
            return
        self.how[name] = manifest.COPIED

    def link(self, source: Path, target: Path) -> bool:
        """Give a file a second name; return False where the file system cannot."""
        try:
            self.disk.link(source, target)
        except StoreError:
            if not self.disk.exists(source):
                raise
            return False
        return True


def allocated(disk: Disk, path: Path) -> int:
    """Return the bytes that a file takes on the disk, 0 for one that the broker removed meanwhile."""
    try:
        return disk.allocated_bytes(path)
    except StoreError:
        if disk.exists(path):
            raise
        return 0


def files_below(disk: Disk, directory: Path) -> Iterator[Path]:
    """Yield the files below a directory, whose names the running broker may remove meanwhile."""
    for name in disk.list_names(directory):
        path = directory / name
        if disk.is_directory(path):
            yield from files_below(disk, path)
        elif disk.exists(path):
            yield path
