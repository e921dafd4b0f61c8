"""The slow obvious store: what the engine and its kernels must equal.

It reads a whole directory into lists and answers by reading every element, straight from
docs/spec/store-format.md and docs/spec/store-behaviour.md. It shares the formats with the engine and nothing
else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from broker_store.errors import FormatError
from broker_store.formats import index_file, java_hash, properties, queue_unit, record
from broker_store.formats.index_file import IndexEntry, IndexGeometry, IndexHeader
from broker_store.formats.queue_unit import QueueUnit
from broker_store.formats.record import StoredMessage
from tests.support.stores import StoreSizes

MAX_SCAN_UNITS = 800  # units one read scans
MAX_COUNT_IN_MEMORY = 32
MAX_BYTES_IN_MEMORY = 256 * 1024


@dataclass
class LogWalk:
    """What lies in a log: the records up to the first thing that is none, the blanks between files, the
    end."""

    records: list[StoredMessage] = field(default_factory=list)
    blanks: list[tuple[int, int]] = field(default_factory=list)  # (log offset, size)
    end: int = 0
    problem: str = ""


def walk_log(files: list[tuple[int, bytes]], max_size: int = record.MAX_RECORD) -> LogWalk:
    """Read record after record, from (start offset, content) of each file; a blank leads to the next file."""
    walk = LogWalk(end=files[0][0] if files else 0)
    for number, (start, content) in enumerate(files):
        if walk.end != start:
            break  # the file before did not end in a blank
        at = 0
        while True:
            if at + record.BLANK_BYTES > len(content):
                walk.end = start + at
                return walk
            head = record.read_head(content, at)
            if head.is_blank:
                walk.blanks.append((start + at, head.total_size))
                last = number == len(files) - 1
                walk.end = start + (at if last else len(content))
                break
            try:
                message = record.decode(content, at, log_offset=start + at, max_size=max_size)
            except FormatError as error:
                walk.end, walk.problem = start + at, str(error)
                return walk
            walk.records.append(message)
            at += message.size
    return walk


def queues_from_log(records: list[StoredMessage]) -> dict[tuple[str, int], list[QueueUnit]]:
    """The units that the records make, a list a queue, in the order of the log."""
    queues: dict[tuple[str, int], list[QueueUnit]] = {}
    for message in records:
        if message.sys_flag & 0xC in (0x0, 0x8):
            queues.setdefault((message.topic, message.queue_id), []).append(
                QueueUnit(message.log_offset, message.size, tags_code(message))
            )
    return queues


def tags_code(message: StoredMessage) -> int:
    """The third field of a message's unit, with the default delay levels."""
    pairs = properties.decode(message.raw_properties)
    if message.topic == "SCHEDULE_TOPIC_XXXX" and pairs.get("DELAY", "0") not in ("", "0"):
        level = min(int(pairs["DELAY"]), 18)
        minutes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120]
        delays = [1, 5, 10, 30] + [60 * minute for minute in minutes]
        return message.store_timestamp + 1000 * delays[level - 1]
    return java_hash.java_hash(pairs["TAGS"]) if pairs.get("TAGS") else 0


def index_keys(message: StoredMessage, with_tags: bool = True) -> list[str]:
    """What is put into the index for a message, in order."""
    if message.sys_flag & 0xC == 0xC:
        return []
    pairs = properties.decode(message.raw_properties)
    keys = [pairs["UNIQ_KEY"]] if "UNIQ_KEY" in pairs else []
    keys += [key for key in pairs.get("KEYS", "").split(" ") if key]
    if with_tags and pairs.get("TAGS"):
        keys.append("T#" + pairs["TAGS"])
    return [f"{message.topic}#{key}" for key in keys]


