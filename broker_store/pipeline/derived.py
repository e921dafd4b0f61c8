"""The derived files as tables: units of the consume queues, entries and slots of the index, and one row for
each index file.

    units         topic, queue_id, queue_offset, log_offset, record_bytes, tags_code
    entries       file, entry, slot, key_hash, log_offset, seconds, previous
    slots         file, slot, entry: the slots in use
    index_files   file, and the fields of its header

Items are returned as they are in the files, whether correct or not. Units without data (zero, or filled in
before a queue's start) are left out. For a store in use only items below the dispatched position are
returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from broker_store.check.entries import ENTRY
from broker_store.check.index_files import find_geometry
from broker_store.engine.disk.disk import Disk
from broker_store.errors import DamagedStoreError, StoreError
from broker_store.formats import index_file, queue_unit
from broker_store.pipeline.batches import arrow_schema, holds
from broker_store.pipeline.options import Options, Test
from broker_store.pipeline.splits import data_end, position_of, queues_of

ITEMS = 1 << 20  # units, entries or slots of one partition
ROWS = 64 << 10  # of one batch
PIECES = 256  # queue files of one partition

UNIT = np.dtype([("log_offset", ">i8"), ("record_bytes", ">i4"), ("tags_code", ">i8")])


@dataclass(frozen=True, slots=True)
class Piece:
    """Items [first, end) of one file; for units of a queue, for entries and slots of an index file."""

    path: str
    file_first: int  # number of the file's first unit
    first: int
    end: int
    topic: str = ""
    queue_id: int = 0
    slots: int = 0
    room: int = 0


@dataclass(frozen=True, slots=True)
class Pieces:
    """What one task reads; items at or above the log offset `limit` are left out."""

    pieces: tuple[Piece, ...]
    limit: int


def pieces_of(options: Options, disk: Disk | None = None) -> list[Pieces]:
    """Return the partitions: long files in parts, short ones together."""
    disk = disk or Disk()
    if not disk.is_directory(options.path / "commitlog"):
        raise StoreError(f"{options.path} is no store: it has no directory commitlog")
    live = position_of(options.live, disk)
    limit = 1 << 62 if live is None else live.dispatched
    packed: list[Pieces] = []
    waiting: list[Piece] = []
    for piece in _units(options, disk) if options.table == "units" else _index(options, disk):
        waiting.append(piece)
        if len(waiting) >= PIECES or sum(one.end - one.first for one in waiting) >= ITEMS:
            packed.append(Pieces(tuple(waiting), limit))
            waiting = []
    return [*packed, Pieces(tuple(waiting), limit)] if waiting else packed


def _units(options: Options, disk: Disk) -> Iterator[Piece]:
    wanted = [(column, values) for column, operator, values in options.tests if operator == "in"]
    for queue in queues_of(options.path, disk):
        if any(getattr(queue, column, values[0]) not in values for column, values in wanted):
            continue
        for file in queue.files:
            # Units may follow after a hole, and an end that a binary search finds may be such a hole.
            end = file.first + -(-data_end(Path(file.path), disk) // queue_unit.SIZE)
            for first in range(file.first, end, ITEMS):
                yield Piece(
                    file.path, file.first, first, min(first + ITEMS, end), queue.topic, queue.queue_id
                )


def _index(options: Options, disk: Disk) -> Iterator[Piece]:
    for path, header, geometry in index_files(options.path, disk):
        if options.table == "index_files":
            yield Piece(str(path), 0, 0, 1, slots=geometry.slots, room=geometry.entries)
            continue
        first, end = (
            (0, geometry.slots) if options.table == "slots" else (index_file.FIRST_ENTRY, header.count)
        )
        for begin in range(first, end, ITEMS):
            yield Piece(
                str(path), 0, begin, min(begin + ITEMS, end), slots=geometry.slots, room=geometry.entries
            )


def index_files(
    store: Path, disk: Disk
) -> Iterator[tuple[Path, index_file.IndexHeader, index_file.IndexGeometry]]:
    """Yield the files that hold entries, oldest first.

    Raises DamagedStoreError for a file that fits no numbers of slots and entries.
    """
    found = []
    for name in disk.list_names(store / "index"):
        path = store / "index" / name
        if name.isdigit() and disk.size_of(path) >= index_file.HEADER.size:
            with disk.open_reader(path) as reader:
                header = index_file.decode_header(reader.read(0, index_file.HEADER.size))
                if header.count > index_file.FIRST_ENTRY:
                    found.append((path, header, find_geometry(reader, reader.size, header)))
    known = next((geometry for _, _, geometry in found if geometry is not None), None)
    for path, header, geometry in found:
        # All files of a store have the same geometry; one whose first or last entry is wrong is read with
        # that of its neighbours.
        geometry = geometry or known
        if geometry is None or geometry.file_bytes != disk.size_of(path) or header.count > geometry.entries:
            raise DamagedStoreError(
                "fits no number of slots and entries",
                file=str(path),
                advice="Rebuild the index: manage.py store rebuild-index",
            )
        yield path, header, geometry


def batches_of(
    work: Pieces, columns: tuple[str, ...], options: Options, disk: Disk | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition."""
    disk = disk or Disk()
    schema = arrow_schema(options.table, columns)
    for piece in work.pieces:
        for values in _READERS[options.table](piece, work.limit, disk):
            count = len(values["keep"])
            keep = values["keep"] & _passing(values, options.tests)
            if not keep.any():
                continue
            arrays = []
            for field in schema:
                value = values[field.name]
                if isinstance(value, (str, int)):
                    arrays.append(pa.repeat(pa.scalar(value, field.type), int(keep.sum())))
                else:
                    assert len(value) == count
                    arrays.append(pa.array(value[keep].astype(field.type.to_pandas_dtype())))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _passing(values: dict, tests: tuple[Test, ...]) -> np.ndarray:
    keep = np.ones(len(values["keep"]), dtype=bool)
    for name, operator, value in tests:
        if name in values:
            keep &= holds(values[name], operator, value)
    return keep


