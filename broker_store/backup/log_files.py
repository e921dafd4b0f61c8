"""The log of a backup: closed files are linked, cloned or copied, the live end is copied up to what is on the
disk."""

from __future__ import annotations

from pathlib import Path

from broker_store.backup import manifest
from broker_store.backup.manifest import SavedFile, SourceFile
from broker_store.backup.source import Source
from broker_store.backup.target import Target, allocated
from broker_store.engine.disk.mapped_file import is_file_name
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.status.live_page import LivePosition
from broker_store.errors import StoreError


class LogFiles:
    """Takes the log files of a store into a backup."""

    def __init__(self, source: Source, target: Target):
        self._target, self._disk = target, target.disk
        self._directory = source.log_directory
        self._file_bytes = source.settings.mapped_file_size_commit_log

    def _log_files(self) -> list[tuple[int, Path]]:
        directory = self._directory
        return [
            (int(name), directory / name) for name in self._disk.list_names(directory) if is_file_name(name)
        ]

    def sizes(self, closed_to: int) -> tuple[int, int, int]:
        """Return the bytes of closed files, those of the others that are on the disk, and how many of the
        closed ones must be copied."""
        closed = rest = copied = 0
        device = self._disk.identity_of(self._directory).device
        is_linked = self._target.may_link and self._disk.identity_of(self._target.directory).device == device
        for base, path in self._log_files():
            if base + self._file_bytes > closed_to:
                rest += allocated(self._disk, path)
                continue
            closed += self._file_bytes
            if not is_linked and self._of_earlier(path) is None:
                copied += allocated(self._disk, path)
        return closed, rest, copied

    def take_closed(self, closed_to: int) -> None:
        """Take the log files that end at or before `closed_to` and were not taken yet."""
        self._target.copier.begin("closed log files")
        for base, path in self._log_files():
            name = f"{manifest.STORE}/commitlog/{path.name}"
            if base + self._file_bytes <= closed_to and name not in self._target.how:
                try:
                    self._take_file(path, name)
                except StoreError:
                    if self._disk.exists(path):
                        raise
                    # Retention deleted it and all before it: the record of ends, read later, states that

    def _take_file(self, path: Path, name: str) -> None:
        target, found = self._target.directory / name, self._disk.identity_of(path)
        source = SourceFile(device=found.device, inode=found.inode, modified_ns=found.modified_ns)
        if self._of_earlier(path) is not None and self._link_of_earlier(name):
            how = manifest.SHARED
        elif self._target.may_link and self._disk.clone(path, target):
            how = manifest.CLONED
        elif self._target.may_link and self._target.link(path, target):
            how = manifest.LINKED
        else:
            self._disk.unlink(target, missing_ok=True)
            self._target.copier.copy(path, target)
            how = manifest.COPIED
        self._target.how[name], self._target.sources[name] = how, source

    def _of_earlier(self, path: Path) -> SavedFile | None:
        """Return the file of the earlier backup that was made of this closed log file, None without one."""
        name = f"{manifest.STORE}/commitlog/{path.name}"
        saved = self._target.known.get(name)
        if saved is None or saved.source is None or self._target.earlier_directory is None:
            return None
        found, earlier = self._disk.identity_of(path), self._target.earlier_directory / name
        same = SourceFile(device=found.device, inode=found.inode, modified_ns=found.modified_ns)
        if saved.source != same or saved.size_bytes != found.size or not self._disk.exists(earlier):
            return None
        # Another name of the store's own file is no copy of it
        is_own = self._disk.identity_of(earlier)[:2] != found[:2]
        return saved if is_own or self._target.may_link else None

    def _link_of_earlier(self, name: str) -> bool:
        assert self._target.earlier_directory is not None  # it has the file
        return self._target.link(self._target.earlier_directory / name, self._target.directory / name)

    def take_rest(self, live: LivePosition | None) -> int | None:
        """Take the rest of the log: closed files, and the live end up to what is on the disk. Return where
        the log of the backup ends; None for a store that no broker runs on, where recovery finds it."""
        if live is not None:
            self.take_closed(live.flushed)
        self._target.copier.begin("the end of the log")
        for base, path in self._log_files():
            name = f"{manifest.STORE}/commitlog/{path.name}"
            if name in self._target.how or (live is not None and base >= live.flushed):
                continue
            self._target.copy(path, name, None if live is None else live.flushed - base)
        if live is None:
            return None
        self._require_no_gap(live.flushed)
        return live.flushed

    def _require_no_gap(self, end: int) -> None:
        """Check that retention did not delete a file that the record of ends of the backup counts as there
        before it was taken, so that the log of the backup leads to `end`."""
        ends = EndsFile(self._disk, self._target.directory / manifest.STORE / ENDS)
        ends.load()
        names = self._disk.list_names(self._target.directory / manifest.STORE / "commitlog")
        expected = max(ends.log_minimum, 0) if ends.found else int(names[0]) if names else 0
        for base in map(int, names):
            if base > expected:
                break
            expected = max(expected, base + self._file_bytes)
        if expected < end:
            raise StoreError(
                f"{self._directory}: retention deleted the log file of {expected:,} before it was "
                f"saved: the disk is nearly full. Make room, then make the backup again"
            )
