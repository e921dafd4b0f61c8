"""Row buffers: memory in which a kernel writes rows for the records of a part of the log. A task makes one
and uses it again."""

from __future__ import annotations

import numpy as np

from broker_store.formats import record
from broker_store.kernels import columns, fields, walk

MAX_RECORD = (16 << 20) + record.MAX_BEYOND_BODY  # bytes; 16 MiB is the largest body that settings allow


class RowBuffer:
    """Call `begin` with a part of the log in memory, then `step` until it returns why the records end;
    c.EXHAUSTED means that more of the log is needed."""

    def __init__(self, kernel, rows: np.ndarray, room: int):
        self._kernel, self._rows = kernel, rows
        self._context = np.zeros(walk.W_WORDS, dtype=np.int64)
        self._address = self._context.ctypes.data
        self._context[[walk.W_ROWS, walk.W_ROOM, walk.W_MAX_RECORD]] = rows.ctypes.data, room, MAX_RECORD

    def begin(self, data: np.ndarray, base: int, file_left: int) -> None:
        """Begin with `data`, the log from offset `base` on, or memory that it is still being read into.
        `file_left` is how many bytes of the log file follow `base`."""
        self.base = base
        self._context[[walk.W_ADDRESS, walk.W_BASE, walk.W_FILE_LEFT, walk.W_AT]] = (
            data.ctypes.data,
            base,
            file_left,
            0,
        )
        self.clear()

    def clear(self) -> None:
        """Drop the rows. The position in the log stays."""
        self._context[walk.W_COUNT] = 0

    def step(self, length: int) -> int:
        """Make rows of the records in the first `length` bytes; return the stop code."""
        self._context[walk.W_LENGTH] = length
        return self._kernel(self._address)

    @property
    def at(self) -> int:
        """The position after the last record."""
        return int(self._context[walk.W_AT])

    @property
    def count(self) -> int:
        return int(self._context[walk.W_COUNT])

    @property
    def is_full(self) -> bool:
        return bool(self._context[walk.W_IS_FULL])

    @property
    def reason(self) -> int:
        """The code of what is wrong with the record at `at`."""
        return int(self._context[walk.W_REASON])


class ColumnBuffer(RowBuffer):
    """One row for each record, with what queues and index must hold for it."""

    def __init__(self, rows: int, keys: int):
        super().__init__(columns.columns, np.empty((rows, columns.ROW_WORDS), dtype=np.int64), rows)
        self._keys = np.empty(keys, dtype=np.int64)
        self._context[[columns.L_KEYS, columns.L_KEY_ROOM]] = self._keys.ctypes.data, keys

    def clear(self) -> None:
        super().clear()
        self._context[[columns.L_KEY_COUNT, columns.L_NEWEST_MS]] = 0

    @property
    def rows(self) -> np.ndarray:
        return self._rows[: self.count]

    @property
    def keys(self) -> np.ndarray:
        """The hashes of the keys of all rows, in the order of the rows."""
        return self._keys[: self._context[columns.L_KEY_COUNT]]

    @property
    def newest_ms(self) -> int:
        """The newest store time of the rows in ms, 0 without rows."""
        return int(self._context[columns.L_NEWEST_MS])


class FieldBuffer(RowBuffer):
    """One column for each field."""

    def __init__(self, rows: int, with_keys: bool):
        # Eight words more: with a distance of a power of two all fields of a record would fall into one set
        # of the processor's cache.
        super().__init__(fields.fields, np.empty((fields.FIELD_COUNT, rows + 8), dtype=np.int64), rows)
        self._context[[fields.X_COLUMN, fields.X_WITH_KEYS]] = self._rows.strides[0], with_keys

    @property
    def rows(self) -> np.ndarray:
        return self._rows[:, : self.count]