def _read_units(piece: Piece, limit: int, disk: Disk) -> Iterator[dict]:
    for first, units in _items(piece, piece.file_first, 0, UNIT, disk):
        offsets, sizes = units["log_offset"].astype(np.int64), units["record_bytes"].astype(np.int64)
        is_data = (sizes != 0) | (offsets != 0) | (units["tags_code"] != 0)
        is_before = (offsets == 0) & (sizes == queue_unit.PRE_BLANK_SIZE)
        yield {
            "topic": piece.topic,
            "queue_id": piece.queue_id,
            "queue_offset": first + np.arange(len(units), dtype=np.int64),
            "log_offset": offsets,
            "record_bytes": sizes,
            "tags_code": units["tags_code"].astype(np.int64),
            "keep": is_data & ~is_before & (offsets < limit),
        }


def _read_entries(piece: Piece, limit: int, disk: Disk) -> Iterator[dict]:
    at = index_file.IndexGeometry(piece.slots, piece.room).entries_at
    for first, entries in _items(piece, 0, at, ENTRY, disk):
        hashes, offsets = entries["key_hash"].astype(np.int64), entries["log_offset"].astype(np.int64)
        yield {
            "file": Path(piece.path).name,
            "entry": first + np.arange(len(entries), dtype=np.int64),
            "slot": np.abs(hashes) % piece.slots,
            "key_hash": hashes,
            "log_offset": offsets,
            "seconds": entries["seconds"].astype(np.int64),
            "previous": entries["previous"].astype(np.int64),
            "keep": offsets < limit,
        }


def _read_slots(piece: Piece, limit: int, disk: Disk) -> Iterator[dict]:
    for first, slots in _items(piece, 0, index_file.HEADER.size, np.dtype(">i4"), disk):
        found = slots.astype(np.int64)
        yield {
            "file": Path(piece.path).name,
            "slot": first + np.arange(len(slots), dtype=np.int64),
            "entry": found,
            "keep": found != 0,
        }


def _read_header(piece: Piece, limit: int, disk: Disk) -> Iterator[dict]:
    with disk.open_reader(Path(piece.path)) as reader:
        header = index_file.decode_header(reader.read(0, index_file.HEADER.size))
    yield {
        "file": Path(piece.path).name,
        "slots": piece.slots,
        "room": piece.room,
        "entries": header.count - 1,
        "slots_used": header.slots_used,
        "begin_offset": header.begin_offset,
        "end_offset": header.end_offset,
        "begin_ms": header.begin_timestamp,
        "end_ms": header.end_timestamp,
        "keep": np.ones(1, dtype=bool),
    }


_READERS = {"units": _read_units, "entries": _read_entries, "slots": _read_slots, "index_files": _read_header}


def _items(
    piece: Piece, file_first: int, at: int, item: np.dtype, disk: Disk
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (number of the first item, items) in batches."""
    with disk.open_reader(Path(piece.path)) as reader:
        for first in range(piece.first, piece.end, ROWS):
            raw = reader.read(
                at + (first - file_first) * item.itemsize,
                (min(first + ROWS, piece.end) - first) * item.itemsize,
            )
            yield first, np.frombuffer(raw[: len(raw) // item.itemsize * item.itemsize], dtype=item)
