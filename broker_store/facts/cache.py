"""Page cache: which pages of the store's files are in memory, and how far from the end of the log each
group reads.

A page that is in memory is read at once; one that is not waits for the disk. The system is asked about every
page of every file (Disk.pages_in_memory) and its answers are folded into cells: the end of the log, where
writers and most readers are, is in memory, and what no process touched for long is a hole. Where the system
does not say, everything of the file is None.

Nothing of the log is read. A scan of 10 GiB takes the system 0.2 s of work, which two threads share unless it
is gentle (throttle.py): it is for a thread, and seldom.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from broker_store import throttle
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.system import PAGE
from broker_store.engine.rows import Words
from broker_store.errors import StoreError
from broker_store.facts.directory import GroupOffsets, StoreDirectory
from broker_store.facts.queue_units import QueueUnits
from broker_store.kernels.residency import fold_pages
from broker_store.units import Moment, Small, fields_of

CELLS = {"commitlog": 128, "index": 128, "consumequeue": 32}  # of a file, at most one a page
THREADS = 2
MIN_SHARED = 4 << 30  # bytes; at less one thread scans; a throttled scan has one at any size
MAX_QUEUE_FILES = 5_000  # scanned; the answer says how many are left out
MAX_GROUP_QUEUES = 4_000  # whose read positions are looked up: a queue counts once for each group
MEMINFO = Path("/proc/meminfo")
SOURCE = "mincore of a private map of each file; /proc/meminfo"
_MEMORY = {
    "total_bytes": "MemTotal",
    "available_bytes": "MemAvailable",
    "cached_bytes": "Cached",
    "dirty_bytes": "Dirty",
    "writeback_bytes": "Writeback",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedFile:
    """A file of the store and what of it is in memory; None where the system does not say."""

    kind: str  # commitlog, consumequeue or index
    name: str
    topic: str  # "" for what is no queue's
    queue_id: Small | None
    base: int | None
    size: int  # bytes
    resident_bytes: int | None
    share: float | None  # 0 to 1: of its pages
    cells: list[float] | None  # the shares of equal parts, by pages


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedTotal:
    """All files of a kind."""

    files: int
    bytes: int
    resident_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The machine's memory as /proc/meminfo has it; None for what it does not say."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    cached_bytes: int | None = None
    dirty_bytes: int | None = None
    writeback_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    """Log offsets: where the first file begins, the last one ends, and the next message is written."""

    begin: int
    end: int
    wrote: int


@dataclass(frozen=True, kw_only=True)  # without slots: classes are made of it and others
class Residency:
    """One scan of the page cache."""

    at_ms: Moment
    took_ms: float
    source: str
    files: list[CachedFile]
    totals: dict[str, CachedTotal]  # by kind, and "all"
    memory: Memory
    log: LogEnds
    complete: bool
    reason: str | None  # why it is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a group lags most. It stands where its next message lies: at the end of the log when
    it has read everything."""

    group: str
    log_offset: int
    lag_messages: int  # in all its queues
    topic: str  # the queue with that place
    queue_id: Small
    lag_bytes: int


# kind, topic, queue id, number of the first byte, size, path
_Listed = tuple[str, str, int | None, int | None, int, Path]


@dataclass(frozen=True, kw_only=True)
class _QueueFiles:
    queue_files: int  # of queues, of which those with the most in memory are shown


@dataclass(frozen=True, kw_only=True)
class _Places:
    groups: list[Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyOfFiles(_Places, _QueueFiles, Residency):
    """What the files alone say."""


def residency(store: StoreDirectory, wrote: int | None = None) -> Residency:
    """A scan of all files. `wrote` is the end of the log where it is known; else it is searched for."""
    at_ms, began = int(time.time() * 1000), time.perf_counter()
    log = store.log_files()
    listed: list[_Listed] = [("commitlog", "", None, base, size, path) for base, size, path in log]
    listed += [("index", "", None, None, size, path) for size, path in store.index_paths()]
    queue_files: list[_Listed] = [
        ("consumequeue", topic, queue_id, base, size, path)
        for topic, queue_id, base, size, path in store.queue_paths()
    ]
    left_out = max(0, len(queue_files) - MAX_QUEUE_FILES)
    listed += queue_files[:MAX_QUEUE_FILES]
    if throttle.current() is not None or sum(size for *_, size, _ in listed) < MIN_SHARED:
        found = [_measure(store.disk, *each) for each in listed]
    else:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="residency") as threads:
            found = list(threads.map(lambda each: _measure(store.disk, *each), listed))
    files = [file for file in found if file is not None]
    reason = f"{left_out:,} files of queues were left out; {MAX_QUEUE_FILES:,} are scanned"
    return Residency(
        at_ms=at_ms,
        took_ms=(time.perf_counter() - began) * 1000,
        source=SOURCE,
        files=files,
        totals={kind: _total([file for file in files if file.kind == kind]) for kind in CELLS}
        | {"all": _total(files)},
        memory=memory(store.disk),
        log=LogEnds(
            begin=log[0][0] if log else 0,
            end=log[-1][0] + log[-1][1] if log else 0,
            wrote=store.log_end() if wrote is None else wrote,
        ),
        complete=not left_out,
        reason=reason if left_out else None,
    )


