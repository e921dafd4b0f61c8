"""Files of the log and of queues whose name is not that which their content states.

A log file's records state their own log offset, so a good record at byte `at` of a file shows where the file
begins. A unit of a queue file points to a record that states its topic, queue and number, so the unit shows
the same for its file. So a file that was renamed, swapped with another or copied over another is found, and
its content counts more than its name:

    its right place is free (or the file there goes elsewhere)    it is read there, and a repair renames it
    its right place has a file none of whose units leads to a
    record, as it is empty or may be the one of its own name      both are read at each other's place, and a
                                                                  repair swaps them
    its right place has its own file                              it is left out, and a repair sets it aside

One record alone is no proof if the names around it are in order: one changed bit makes a record state another
place. Queue files of light queues are left as they are: their records state the queue of another topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from broker_store.check.ends import EndsCheck
from broker_store.check.files import StoreFile
from broker_store.check.records import good_record, magic_places
from broker_store.check.report import ERROR
from broker_store.check.rules import MISPLACED
from broker_store.check.store import CheckedStore
from broker_store.check.units import UNIT
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.disk.mapped_file import file_name
from broker_store.engine.log.row_buffer import MAX_RECORD
from broker_store.errors import StoreError
from broker_store.formats import checkpoint, queue_unit, record

RecordAt = Callable[[int, int], "record.StoredMessage | None"]
MAX_SAMPLES = 16  # records that are read in one file; more than half must agree
MAX_SEARCHED_BYTES = 16 << 20  # of a log file without a good record at its begin: two of the largest records
MAX_UNITS_READ = 1 << 12  # of a queue file whose first unit does not agree with its record
MAX_MISSING_FILES = 1_000  # of a log: so many may be made again; a name further away is ignored
_WINDOW_BYTES = 1 << 20


@dataclass
class Misplaced:
    """`moves`: the right path of each file that a repair renames; `aside`: files whose right place is taken
    or unknown."""

    moves: dict[Path, Path] = field(default_factory=dict)
    aside: list[Path] = field(default_factory=list)


class PlaceCheck:
    """The places of the files of one check, determined when names and lengths are known and before the
    content is compared."""

    def __init__(self, store: CheckedStore, ends: EndsCheck):
        self._store, self._disk, self._ends = store, store.disk, ends
        self.found = Misplaced()

    def log_files(self, files: list[StoreFile], size: int | None) -> list[StoreFile]:
        """Return the files of the log in order, each at its right place; those set aside are left out."""
        if size is None or self._store.is_in_use:
            return files
        bases = {file.base for file in files}
        stated: dict[Path, int] = {}
        holds_records: set[int] = set()
        for file in files:
            answer = log_base(self._disk, file.path, file.base, size) if file.actual else None
            if answer is None:
                continue
            base, records = answer
            is_in_order = file.base - size in bases or file.base + size in bases
            if base == file.base or (records == 1 and is_in_order):
                holds_records.add(file.base)
            else:
                stated[file.path] = base
        staying = [file.base for file in files if file.path not in stated]
        reach = MAX_MISSING_FILES * size
        low, high = (min(staying) - reach, max(staying) + reach) if staying else (0, 1 << 62)
        far = {path for path, base in stated.items() if not low <= base <= high}
        files = self._moved(files, {path: _at(path, base) for path, base in stated.items()}, far)
        holds_records.update(file.base for file in files if file.path in self.found.moves)
        return self._without_far_ones(files, holds_records, size)

    def _without_far_ones(
        self, files: list[StoreFile], holds_records: set[int], size: int
    ) -> list[StoreFile]:
        """Return the files without those at the end that hold no record and lie after a hole and after the
        known end of the log."""
        known_end = self._known_end()
        first = len(files)
        while first and files[first - 1].base not in holds_records and files[first - 1].base >= known_end:
            first -= 1
        for number in range(max(first, 1), len(files)):
            if files[number].base > files[number - 1].base + size:
                for file in files[number:]:
                    self._set_aside(
                        file, "it holds no record, and the log does not reach as far as its name says"
                    )
                return files[:number]
        return files

    def _known_end(self) -> int:
        """Return the log offset up to which the record of ends and the checkpoint know the log; 0 when
        neither does."""
        position = self._ends.position
        content = (
            self._disk.read_file(self._store.root / "checkpoint")
            if self._disk.exists(self._store.root / "checkpoint")
            else None
        )
        if content is not None and len(content) == checkpoint.FILE_BYTES:
            return max(position, min(checkpoint.decode(content).logics_physical_offset, 1 << 62))
        return position

    def queue_files(
        self,
        listed: dict[tuple[str, int], tuple[Path, list[StoreFile]]],
        size: int | None,
        record_at: RecordAt,
    ) -> None:
        """Move the files of all queues in `listed` to their right places; `record_at` as for
        `queue_place`."""
        if size is None or self._store.is_in_use:
            return
        top = self._store.root / "consumequeue"
        stated: dict[Path, Path] = {}
        silent: set[Path] = set()
        keys: dict[Path, tuple[str, int]] = {}
        files: list[StoreFile] = []
        for key, (directory, own) in listed.items():
            keys[directory] = key
            for file in own:
                files.append(file)
                place = (
                    queue_place(self._disk, file.path, key, file.base, size, record_at)
                    if file.actual
                    else None
                )
                if place is None:
                    silent.add(file.path)
                    place = self._only_place_left(key, own, file, size)
                if place is not None and place != (*key, file.base):
                    stated[file.path] = _at(top / place[0] / str(place[1]) / file.path.name, place[2])
        if not stated:
            return
        for path, right in list(stated.items()):
            if right in silent and path not in stated.values() and self._may_be_swapped(path, right):
                stated[right] = path
        moved = self._moved(files, stated, set())
        for key, (directory, _) in list(listed.items()):
            listed[key] = directory, []
        for file in moved:
            directory = self.found.moves.get(file.path, file.path).parent
            key = keys.get(directory) or (directory.parent.name, int(directory.name))
            listed.setdefault(key, (directory, []))[1].append(file)

    def _may_be_swapped(self, path: Path, right: Path) -> bool:
        """Return whether the file at `right`, none of whose units leads to a record, may belong under the
        name `path` of its queue: it is empty, or its units are in order there."""
        if path.parent != right.parent:
            return False
        stating, silent = _log_offsets(self._disk, path), _log_offsets(self._disk, right)
        if silent is None or not len(silent):
            return silent is not None
        if stating is None or not len(stating) or (np.diff(silent) <= 0).any():
            return False
        return (
            bool(stating.max() < silent.min())
            if right.name < path.name
            else bool(silent.max() < stating.min())
        )

    def _only_place_left(
        self, key: tuple[str, int], own: list[StoreFile], file: StoreFile, size: int
    ) -> tuple[str, int, int] | None:
        """Return the place of the one recorded file that the queue lacks, for the one file whose name is
        beyond all recorded ones."""
        recorded = self._ends.first_numbers(*key)
        if recorded is None:
            return None
        first_numbers, following = recorded
        lacking = [first * queue_unit.SIZE // size * size for first in first_numbers]
        lacking = [base for base in lacking if all(one.base != base for one in own)]
        beyond = [one for one in own if one.base >= following * queue_unit.SIZE]
        return (*key, lacking[0]) if len(lacking) == 1 and beyond == [file] else None

    def _moved(self, files: list[StoreFile], stated: dict[Path, Path], far: set[Path]) -> list[StoreFile]:
        """Return `files` in the order of their right places; `stated` has the right paths of those that lie
        elsewhere."""
        taken = {file.path for file in files if file.path not in stated}
        kept = []
        for file in files:
            right = stated.get(file.path)
            if right is None:
                kept.append(file)
                continue
            name = (
                f"{right.parent.parent.name}/{right.parent.name}/{right.name}"
                if right.parent != file.path.parent
                else right.name
            )
            if right in taken or file.path in far:
                there = "which is far from the other files" if file.path in far else "where another file lies"
                self._set_aside(file, f"by its content or by the record of ends it is {name}, {there}")
                continue
            taken.add(right)
            self.found.moves[file.path] = right
            file.base = int(right.name)
            self._store.report.add(
                ERROR,
                MISPLACED,
                str(file.path),
                None,
                f"by its content or by the record of ends it is {name}",
            )
            kept.append(file)
        return sorted(
            kept, key=lambda file: (str(self.found.moves.get(file.path, file.path).parent), file.base)
        )

    def _set_aside(self, file: StoreFile, why: str) -> None:
        self.found.aside.append(file.path)
        parent = file.path.parent
        queue = (parent.parent.name, int(parent.name)) if parent != self._store.log_directory else None
        self._store.report.add(
            ERROR, MISPLACED, str(file.path), None, f"{why}: it is no part of the store", queue=queue
        )


def _at(path: Path, base: int) -> Path:
    return path.with_name(file_name(base))


def log_base(disk: Disk, path: Path, base: int, size: int) -> tuple[int, int] | None:
    """Return (log offset of the first byte by the file's records, how many records agree); None when they do
    not show it."""
    votes: Counter[int] = Counter()
    with disk.open_reader(path) as reader:
        for at, stated in _stated_places(reader):
            if stated - at == base:
                return base, 1
            votes[stated - at] += 1
            if votes.total() >= MAX_SAMPLES:
                break
    if not votes:
        return None
    found, count = votes.most_common(1)[0]
    return (found, count) if 2 * count > votes.total() and found >= 0 and found % size == 0 else None


def _stated_places(reader: Reader) -> Iterator[tuple[int, int]]:
    """Yield (position, log offset that it states) of each good record near the begin of a file."""
    position, following = 0, 0
    while position < min(reader.size, MAX_SEARCHED_BYTES):
        for place in magic_places(reader.read(position, _WINDOW_BYTES + 8)):
            begin = position + place
            if begin >= following and (found := good_record(reader, begin)) is not None:
                following = begin + found.size
                yield begin, found.log_offset
        position += _WINDOW_BYTES


def queue_place(
    disk: Disk, path: Path, key: tuple[str, int], base: int, size: int, record_at: RecordAt
) -> tuple[str, int, int] | None:
    """Return (topic, queue, first byte) of a queue file by the records that its units point to; None when
    they do not show it.

    `record_at(log offset, bytes)` returns the good record of that size there, or None.
    """
    if key[0].startswith(queue_unit.LIGHT_QUEUE):
        return None
    own = (*key, base)
    try:
        with disk.open_reader(path) as reader:
            if _place_of(0, reader.read(0, queue_unit.SIZE), record_at) == own:
                return own
            raw = reader.read(0, MAX_UNITS_READ * queue_unit.SIZE)
    except StoreError:
        return None
    units = np.frombuffer(raw[: len(raw) // queue_unit.SIZE * queue_unit.SIZE], dtype=UNIT)
    data = np.flatnonzero((units["size"] > 0) & (units["size"] != queue_unit.PRE_BLANK_SIZE))
    step = max(1, len(data) // MAX_SAMPLES)
    votes: Counter[tuple[str, int, int]] = Counter()
    for number in data[::step].tolist():
        place = _place_of(number, raw[number * queue_unit.SIZE : (number + 1) * queue_unit.SIZE], record_at)
        if place is not None:
            votes[place] += 1
    if not votes:
        return None
    found, count = votes.most_common(1)[0]
    return found if 2 * count > votes.total() and found[2] >= 0 and found[2] % size == 0 else None


def _log_offsets(disk: Disk, path: Path) -> np.ndarray | None:
    """Return the log offsets to which the first units of a queue file lead; None when one of them has no
    valid size, or the file cannot be read."""
    try:
        with disk.open_reader(path) as reader:
            raw = reader.read(0, MAX_UNITS_READ * queue_unit.SIZE)
    except StoreError:
        return None  # the check of the queue reports it
    units = np.frombuffer(raw[: len(raw) // queue_unit.SIZE * queue_unit.SIZE], dtype=UNIT)
    units = units[(units["size"] != 0) & (units["size"] != queue_unit.PRE_BLANK_SIZE)]
    is_possible = (
        (units["size"] >= record.MIN_RECORD) & (units["size"] <= MAX_RECORD) & (units["log_offset"] >= 0)
    )
    return units["log_offset"].astype(np.int64) if is_possible.all() else None


def _place_of(number: int, raw: bytes, record_at: RecordAt) -> tuple[str, int, int] | None:
    """Return the place of a file that its unit `number` shows."""
    if len(raw) < queue_unit.SIZE:
        return None
    unit = queue_unit.decode(raw)
    if unit.size <= 0 or unit.is_pre_blank:
        return None
    found = record_at(unit.log_offset, unit.size)
    if found is None or not found.is_queued:
        return None
    return found.topic, found.queue_id, (found.queue_offset - number) * queue_unit.SIZE
