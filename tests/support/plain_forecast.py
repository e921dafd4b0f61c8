"""What the forecasts of disk and offsets rest on, read the slow way: every unit of every queue, every record
of the log."""

from __future__ import annotations

from pathlib import Path

from broker_store.formats import queue_unit, record


def records(root: Path) -> list[tuple[int, int, int]]:
    """(place, size, store time) of every record from the first file to the first place where none begins."""
    found = []
    for path in sorted((root / "commitlog").iterdir()):
        raw, base, at = path.read_bytes(), int(path.name), 0
        while at + 8 <= len(raw):
            head = record.read_head(raw, at)
            if head.is_blank:
                at = len(raw)
                break
            if not head.is_record:
                return found
            found.append(
                (
                    base + at,
                    head.total_size,
                    record.decode(raw[at : at + head.total_size], check_crc=False).store_timestamp,
                )
            )
            at += head.total_size
    return found


def log_end(root: Path) -> int:
    place, size, _ = records(root)[-1]
    return place + size


def bytes_since(root: Path, time_ms: int) -> int:
    """What the log has gained since a time."""
    end = log_end(root)
    return end - min((place for place, _, stored_ms in records(root) if stored_ms >= time_ms), default=end)


def units(root: Path, topic: str, queue_id: int) -> list[tuple[int, int, int]]:
    """(number, place, size) of every unit whose record is still in the log."""
    lowest = int(min(path.name for path in (root / "commitlog").iterdir()))
    found = []
    for path in sorted((root / "consumequeue" / topic / str(queue_id)).iterdir()):
        first = int(path.name) // 20
        for number, unit in enumerate(queue_unit.decode_all(path.read_bytes())):
            if unit.size > 0 and unit.size != queue_unit.PRE_BLANK_SIZE and unit.log_offset >= lowest:
                found.append((first + number, unit.log_offset, unit.size))
    return found


def unread(root: Path, topic: str, queue_id: int, offset: int, begin: int, end: int) -> tuple[int, int]:
    """(messages, bytes) of a queue from `offset` on that lie in the log's bytes [begin, end)."""
    sizes = [
        size
        for number, place, size in units(root, topic, queue_id)
        if number >= offset and begin <= place < end
    ]
    return len(sizes), sum(sizes)
