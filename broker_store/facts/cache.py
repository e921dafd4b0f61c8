"""Page cache: which pages of the store's files are in memory, and how far behind the end of the log each
group reads.

A page that is in memory is read at once; one that is not waits for the disk. The system is asked about every
page of every file (Disk.pages_in_memory) and its answers are folded into cells: the end of the log, where
writers and most readers are, is in memory, and what nobody touched for long is a hole. Where the system does
not say, everything of the file is None.

Nothing of the log is read. A look at 10 GiB takes the system 0.2 s of work, which two threads share unless it
is gentle (throttle.py): it is for a thread, and seldom.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from broker_store import throttle
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.system import PAGE
from broker_store.engine.rows import Words
from broker_store.errors import StoreError
from broker_store.facts.directory import GroupOffsets, StoreDirectory
from broker_store.kernels.residency import fold_pages

CELLS = {"commitlog": 128, "index": 128, "consumequeue": 32}  # of a file, at most one a page
THREADS = 2
LEAST_SHARED = 4 << 30  # bytes; at less one thread looks, and gently at any size
MOST_QUEUE_FILES = 5_000  # looked at; what is left out is said
MOST_QUEUES = 4_000  # of groups, whose read position is looked up
MEMINFO = Path("/proc/meminfo")
SOURCE = "mincore of a private map of each file; /proc/meminfo"
_MEMORY = {
    "total_bytes": "MemTotal",
    "available_bytes": "MemAvailable",
    "cached_bytes": "Cached",
    "dirty_bytes": "Dirty",
    "writeback_bytes": "Writeback",
}


def residency(store: StoreDirectory, wrote: int | None = None) -> dict:
    """{"at_ms", "took_ms", "source", "files": [see _look], "totals": {kind: {"files", "bytes",
    "resident_bytes"}}, "memory", "log": {"begin", "end", "wrote"}, "complete", "reason"}. `wrote` is the end
    of the log when somebody knows it; else it is looked for."""
    at_ms, began = int(time.time() * 1000), time.perf_counter()
    log = store.log_files()
    listed = [("commitlog", "", None, base, size, path) for base, size, path in log]
    listed += [("index", "", None, None, size, path) for size, path in store.index_paths()]
    queue_files = [
        ("consumequeue", topic, queue_id, base, size, path)
        for topic, queue_id, base, size, path in store.queue_paths()
    ]
    left_out = max(0, len(queue_files) - MOST_QUEUE_FILES)
    listed += queue_files[:MOST_QUEUE_FILES]
    if throttle.current() is not None or sum(size for *_, size, _ in listed) < LEAST_SHARED:
        looked = [_look(store.disk, *each) for each in listed]
    else:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="residency") as threads:
            looked = list(threads.map(lambda each: _look(store.disk, *each), listed))
    files = [file for file in looked if file is not None]
    return {
        "at_ms": at_ms,
        "took_ms": (time.perf_counter() - began) * 1000,
        "source": SOURCE,
        "files": files,
        "totals": {kind: _total([file for file in files if file["kind"] == kind]) for kind in CELLS}
        | {"all": _total(files)},
        "memory": memory(store.disk),
        "log": {
            "begin": log[0][0] if log else 0,
            "end": log[-1][0] + log[-1][1] if log else 0,
            "wrote": store.log_end() if wrote is None else wrote,
        },
        "complete": not left_out,
        "reason": f"{left_out:,} files of queues were left out; {MOST_QUEUE_FILES:,} are looked at"
        if left_out
        else None,
    }


def _look(
    disk: Disk, kind: str, topic: str, queue_id: int | None, base: int | None, size: int, path: Path
) -> dict | None:
    """A file's facts; `cells` are the shares of equal parts, by pages, that are in memory. None of a file
    that is gone meanwhile."""
    try:
        answers = disk.pages_in_memory(path)
    except StoreError:
        if disk.exists(path):
            raise
        return None
    file = {"kind": kind, "name": path.name, "topic": topic, "queue_id": queue_id, "base": base, "size": size}
    if answers is None:
        return file | {"resident_bytes": None, "share": None, "cells": None}
    cells = min(CELLS[kind], len(answers))
    if not cells:
        return file | {"resident_bytes": 0, "share": None, "cells": []}
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
    return file | {
        "resident_bytes": resident * PAGE - beyond_end,
        "share": resident / len(answers),
        "cells": shares,
    }


def shown(picture: dict, queue_files: int, topic: str | None = None) -> dict:
    """The picture with at most so many files of queues, of one topic when it is named: those with most in
    memory first. `queue_files` tells how many there are."""
    queues = [
        file for file in picture["files"] if file["kind"] == "consumequeue" and topic in (None, file["topic"])
    ]
    queues.sort(
        key=lambda file: (-(file["resident_bytes"] or 0), file["topic"], file["queue_id"], file["name"])
    )
    others = [file for file in picture["files"] if file["kind"] != "consumequeue"]
    return picture | {"files": others + queues[:queue_files], "queue_files": len(queues)}


def _total(files: list[dict]) -> dict:
    resident = [file["resident_bytes"] for file in files]
    return {
        "files": len(files),
        "bytes": sum(file["size"] for file in files),
        "resident_bytes": None if None in resident else sum(resident),
    }


def memory(disk: Disk) -> dict:
    """The machine's memory as /proc/meminfo has it; None for what it does not say."""
    try:
        with disk.open_reader(MEMINFO) as reader:
            text = reader.read(0, 1 << 16).decode()
    except StoreError:
        return dict.fromkeys(_MEMORY)
    said = {name: value.split() for name, _, value in (line.partition(":") for line in text.splitlines())}
    return {
        key: int(said[name][0]) << 10 if said.get(name, [])[1:] == ["kB"] else None
        for key, name in _MEMORY.items()
    }