@dataclass
class IndexModel:
    """An index file as a header and lists; `entries[0]` is the one that is never used."""

    slots: int
    max_entries: int
    header: IndexHeader = IndexHeader(0, 0, 0, 0, 0, 1)
    slot_heads: dict[int, int] = field(default_factory=dict)
    entries: list[IndexEntry] = field(default_factory=lambda: [IndexEntry(0, 0, 0, 0)])

    @property
    def is_full(self) -> bool:
        return self.header.count >= self.max_entries

    def put(self, key: str, log_offset: int, store_timestamp: int) -> None:
        header = self.header
        hashed = hash_of(key)
        previous = self.slot_heads.get(hashed % self.slots, 0)
        seconds = 0
        if header.begin_timestamp > 0:
            seconds = min(max((store_timestamp - header.begin_timestamp) // 1000, 0), 2**31 - 1)
        self.entries.append(IndexEntry(hashed, log_offset, seconds, previous))
        self.slot_heads[hashed % self.slots] = header.count
        if header.count <= 1:
            header = header._replace(begin_timestamp=store_timestamp, begin_offset=log_offset)
        self.header = header._replace(
            slots_used=header.slots_used + (previous == 0),
            count=header.count + 1,
            end_timestamp=store_timestamp,
            end_offset=log_offset,
        )

    def to_bytes(self) -> bytes:
        slots = b"".join(index_file.SLOT.pack(self.slot_heads.get(slot, 0)) for slot in range(self.slots))
        entries = b"".join(index_file.encode_entry(entry) for entry in self.entries)
        geometry = IndexGeometry(self.slots, self.max_entries)
        return (index_file.encode_header(self.header) + slots + entries).ljust(geometry.file_bytes, b"\0")

    @classmethod
    def from_bytes(cls, content: bytes, slots: int, max_entries: int) -> IndexModel:
        geometry = IndexGeometry(slots, max_entries)
        header = index_file.decode_header(content)
        heads = {slot: index_file.decode_slot(content, geometry.slot_at(slot)) for slot in range(slots)}
        entries = [
            index_file.decode_entry(content, geometry.entry_at(number))
            for number in range(min(header.count, max_entries))
        ]
        return cls(slots, max_entries, header, {slot: head for slot, head in heads.items() if head}, entries)

    def chain(self, slot: int) -> list[int]:
        """The entry numbers of a slot, newest first."""
        numbers = []
        number = self.slot_heads.get(slot, 0)
        while 0 < number < self.header.count and number not in numbers:
            numbers.append(number)
            number = self.entries[number].previous
        return numbers


def hash_of(key: str) -> int:
    """The absolute Java hash of a `topic#key`, 0 where there is none."""
    value = abs(java_hash.java_hash(key))
    return 0 if value == 2**31 else value


def index_from_log(
    records: list[StoredMessage], slots: int, max_entries: int, with_tags: bool = True
) -> list[IndexModel]:
    """The index files that the records make: a record makes sure of a file with room, then each of its keys
    does."""
    files: list[IndexModel] = []

    def with_room() -> IndexModel:
        if not files or files[-1].is_full:
            before = files[-1].header if files else IndexHeader(0, 0, 0, 0, 0, 1)
            start = IndexHeader(
                before.end_timestamp, before.end_timestamp, before.end_offset, before.end_offset, 0, 1
            )
            files.append(IndexModel(slots, max_entries, start if files else before))
        return files[-1]

    for message in records:
        with_room()
        for key in index_keys(message, with_tags):
            with_room().put(key, message.log_offset, message.store_timestamp)
    return files


@dataclass
class Read:
    """The answer to a read of a queue."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    log_offsets: list[int]


class ReferenceStore:
    """A store directory, read whole. `log_end` is where recovery by the 5.3 rule ends."""

    def __init__(self, root: Path, sizes: StoreSizes):
        self.root, self.sizes = root, sizes
        self.log_files = [
            (int(path.name), path.read_bytes()) for path in sorted((root / "commitlog").iterdir())
        ]
        self.walk = walk_log(self.log_files)
        self.records = {message.log_offset: message for message in self.walk.records}
        self.log_start = self.log_files[0][0] if self.log_files else 0
        self.log_end = self.walk.end
        self.queues = {
            (directory.parent.name, int(directory.name)): self._read_queue(directory)
            for directory in sorted((root / "consumequeue").glob("*/*"))
        }
        self.index = [
            IndexModel.from_bytes(path.read_bytes(), sizes.max_hash_slot_num, sizes.max_index_num)
            for path in sorted((root / "index").glob("*"))
        ]

    @staticmethod
    def _read_queue(directory: Path) -> dict[int, QueueUnit]:
        """Unit number -> unit, up to the first that is no data."""
        units = {}
        for path in sorted(directory.iterdir()):
            number = int(path.name) // queue_unit.SIZE
            for unit in queue_unit.decode_all(path.read_bytes()):
                if not unit.is_data:
                    return units
                if not unit.is_pre_blank:
                    units[number] = unit
                number += 1
        return units

    def min_offset(self, topic: str, queue_id: int) -> int:
        units = self.queues[topic, queue_id]
        return min(
            (number for number, unit in units.items() if unit.log_offset >= self.log_start),
            default=self.max_offset(topic, queue_id),
        )

    def max_offset(self, topic: str, queue_id: int) -> int:
        return max(self.queues[topic, queue_id], default=-1) + 1

    def get(self, topic: str, queue_id: int, offset: int, max_count: int, expression: str = "*") -> Read:
        """A read by docs/spec/store-behaviour.md section 6.1; everything counts as in memory."""
        if (topic, queue_id) not in self.queues or self.max_offset(topic, queue_id) == 0:
            return Read("NO_MESSAGE_IN_QUEUE", 0, 0, 0, [])
        low, high = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        if offset < low:
            return Read("OFFSET_TOO_SMALL", low, low, high, [])
        if offset == high:
            return Read("OFFSET_OVERFLOW_ONE", offset, low, high, [])
        if offset > high:
            return Read("OFFSET_OVERFLOW_BADLY", high, low, high, [])
        wanted = (
            None
            if expression == "*"
            else {java_hash.java_hash(tag.strip()) for tag in expression.split("||")}
        )
        units_per_file = self.sizes.mapped_file_size_consume_queue // queue_unit.SIZE
        end = min(
            high, (offset // units_per_file + 1) * units_per_file, offset + max(MAX_SCAN_UNITS, max_count)
        )
        found: list[int] = []
        found_bytes = 0
        at = offset
        while at < end:
            unit = self.queues[topic, queue_id][at]
            count_full = len(found) + 1 > max_count or len(found) > MAX_COUNT_IN_MEMORY - 1
            if found and (count_full or found_bytes + unit.size > MAX_BYTES_IN_MEMORY):
                break
            if wanted is None or _as_int(unit.tags_code) in wanted:
                found.append(unit.log_offset)
                found_bytes += unit.size
            at += 1
        return Read("FOUND" if found else "NO_MATCHED_MESSAGE", at, low, high, found)

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, upper: bool = False) -> int:
        """LOWER: the first unit not older than the time, else the end; UPPER: the last unit not newer, else
        the start."""
        low, high = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        times = [
            (number, self.records[self.queues[topic, queue_id][number].log_offset].store_timestamp)
            for number in range(low, high)
        ]
        if upper:
            return max((number for number, stored in times if stored <= time_ms), default=low)
        return min((number for number, stored in times if stored >= time_ms), default=high)

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Log offsets of what the index finds, as the store answers them: the newest `max_count`,
        ascending."""
        hashed = hash_of(f"{topic}#{key}")
        found: list[int] = []
        for model in reversed(self.index):
            header = model.header
            if header.begin_timestamp <= end_ms and header.end_timestamp >= begin_ms:
                for number in model.chain(hashed % model.slots):
                    entry = model.entries[number]
                    stored = header.begin_timestamp + entry.seconds * 1000
                    if len(found) >= min(max_count, 64) or stored < begin_ms:
                        break
                    if entry.key_hash == hashed and begin_ms <= stored <= end_ms:
                        found.append(entry.log_offset)
            if header.begin_timestamp < begin_ms or len(found) >= min(max_count, 64):
                break
        return sorted(offset for offset in found if offset in self.records)

    def queue_bytes(self, topic: str, queue_id: int) -> bytes:
        """What the files of the queue must hold, from the records alone, zero after the last unit of the
        last file."""
        units = queues_from_log(list(self.records.values())).get((topic, queue_id), [])
        content = b"".join(queue_unit.encode(*unit) for unit in units)
        file_bytes = self.sizes.mapped_file_size_consume_queue
        return content.ljust(max(1, -(-len(content) // file_bytes)) * file_bytes, b"\0")


def _as_int(tags_code: int) -> int:
    """A tags code cut to 32 bits, as the filter compares it."""
    return (tags_code + 2**31) % 2**32 - 2**31
