"""The stretches of a commit log, one partition each: whole records, and about as many bytes in each.

A record begins at the first byte of every file, and none spans two files. Within a file the consume queues
name places where records begin, so only one record at each cut has to be read. That record must be valid and
be the one that the queue means, so wrong units of a damaged queue only cause fewer cuts. Without queues a
file is one stretch.

The end of what may be read is how far a running broker has dispatched, from its live page. Without a broker
it is the end of the records, which only reading shows: the last stretch has `is_last`, and nothing follows
it. Files, and parts of the last one, that a broker prepared and did not write are not read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_store.check.records import states_place
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.log.store_times import StoreTimes
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.status.live_page import LivePosition, read_live_page
from broker_store.errors import FormatError, MisuseError, NotFoundError, StoreError
from broker_store.formats import config_json, queue_unit, record
from broker_store.pipeline.options import PARTITION_BYTES, Test, bounds

MAX_RECORD = (16 << 20) + record.MAX_BEYOND_BODY  # the largest body a broker may be set to
ZEROS_PER_READ = 1 << 20
QUEUES_ASKED = 64  # the longest queues; others are not used for a cut
# Each takes some 2 KB while cuts are searched; with 64 MiB each they are 6 TiB of log
MAX_STRETCHES = 100_000


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch of one log file, in log offsets. With `is_last` nothing follows it, so a torn record is the
    end of the log."""

    path: str
    begin: int
    end: int
    file_end: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class QueueFile:
    """A file of a consume queue that holds units: numbers [first, end)."""

    path: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Queue:
    """A consume queue and its files, oldest first."""

    topic: str
    queue_id: int
    files: tuple[QueueFile, ...]

    @property
    def unit_count(self) -> int:
        return sum(file.end - file.first for file in self.files)


def position_of(live_page: Path | None, disk: Disk) -> LivePosition | None:
    """Return the position of the broker on a store; None when none runs. Raises StoreError while it
    recovers."""
    live = None if live_page is None else read_live_page(disk, live_page)
    if live is not None and live.state in ("opening", "recovering"):
        raise StoreError(f"a broker is opening the store of {live_page}; wait until it has recovered")
    return live


def no_store(store: Path) -> StoreError:
    return StoreError(f"{store} is no store: it has no directory commitlog")


def log_files(store: Path, disk: Disk, live: LivePosition | None = None) -> list[tuple[Path, int, int]]:
    """Return (path, log offset of its first byte, log offset of its end) of the files with records. Raises
    StoreError when `store` is none."""
    directory = store / "commitlog"
    if not disk.is_directory(directory):
        raise no_store(store)
    found = []
    for name in disk.list_names(directory):
        if len(name) == 20 and name.isdigit():
            base, size = int(name), disk.size_of(directory / name)
            end = base + size if live is None else min(base + size, live.dispatched)
            if end > base:
                found.append((directory / name, base, end))
    while len(found) > 1 and live is None and not any(_read(disk, found[-1][0], 0, record.HEAD.size)):
        found.pop()
    return found


