"""The int64 memory that Python and the kernels share: the writer's context, queue rows, topic rows.

A kernel finds here, by address, what it needs to append and dispatch a message; no dict is searched for a
message. A row never moves: the arrays that hold rows are kept for the life of the store.
"""

from __future__ import annotations

import numpy as np

from broker_store.formats.java_hash import java_hash
from broker_store.kernels import context as c

_ROWS_PER_BLOCK = 1024
_FIRST_TABLE = 1024
_FNV_PRIME = 1099511628211
_FNV_START = 1469598103934665603
_ARRIVAL_ROOM = 65536


def name_hash(name: bytes) -> int:
    """Return the FNV-1a hash of a name as the dispatch kernel computes it, 63 bits."""
    value = _FNV_START
    for byte in name:
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return value & 0x7FFFFFFFFFFFFFFF


class Words:
    """An int64 array with its address. `words[n]` costs an ndarray access, so hot code uses a memoryview."""

    __slots__ = ("address", "array")

    def __init__(self, count: int):
        self.array = np.zeros(count, dtype=np.int64)
        self.address = self.array.ctypes.data

    def __getitem__(self, word: int) -> int:
        return int(self.array[word])

    def __setitem__(self, word: int, value: int) -> None:
        self.array[word] = value


class Row:
    """A row of words in a block; the address is what kernels get."""

    __slots__ = ("_view", "address")

    def __init__(self, view: memoryview, address: int):
        self._view, self.address = view, address

    def __getitem__(self, word: int) -> int:
        return self._view[word]

    def __setitem__(self, word: int, value: int) -> None:
        self._view[word] = value


class Rows:
    """Rows of `width` words, allocated one by one and never freed."""

    def __init__(self, width: int):
        self._width = width
        self._blocks: list[np.ndarray] = []
        self._view: memoryview  # of the last block; those of its rows are slices, which share what it holds
        self._address = 0
        self._count = 0

    def add(self) -> tuple[int, Row]:
        """Return (number, row) of a new row of zeros."""
        block, place = divmod(self._count, _ROWS_PER_BLOCK)
        if block == len(self._blocks):
            array = np.zeros(_ROWS_PER_BLOCK * self._width, dtype=np.int64)
            self._blocks.append(array)
            self._view, self._address = memoryview(array), array.ctypes.data
        start = place * self._width
        row = Row(self._view[start : start + self._width], self._address + start * 8)
        self._count += 1
        return self._count - 1, row

    def tables(self) -> list[tuple[np.ndarray, int]]:
        """Return (rows, address of the first) of each block. Rows that were not allocated are zeros."""
        return [(block.reshape(-1, self._width), block.ctypes.data) for block in list(self._blocks)]


class TopicRow:
    """A topic as kernels see it; `queues` holds the addresses of queue rows by queue id."""

    __slots__ = ("_name", "name", "queues", "row")

    def __init__(self, name: str, row: Row, delayed: bool):
        encoded = name.encode()
        self.name, self.row = name, row
        self._name = np.frombuffer(encoded, dtype=np.uint8).copy()
        self.queues = Words(8)
        row[c.T_HASH] = name_hash(encoded)
        row[c.T_NAME] = self._name.ctypes.data
        row[c.T_LENGTH] = len(encoded)
        row[c.T_KEY_HASH] = java_hash(name + "#")
        row[c.T_DELAYED] = int(delayed)
        self._publish()

    def _publish(self) -> None:
        self.row[c.T_QUEUES] = self.queues.address
        self.row[c.T_QUEUE_COUNT] = len(self.queues.array)

    def set_queue(self, queue_id: int, address: int) -> None:
        if queue_id >= len(self.queues.array):
            wider = Words(max(queue_id + 1, 2 * len(self.queues.array)))
            wider.array[: len(self.queues.array)] = self.queues.array
            self.queues = wider
            self._publish()
        self.queues[queue_id] = address


