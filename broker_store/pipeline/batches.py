"""A stretch of the log as Arrow record batches: a kernel turns bytes into a table of numbers, Arrow takes its columns.

No record becomes a Python object. A topic's name is decoded once a slice for each different one in it. Columns:

    topic string, queue_id int, queue_offset long, log_offset long, store_time timestamp (UTC), record_bytes int,
    sys_flag int
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from broker_store.engine.disk import Disk
from broker_store.errors import DamagedStoreError
from broker_store.formats import record
from broker_store.kernels import columns as k
from broker_store.kernels import context as c
from broker_store.pipeline.splits import Split

MAX_RECORD = (16 << 20) + record.MAX_BEYOND_BODY  # the largest body a broker may be set to
SLICE_BYTES = 32 << 20  # read at once; at least two of the largest records
ROWS = 64 << 10  # of one batch
KEYS = 1 << 20  # the kernel gives the keys' hashes as well; there must be room for them

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("log_offset", pa.int64()),
        ("store_time", pa.timestamp("us", tz="UTC")),
        ("record_bytes", pa.int32()),
        ("sys_flag", pa.int32()),
    ]
)


def batches_of(split: Split, disk: Disk | None = None) -> Iterator[pa.RecordBatch]:
    """The records of a stretch, in order. DamagedStoreError where one is not sound and the log goes on behind it."""
    rows = np.empty((ROWS, k.ROW_WORDS), dtype=np.int64)
    keys = np.empty(KEYS, dtype=np.int64)
    context = np.zeros(k.L_WORDS, dtype=np.int64)
    with (disk or Disk()).open_reader(Path(split.path)) as reader:
        position = split.begin
        while position < split.end:
            data = reader.read(position - split.begin, min(SLICE_BYTES, split.end - position))
            buffer = np.frombuffer(data, dtype=np.uint8)
            context[k.L_ADDRESS] = buffer.ctypes.data
            context[k.L_LENGTH] = len(data)
            context[k.L_BASE] = position
            context[k.L_FILE_LEFT] = split.file_end - position
            context[k.L_AT] = 0
            context[k.L_MAX_RECORD] = MAX_RECORD
            context[k.L_ROWS], context[k.L_ROW_ROOM] = rows.ctypes.data, ROWS
            context[k.L_KEYS], context[k.L_KEY_ROOM] = keys.ctypes.data, KEYS
            while True:
                before = int(context[k.L_AT])
                stopped = k.columns(context.ctypes.data)
                count, at = int(context[k.L_ROW_COUNT]), int(context[k.L_AT])
                if count:
                    yield _batch(rows[:count], data)
                if stopped != c.EXHAUSTED or at == before:
                    break
            if stopped == c.LOG_FILE_END:
                return
            if stopped == c.BAD_RECORD:
                _end_or_damage(split, data, at, position + at)
                return
            if at == 0:
                return  # a record that is cut by the end of what may be read
            position += at


def _end_or_damage(split: Split, data: bytes, at: int, log_offset: int) -> None:
    head = data[at : at + record.HEAD.size]
    if split.is_last or not any(head):
        return
    raise DamagedStoreError(
        "no sound record begins here, and the log goes on", file=split.path, offset=log_offset - split.begin, advice="See manage.py check_store"
    )


def _batch(rows: np.ndarray, data: bytes) -> pa.RecordBatch:
    columns = [
        _topics(rows, data),
        pa.array(rows[:, k.ROW_QUEUE_ID].astype(np.int32)),
        pa.array(rows[:, k.ROW_QUEUE_OFFSET].copy()),
        pa.array(rows[:, k.ROW_LOG_OFFSET].copy()),
        pa.array(rows[:, k.ROW_STORE_MS] * 1000).cast(SCHEMA.field("store_time").type),
        pa.array(rows[:, k.ROW_SIZE].astype(np.int32)),
        pa.array(rows[:, k.ROW_SYS_FLAG].astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _topics(rows: np.ndarray, data: bytes) -> pa.Array:
    """The names, by a dictionary of those that differ. Names of one hash are told apart by their bytes."""
    names: dict[bytes, int] = {}
    _, first, inverse = np.unique(rows[:, (k.ROW_TOPIC_HASH, k.ROW_TOPIC_LENGTH)], axis=0, return_index=True, return_inverse=True)
    groups = np.empty(len(first), dtype=np.int32)
    for group, row in enumerate(first):
        groups[group] = names.setdefault(_name(rows[row], data), len(names))
    indices = groups[inverse.reshape(-1)]
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array([name.decode("utf-8", "replace") for name in names])).cast(pa.string())


def _name(row: np.ndarray, data: bytes) -> bytes:
    begin = int(row[k.ROW_TOPIC_AT])
    return data[begin : begin + int(row[k.ROW_TOPIC_LENGTH])]
