"""Rooms: memory in which a stretch of the log becomes rows, by one of the kernels that walk it. One for a
whole task."""

from __future__ import annotations

import numpy as np

from broker_store.formats import record
from broker_store.kernels import columns, fields, walk

MAX_RECORD = (16 << 20) + record.MAX_BEYOND_BODY  # the largest body a broker may be set to


class Room:
    """`begin` with what is in memory, then `step` until it says why the records end: c.EXHAUSTED where more
    of the log is needed."""

    def __init__(self, kernel, rows: np.ndarray, room: int):
        self._kernel, self._rows = kernel, rows
        self._context = np.zeros(walk.W_WORDS, dtype=np.int64)
        self._address = self._context.ctypes.data
        self._context[[walk.W_ROWS, walk.W_ROOM, walk.W_MAX_RECORD]] = rows.ctypes.data, room, MAX_RECORD

    def begin(self, data: np.ndarray, base: int, file_left: int) -> None:
        """`data` is the log from `base` on, or memory that it is still read into; so much is left of the log
        file there."""
        self.base = base
        self._context[[walk.W_ADDRESS, walk.W_BASE, walk.W_FILE_LEFT, walk.W_AT]] = (
            data.ctypes.data,
            base,
            file_left,
            0,
        )
        self.clear()

    def clear(self) -> None:
        """Forget the rows; what was walked stays walked."""
        self._context[walk.W_COUNT] = 0

    def step(self, length: int) -> int:
        """Rows of the records in the first `length` bytes."""
        self._context[walk.W_LENGTH] = length
        return self._kernel(self._address)

    @property
    def at(self) -> int:
        """Position behind the last record."""
        return int(self._context[walk.W_AT])

    @property
    def count(self) -> int:
        return int(self._context[walk.W_COUNT])

    @property
    def is_full(self) -> bool:
        return bool(self._context[walk.W_IS_FULL])

    @property
    def reason(self) -> int:
        """What is wrong with the record at `at`."""
        return int(self._context[walk.W_REASON])


class ColumnRoom(Room):
    """A row a record, with what queues and index must hold for it."""

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
        """The hashes of all rows' keys, one row's behind another's."""
        return self._keys[: self._context[columns.L_KEY_COUNT]]

    @property
    def newest_ms(self) -> int:
        """The newest store time of the rows, 0 when there are none."""
        return int(self._context[columns.L_NEWEST_MS])


class FieldRoom(Room):
    """A column a field."""

    def __init__(self, rows: int, with_keys: bool):
        # Eight more: were the fields of a record a power of two apart, all of them would share one set of the
        # processor's cache.
        super().__init__(fields.fields, np.empty((fields.FIELD_COUNT, rows + 8), dtype=np.int64), rows)
        self._context[[fields.X_COLUMN, fields.X_WITH_KEYS]] = self._rows.strides[0], with_keys

    @property
    def rows(self) -> np.ndarray:
        return self._rows[:, : self.count]
