"""A store directory looked at from outside: its files, positions, index and bytes.

For `manage.py store --store DIR`, also on a store that Apache's broker made, and for pages of the store of this process:
everything is positional reading through the engine's disk, nothing is locked or written. What a running broker knows better
(what is synced, what is dispatched) is not known here, and is None. The shapes are the snapshot's and the file list's of
the engine, as far as they can be known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from broker_store.engine.disk import Disk, Reader
from broker_store.engine.file_facts import kept_facts
from broker_store.errors import FormatError, NotFoundError, StoreError
from broker_store.formats import checkpoint, index_file, record
from broker_store.formats.index_file import IndexGeometry

CHUNK_BYTES = 4 << 20  # of the log, read at once
MAX_HEX_BYTES = 64 << 10
MAX_CHAIN = 10_000  # entries of one slot followed; more are a damaged file


class StoreDirectory:
    """Reads of one store directory. StoreError when it is none.

    `log_directory` is where the log lies when it is not below `root`; `geometry` the index files' when it is known.
    """

    def __init__(self, root: Path, disk: Disk | None = None, *, log_directory: Path | None = None, geometry: IndexGeometry | None = None):
        self.root = Path(root)
        self.disk = disk or Disk()
        self.log_directory = log_directory or self.root / "commitlog"
        self.geometry = geometry
        if not self.disk.is_directory(self.log_directory):
            raise StoreError(f"{self.root} is no store: it has no directory commitlog")

    def status(self) -> dict:
        """What `store status` shows."""
        log = list(self._log_files())
        end = self.log_end()
        stamps = self._checkpoint()
        return {
            "store": str(self.root),
            "state": "not closed orderly, or in use" if self.disk.exists(self.root / "abort") else "closed",
            "positions": {
                "min": log[0][0] if log else 0,
                "wrote": end,
                "checkpoint": stamps
                and {"physic_ms": stamps.physic_msg_timestamp, "logics_ms": stamps.logics_msg_timestamp, "index_ms": stamps.index_msg_timestamp},
            },
            "commit_log_files": len(log),
            "queues": len(list(self._queues())),
            "index_files": len(self._index_names()),
            "lost_and_found": kept_facts(self.disk, self.root),
            "sizes": {
                "mapped_file_size_commit_log": log[0][1] if log else None,
                "allocated_bytes": sum(file["allocated"] for file in self.files()),
            },
        }

    def files(self) -> list[dict]:
        """Every mapped file."""
        end = self.log_end()
        files = [
            self._file(
                "commitlog", path, base, size, min(max(end - base, 0), size), "full" if end >= base + size else "writing" if end > base else "preallocated"
            )
            for base, size, path in self._log_files()
        ]
        for topic, queue_id, directory in self._queues():
            for name in self._numbered(directory):
                path = directory / name
                files.append(self._file("consumequeue", path, int(name), self.disk.size_of(path), None, None, topic, queue_id))
        for name in self._index_names():
            path = self.root / "index" / name
            files.append(self._file("index", path, None, self.disk.size_of(path), None, None))
        return files

    def _file(self, kind, path: Path, base, size, wrote, state, topic: str = "", queue_id: int | None = None) -> dict:
        allocated = self.disk.allocated_bytes(path)
        return {
            "kind": kind,
            "name": path.name,
            "topic": topic,
            "queue_id": queue_id,
            "base": base,
            "size": size,
            "allocated": allocated,
            "wrote": wrote,
            "state": state,
        }

    def index(self) -> list[dict]:
        """The header of every index file."""
        found = []
        for path, header, shape in self._index_files():
            found.append(
                {
                    "name": path.name,
                    "slots": shape and shape.slots,
                    "slots_used": header.slots_used,
                    "entries": header.count - 1,
                    "max_entries": shape and shape.entries,
                    "begin_ms": header.begin_timestamp or None,
                    "end_ms": header.end_timestamp or None,
                    "begin_offset": header.begin_offset,
                    "end_offset": header.end_offset,
                }
            )
        return found

    def log_end(self) -> int:
        """Where the first place is at which no record or blank begins, looked for from the last file that begins with one."""
        files = list(self._log_files())
        for base, size, path in reversed(files):
            with self.disk.open_reader(path) as reader:
                head = reader.read(0, record.HEAD.size)
                if len(head) == record.HEAD.size and (record.read_head(head).is_record or record.read_head(head).is_blank):
                    return self._end_in(reader, base, size)
        return files[0][0] if files else 0

    def _end_in(self, reader: Reader, base: int, size: int) -> int:
        at, chunk, chunk_at = 0, b"", 0
        while at + record.HEAD.size <= size:
            if at + record.HEAD.size > chunk_at + len(chunk):
                chunk, chunk_at = reader.read(at, CHUNK_BYTES), at
                if len(chunk) < record.HEAD.size:
                    break
            head = record.read_head(chunk, at - chunk_at)
            if head.is_blank:
                return base + size
            if not head.is_record or not record.MIN_RECORD <= head.total_size <= size - at:
                break
            at += head.total_size
        return base + at

    def explain(self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int) -> list[dict]:
        """Each step of a lookup by key, newest file first, in the shape of the engine's; a kept entry names its message."""
        text = index_file.key_text(topic, key)
        hashed = index_file.key_hash(text)
        steps: list[dict] = [{"step": "hash", "key": text, "hash": hashed}]
        left = limit
        for path, header, shape in reversed(list(self._index_files())):
            step = {"step": "file", "file": path.name, "begin_ms": header.begin_timestamp, "end_ms": header.end_timestamp, "entries": header.count - 1}
            if shape is None:
                steps.append(step | {"used": False, "why": "its length fits no known numbers of slots and entries; give --slots and --entries"})
                continue
            if header.begin_timestamp > end_ms or header.end_timestamp < begin_ms:
                steps.append(step | {"used": False, "why": "its time range does not overlap the one asked for"})
                continue
            steps.append(step | {"used": True, "why": "its time range overlaps the one asked for"})
            with self.disk.open_reader(path) as reader:
                for entry in self._explain_file(reader, path.name, header, shape, hashed, topic, key, begin_ms, end_ms):
                    steps.append(entry)
                    left -= entry.get("kept", False)
                    if left <= 0:
                        return [*steps, {"step": "stop", "why": f"{limit} entries were found, more were not asked for"}]
        return [*steps, {"step": "stop", "why": "there is no older file"}]

    def _explain_file(self, reader, name, header, shape, hashed, topic, key, begin_ms, end_ms) -> Iterator[dict]:
        slot = hashed % shape.slots
        number = index_file.decode_slot(reader.read(shape.slot_at(slot), index_file.SLOT.size))
        yield {"step": "slot", "file": name, "slot": slot, "of": shape.slots, "entry": number}
        for _ in range(MAX_CHAIN):
            if not 0 < number < header.count:
                return
            entry = index_file.decode_entry(reader.read(shape.entry_at(number), index_file.ENTRY.size))
            at_ms = header.begin_timestamp + entry.seconds * 1000
            step = {
                "step": "entry",
                "file": name,
                "entry": number,
                "hash": entry.key_hash,
                "log_offset": entry.log_offset,
                "at_ms": at_ms,
                "previous": entry.previous,
            }
            if entry.key_hash != hashed:
                yield step | {"kept": False, "why": "another hash that shares the slot"}
            elif not begin_ms <= at_ms <= end_ms:
                yield step | {"kept": False, "why": "outside the time asked for"}
            else:
                yield step | self._look_up(entry.log_offset, topic, key)
            if entry.previous >= number:
                yield {"step": "stop", "why": f"damaged: entry {number} names entry {entry.previous} as the one before it"}
                return
            number = entry.previous

    def _look_up(self, log_offset: int, topic: str, key: str) -> dict:
        """What became of an entry whose hash is the right one."""
        try:
            message = record.decode(self.record_at(log_offset))
        except (FormatError, NotFoundError):
            return {"kept": False, "why": "no message is there any more"}
        if message.topic != topic or key not in (*message.keys, message.unique_key):
            return {"kept": False, "why": "another key of the same hash"}
        return {"kept": True, "message_id": message.message_id, "why": "the message has this key"}

    def record_at(self, log_offset: int) -> bytes:
        """The bytes of the record that begins there; NotFoundError when none does."""
        head = record.read_head(self.bytes_at(log_offset, record.HEAD.size))
        if not head.is_record or not record.MIN_RECORD <= head.total_size <= record.MAX_RECORD + (16 << 20):
            raise NotFoundError(f"no message begins at position {log_offset} of the log")
        return self.bytes_at(log_offset, head.total_size)

    def bytes_at(self, log_offset: int, length: int) -> bytes:
        """Bytes of the log, at most to the end of their file; NotFoundError outside of it."""
        for base, size, path in self._log_files():
            if base <= log_offset < base + size:
                with self.disk.open_reader(path) as reader:
                    found = reader.read(log_offset - base, min(length, base + size - log_offset))
                if len(found) >= min(length, record.HEAD.size):
                    return found
        raise NotFoundError(f"position {log_offset} is not in the log")

    def _checkpoint(self) -> checkpoint.Checkpoint | None:
        raw = self.disk.read_file(self.root / "checkpoint")
        try:
            return None if raw is None else checkpoint.decode(raw)
        except FormatError:
            return None

    def _log_files(self) -> Iterator[tuple[int, int, Path]]:
        for name in self._numbered(self.log_directory):
            path = self.log_directory / name
            yield int(name), self.disk.size_of(path), path

    def _queues(self) -> Iterator[tuple[str, int, Path]]:
        top = self.root / "consumequeue"
        for topic in self._names(top):
            for queue in self._names(top / topic):
                if queue.isascii() and queue.isdigit():
                    yield topic, int(queue), top / topic / queue

    def _index_names(self) -> list[str]:
        return [name for name in self._names(self.root / "index") if len(name) == 17 and name.isascii() and name.isdigit()]

    def _index_files(self) -> Iterator[tuple[Path, index_file.IndexHeader, IndexGeometry | None]]:
        for name in self._index_names():
            path = self.root / "index" / name
            size = self.disk.size_of(path)
            if size < index_file.HEADER.size:
                continue
            with self.disk.open_reader(path) as reader:
                header = index_file.decode_header(reader.read(0, index_file.HEADER.size))
            yield path, header, self.geometry if self.geometry is not None and self.geometry.file_bytes == size else _usual_geometry(size)

    def _numbered(self, directory: Path) -> list[str]:
        return [name for name in self._names(directory) if len(name) == 20 and name.isascii() and name.isdigit()]

    def _names(self, directory: Path) -> list[str]:
        return sorted(self.disk.list_names(directory)) if self.disk.is_directory(directory) else []


def _usual_geometry(size: int) -> IndexGeometry | None:
    """Four entries a slot, as by default; None for a file of another length."""
    slots, rest = divmod(size - index_file.HEADER.size, index_file.SLOT.size + 4 * index_file.ENTRY.size)
    return IndexGeometry(slots, 4 * slots) if slots > 0 and not rest else None


def hex_dump(data: bytes, start: int) -> Iterator[str]:
    """Lines of 16 bytes: position, hex, what is printable."""
    for at in range(0, len(data), 16):
        line = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"{start + at:>16,}  {line[:8].hex(' '):<23}  {line[8:].hex(' '):<23}  {text}"
