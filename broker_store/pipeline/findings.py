"""What a task of the audit reads, and what it finds.

The driver sends `Store` to each worker once, and a `Stretch` or an `IndexFile` with each task. A task returns
`Found` or a list of `Fault`; no row of a record leaves it.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.errors import StoreError
from broker_store.formats.index_file import IndexGeometry, IndexHeader
from broker_store.pipeline.splits import Queue, Split

MAX_ROWS = 64 << 10  # of records or units in memory at once
MAX_ENTRIES = 64 << 10  # read at once
# Kind of fault: two records state the same place of a queue; reported as rules.QUEUE_OFFSET
GIVEN_AGAIN = "given-again"


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index file with entries, as it was when the audit began."""

    path: str
    header: IndexHeader
    geometry: IndexGeometry


@dataclass(frozen=True)
class Store:
    """What every task needs; it is sent to each worker once."""

    files: tuple[tuple[Path, int, int], ...]  # of the log: path, first, end
    queues: tuple[Queue, ...]
    index: tuple[IndexFile, ...]
    gaps: tuple[tuple[int, int], ...]  # of the log, where a file is missing
    tombstones: dict[str, int]  # topic -> where the records of a deleted topic of that name end
    known_topics: frozenset[str]  # empty: not known
    delay_levels_ms: tuple[int, ...]
    log_begin: int
    data_end: int  # of the last stretch
    first_entry: int  # log offsets that the first and the last entry of the index name
    last_entry: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A task. `split` is None in a log without records. Units and entries below `until` are compared with
    it."""

    split: Split | None
    begin: int
    until: int
    is_first: bool


@dataclass
class Fault:
    """`count` faults of one kind in one queue or index file, and the first of them."""

    kind: str
    topic: str = ""
    queue_id: int = 0
    path: str = ""
    count: int = 0
    first: tuple = ()
    # Of units: the first and the last. Of links: the place, what it should name and what it names.
    runs: list[tuple[int, ...]] = field(default_factory=list)


@dataclass
class Found:
    """What a task has found."""

    records: int = 0
    units: int = 0
    entries: int = 0
    log_end: int = 0
    damaged: list[tuple[int, int, str]] = field(default_factory=list)  # (log offset, bytes, what is wrong)
    damaged_more: int = 0
    keys: int = 0  # of records, in a store without an index
    # (log offset, ms that the record is older than the one before it)
    times_back: list[tuple[int, int]] = field(default_factory=list)
    times_back_more: int = 0
    first_time: tuple[int, int] | None = None  # log offset and store time of the first record
    last_ms: int | None = None
    faults: list[Fault] = field(default_factory=list)


class Findings:
    """What the task of a stretch has found so far: `found`, faults by kind and place, damaged parts of the
    log."""

    def __init__(self, store: Store, stretch: Stretch, disk: Disk):
        self.store, self.stretch, self.disk = store, stretch, disk
        self.found = Found(log_end=stretch.begin)
        self.damaged: list[tuple[int, int]] = list(store.gaps)
        self._faults: dict[tuple[str, str], Fault] = {}

    def add(self, kind: str, where: str, first: tuple, count: int = 1, **of: Any) -> Fault:
        fault = self._faults.get((kind, where))
        if fault is None:
            fault = self._faults[kind, where] = Fault(kind, first=first, **of)
        fault.count += count
        fault.first = min(fault.first, first)
        return fault

    @property
    def log_end(self) -> int:
        """The log offset after the last record of the log, as far as this task can know."""
        is_last = self.stretch.split is None or self.stretch.split.is_last
        return self.found.log_end if is_last else self.store.data_end

    def in_damage(self, offsets: np.ndarray) -> np.ndarray:
        inside = np.zeros(len(offsets), dtype=bool)
        if self.damaged:
            damaged = np.array(sorted(self.damaged), dtype=np.int64)
            at = np.searchsorted(damaged[:, 0], offsets, side="right") - 1
            inside = (at >= 0) & (offsets < damaged[at, 1])
        return inside

    def faults(self) -> list[Fault]:
        return list(self._faults.values())


def opened(path: str, disk: Disk, closing: ExitStack) -> Reader:
    try:
        return closing.enter_context(disk.open_reader(Path(path)))
    except StoreError:
        if disk.exists(Path(path)):
            raise
        raise StoreError(
            f"{path} is gone: the broker deleted what was too old while the store was read; audit it again"
        ) from None
