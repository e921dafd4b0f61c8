"""The slow obvious reader of how messages lie in the log: struct, lists and sets over the files of a store.

`laid(root, wanted, ...)` gives what broker_store/facts/layout.py gives of the same queues, but for what is
in memory.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

PAGE = 4096
BLOCK = 128 << 10
PRE_BLANK = (0, 0x7FFFFFFF)


def log_of(root: Path) -> tuple[int, int, int]:
    """(where the log begins, the size of its files, where it ends): the end is the first place at which
    neither record nor blank stands."""
    files = sorted((root / "commitlog").iterdir())
    size = files[0].stat().st_size
    begin = end = int(files[0].name)
    for path in files:
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            length, magic = struct.unpack_from(">iI", data, at)
            if magic == 0xCBD43194:
                at = len(data)
                break
            if magic not in (0xDAA320A7, 0xDAA320AB) or length < 91 or at + length > len(data):
                break
            at += length
        if at:
            end = int(path.name) + at
        if at < len(data):
            break
    return begin, size, end


def queues_of(root: Path) -> list[tuple[str, int]]:
    return sorted(
        (topic.name, int(queue.name))
        for topic in (root / "consumequeue").iterdir()
        for queue in topic.iterdir()
    )


def units_of(root: Path, topic: str, queue_id: int) -> list[tuple[int, int, int]]:
    """(number, log offset, size) up to the first that is no data."""
    units = []
    for path in sorted((root / "consumequeue" / topic / str(queue_id)).iterdir()):
        data = path.read_bytes()
        for at in range(0, len(data), 20):
            log_offset, size, _ = struct.unpack_from(">qiq", data, at)
            if size <= 0 or log_offset < 0:
                return units
            units.append(((int(path.name) + at) // 20, log_offset, size))
    return units


def stored_ms(root: Path, log_offset: int) -> int:
    path = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= log_offset)
    with open(path, "rb") as file:
        file.seek(log_offset - int(path.name))
        head = file.read(91)
    (flags,) = struct.unpack_from(">i", head, 36)
    return struct.unpack_from(">q", head, 68 if flags & 0x10 else 56)[0]


def laid(
    root: Path,
    wanted: list[tuple[str, int]],
    cells: int,
    is_from=lambda topic, queue_id, unit: True,
    most_a_queue: int = 1 << 60,
) -> dict:
    """Of the units that `is_from(topic, queue id, unit)` lets through, at most so many of each queue."""
    begin, file_size, end = log_of(root)
    jumps, pages, total, count, gone = [], set(), 0, 0, 0
    cells = min(cells, max(1, end - begin))
    owners = [0] * cells
    for topic, queue_id in wanted:
        last_end = None
        chosen = [unit for unit in units_of(root, topic, queue_id) if is_from(topic, queue_id, unit)]
        for _, log_offset, size in chosen[:most_a_queue]:
            if log_offset < begin or log_offset + size > end:
                gone += log_offset < begin and (log_offset, size) != PRE_BLANK
                last_end = None
                continue
            if last_end is not None:
                jumps.append(log_offset - last_end)
            last_end = log_offset + size
            count += 1
            total += size
            in_file = log_offset % file_size
            pages |= {
                (log_offset // file_size, page)
                for page in range(in_file // PAGE, (in_file + size - 1) // PAGE + 1)
            }
            first, last = (
                (place - begin) * cells // (end - begin) for place in (log_offset, log_offset + size - 1)
            )
            for cell in range(first, last + 1):
                low, high = (begin + math.ceil(edge * (end - begin) / cells) for edge in (cell, cell + 1))
                owners[cell] += min(high, log_offset + size) - max(low, log_offset)
    pages_a_file = -(-file_size // PAGE)
    blocks = {(file, page // (BLOCK // PAGE)) for file, page in pages}
    ahead = sum(min(BLOCK // PAGE, pages_a_file - block * (BLOCK // PAGE)) for _, block in blocks) * PAGE
    jumps.sort()
    return {
        "messages": count,
        "bytes": total,
        "gone": gone,
        "share": total / (end - begin) if end > begin else None,
        "cell_bytes": owners,
        "jumps": {
            "count": len(jumps),
            "mean": sum(jumps) / len(jumps) if jumps else None,
            "p50": rank(jumps, 0.5),
            "p99": rank(jumps, 0.99),
            "max": jumps[-1] if jumps else None,
            "neighbours": jumps.count(0),
        },
        "pages": {
            "touched": len(pages),
            "bytes": len(pages) * PAGE,
            "per_byte": len(pages) * PAGE / total if total else None,
        },
        "ahead": {"bytes": ahead, "per_byte": ahead / total if total else None},
    }


def rank(ordered: list[int], share: float) -> int | None:
    """The smallest that so large a share of them does not exceed."""
    return ordered[math.ceil(len(ordered) * share) - 1] if ordered else None
