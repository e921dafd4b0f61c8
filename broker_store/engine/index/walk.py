"""A lookup by key that reads by position, in another thread than the loop.

    slot of the key's hash ──► newest entry ──previous──► older entry ──► ... ──► 0

The walk leaves a chain at the first entry that is older than the requested time. Entry numbers must go down,
so it ends in a damaged chain too.
"""

from __future__ import annotations

from broker_store.engine.disk.file_access import Reader
from broker_store.engine.index.files import IndexFile
from broker_store.formats import index_file
from broker_store.formats.index_file import ENTRY, FIRST_ENTRY, HEADER, SLOT, IndexHeader


class IndexWalk:
    """A lookup by position in the files that existed when it was made. It may wait for the disk.
    facts/explain.py reports each step."""

    def __init__(
        self,
        files: list[tuple[IndexFile, Reader]],
        topic: str,
        key: str,
        most: int,
        begin_ms: int,
        end_ms: int,
    ):
        self._files, self._most, self._begin_ms, self._end_ms = files, most, begin_ms, end_ms
        self.hashed = index_file.key_hash(index_file.key_text(topic, key))
        self._found: list[int] = []

    def find(self) -> tuple[list[int], int, int]:
        """Return (log offsets, newest file first and newest entry first; store time and log offset of the
        last entry of all); the last two are zeros when nothing was found."""
        newest = self._all()
        if newest is None or not self._found:
            return [], 0, 0
        return self._found, newest.end_timestamp, newest.end_offset

    def _all(self) -> IndexHeader | None:
        """Walk the files, newest first; return the newest one's header, None without a file."""
        newest = None
        for file, reader in self._files:
            header = index_file.decode_header(reader.read(0, HEADER.size))
            newest = newest or header
            if (
                header.count > FIRST_ENTRY
                and header.begin_timestamp <= self._end_ms
                and header.end_timestamp >= self._begin_ms
            ):
                self._chain(file, reader, header.begin_timestamp)
            if len(self._found) >= self._most or (
                header.count > FIRST_ENTRY and header.begin_timestamp < self._begin_ms
            ):
                break  # enough, or older files end before the requested time
        return newest

    def _chain(self, file: IndexFile, reader: Reader, file_begin_ms: int) -> None:
        geometry = file.geometry
        number = index_file.decode_slot(
            reader.read(geometry.slot_at(self.hashed % geometry.slots), SLOT.size)
        )
        # Bounded by the file, not by the header's count: the loop may have linked entries since it was read.
        while 0 < number < geometry.entries and len(self._found) < self._most:
            entry = index_file.decode_entry(reader.read(geometry.entry_at(number), ENTRY.size))
            at_ms = file_begin_ms + entry.seconds * 1000
            if (
                entry.key_hash == self.hashed
                and entry.seconds >= 0
                and self._begin_ms <= at_ms <= self._end_ms
            ):
                self._found.append(entry.log_offset)
            if entry.seconds < 0 or at_ms < self._begin_ms or entry.previous >= number:
                break
            number = entry.previous