class WriterContext:
    """The context of append and dispatch, and the rows that it points to."""

    def __init__(self) -> None:
        self.words = Words(c.CONTEXT_WORDS)
        self.address = self.words.address
        # A memoryview reads and writes plain ints, several times cheaper than the array's own items.
        self.view = memoryview(self.words.array)
        self._topic_rows = Rows(c.T_WORDS)
        self._queue_rows = Rows(c.Q_WORDS)
        self.topics: dict[str, TopicRow] = {}
        self._table = Words(_FIRST_TABLE)
        self._arrivals = Words(_ARRIVAL_ROOM)
        self._publish_table()
        self.view[c.ARRIVALS] = self._arrivals.address
        self.view[c.ARRIVAL_ROOM] = _ARRIVAL_ROOM
        self.view[c.TAGS_CODE_AT] = -1
        self.view[c.KEY_ROOM_GRANTED] = -1

    def _publish_table(self) -> None:
        self.view[c.TOPIC_TABLE] = self._table.address
        self.view[c.TOPIC_MASK] = len(self._table.array) - 1

    def topic(self, name: str, delayed: bool = False) -> TopicRow:
        """Return the topic's row, created when new."""
        found = self.topics.get(name)
        if found is None:
            _, row = self._topic_rows.add()
            found = self.topics[name] = TopicRow(name, row, delayed)
            if 2 * len(self.topics) > len(self._table.array):
                self._table = Words(2 * len(self._table.array))
                for other in self.topics.values():
                    self._enter(other)
                self._publish_table()
            else:
                self._enter(found)
        return found

    def _enter(self, topic: TopicRow) -> None:
        mask = len(self._table.array) - 1
        place = topic.row[c.T_HASH] & mask
        while self._table[place]:
            place = (place + 1) & mask
        self._table[place] = topic.row.address

    def add_queue(self, topic: TopicRow, queue_id: int) -> Row:
        number, row = self._queue_rows.add()
        row[c.Q_ID] = queue_id
        row[c.Q_TOPIC] = topic.row.address
        row[c.Q_NUMBER] = number
        topic.set_queue(queue_id, row.address)
        return row

    def unsynced_queues(self) -> list[int]:
        """Return the addresses of queue rows with units that are not on the disk, or with files that a crash
        left unsynced. Any thread."""
        found: list[int] = []
        for rows, address in self._queue_rows.tables():
            places = np.flatnonzero(
                (rows[:, c.Q_DISPATCHED] > rows[:, c.Q_FLUSHED]) | (rows[:, c.Q_LEFT] != 0)
            )
            found += (address + places * (c.Q_WORDS * 8)).tolist()
        return found

    def idle_queues(self, most: int) -> list[int]:
        """Return the addresses of at most `most` queue rows with a mapped file and without units that are not
        on the disk, those with the oldest last message first."""
        found: list[np.ndarray] = []
        for rows, address in self._queue_rows.tables():
            following = rows[:, c.Q_DISPATCHED]
            places = np.flatnonzero(
                ((rows[:, c.Q_FILE_ADDRESS] != 0) | (rows[:, c.Q_READ_ADDRESS] != 0))
                & (following == rows[:, c.Q_FLUSHED])
                & (following == rows[:, c.Q_NEXT])
                & (rows[:, c.Q_LEFT] == 0)
            )
            ages = rows[places, c.Q_LAST_MS]
            found.append(np.stack((ages, address + places * (c.Q_WORDS * 8))))
        if not found:
            return []
        both = np.concatenate(found, axis=1)
        return both[1, np.argsort(both[0], kind="stable")[:most]].tolist()

    def changed_ends(self) -> list[tuple[int, int]]:
        """Return (address, next unit) of queue rows whose next unit is not the recorded one
        (engine/start/ends.py). Any thread."""
        found: list[tuple[int, int]] = []
        for rows, address in self._queue_rows.tables():
            following = rows[:, c.Q_DISPATCHED].copy()
            places = np.flatnonzero(following != rows[:, c.Q_RECORDED])
            found += zip(
                (address + places * (c.Q_WORDS * 8)).tolist(), following[places].tolist(), strict=True
            )
        return found

    def take_arrivals(self) -> list[int]:
        """Return the addresses of watched queue rows that got a unit since the last call."""
        count = self.view[c.ARRIVAL_COUNT]
        if not count:
            return []
        self.view[c.ARRIVAL_COUNT] = 0
        return self._arrivals.array[:count].tolist()