def read_positions(store: StoreDirectory, offsets: GroupOffsets, wrote: int) -> tuple[list[dict], bool]:
    """[{"group", "log_offset", "behind_bytes", "behind_messages", "topic", "queue_id"}] of the queue in which
    each group is the furthest behind, and all its messages; the furthest first. And whether all queues were
    looked at.

    A group stands where its next message lies: at the end of the log when it has read everything.
    """
    found: dict[str, dict] = {}
    queues = {}
    looked = 0
    for group, topic, queue_id, offset in _queues_of(offsets):
        if looked >= MOST_QUEUES:
            return _furthest_first(found), False
        looked += 1
        units = queues.get((topic, queue_id))
        if units is None:
            units = queues[topic, queue_id] = store.queue_units(topic, queue_id)
        if units.end == units.first:
            continue
        left = max(0, units.end - max(offset, units.first))
        unit = units.unit(max(offset, units.first)) if left else None
        log_offset = wrote if unit is None or unit.is_pre_blank else unit.log_offset
        place = found.setdefault(
            group,
            {
                "group": group,
                "log_offset": log_offset,
                "behind_messages": 0,
                "topic": topic,
                "queue_id": queue_id,
            },
        )
        place["behind_messages"] += left
        if log_offset < place["log_offset"]:
            place |= {"log_offset": log_offset, "topic": topic, "queue_id": queue_id}
    for place in found.values():
        place["behind_bytes"] = max(0, wrote - place["log_offset"])
    return _furthest_first(found), True


def _queues_of(offsets: GroupOffsets) -> Iterator[tuple[str, str, int, int]]:
    for group, topics in offsets.items():
        for topic, queues in topics.items():
            for queue_id, offset in queues.items():
                yield group, topic, queue_id, offset


def _furthest_first(found: dict[str, dict]) -> list[dict]:
    return sorted(found.values(), key=lambda place: (place["log_offset"], place["group"]))
