"""The epochs of this broker's log in controller mode, with their file (formats/epochs.py).

A master begins an epoch where its log ends when it is elected. A slave takes over those of its master, before
it has bytes of them. An epoch without a byte is replaced by the next one that begins at the same place: else
two logs could differ within an epoch that both know. Apache's broker keeps the older one and drops the newer.
"""

from __future__ import annotations

from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.errors import DamagedStoreError, FormatError
from broker_store.formats import epochs
from broker_store.formats.epochs import MAX_EPOCHS, Epoch


class EpochHistory:
    """`entries` is replaced as a whole, so any thread may read it; all else is for the loop's thread."""

    def __init__(self, disk: Disk, root: Path):
        """Raises DamagedStoreError for a file that cannot be read."""
        self._disk, self._path = disk, root / epochs.FILE_NAME
        self.entries: tuple[Epoch, ...] = ()
        raw = disk.read_file(self._path)
        if raw is not None:
            try:
                self.entries = epochs.decode(raw)
            except FormatError as error:
                raise DamagedStoreError(
                    str(error),
                    file=str(self._path),
                    advice="Put the file back, or start this broker as a slave with an empty store.",
                ) from None

    @property
    def last(self) -> int:
        """The number of the newest epoch, -1 without one, as Apache's broker reports it."""
        return self.entries[-1].number if self.entries else -1

    def begin(self, epoch: Epoch) -> None:
        """Begin an epoch, which is newer than all others, and sync the file. Raises StoreError."""
        kept = [one for one in self.entries if one.begin < epoch.begin]
        self._write((*kept, epoch)[-MAX_EPOCHS:])

    def cut(self, log_end: int) -> None:
        """Remove the epochs that begin at `log_end` or after it: the log was cut there. Raises StoreError."""
        kept = tuple(one for one in self.entries if one.begin < log_end)
        if kept != self.entries:
            self._write(kept)

    def drop_before(self, log_begin: int) -> None:
        """Remove the epochs that end where the log begins or before it. Raises StoreError."""
        kept = [
            one
            for one, following in zip(self.entries, self.entries[1:], strict=False)
            if following.begin > log_begin
        ]
        if (found := (*kept, *self.entries[-1:])) != self.entries:
            self._write(found)

    def at(self, offset: int) -> tuple[Epoch, int | None]:
        """Return the epoch of a log offset, and where the next one begins, None without one. Bytes before
        the first epoch belong to it. Any thread; there is at least one epoch."""
        entries = self.entries
        found, end = entries[0], None
        for one in entries[1:]:
            if one.begin > offset:
                end = one.begin
                break
            found = one
        return found, end

    def _write(self, entries: tuple[Epoch, ...]) -> None:
        if entries:
            self._disk.replace_file(self._path, epochs.encode(entries))
        else:
            self._disk.unlink(self._path, missing_ok=True)
        self.entries = entries
