"""The store of a backup as it was at an earlier moment: the log is cut, queues and index follow by recovery.

    log      record  record  record | record ....... end        store times go up along the log
                                    ^ the first that was stored after the moment
    then     no record of ends; a checkpoint of the last record before the cut; `abort`: recovery cuts queues
             and index to the log
    then     positions lead beyond no queue, and what the broker itself delivers is delivered again

What the broker delivers of its own (messages with a delay or a time, transactions) leaves a copy in the log,
and its position says so. A copy after the cut is gone. So these positions go back to the moment; some
messages are then delivered twice, as after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.mapped_file import file_name, is_file_name
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.report import time_text
from broker_store.engine.store import MessageStore
from broker_store.errors import StoreError
from broker_store.formats import checkpoint, config_json, record, timer_check
from broker_store.formats.checkpoint import Checkpoint
from broker_store.formats.topics import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC

# What was delivered shortly before the moment may have been put to the log after it
_DELIVERY_MS = 10_000
_READ_BYTES = 4 << 20
_OFFSETS, _LEVELS = "consumerOffset.json", "delayOffset.json"
_OFFSET_TABLES = ("offsetTable", "pullOffsetTable")
_POPS_INCLUDED = "popsIncluded"  # a log offset in consumerOffset.json


class Cut(NamedTuple):
    """Where the log is cut, and the store time of the last record before."""

    log_offset: int
    last_ms: int


def find_cut(disk: Disk, directory: Path, file_bytes: int, until_ms: int) -> Cut | None:
    """Return where the first record begins that was stored after `until_ms`; None where none was. Raises
    StoreError when all were.

    Store times go up along a log of this broker, so one file is read. In one of Apache's broker that had its
    clock set back, the cut is at the first later record of that file.
    """
    bases = [int(name) for name in disk.list_names(directory) if is_file_name(name)]
    begins = [(base, first) for base in bases if (first := _first_ms(disk, directory, base)) is not None]
    if not begins:
        return None
    if begins[0][1] > until_ms:
        raise StoreError(
            f"the first message of the backup was stored at {time_text(begins[0][1])}: choose a later time, "
            f"or an earlier backup"
        )
    base = max(base for base, first in begins if first <= until_ms)
    return _cut_in(disk, directory, base, file_bytes, until_ms, has_next=base < begins[-1][0])


def _first_ms(disk: Disk, directory: Path, base: int) -> int | None:
    with disk.open_reader(directory / file_name(base)) as reader:
        raw = reader.read(0, record.MIN_RECORD)
    if len(raw) < record.MIN_RECORD or not record.read_head(raw).is_record:
        return None
    return _stored_ms(raw, 0)


def _stored_ms(raw: bytes, at: int) -> int:
    (sys_flag,) = record.SYS_FLAG.unpack(raw, at + record.SYS_FLAG_AT)
    place = record.FIXED[(sys_flag >> 4) & 1].offset["store_timestamp"]
    (stored_ms,) = record.STORE_TIMESTAMP.unpack(raw, at + place)
    return int(stored_ms)


def _cut_in(
    disk: Disk, directory: Path, base: int, file_bytes: int, until_ms: int, *, has_next: bool
) -> Cut | None:
    """Return the cut in a log file that begins at or before the moment."""
    at = last_ms = 0
    with disk.open_reader(directory / file_name(base)) as reader:
        raw, raw_at = b"", 0
        while at + record.HEAD.size <= file_bytes:
            if at + record.MIN_RECORD > raw_at + len(raw):
                raw, raw_at = reader.read(at, _READ_BYTES), at
            head = record.read_head(raw, at - raw_at)
            if not head.is_record or not record.MIN_RECORD <= head.total_size <= file_bytes - at:
                break
            stored_ms = _stored_ms(raw, at - raw_at)
            if stored_ms > until_ms:
                return Cut(base + at, last_ms)
            last_ms = stored_ms
            at += head.total_size
    return Cut(base + file_bytes, last_ms) if has_next else None


def cut(disk: Disk, root: Path, place: Cut, until_ms: int) -> None:
    """Cut the log of a store that no broker runs on, and leave a store that a start recovers. Raises
    StoreError."""
    directory = root / "commitlog"
    for name in disk.list_names(directory):
        if int(name) >= place.log_offset:
            disk.unlink(directory / name)
        elif (region := disk.open_region(directory / name)).size > place.log_offset - int(name):
            region.punch(place.log_offset - int(name))
            region.sync(0, region.size)
            region.close()
        else:
            region.close()
    disk.unlink(root / ENDS, missing_ok=True)
    stamps = Checkpoint(place.last_ms, place.last_ms, max(place.last_ms - 1, 0))
    disk.write_file(root / "checkpoint", checkpoint.encode(stamps))
    disk.write_file(root / "abort", b"0")
    path = root / timer_check.PATH
    raw = disk.read_file(path)
    if raw is not None and len(raw) >= timer_check.FILE_BYTES:
        check = timer_check.decode(raw)
        read_ms = min(check.read_ms, (until_ms - _DELIVERY_MS) // 1000 * 1000)
        page = timer_check.encode_page(check._replace(read_ms=max(read_ms, 0)))
        if not timer_check.is_sealed(raw):
            page = page[: timer_check.LAYOUT.size].ljust(timer_check.FILE_BYTES, b"\0")
        disk.write_file(path, page)


def move_positions(store: MessageStore, until_ms: int) -> None:
    """Let the positions of groups and of delay levels fit a store that was cut and recovered. Raises
    StoreError, FormatError."""
    text = store.read_config(_OFFSETS)
    if text is not None:
        value, _, _ = config_json.read_table(text, _OFFSET_TABLES[0])
        for name in _OFFSET_TABLES:
            if isinstance(table := value.get(name), dict):
                value[name] = {
                    key: _positions(store, str(key).partition("@")[0], config_json.int_keys(queues, str(key)))
                    for key, queues in table.items()
                }
        if isinstance(included := value.get(_POPS_INCLUDED), int):
            value[_POPS_INCLUDED] = min(included, store.log.wrote)
        _write(store, _OFFSETS, value)
    text = store.read_config(_LEVELS)
    if text is not None:
        value, table, _ = config_json.read_table(text, _OFFSET_TABLES[0])
        value[_OFFSET_TABLES[0]] = {
            level: _undelivered(store, level - 1, int(str(offset)), until_ms - _DELIVERY_MS)
            for level, offset in config_json.int_keys(table, _LEVELS).items()
        }
        _write(store, _LEVELS, value)


def _write(store: MessageStore, name: str, value: Mapping[str, object]) -> None:
    """Write the file and its .bak: an older one has positions of messages that are cut."""
    for _ in range(2):
        store.write_config(name, config_json.write(value).encode())


def _positions(store: MessageStore, topic: str, queues: Mapping[int, object]) -> dict[int, int]:
    """Return positions that lead beyond no queue; those of half messages begin again, since what became of
    one may be cut."""
    if topic in (HALF_TOPIC, OP_HALF_TOPIC):
        return {queue_id: store.reads.min_offset(topic, queue_id) for queue_id in queues}
    return {
        queue_id: min(int(str(offset)), store.reads.max_offset(topic, queue_id))
        for queue_id, offset in queues.items()
    }


def _undelivered(store: MessageStore, queue_id: int, offset: int, delivered_ms: int) -> int:
    """Return the offset of the first message of a delay level that was due after `delivered_ms`. The units of
    this topic have the time of delivery in the place of a tag."""
    low = store.reads.min_offset(SCHEDULE_TOPIC, queue_id)
    offset = min(offset, store.reads.max_offset(SCHEDULE_TOPIC, queue_id))
    while offset > low:
        (unit,) = store.reads.read_units(SCHEDULE_TOPIC, queue_id, offset - 1, 1)
        if unit.tags_code <= delivered_ms:
            break
        offset -= 1
    return offset