def _measure(
    disk: Disk, kind: str, topic: str, queue_id: int | None, base: int | None, size: int, path: Path
) -> CachedFile | None:
    """Return the facts of a file; None if it was removed meanwhile."""
    try:
        answers = disk.pages_in_memory(path)
    except StoreError:
        if disk.exists(path):
            raise
        return None
    file = CachedFile(
        kind=kind,
        name=path.name,
        topic=topic,
        queue_id=queue_id,
        base=base,
        size=size,
        resident_bytes=None,
        share=None,
        cells=None,
    )
    if answers is None:
        return file
    cells = min(CELLS[kind], len(answers))
    if not cells:
        return replace(file, resident_bytes=0, cells=[])
    counts = Words(cells)
    resident = fold_pages(
        np.frombuffer(answers, dtype=np.uint8).ctypes.data, len(answers), cells, counts.address
    )
    beyond_end = (len(answers) * PAGE - size) * (answers[-1] & 1)
    edges = [number * len(answers) // cells for number in range(cells + 1)]
    shares = [
        round(int(count) / (edges[number + 1] - edges[number]), 4)
        for number, count in enumerate(counts.array)
    ]
    return replace(
        file, resident_bytes=resident * PAGE - beyond_end, share=resident / len(answers), cells=shares
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FewFiles:
    """The files of a picture, with some of those of queues."""

    files: list[CachedFile]
    queue_files: int  # how many of queues there are


def few_files(picture: Residency, queue_files: int, topic: str | None = None) -> FewFiles:
    """Return the files of a picture with at most so many of queues, of one topic when it is named: those with
    the most in memory first."""
    queues = [file for file in picture.files if file.kind == "consumequeue" and topic in (None, file.topic)]
    queues.sort(key=lambda file: (-(file.resident_bytes or 0), file.topic, file.queue_id, file.name))
    others = [file for file in picture.files if file.kind != "consumequeue"]
    return FewFiles(files=others + queues[:queue_files], queue_files=len(queues))


def of_files(store: StoreDirectory, queue_files: int, topic: str | None = None) -> ResidencyOfFiles:
    """Return a scan of a store without its broker, with the files of `few_files`."""
    picture = residency(store)
    places, _ = read_positions(store, store.group_offsets(), picture.log.wrote)
    few = few_files(picture, queue_files, topic)
    shown = fields_of(replace(picture, files=few.files))
    return ResidencyOfFiles(**shown, queue_files=few.queue_files, groups=places)


def _total(files: list[CachedFile]) -> CachedTotal:
    resident = [file.resident_bytes for file in files if file.resident_bytes is not None]
    return CachedTotal(
        files=len(files),
        bytes=sum(file.size for file in files),
        resident_bytes=sum(resident) if len(resident) == len(files) else None,
    )


def memory(disk: Disk) -> Memory:
    """The machine's memory as /proc/meminfo has it; None for what it does not say."""
    try:
        with disk.open_reader(MEMINFO) as reader:
            text = reader.read(0, 1 << 16).decode()
    except StoreError:
        return Memory()
    said = {name: value.split() for name, _, value in (line.partition(":") for line in text.splitlines())}
    return Memory(
        **{
            key: int(said[name][0]) << 10 if said.get(name, [])[1:] == ["kB"] else None
            for key, name in _MEMORY.items()
        }
    )


def read_positions(store: StoreDirectory, offsets: GroupOffsets, wrote: int) -> tuple[list[Place], bool]:
    """The place of each group, the one that lags most first, and whether all queues were read."""
    found: dict[str, Place] = {}
    queues: dict[tuple[str, int], QueueUnits] = {}
    count = 0
    for group, topic, queue_id, offset in _queues_of(offsets):
        if count >= MAX_GROUP_QUEUES:
            return _furthest_first(found), False
        count += 1
        units = queues.get((topic, queue_id))
        if units is None:
            units = queues[topic, queue_id] = store.queue_units(topic, queue_id)
        if units.end == units.first:
            continue
        left = max(0, units.end - max(offset, units.first))
        unit = units.unit(max(offset, units.first)) if left else None
        log_offset = wrote if unit is None or unit.is_pre_blank else unit.log_offset
        before = found.get(group)
        messages = left + (0 if before is None else before.lag_messages)
        if before is not None and log_offset >= before.log_offset:
            found[group] = replace(before, lag_messages=messages)
        else:
            found[group] = Place(
                group=group,
                log_offset=log_offset,
                lag_messages=messages,
                topic=topic,
                queue_id=queue_id,
                lag_bytes=max(0, wrote - log_offset),
            )
    return _furthest_first(found), True


def _queues_of(offsets: GroupOffsets) -> Iterator[tuple[str, str, int, int]]:
    for group, topics in offsets.items():
        for topic, queues in topics.items():
            for queue_id, offset in queues.items():
                yield group, topic, queue_id, offset


def _furthest_first(found: dict[str, Place]) -> list[Place]:
    return sorted(found.values(), key=lambda place: (place.log_offset, place.group))
