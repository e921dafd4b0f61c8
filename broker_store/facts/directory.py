"""A store directory read from outside: its files, positions, index and bytes.

For `manage.py store --store DIR`, also on a store that Apache's broker made, and for pages of the store of
this process: everything is positional reading through the engine's disk, nothing is locked or written. What a
running broker knows better (what is synced, what is dispatched) is not known here, and is None. The shapes
are the snapshot's and the file list's of the engine, as far as they can be known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from broker_store.engine.config_files import read_sound
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.status.store_state import IndexFileHeader, StoreFile
from broker_store.errors import DamagedStoreError, FormatError, NotFoundError, StoreError
from broker_store.facts.queue_units import QueueUnits
from broker_store.formats import checkpoint, config_json, index_file, queue_unit, record, timer_log
from broker_store.formats.index_file import IndexGeometry

# A StoreFile, or one with more fields
File = TypeVar("File", bound=StoreFile)
GroupOffsets = dict[str, dict[str, dict[int, int]]]

OFFSETS_FILE = "consumerOffset.json"  # in config/
CHUNK_BYTES = 4 << 20  # of the log, read at once
_HEAD_BYTES = 128  # of a record: all that has a fixed place
_KINDS = ("commitlog", "consumequeue", "index")


class StoreDirectory:
    """Reads of one store directory. StoreError when it is none.

    `log_directory` is where the log lies when it is not below `root`; `geometry` the index files' when it is
    known.
    """

    def __init__(
        self,
        root: Path,
        disk: Disk | None = None,
        *,
        log_directory: Path | None = None,
        geometry: IndexGeometry | None = None,
    ):
        self.root = Path(root)
        self.disk = disk or Disk()
        self.log_directory = log_directory or self.root / "commitlog"
        self.geometry = geometry
        if not self._is_directory(self.log_directory):
            raise StoreError(f"{self.root} is no store: it has no directory commitlog")

    def sizes(self) -> FileSizes:
        """The settings for the length of files, as the files themselves have it; None of what has no file."""
        logs = [size for _, size, _ in self._log_files() if size]
        queues = [
            self.disk.size_of(directory / name)
            for _, _, directory in self._queues()
            for name in self._numbered(directory)[:1]
        ]
        newest = None
        for _, _, shape in self._index_files():
            newest = shape or newest
        return FileSizes(
            mapped_file_size_commit_log=_commonest(logs),
            mapped_file_size_consume_queue=_commonest([size for size in queues if size]),
            max_hash_slot_num=None if newest is None else newest.slots,
            max_index_num=None if newest is None else newest.entries,
        )

    def files(self) -> list[StoreFile]:
        """Every mapped file: the shape of the engine's, in which what only the process knows that writes them
        is None."""
        end = self.log_end()
        files = [
            self._file("commitlog", path, base, size, min(max(end - base, 0), size))
            for base, size, path in self._log_files()
        ]
        for topic, queue_id, directory in self._queues():
            queue_end = None
            for name in reversed(names := self._numbered(directory)):
                # Units have no gap: files before the last that holds any are full.
                path, base = directory / name, int(name)
                size = self.disk.size_of(path)
                if queue_end is None and ((units := self._units_in(path, size)) or name == names[0]):
                    queue_end = base + units * queue_unit.SIZE
                wrote = 0 if queue_end is None else min(max(queue_end - base, 0), size)
                files.append(self._file("consumequeue", path, base, size, wrote, topic, queue_id))
        for path, header, shape in self._index_files():
            size, base = self.disk.size_of(path), header.begin_offset
            if shape is None:
                found = self._file("index", path, base, size, None)
            else:
                count = min(max(header.count, index_file.FIRST_ENTRY), shape.entries)
                found = replace(
                    self._file("index", path, base, size, shape.entry_at(count)),
                    state="full" if count >= shape.entries else "writing",
                )
            times = header.begin_timestamp or None, header.end_timestamp or None
            files.append(replace(found, first_ms=times[0], last_ms=times[1]))
        return sorted(
            files,
            key=lambda file: (
                _KINDS.index(file.kind),
                file.topic or "",
                file.queue_id or 0,
                file.name,
            ),
        )

    def _file(
        self,
        kind: str,
        path: Path,
        base: int,
        size: int,
        wrote: int | None,
        topic: str | None = None,
        queue_id: int | None = None,
    ) -> StoreFile:
        state = None if wrote is None else "full" if wrote >= size else "writing" if wrote else "preallocated"
        return StoreFile(
            kind=kind,
            name=path.name,
            topic=topic,
            queue_id=queue_id,
            base=base,
            size=size,
            allocated=self.disk.allocated_bytes(path),
            wrote=wrote,
            state=state,
        )

    def _units_in(self, path: Path, size: int) -> int:
        """How many units a file begins with, by binary search: after the last there are only zeros."""
        with self.disk.open_reader(path) as reader:
            low, high = 0, size // queue_unit.SIZE
            while low < high:
                middle = (low + high) // 2
                if any(reader.read(middle * queue_unit.SIZE, queue_unit.SIZE)):
                    low = middle + 1
                else:
                    high = middle
        return low

    def with_times(self, files: Sequence[File]) -> list[File]:
        """The files with `first_ms` and `last_ms`, the store times of what they hold, as far as they are
        known cheaply.

        Of a file of log or queue that is full, `last_ms` is when the next began: nothing in it is younger.
        Each file costs one or two short reads, so give those that are shown.
        """
        begins = {base: path for base, _, path in self._log_files()}
        known: dict[int, int | None] = {}

        def first_of(base: int) -> int | None:
            if base not in known:
                known[base] = self._store_ms(base) if base in begins else None
            return known[base]

        timed = []
        for file in files:
            first_ms, last_ms = file.first_ms, file.last_ms
            if file.kind == "commitlog" and file.wrote and file.base is not None:
                first_ms, last_ms = first_of(file.base), first_of(file.base + file.size) or last_ms
            elif file.kind == "consumequeue" and file.wrote:
                first_ms, last_ms = (
                    self._unit_ms(file, 0),
                    self._unit_ms(file, file.wrote - queue_unit.SIZE),
                )
            timed.append(replace(file, first_ms=first_ms, last_ms=last_ms))
        return timed

    def _unit_ms(self, file: StoreFile, at: int) -> int | None:
        path = self.root / "consumequeue" / (file.topic or "") / str(file.queue_id) / file.name
        try:
            with self.disk.open_reader(path) as reader:
                raw = reader.read(at, queue_unit.SIZE)
            unit = queue_unit.decode(raw) if len(raw) == queue_unit.SIZE else None
        except StoreError:
            return None  # deleted since it was listed
        return self._store_ms(unit.log_offset) if unit is not None and unit.is_data else None

    def _store_ms(self, log_offset: int) -> int | None:
        """Store time of the record that begins there; None when none does."""
        try:
            raw = self.bytes_at(log_offset, _HEAD_BYTES)
            head = record.read_head(raw)
            if not head.is_record or len(raw) < _HEAD_BYTES:
                return None
            (sys_flag,) = record.SYS_FLAG.unpack(raw, record.SYS_FLAG_AT)
            (stored_ms,) = record.STORE_TIMESTAMP.unpack(
                raw, record.FIXED[(sys_flag >> 4) & 1].offset["store_timestamp"]
            )
        except (FormatError, NotFoundError, StoreError):
            return None
        return stored_ms if stored_ms > 0 else None

    def index(self) -> list[IndexFileHeader]:
        """The header of every index file."""
        found = []
        for path, header, shape in self._index_files():
            found.append(
                IndexFileHeader(
                    name=path.name,
                    slots=None if shape is None else shape.slots,
                    slots_used=header.slots_used,
                    entries=header.count - 1,
                    max_entries=None if shape is None else shape.entries,
                    begin_ms=header.begin_timestamp or None,
                    end_ms=header.end_timestamp or None,
                    begin_offset=header.begin_offset,
                    end_offset=header.end_offset,
                )
            )
        return found

    def log_end(self) -> int:
        """Where the first place is at which no record or blank begins, searched from the last file that
        begins with one."""
        files = list(self._log_files())
        for base, size, path in reversed(files):
            with self.disk.open_reader(path) as reader:
                head = reader.read(0, record.HEAD.size)
                if len(head) == record.HEAD.size and (
                    record.read_head(head).is_record or record.read_head(head).is_blank
                ):
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

    def log_range(self) -> tuple[int, int]:
        """Where the log's first file begins and its last one ends; zeros without a file."""
        log = list(self._log_files())
        return (log[0][0], log[-1][0] + log[-1][1]) if log else (0, 0)

    def index_files(self) -> list[tuple[str, index_file.IndexHeader, IndexGeometry | None]]:
        """(name, header, geometry) of each index file, oldest first; the geometry is None when no known one
        has a file's length."""
        return [(path.name, header, shape) for path, header, shape in self._index_files()]

    @contextlib.contextmanager
    def open_index(self, name: str) -> Iterator[tuple[Reader, IndexGeometry]]:
        """An index file to be read. NotFoundError without it, StoreError when it is none or its geometry is
        not known."""
        path = self.root / "index" / index_file.check_name(name)
        if not self.disk.exists(path):
            raise NotFoundError(f"there is no index file {name}")
        geometry = self._geometry_of(self.disk.size_of(path))
        if geometry is None:
            raise StoreError(
                f"index/{name} has a length that fits no known numbers of slots and entries; give "
                f"--slots and --entries"
            )
        with self.disk.open_reader(path) as reader:
            yield reader, geometry

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

    def checkpoint_limit_ms(self) -> int:
        """The store time up to which a start after a crash relies on the checkpoint; 0 when that has none."""
        stamps = self.checkpoint()
        return 0 if stamps is None else stamps.min_timestamp

    def checkpoint(self) -> checkpoint.Checkpoint | None:
        """None when there is none, or none that can be read."""
        raw = self.disk.read_file(self.root / "checkpoint")
        try:
            return None if raw is None else checkpoint.decode(raw)
        except FormatError:
            return None

    def log_files(self) -> list[tuple[int, int, Path]]:
        """(first log offset, size, path) of the files of the log, ascending."""
        return list(self._log_files())

    def queue_paths(self) -> Iterator[tuple[str, int, int, int, Path]]:
        """(topic, queue id, number of its first byte in the queue, size, path) of the files of all queues."""
        for topic, queue_id, directory in self._queues():
            for name in self._numbered(directory):
                if (size := self._size_of(directory / name)) is not None:
                    yield topic, queue_id, int(name), size, directory / name

    def index_paths(self) -> list[tuple[int, Path]]:
        """(size, path) of the index files, ascending."""
        paths = [self.root / "index" / name for name in self._index_names()]
        return [(size, path) for path in paths if (size := self._size_of(path)) is not None]

    def _size_of(self, path: Path) -> int | None:
        """None of a file that went since its name was read, by retention or with its topic."""
        try:
            return self.disk.size_of(path)
        except StoreError:
            if self.disk.exists(path):
                raise
            return None

    def queues(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue that has a directory."""
        return [(topic, queue_id) for topic, queue_id, _ in self._queues()]

    def queue_files(self, topic: str, queue_id: int) -> list[tuple[int, int, Path]]:
        """(first byte of the queue, size, path) of the files of a queue, ascending; none of one that is not
        there."""
        return self._sized(self.root / "consumequeue" / topic / str(queue_id))

    def timer_log_files(self) -> list[tuple[int, int, Path]]:
        """(first byte, size, path) of the files of the timer log, ascending."""
        return self._sized(self.root / timer_log.PATH)

    def _sized(self, directory: Path) -> list[tuple[int, int, Path]]:
        """(number that its name is, size, path) of the numbered files of a directory, ascending."""
        paths = [directory / name for name in self._numbered(directory)]
        return [(int(path.name), size, path) for path in paths if (size := self._size_of(path)) is not None]

    def queue_units(self, topic: str, queue_id: int) -> QueueUnits:
        """The units of a queue; there are none of one that is not there."""
        return QueueUnits(self.disk, self.queue_files(topic, queue_id))

    def config(self, name: str) -> str | None:
        """The text of a file of `config/`, of its .bak when it is missing, empty or torn, None when neither
        is there."""
        return read_sound(self.disk, self.root, name)

    def has_group_offsets(self) -> bool:
        """Whether there is a readable config/consumerOffset.json. Without one it is unknown where groups
        stand, not that there are none."""
        try:
            text = self.config(OFFSETS_FILE)
            if text is not None:
                config_json.read_table(text, "offsetTable")
        except FormatError:
            return False
        return text is not None

    def group_names(self) -> set[str]:
        """Return the groups that config/subscriptionGroup.json has; none without a readable one."""
        try:
            text = self.config("subscriptionGroup.json")
            return set() if text is None else set(config_json.read_table(text, "subscriptionGroupTable")[1])
        except FormatError:
            return set()

    def group_offsets(self) -> GroupOffsets:
        """group -> topic -> queue -> the offset it committed, as config/consumerOffset.json has it. Raises
        DamagedStoreError."""
        text = self.config(OFFSETS_FILE)
        found: GroupOffsets = {}
        if text is None:
            return found
        try:
            _, table, _ = config_json.read_table(text, "offsetTable")
            for key, queues in table.items():
                topic, _, group = str(key).partition("@")
                offsets = config_json.int_keys(queues, str(key))
                found.setdefault(group, {})[topic] = {
                    queue: at for queue, at in offsets.items() if type(at) is int
                }
        except FormatError as error:
            raise DamagedStoreError(str(error), file=f"config/{OFFSETS_FILE}") from error
        return found

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
        return [name for name in self._names(self.root / "index") if index_file.is_name(name)]

    def _index_files(self) -> Iterator[tuple[Path, index_file.IndexHeader, IndexGeometry | None]]:
        for name in self._index_names():
            path = self.root / "index" / name
            size = self.disk.size_of(path)
            if size < index_file.HEADER.size:
                continue
            with self.disk.open_reader(path) as reader:
                header = index_file.decode_header(reader.read(0, index_file.HEADER.size))
            yield path, header, self._geometry_of(size)

    def _geometry_of(self, size: int) -> IndexGeometry | None:
        """Of an index file of that many bytes: the one that is known, or the usual one."""
        return (
            self.geometry
            if self.geometry is not None and self.geometry.file_bytes == size
            else _usual_geometry(size)
        )

    def _numbered(self, directory: Path) -> list[str]:
        return [
            name for name in self._names(directory) if len(name) == 20 and name.isascii() and name.isdigit()
        ]

    def _names(self, directory: Path) -> list[str]:
        return sorted(self.disk.list_names(directory)) if self._is_directory(directory) else []

    def _is_directory(self, path: Path) -> bool:
        """As the disk says. StoreError for a directory above that this user may not enter: nothing is known
        of what is in it."""
        try:
            return self.disk.is_directory(path)
        except StoreError as error:
            raise StoreError(
                f"{error}; read the store as the user that owns it, or let this user read and "
                f"enter {path.parent}"
            ) from error


def _commonest(sizes: list[int]) -> int | None:
    return max(set(sizes), key=sizes.count, default=None)


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
