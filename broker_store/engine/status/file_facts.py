"""Facts of files for the page of the store's files: a StoreFile for each, measured now; and what recoveries
kept."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.log.commit_log import POPULATE_STEP, CommitLog
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.status import samples
from broker_store.engine.status.store_state import LostAndFound, StoreFile
from broker_store.errors import StoreError
from broker_store.formats import timer_log, timer_wheel

LOST_AND_FOUND = "lost+found"  # beside the store's directory


def kept_directory(disk: Disk, root: Path, started_ms: int) -> Path:
    """Return a new directory below lost+found for what a start takes away; its name is the time of the
    start."""
    parent = root.parent / LOST_AND_FOUND
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started_ms / 1000))
    number = 0
    while disk.exists(path := parent / (stamp + (f"-{number}" if number else ""))):
        number += 1
    disk.make_directory(path)
    return path


def log_file_facts(
    log: CommitLog,
    confirmed: int,
    readers: Collection[int] = (),
    expired: Collection[int] = (),
    last_ms: int = 0,
) -> list[StoreFile]:
    """Return the files of the log, oldest first, and the one that is made ahead.

    `readers` are the bases of files that cold reads hold open, `expired` of those that are old enough to be
    deleted; `last_ms` is the store time of the last message.
    """
    files = list(log.files)
    ahead = log.prepared
    facts = []
    for file in files if ahead is None else [*files, ahead]:
        wrote = _wrote(file, log.wrote)
        state = _state(file, wrote, log.wrote)
        if file is ahead:
            state = "preallocated" if ahead.populated >= min(POPULATE_STEP, ahead.size) else "warming"
        facts.append(
            StoreFile(
                kind="commitlog",
                name=file.path.name,
                base=file.base,
                size=file.size,
                allocated=file.allocated,
                wrote=wrote,
                confirmed=min(max(confirmed - file.base, 0), wrote),
                flushed=_wrote(file, log.flushed),
                state="expired" if state == "full" and file.base in expired else state,
                mapped=file.region is not None,
                readers=int(file.base in readers),
                last_ms=last_ms or None if state == "writing" else None,
            )
        )
    return facts


def hung_facts(disk: Disk, root: Path, log_directory: Path) -> list[StoreFile]:
    """Return the files of the store that were deleted while this process holds them: their blocks are not
    free yet."""
    facts = []
    for path, size in disk.held_after_deletion(log_directory, root / "consumequeue", root / "index"):
        kind = "commitlog" if path.parent == log_directory else path.relative_to(root).parts[0]
        topic, queue_id = (
            (path.parts[-3], int(path.parts[-2]))
            if kind == "consumequeue" and path.parts[-2].isdigit()
            else (None, None)
        )
        facts.append(
            StoreFile(
                kind=kind,
                name=path.name,
                topic=topic,
                queue_id=queue_id,
                base=int(path.name) if path.name.isdigit() and kind != "index" else None,
                size=size,
                state="hung",
                mapped=True,
            )
        )
    return facts


def queue_file_facts(queue: ConsumeQueue) -> list[StoreFile]:
    """Return the files of one queue, oldest first."""
    at, flushed_at = queue.maximum * UNIT, queue.flushed_units * UNIT
    facts = []
    for file in queue.files:
        wrote = _wrote(file, at)
        facts.append(
            StoreFile(
                kind="consumequeue",
                name=file.path.name,
                topic=queue.topic,
                queue_id=queue.queue_id,
                base=file.base,
                size=file.size,
                allocated=file.allocated,
                wrote=wrote,
                flushed=_wrote(file, flushed_at),
                state=_state(file, wrote, at),
                mapped=file.region is not None,
            )
        )
    return facts


def _wrote(file: MappedFile, at: int) -> int:
    """Return how many bytes of a file lie before `at`, a position in the whole sequence of files."""
    return min(max(at - file.base, 0), file.size)


def _state(file: MappedFile, wrote: int, at: int) -> str:
    return "full" if wrote == file.size else "preallocated" if file.base > at else "writing"


def index_file_facts(index: HashIndex) -> list[StoreFile]:
    """Return the files of the index, oldest first."""
    facts = []
    for file, found in zip(list(index.files), index.facts(), strict=True):
        wrote = file.geometry.entry_at(found.entries + 1)
        facts.append(
            StoreFile(
                kind="index",
                name=file.name,
                base=found.begin_offset,
                size=file.geometry.file_bytes,
                allocated=file.geometry.entry_at(file.allocated_entries),
                wrote=wrote,
                flushed=wrote if file.synced else None,
                state="writing" if found.state == "writing" else "full",
                mapped=file.region is not None,
                first_ms=found.begin_ms or None,
                last_ms=found.end_ms or None,
            )
        )
    return facts


def kept_facts(disk: Disk, root: Path) -> LostAndFound:
    """Return files and bytes that recoveries of the store at `root` took away; None for both when they cannot
    be read.

    The program never deletes them: the administrator does, after a check.
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
        return LostAndFound(files=len(paths), bytes=sum(disk.size_of(path) for path in paths))
    except StoreError:
        # Where the store is the top of a file system, that has a directory of this name, which is root's.
        return LostAndFound()


def bytes_by_kind(disk: Disk, root: Path, log_directory: Path) -> dict[str, int]:
    """Return the disk blocks, in bytes, of what the store at `root` holds, by kind: commitlog, consumequeue,
    index, timer, config, lost+found, samples."""
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
    """Return the directories at a depth below a directory."""
    found = [directory]
    for _ in range(depth):
        found = [
            above / name for above in found if disk.is_directory(above) for name in disk.list_names(above)
        ]
    return found


def _blocks(disk: Disk, path: Path) -> int:
    """Return the disk blocks, in bytes, of a file or of the files in a directory; 0 for one that is gone or
    cannot be read."""
    try:
        if disk.is_directory(path):
            return sum(_blocks(disk, path / name) for name in disk.list_names(path))
        return disk.allocated_bytes(path)
    except StoreError:
        if disk.exists(path) and not disk.is_directory(path):
            raise
        return 0
