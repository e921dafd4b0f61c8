"""Files and bytes that a start takes out of the store are kept in `lost+found/`, one folder for each
start."""

from __future__ import annotations

from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.region import Region
from broker_store.engine.log.whole_records import data_end_from
from broker_store.engine.start.report import RecoveryReport
from broker_store.engine.status.file_facts import kept_directory


class KeptFiles:
    """The folder of one start. It is made with the first file, so a start that takes nothing out makes
    none."""

    def __init__(self, disk: Disk, root: Path, report: RecoveryReport):
        self._disk, self._root, self._report = disk, root, report
        self._copied: set[Path] = set()  # files that were copied: one copy for each start
        self._directory: Path | None = None

    @property
    def directory(self) -> Path:
        if self._directory is None:
            self._directory = kept_directory(self._disk, self._root, self._report.started_ms)
        return self._directory

    def keep_away(self, path: Path) -> None:
        """Take a file out of the store: into lost+found when it holds anything, deleted when it is all
        zero."""
        if self._holds_nothing(path):
            self._disk.unlink(path)
        else:
            name = (
                str(path.relative_to(self._root))
                if path.is_relative_to(self._root)
                else f"commitlog/{path.name}"
            )
            target = self.directory / name.replace("/", ".")
            self._disk.move(path, target)
            self._report.finding("info", f"moved to {target.relative_to(self._root.parent)}", name)
        # A file that reappeared after a later clean stop would be used.
        self._disk.sync_directory(path.parent)

    def copy_aside(self, path: Path, region: Region) -> None:
        """Keep a copy of a file in lost+found before it is changed; once in a start."""
        if path in self._copied or not (length := data_end_from(region, 0)):
            return
        self._copied.add(path)
        name = str(path.relative_to(self._root))
        kept = self.directory / name.replace("/", ".")
        self._disk.copy_range(region, 0, length, kept)
        self._report.finding("info", f"copied to {kept.relative_to(self._root.parent)} as it was", name)

    def copy_range(self, region: Region, at: int, length: int, name: str) -> Path:
        """Copy `length` bytes from `at` on to the file `name`; return its path below the store's parent."""
        kept = self.directory / name
        self._disk.copy_range(region, at, length, kept)
        return kept.relative_to(self._root.parent)

    def _holds_nothing(self, path: Path) -> bool:
        if self._disk.size_of(path) == 0:
            return True  # nothing that could be mapped
        region = self._disk.open_region(path, writable=False)
        try:
            return data_end_from(region, 0) == 0
        finally:
            region.close()
