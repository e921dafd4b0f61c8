"""What the map of files shows: a dict a file, measured now.

Keys: kind (commitlog, consumequeue, index), name, topic, queue_id, base, size, allocated, wrote, confirmed
(of the log: how far it may be shown), flushed (bytes within the file, None when not known), state, mapped,
readers (descriptors by which cold reads hold it), first_ms and last_ms (store times, None when not known
cheaply).

A state is full, writing, preallocated (made ahead of the writer), warming (made ahead, its first pages are
being touched), expired (full, and old enough to be deleted) or hung (deleted, and something of this process
still holds it).
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from broker_store.engine import samples
from broker_store.engine.disk.disk import Disk
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.log.commit_log import POPULATE_STEP, CommitLog
from broker_store.engine.mapped_file import MappedFile
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.errors import StoreError
from broker_store.formats import timer_log, timer_wheel

LOST_AND_FOUND = "lost+found"  # beside the store's directory


def kept_directory(disk: Disk, root: Path, started_ms: int) -> Path:
    """A new directory below lost+found for what a start takes away, named by the start's time."""
    parent = root.parent / LOST_AND_FOUND
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started_ms / 1000))
    number = 0
    while disk.exists(path := parent / (stamp + (f"-{number}" if number else ""))):
        number += 1
    disk.make_directory(path)
    return path


def log_file_facts(log: CommitLog, confirmed: int, readers: Collection[int] = ()) -> list[dict]:
    """`readers` are the bases of files that cold reads hold open."""
    facts = [_fact("commitlog", file, None, None, log.wrote, log.flushed) for file in list(log.files)]
    if (ahead := log.prepared) is not None:
        is_warm = ahead.populated >= min(POPULATE_STEP, ahead.size)
        facts.append(
            _fact("commitlog", ahead, None, None, log.wrote, log.flushed)
            | {"state": "preallocated" if is_warm else "warming"}
        )
    for fact in facts:
        fact |= {
            "confirmed": min(max(confirmed - fact["base"], 0), fact["wrote"]),
            "readers": int(fact["base"] in readers),
        }
    return facts


def hung_facts(disk: Disk, root: Path, log_directory: Path) -> list[dict]:
    """Files of the store that were deleted while something of this process holds them: their room is not free
    yet."""
    facts = []
    for path, size in disk.held_after_deletion(log_directory, root / "consumequeue", root / "index"):
        kind = "commitlog" if path.parent == log_directory else path.relative_to(root).parts[0]
        topic, queue_id = (
            (path.parts[-3], int(path.parts[-2]))
            if kind == "consumequeue" and path.parts[-2].isdigit()
            else (None, None)
        )
        base = int(path.name) if path.name.isdigit() and kind != "index" else None
        facts.append(
            _blank_fact(kind, path.name, topic, queue_id, base, size) | {"state": "hung", "mapped": True}
        )
    return facts


def queue_file_facts(queue: ConsumeQueue) -> list[dict]:
    at, flushed_at = queue.maximum * UNIT, queue.flushed_units * UNIT
    return [_fact("consumequeue", file, queue.topic, queue.queue_id, at, flushed_at) for file in queue.files]


def _fact(
    kind: str, file: MappedFile, topic: str | None, queue_id: int | None, at: int, flushed_at: int
) -> dict:
    """`at` and `flushed_at` are positions in the whole sequence of files."""
    wrote = min(max(at - file.base, 0), file.size)
    return _blank_fact(kind, file.path.name, topic, queue_id, file.base, file.size) | {
        "allocated": file.allocated,
        "wrote": wrote,
        "flushed": min(max(flushed_at - file.base, 0), file.size),
        "state": "full" if wrote == file.size else "preallocated" if file.base > at else "writing",
        "mapped": file.region is not None,
    }


def _blank_fact(
    kind: str, name: str, topic: str | None, queue_id: int | None, base: int | None, size: int
) -> dict:
    """What is known of a file by its name; None for all else."""
    named = {"kind": kind, "name": name, "topic": topic, "queue_id": queue_id, "base": base, "size": size}
    return named | dict.fromkeys(
        ("allocated", "wrote", "confirmed", "flushed", "state", "mapped", "readers", "first_ms", "last_ms")
    )


def index_file_facts(index: HashIndex) -> list[dict]:
    facts = []
    for file, found in zip(list(index.files), index.facts(), strict=True):
        wrote = file.geometry.entry_at(found["entries"] + 1)
        facts.append(
            _blank_fact("index", file.name, None, None, found["begin_offset"], file.geometry.file_bytes)
            | {
                "first_ms": found["begin_ms"] or None,
                "last_ms": found["end_ms"] or None,
                "allocated": file.geometry.entry_at(file.allocated_entries),
                "wrote": wrote,
                "flushed": wrote if file.synced else None,
                "state": "writing" if found["state"] == "writing" else "full",
                "mapped": file.region is not None,
            }
        )
    return facts


def kept_facts(disk: Disk, root: Path) -> dict:
    """Files and bytes that recoveries of the store at `root` took away; None for both when they cannot be
    looked at.

    Nothing of ours removes them: that is for whoever has looked at them.
    """
    kept = root.parent / LOST_AND_FOUND
    try:
        paths = [
            kept / name / file
            for name in disk.list_names(kept)
            if disk.is_directory(kept / name)
            for file in disk.list_names(kept / name)
        ]
        paths = [path for path in paths if not disk.is_directory(path)]
        return {"files": len(paths), "bytes": sum(disk.size_of(path) for path in paths)}
    except StoreError:
        # Where the store is the top of a file system, that has a directory of this name, which is root's.
        return {"files": None, "bytes": None}


def bytes_by_kind(disk: Disk, root: Path, log_directory: Path) -> dict[str, int]:
    """Disk blocks, in bytes, of what the store at `root` holds: commitlog, consumequeue, index, timer,
    config, lost+found, samples."""
    places = {
        "commitlog": [log_directory],
        "consumequeue": _below(disk, root / "consumequeue", 2),
        "index": [root / "index"],
        "timer": [root / timer_log.PATH, root / timer_wheel.PATH],
        "config": [root / "config"],
        "lost+found": _below(disk, root.parent / LOST_AND_FOUND, 1),
        "samples": [root.parent / samples.DIRECTORY],
    }
    return {kind: sum(_blocks(disk, path) for path in paths) for kind, paths in places.items()}


def _below(disk: Disk, directory: Path, depth: int) -> list[Path]:
    """The directories so deep below a directory."""
    found = [directory]
    for _ in range(depth):
        found = [
            above / name for above in found if disk.is_directory(above) for name in disk.list_names(above)
        ]
    return found


def _blocks(disk: Disk, path: Path) -> int:
    """Of a file, or of the files in a directory; nothing for one that went away meanwhile, or that may not be
    looked at."""
    try:
        if disk.is_directory(path):
            return sum(_blocks(disk, path / name) for name in disk.list_names(path))
        return disk.allocated_bytes(path)
    except StoreError:
        if disk.exists(path) and not disk.is_directory(path):
            raise
        return 0