def splits_of(
    store: Path,
    live_page: Path | None = None,
    tests: tuple[Test, ...] = (),
    partition_bytes: int = PARTITION_BYTES,
    disk: Disk | None = None,
    files: Sequence[tuple[Path, int, int]] | None = None,
) -> list[Split]:
    """Return the stretches that may hold records that pass the tests, oldest first.

    `files` are the result of `log_files`, if known. Raises MisuseError for more than MAX_STRETCHES.
    """
    disk = disk or Disk()
    live = position_of(live_page, disk)
    files = log_files(store, disk, live) if files is None else list(files)
    if live is None and files:
        path, base, end = files[-1]
        files[-1] = path, base, min(end, base + data_end(path, disk))
    least, most = bounds(tests, "log_offset")
    wanted = [(path, base, end) for path, base, end in files if end > least and base <= most]
    log_bytes = sum(end - base for _, base, end in wanted)
    if log_bytes > partition_bytes * MAX_STRETCHES:
        raise MisuseError(
            f"partition_bytes is {partition_bytes}: of {log_bytes:,} bytes of log there are to be at "
            f"most {MAX_STRETCHES:,} partitions;"
            f" give at least {-(-log_bytes // MAX_STRETCHES)}"
        )
    targets = [
        at
        for _, base, end in wanted
        for at in range(base + partition_bytes, end - partition_bytes // 2, partition_bytes)
    ]
    # A run that continues where another ended begins at a record: a cut there avoids reading what is before
    # it.
    targets += [at for _, base, end in wanted for at in (least, most + 1) if base < at < end]
    cuts = find_cuts(store, files, sorted(set(targets)), partition_bytes, disk)
    stretches = []
    for path, base, end in wanted:
        size = disk.size_of(path)
        edges = [base, *(cut for cut in cuts if base < cut < end), end]
        for begin, until in zip(edges, edges[1:], strict=False):
            stretches.append(
                Split(str(path), begin, until, base + size, end == files[-1][2] and until == end)
            )
    stretches = [split for split in stretches if split.end > least and split.begin <= most]
    return _within_times(stretches, tests, store, live, disk)


def data_end(path: Path, disk: Disk) -> int:
    """Return the position after the last byte that was ever written; the length of a file may be larger."""
    region = disk.open_region(path, writable=False)
    try:
        return region.data_end()
    finally:
        region.close()


def is_zero(path: Path, size: int, disk: Disk) -> bool:
    """True if the first `size` bytes of a file are zero, written or not."""
    with disk.open_reader(path) as reader:
        end, at = min(size, data_end(path, disk)), 0
        while at < end and not any(reader.read(at, min(ZEROS_PER_READ, end - at))):
            at += ZEROS_PER_READ
    return at >= end


def find_cuts(
    store: Path, files: Sequence[tuple[Path, int, int]], targets: list[int], reach: int, disk: Disk
) -> list[int]:
    """Return where records begin, at each target or less than `reach` after it, as far as the queues know."""
    found: dict[int, int] = {}
    if not targets:
        return []
    for queue in sorted(queues_of(store, disk), key=lambda queue: -queue.unit_count)[:QUEUES_ASKED]:
        for target in targets:
            if target in found:
                continue
            number, unit = _first_unit_from(queue, target, disk)
            if (
                unit is not None
                and unit.log_offset - target < max(reach, 1)
                and is_record_of(queue, number, unit, files, disk)
            ):
                found[target] = unit.log_offset
        if len(found) == len(targets):
            break
    return sorted(set(found.values()))


def _first_unit_from(queue: Queue, target: int, disk: Disk) -> tuple[int, queue_unit.QueueUnit | None]:
    """Return (number, unit) of the first unit that points to `target` or after it."""
    for file in queue.files:
        if unit_at(file, file.end - 1, disk).log_offset < target:
            continue
        with disk.open_reader(Path(file.path)) as reader:

            def unit(number: int, file: QueueFile = file, reader: Reader = reader) -> queue_unit.QueueUnit:
                return queue_unit.decode(
                    reader.read((number - file.first) * queue_unit.SIZE, queue_unit.SIZE)
                )

            numbers = range(file.first, file.end)
            number = numbers[bisect_left(numbers, target, key=lambda number: unit(number).log_offset)]
            return number, unit(number)
    return 0, None


def is_record_of(
    queue: Queue, number: int, unit: queue_unit.QueueUnit, files: Sequence[tuple[Path, int, int]], disk: Disk
) -> bool:
    """True if the record that a unit points to is valid, has the unit's size, and states that queue and
    number."""
    return states_place(record_at(unit, files, disk), queue.topic, queue.queue_id, number)


def record_at(
    unit: queue_unit.QueueUnit, files: Sequence[tuple[Path, int, int]], disk: Disk
) -> record.StoredMessage | None:
    """Return the valid record at a unit's log offset if it has the size that the unit states, whatever queue
    the record states; else None."""
    for path, base, end in files:
        if (
            base <= unit.log_offset
            and unit.log_offset + unit.size <= end
            and record.MIN_RECORD <= unit.size <= MAX_RECORD
        ):
            try:
                found = record.decode(
                    _read(disk, path, unit.log_offset - base, unit.size),
                    log_offset=unit.log_offset,
                    max_size=MAX_RECORD,
                )
            except FormatError:
                return None
            return found if found.size == unit.size else None
    return None


def _within_times(
    splits: list[Split], tests: tuple[Test, ...], store: Path, live: LivePosition | None, disk: Disk
) -> list[Split]:
    """Return the stretches without those that hold no record of the requested time.

    The first store times of a stretch and of the next one bound those in between only where it is known that
    times do not step back there (engine/log/store_times.py). All other stretches are read, and in a store
    without that note all of them. If two first times step back though nothing was noted, a record has changed
    since. The last stretch has no next one, so it is read.
    """
    least, most = bounds(tests, "store_time")
    if not any(name == "store_time" for name, _, _ in tests):
        return splits
    order, own_position = _time_order(store, live, disk)
    times = [_store_time(split, disk) for split in splits]

    def may_hold(number: int) -> bool:
        begin_us, next_us = times[number], times[number + 1]
        if begin_us is None or next_us is None or begin_us > next_us:
            return True
        if not order.is_known_to_rise(splits[number].begin, splits[number + 1].begin, own_position):
            return True
        return begin_us <= most and next_us >= least

    return [split for number, split in enumerate(splits) if number + 1 == len(splits) or may_hold(number)]


def _time_order(store: Path, live: LivePosition | None, disk: Disk) -> tuple[StoreTimes, int]:
    """Return where store times step back according to the store's note, and how far only a broker of ours
    wrote the log."""
    order, ends = StoreTimes(disk, store / "config" / STORE_TIMES), EndsFile(disk, store / ENDS)
    order.load()
    ends.load()
    # A running broker made its notes before it took messages, and writes no time that steps back.
    return order, ends.position if live is None else live.dispatched


def time_doubt(begin: int, end: int, store: Path, live: LivePosition | None, disk: Disk) -> str | None:
    """Return a sentence if store times step back in [begin, end) of the log, or if that is not known; else
    None."""
    order, own_position = _time_order(store, live, disk)
    if begin >= end or order.is_known_to_rise(begin, end - 1, own_position):
        return None
    steps = [step for step in order.steps if begin < step.log_offset < end]
    if steps:
        first = steps[0]
        times = "once" if len(steps) == 1 else f"{len(steps):,} times"
        return (
            f"store times go back {times}, first at {first.log_offset:,} of the log by "
            f"{first.before_ms - first.own_ms:,} ms: each message is in the day that its own store time "
            f"says"
        )
    return (
        "whether store times go back in it is not known: each message is in the day that its own store "
        "time says"
    )


def _store_time(split: Split, disk: Disk) -> int | None:
    """Return the store time of the first record, in microseconds; None when no record begins there."""
    head = _read(
        disk,
        Path(split.path),
        split.begin - (split.file_end - disk.size_of(Path(split.path))),
        record.FIXED[3].size,
    )
    if len(head) < record.FIXED[3].size or not record.read_head(head).is_record:
        return None
    (sys_flag,) = record.SYS_FLAG.unpack(head, record.SYS_FLAG_AT)
    fixed = record.FIXED[(sys_flag >> 4) & 3]
    return record.STORE_TIMESTAMP.unpack(head, fixed.offset["store_timestamp"])[0] * 1000


def check_topics(store: Path, topics: tuple[str, ...], disk: Disk) -> None:
    """Raise NotFoundError for a topic that the store does not have. A store without queues and settings
    refuses no topic."""
    stored = set(disk.list_names(store / "consumequeue"))
    known = set(stored)
    try:
        value: Any = config_json.read(disk.read_file(store / "config" / "topics.json") or b"{}")
        table = value.get("topicConfigTable")
        known |= set(table) if isinstance(table, dict) else set()
    except (FormatError, AttributeError):
        return  # its names are not known
    for topic in topics:
        if known and topic not in known:
            # Name topics with messages first: a broker's settings have a dozen system topics.
            worth = sorted(name for name in stored or known if name[0] != "%")
            raise NotFoundError(
                f"there is no topic {topic} in {store}; it has "
                f"{', '.join(worth[:20])}{' and more' if len(worth) > 20 else ''}"
            )


def queues_of(store: Path, disk: Disk) -> Iterator[Queue]:
    """Yield every consume queue; a binary search finds the unit after its last."""
    top = store / "consumequeue"
    for topic in disk.list_names(top):
        for name in disk.list_names(top / topic):
            if not (name.isascii() and name.isdigit() and len(name) < 10):
                continue
            files = []
            for file in disk.list_names(top / topic / name):
                if len(file) == 20 and file.isdigit():
                    first = int(file) // queue_unit.SIZE
                    path = top / topic / name / file
                    files.append(QueueFile(str(path), first, first + disk.size_of(path) // queue_unit.SIZE))
            yield _queue_of(topic, int(name), files, disk)


def _queue_of(topic: str, queue_id: int, files: list[QueueFile], disk: Disk) -> Queue:
    """Return the queue without the files at its end that hold no unit; each of `files` ends where its last
    byte does."""
    files = list(files)
    while files and (end := _units_end(files[-1], disk)) == files[-1].first:
        files.pop()
    if files:
        files[-1] = QueueFile(files[-1].path, files[-1].first, end)
    return Queue(topic, queue_id, tuple(files))


def _units_end(file: QueueFile, disk: Disk) -> int:
    """Return the number after the last unit: the file is data, then zero."""
    with disk.open_reader(Path(file.path)) as reader:
        numbers = range(file.first, file.end)
        return file.first + bisect_left(
            numbers,
            True,
            key=lambda number: not any(reader.read((number - file.first) * queue_unit.SIZE, queue_unit.SIZE)),
        )


def unit_at(file: QueueFile, number: int, disk: Disk) -> queue_unit.QueueUnit:
    return queue_unit.decode(
        _read(disk, Path(file.path), (number - file.first) * queue_unit.SIZE, queue_unit.SIZE)
    )


def _read(disk: Disk, path: Path, offset: int, length: int) -> bytes:
    with disk.open_reader(path) as reader:
        return reader.read(offset, length)
