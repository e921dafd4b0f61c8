"""What the map of files shows: a dict a file, measured now.

Keys: kind (commitlog, consumequeue, index), name, topic, queue_id, base, size, allocated, wrote, flushed (bytes within the
file, None when not known), state (full, writing, preallocated), mapped.
"""

from __future__ import annotations

from pathlib import Path

from broker_store.engine import samples
from broker_store.engine.commit_log import CommitLog
from broker_store.engine.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.disk import Disk
from broker_store.engine.hash_index import HashIndex
from broker_store.engine.mapped_file import MappedFile
from broker_store.errors import StoreError

LOST_AND_FOUND = "lost+found"  # beside the store's directory


def log_file_facts(log: CommitLog) -> list[dict]:
    prepared = [log.prepared] if log.prepared else []
    return [_fact("commitlog", file, None, None, log.wrote, log.flushed) for file in [*log.files, *prepared]]


def queue_file_facts(queue: ConsumeQueue) -> list[dict]:
    at, flushed_at = queue.maximum * UNIT, queue.flushed_units * UNIT
    return [_fact("consumequeue", file, queue.topic, queue.queue_id, at, flushed_at) for file in queue.files]


def _fact(kind: str, file: MappedFile, topic: str | None, queue_id: int | None, at: int, flushed_at: int) -> dict:
    """`at` and `flushed_at` are positions in the whole sequence of files."""
    wrote = min(max(at - file.base, 0), file.size)
    return {
        "kind": kind,
        "name": file.path.name,
        "topic": topic,
        "queue_id": queue_id,
        "base": file.base,
        "size": file.size,
        "allocated": file.allocated,
        "wrote": wrote,
        "flushed": min(max(flushed_at - file.base, 0), file.size),
        "state": "full" if wrote == file.size else "preallocated" if file.base > at else "writing",
        "mapped": file.region is not None,
    }


def index_file_facts(index: HashIndex) -> list[dict]:
    facts = []
    for file, found in zip(list(index.files), index.facts(), strict=True):
        wrote = file.geometry.entry_at(found["entries"] + 1)
        facts.append(
            {
                "kind": "index",
                "name": file.name,
                "topic": None,
                "queue_id": None,
                "base": found["begin_offset"],
                "size": file.geometry.file_bytes,
                "allocated": file.geometry.entry_at(file.allocated_entries),
                "wrote": wrote,
                "flushed": wrote if file.synced else None,
                "state": "writing" if found["state"] == "writing" else "full",
                "mapped": file.region is not None,
            }
        )
    return facts


def kept_facts(disk: Disk, root: Path) -> dict:
    """Files and bytes that recoveries of the store at `root` took away; None for both when they cannot be looked at.

    Nothing of ours removes them: that is for whoever has looked at them.
    """
    kept = root.parent / LOST_AND_FOUND
    try:
        paths = [kept / name / file for name in disk.list_names(kept) if disk.is_directory(kept / name) for file in disk.list_names(kept / name)]
        paths = [path for path in paths if not disk.is_directory(path)]
        return {"files": len(paths), "bytes": sum(disk.size_of(path) for path in paths)}
    except StoreError:
        # Where the store is the top of a file system, that has a directory of this name, which is root's.
        return {"files": None, "bytes": None}


def bytes_by_kind(disk: Disk, root: Path, log_directory: Path) -> dict[str, int]:
    """Disk blocks, in bytes, of what the store at `root` holds: commitlog, consumequeue, index, timer, config, lost+found, samples."""
    places = {
        "commitlog": [log_directory],
        "consumequeue": _below(disk, root / "consumequeue", 2),
        "index": [root / "index"],
        "timer": [root / "timerlog", root / "timerwheel"],
        "config": [root / "config"],
        "lost+found": _below(disk, root.parent / LOST_AND_FOUND, 1),
        "samples": [root.parent / samples.DIRECTORY],
    }
    return {kind: sum(_blocks(disk, path) for path in paths) for kind, paths in places.items()}


def _below(disk: Disk, directory: Path, depth: int) -> list[Path]:
    """The directories so deep below a directory."""
    found = [directory]
    for _ in range(depth):
        found = [above / name for above in found if disk.is_directory(above) for name in disk.list_names(above)]
    return found


def _blocks(disk: Disk, path: Path) -> int:
    """Of a file, or of the files in a directory; nothing for one that went away meanwhile, or that may not be looked at."""
    try:
        if disk.is_directory(path):
            return sum(_blocks(disk, path / name) for name in disk.list_names(path))
        return disk.allocated_bytes(path)
    except StoreError:
        if disk.exists(path) and not disk.is_directory(path):
            raise
        return 0
