"""A stretch of the log as Arrow record batches: kernels turn bytes into columns of numbers and pieces of
text.

No record becomes a Python object, and a column that is not requested costs nothing. Text that is not valid
UTF-8 gets replacement characters, as from Apache's decoder.

A part of the log without a valid record where one should be is damage. It is an error, or skipped, or
reported in a row of its own: `problem` is what is wrong, `log_offset` its place, `record_bytes` the distance
to the next valid record; all other columns are null.
"""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker_store.check.records import REASONS
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.log.row_buffer import FieldBuffer, RowBuffer
from broker_store.errors import DamagedStoreError, FormatError, StoreError
from broker_store.formats import properties, queue_unit, record
from broker_store.formats.java_hash import java_text
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.kernels import context as c
from broker_store.kernels import fields as k
from broker_store.pipeline.columns import COLUMNS
from broker_store.pipeline.options import Options, Test
from broker_store.pipeline.splits import MAX_RECORD, Split

SLICE_BYTES = 32 << 20  # read at once; at least two of the largest records
ROWS = 64 << 10  # of one batch
WINDOW = 1 << 20  # scanned at once for the next record after damage

TEXT = pa.string()
TIME = pa.timestamp("us", tz="UTC")


class Slice:
    """Some bytes of the log and the rows of the records in it; makes each column once."""

    def __init__(self, data: np.ndarray, rows: np.ndarray, options: Options):
        self.data, self.rows, self.options = data, rows, options
        self._made: dict[str, pa.Array] = {}

    def __len__(self) -> int:
        return self.rows.shape[1]

    def column(self, name: str) -> pa.Array:
        if name not in self._made:
            self._made[name] = _MAKERS[name](self)
        return self._made[name]

    def kept(self, keep: np.ndarray) -> Slice:
        """Return the slice with only the rows where `keep` is true."""
        return (
            self if keep.all() else Slice(self.data, np.ascontiguousarray(self.rows[:, keep]), self.options)
        )

    # Pieces ---------------------------------------------------------------------------------------

    def gathered(self, places: np.ndarray, lengths: np.ndarray) -> tuple[pa.Buffer, pa.Buffer]:
        """Return (offsets, bytes) of pieces copied together, in Arrow's form."""
        places, lengths = np.ascontiguousarray(places), np.ascontiguousarray(lengths)
        offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=offsets[1:])
        target = np.empty(max(1, int(offsets[-1])), dtype=np.uint8)
        k.gather(
            self.data.ctypes.data, places.ctypes.data, lengths.ctypes.data, len(lengths), target.ctypes.data
        )
        return pa.py_buffer(offsets), pa.py_buffer(target)

    def texts(self, places: np.ndarray, lengths: np.ndarray, present: np.ndarray | None = None) -> pa.Array:
        offsets, content = self.gathered(places, lengths)
        valid = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
        found = pa.StringArray.from_buffers(len(lengths), offsets, content, valid)
        try:
            found.validate(full=True)
        except pa.ArrowInvalid:
            raw = pa.BinaryArray.from_buffers(pa.binary(), len(lengths), [valid, offsets, content])
            return pa.array([None if one is None else java_text(one) for one in raw.to_pylist()], TEXT)
        return found

    def split(
        self, kernel, places: np.ndarray, lengths: np.ndarray, room: int, words: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (pieces, begins) that a splitting kernel finds; a piece has `words` int64."""
        places, lengths = np.ascontiguousarray(places), np.ascontiguousarray(lengths)
        pieces = np.empty((max(1, room), words), dtype=np.int64)
        begins = np.empty(len(lengths) + 1, dtype=np.int64)
        found = kernel(
            self.data.ctypes.data,
            places.ctypes.data,
            lengths.ctypes.data,
            len(lengths),
            pieces.ctypes.data,
            begins.ctypes.data,
        )
        return pieces[:found], begins

    # What a test or several columns need ----------------------------------------------------------

    def topics(self) -> tuple[np.ndarray, list[str]]:
        """Return (number of each row's name, names)."""
        found = self.texts(self.rows[k.TOPIC_AT], self.rows[k.TOPIC_LENGTH]).dictionary_encode()
        return found.indices.to_numpy(), found.dictionary.to_pylist()

    def hosts(self, at: np.ndarray, ipv6: int) -> pa.Array:
        """Return address:port of each row; only different hosts are formatted, which are few."""
        wide = (self.rows[k.SYS_FLAG] & ipv6) != 0
        packed = np.zeros((len(self), 20), dtype=np.uint8)
        for chosen, size in ((~wide, 8), (wide, 20)):
            packed[chosen, :size] = self.data[at[chosen][:, None] + np.arange(size)]
        both = np.concatenate((packed, wide[:, None].astype(np.uint8)), axis=1)
        distinct, inverse = np.unique(np.ascontiguousarray(both).view("V21").reshape(-1), return_inverse=True)
        texts = pa.array([_host(one.tobytes()) for one in distinct])
        return pa.DictionaryArray.from_arrays(pa.array(inverse.reshape(-1).astype(np.int32)), texts).cast(
            TEXT
        )


def _host(packed: bytes) -> str:
    size = 16 if packed[20] else 4
    address = str(ipaddress.ip_address(packed[:size]))
    port = int.from_bytes(packed[size : size + 4], "big", signed=True)
    return f"[{address}]:{port}" if size == 16 else f"{address}:{port}"


# Columns ------------------------------------------------------------------------------------------


def _long(field: int) -> Callable[[Slice], pa.Array]:
    return lambda part: pa.array(part.rows[field].copy())


def _int(field: int) -> Callable[[Slice], pa.Array]:
    return lambda part: pa.array(part.rows[field].astype(np.int32))


def _time(field: int) -> Callable[[Slice], pa.Array]:
    def make(part: Slice) -> pa.Array:
        # A client may send any born time: one that does not fit in microseconds has no meaning.
        milliseconds = part.rows[field]
        fits = np.abs(milliseconds) < 1 << 52
        return pa.array(np.where(fits, milliseconds, 0) * 1000, mask=~fits).cast(TIME)

    return make


def _property(at: int, length: int) -> Callable[[Slice], pa.Array]:
    return lambda part: part.texts(part.rows[at], part.rows[length], part.rows[at] >= 0)


def _keys(part: Slice) -> pa.Array:
    lengths = part.rows[k.KEYS_LENGTH]
    pieces, begins = part.split(
        k.split_words, part.rows[k.KEYS_AT], lengths, int(((lengths + 1) // 2).sum()), 2
    )
    return pa.ListArray.from_arrays(pa.array(begins.astype(np.int32)), part.texts(pieces[:, 0], pieces[:, 1]))


def _properties(part: Slice) -> pa.Array:
    lengths = part.rows[k.PROPERTIES_LENGTH]
    pieces, begins = part.split(
        k.split_properties, part.rows[k.PROPERTIES_AT], lengths, int((lengths // 4 + 1).sum()), 4
    )
    names, values = part.texts(pieces[:, 0], pieces[:, 1]), part.texts(pieces[:, 2], pieces[:, 3])
    return pa.MapArray.from_arrays(pa.array(begins.astype(np.int32)), names, values)


def _body(part: Slice) -> pa.Array:
    offsets, content = part.gathered(part.rows[k.BODY_AT], part.rows[k.BODY_LENGTH])
    return pa.BinaryArray.from_buffers(pa.binary(), len(part), [None, offsets, content])


def _body_plain(part: Slice) -> pa.Array:
    """Return the body as its sender had it before compression; null if that fails or exceeds the limits."""
    stored = part.column("body").to_pylist()
    flags = part.rows[k.SYS_FLAG].tolist()
    return pa.array(
        [plain_body(body, flag, part.options) for body, flag in zip(stored, flags, strict=True)], pa.binary()
    )


def plain_body(body: bytes, sys_flag: int, options: Options) -> bytes | None:
    """Decompress a body, with at most `plain_bytes` and `plain_ratio` of memory."""
    if not sys_flag & record.SYS_COMPRESSED:
        return body
    limit = min(options.plain_bytes, options.plain_ratio * len(body))
    kind = sys_flag & record.SYS_COMPRESSION_MASK
    try:
        if kind in (0, record.COMPRESSION_ZLIB):  # a client older than the mask uses zlib
            decompressor = zlib.decompressobj()
            plain = decompressor.decompress(body, limit + 1)
            whole = decompressor.eof
        elif kind in (record.COMPRESSION_ZSTD, record.COMPRESSION_LZ4):
            codec = "zstd" if kind == record.COMPRESSION_ZSTD else "lz4"
            plain, whole = pa.CompressedInputStream(pa.BufferReader(body), codec).read(limit + 1), True
        else:
            return None
    except (zlib.error, OSError):
        return None
    return plain if whole and len(plain) <= limit else None


def _queued(part: Slice) -> pa.Array:
    kind = part.rows[k.SYS_FLAG] & record.SYS_TRANSACTION_MASK
    return pa.array((kind == record.TRANSACTION_NONE) | (kind == record.TRANSACTION_COMMIT))


def _tags_code(part: Slice) -> pa.Array:
    """Return what the record's queue unit must hold: the tag's hash, or in the schedule topic the delivery
    time, from a property."""
    places, lengths = (
        np.ascontiguousarray(part.rows[k.TAGS_AT]),
        np.ascontiguousarray(part.rows[k.TAGS_LENGTH]),
    )
    codes = np.empty(len(part), dtype=np.int64)
    k.hash_tags(part.data.ctypes.data, places.ctypes.data, lengths.ctypes.data, len(part), codes.ctypes.data)
    numbers, names = part.topics()
    if SCHEDULE_TOPIC in names:
        for row in np.flatnonzero(numbers == names.index(SCHEDULE_TOPIC)):
            begin = int(part.rows[k.PROPERTIES_AT, row])
            delay = properties.get(
                part.data[begin : begin + int(part.rows[k.PROPERTIES_LENGTH, row])].tobytes(),
                properties.DELAY,
            )
            tag, levels_ms = part.column("tags")[int(row)].as_py(), part.options.delay_levels_ms
            codes[row] = queue_unit.tags_code(
                SCHEDULE_TOPIC, tag, delay, int(part.rows[k.STORE_MS, row]), levels_ms
            )
    return pa.array(codes)


def _entry_hashes(part: Slice) -> pa.Array:
    """Return the key hashes that the index must hold for each record; 2^32 is added to that of its tag."""
    room = int(((part.rows[k.KEYS_LENGTH] + 1) // 2).sum()) + 2 * len(part)
    hashes = np.empty(max(1, room), dtype=np.int64)
    begins = np.empty(len(part) + 1, dtype=np.int64)
    found = k.hash_keys(
        part.data.ctypes.data,
        part.rows.ctypes.data,
        part.rows.strides[0],
        len(part),
        hashes.ctypes.data,
        begins.ctypes.data,
    )
    return pa.ListArray.from_arrays(pa.array(begins.astype(np.int32)), pa.array(hashes[:found]))


ARROW = {
    "string": TEXT,
    "int": pa.int32(),
    "long": pa.int64(),
    "timestamp": TIME,
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "map<string,string>": pa.map_(TEXT, TEXT),
    "array<string>": pa.list_(TEXT),
    "array<long>": pa.list_(pa.int64()),
}
_MAKERS: dict[str, Callable[[Slice], pa.Array]] = {
    "topic": lambda part: part.texts(part.rows[k.TOPIC_AT], part.rows[k.TOPIC_LENGTH]),
    "queue_id": _int(k.QUEUE_ID),
    "queue_offset": _long(k.QUEUE_OFFSET),
    "log_offset": _long(k.LOG_OFFSET),
    "record_bytes": _int(k.SIZE),
    "version": _int(k.VERSION),
    "store_time": _time(k.STORE_MS),
    "store_host": lambda part: part.hosts(part.rows[k.STORE_HOST_AT], record.SYS_STORE_IPV6),
    "born_time": _time(k.BORN_MS),
    "born_host": lambda part: part.hosts(part.rows[k.BORN_HOST_AT], record.SYS_BORN_IPV6),
    "flag": _int(k.FLAG),
    "sys_flag": _int(k.SYS_FLAG),
    "body_crc": _int(k.BODY_CRC),
    "reconsume_times": _int(k.RECONSUME_TIMES),
    "prepared_offset": _long(k.PREPARED_OFFSET),
    "properties": _properties,
    "tags": _property(k.TAGS_AT, k.TAGS_LENGTH),
    "tags_code": _tags_code,
    "keys": _keys,
    "unique_key": _property(k.UNIQUE_KEY_AT, k.UNIQUE_KEY_LENGTH),
    "entry_hashes": _entry_hashes,
    "queued": _queued,
    "body_bytes": _int(k.BODY_LENGTH),
    "body": _body,
    "body_plain": _body_plain,
    "problem": lambda part: pa.nulls(len(part), TEXT),
}
TORN = "torn end"  # first words of a problem after which no valid record follows
# These columns require that the properties are parsed for keys, tags and unique key.
_FROM_PROPERTIES = {"entry_hashes", "keys", "tags", "tags_code", "unique_key"}
# Columns for which a test may be pushed down, and the field that it tests.
_TESTED = {
    "queue_id": k.QUEUE_ID,
    "queue_offset": k.QUEUE_OFFSET,
    "log_offset": k.LOG_OFFSET,
    "record_bytes": k.SIZE,
    "store_time": k.STORE_MS,
    "sys_flag": k.SYS_FLAG,
    "reconsume_times": k.RECONSUME_TIMES,
    "body_bytes": k.BODY_LENGTH,
}


def arrow_schema(table: str, columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([(name, ARROW[COLUMNS[table][name]]) for name in columns])


# Reading ------------------------------------------------------------------------------------------


def batches_of(
    split: Split, columns: tuple[str, ...], options: Options, disk: Disk | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a stretch that pass the tests, in order.

    Raises DamagedStoreError for an invalid record with more log after it.
    """
    schema = arrow_schema("records", columns)
    needs_keys = not _FROM_PROPERTIES.isdisjoint((*columns, *(name for name, _, _ in options.tests)))
    room = FieldBuffer(ROWS, needs_keys)
    for part in walk(split, room, options.damage, disk or Disk()):
        if isinstance(part, np.ndarray):
            kept = _passing(Slice(part, room.rows, options), options.tests)
            if len(kept):
                yield pa.RecordBatch.from_arrays([kept.column(name) for name in columns], schema=schema)
        elif "problem" in columns:
            at, length, problem = part
            values = {"log_offset": at, "record_bytes": min(length, (1 << 31) - 1), "problem": problem}
            yield pa.RecordBatch.from_arrays(
                [pa.array([values.get(field.name)], field.type) for field in schema], schema=schema
            )


def _passing(part: Slice, tests: tuple[Test, ...]) -> Slice:
    keep = np.ones(len(part), dtype=bool)
    for name, operator, value in tests:
        if name == "topic":
            numbers, names = part.topics()
            keep &= np.isin(numbers, [number for number, one in enumerate(names) if one in value])
        elif name == "tags":
            keep &= pc.is_in(part.column("tags"), pa.array(value, TEXT)).to_numpy(zero_copy_only=False)
        else:
            found = part.rows[_TESTED[name]]
            found = found * 1000 if name == "store_time" else found
            keep &= holds(found, operator, value)
    return part.kept(keep)


def holds(found: np.ndarray, operator: str, value: Any) -> np.ndarray:
    """Return for which of the values the test is true."""
    return np.isin(found, value) if operator == "in" else _COMPARE[operator](found, value)


_COMPARE = {">=": np.greater_equal, ">": np.greater, "<=": np.less_equal, "<": np.less}


def walk(
    split: Split, room: RowBuffer, damage: str, disk: Disk
) -> Iterator[np.ndarray | tuple[int, int, str]]:
    """Yield the room's memory each time it has rows, and with `damage` (log offset, bytes, problem) of each
    part without records.

    The memory is one piece that is used again for each part, because new pages cost more than reading into
    them. So the caller must be finished with it before it takes the next.
    """
    base = split.file_end - disk.size_of(Path(split.path))
    data = np.empty(min(SLICE_BYTES, split.end - split.begin), dtype=np.uint8)
    with _open(split, disk) as reader:
        position = split.begin
        while position < split.end:
            room.begin(data, position, split.file_end - position)
            filled, wanted, stopped = 0, min(len(data), split.end - position), c.EXHAUSTED
            while stopped == c.EXHAUSTED:
                if room.is_full:
                    yield data
                    room.clear()
                elif filled < wanted:
                    more = reader.read_into(data[filled:wanted].data, position - base + filled)
                    filled += more
                    wanted = wanted if more else filled
                else:
                    break
                stopped = room.step(filled)
            if room.count:
                yield data
            if filled < 8 or stopped == c.LOG_FILE_END:
                return
            position += room.at
            if stopped == c.BAD_RECORD or room.at == 0:
                reason = room.reason if stopped == c.BAD_RECORD else c.REASON_LENGTH
                following = yield from _after_damage(split, reader, base, position, REASONS[reason], damage)
                if following is None:
                    return
                position = following


def _open(split: Split, disk: Disk) -> Reader:
    try:
        return disk.open_reader(Path(split.path))
    except StoreError:
        if disk.exists(Path(split.path)):
            raise
        raise StoreError(
            f"{split.path} is gone: the broker deleted what was too old while the store was read; read again"
        ) from None


def _after_damage(
    split: Split, reader: Reader, base: int, at: int, reason: str, damage: str
) -> Generator[tuple[int, int, str], None, int | None]:
    """Find where valid records continue after an invalid one; None when there are none."""
    following = _next_record(split, reader, base, at + 1)
    if following is None and split.is_last:
        rest = reader.read(at - base, min(WINDOW, split.end - at))
        if damage == "report" and any(rest):
            yield at, split.end - at, f"{TORN}: {reason}; nothing good follows, the log ends here"
        return None
    if damage == "fail":
        raise DamagedStoreError(
            f"{reason}, and the log goes on",
            file=split.path,
            offset=at - base,
            advice="Option damage=skip passes over it; see pipeline audit",
        )
    if damage == "report":
        goes_on = "in the next stretch" if following is None else f"at {following}"
        yield (
            at,
            (split.end if following is None else following) - at,
            f"{reason}; good records go on {goes_on}",
        )
    return following


def _next_record(split: Split, reader: Reader, base: int, begin: int) -> int | None:
    """Return the log offset of the next valid record of the stretch, found by its magic and its own log
    offset."""
    position = begin
    while position < split.end:
        data = reader.read(position - base, min(WINDOW + 8, split.end - position))
        at = data.find(b"\xda\xa3\x20", 4)
        while 4 <= at < WINDOW + 4:
            if _is_good(reader, base, position + at - 4, split.end):
                return position + at - 4
            at = data.find(b"\xda\xa3\x20", at + 1)
        position += WINDOW
    return None


def _is_good(reader: Reader, base: int, at: int, end: int) -> bool:
    head = reader.read(at - base, record.HEAD.size)
    if len(head) < record.HEAD.size or not record.read_head(head).is_record:
        return False
    size = record.read_head(head).total_size
    if not record.MIN_RECORD <= size <= min(MAX_RECORD, end - at):
        return False
    try:
        record.decode(reader.read(at - base, size), log_offset=at, max_size=MAX_RECORD)
    except FormatError:
        return False
    return True
