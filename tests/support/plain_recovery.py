"""What a start has to find in a store that a crash left, by reading the files in the plainest way
(docs/spec/store-behaviour.md section 4).

No engine: whole files, one record after another, Python's zlib. Slow, and obvious.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from broker_store.errors import FormatError
from broker_store.formats import checkpoint, record
from broker_store.formats.checkpoint import Checkpoint

SAFETY_MS = 3_000
RECORD_MAGICS = (record.MAGIC_V1, record.MAGIC_V2)


@dataclass
class Plain:
    """What `read` found."""

    abort: bool
    stamps: Checkpoint | None
    tried: list[tuple[str, int | None, bool]]  # file, store time of its first record, taken
    start: str
    end: int  # log offset after the last good record
    messages: int  # good records from the start file on
    bytes: int  # of what was read from the start file on, blanks not counted
    crc_failed: bool
    data_follows: bool


def read(root: Path) -> Plain:
    files = sorted((root / "commitlog").iterdir())
    raw = root / "checkpoint"
    stamps = checkpoint.decode(raw.read_bytes()) if raw.exists() else None
    abort = (root / "abort").exists()
    limit = min(stamps.physic_msg_timestamp, stamps.logics_msg_timestamp) - SAFETY_MS if stamps else 0
    known = max(_known_ends(root), default=0)
    tried, start = [], files[0]
    for file in reversed(files):
        first = first_ms(file.read_bytes(), int(file.name))
        taken = (first is not None and 0 < first <= limit) if abort else int(file.name) <= known
        tried.append((file.name, first, taken))
        if taken:
            start = file
            break
    messages = length = 0
    at = end = 0
    crc_failed = False
    for file in files[files.index(start) :]:
        content, at, base = file.read_bytes(), 0, int(file.name)
        end = base
        while (size := _good(content, at, base)) is not None:
            at, messages = at + size, messages + 1
        length += at
        end = base + at
        if _is_blank(content, at):
            continue
        crc_failed = _crc_fails(content, at)
        break
    return Plain(
        abort, stamps, tried, start.name, end, messages, length, crc_failed, any(content[at : at + 8])
    )


def _known_ends(root: Path) -> list[int]:
    """Where the record of each queue's last unit ends."""
    ends = []
    for directory in root.glob("consumequeue/*/*"):
        for file in sorted(directory.iterdir()):
            for offset, size, _ in struct.iter_unpack(">qiq", file.read_bytes()):
                if size > 0 and offset >= 0 and size != 0x7FFFFFFF:
                    ends.append(offset + size)
    return ends


def first_ms(content: bytes, base: int) -> int | None:
    size = _good(content, 0, base)
    return None if size is None else record.decode(content[:size], log_offset=base).store_timestamp


def _is_blank(content: bytes, at: int) -> bool:
    return len(content) - at >= 8 and struct.unpack_from(">i", content, at + 4)[0] == record.BLANK_MAGIC


def _good(content: bytes, at: int, base: int) -> int | None:
    """The length of the good record that begins at `at`; None when none does."""
    if at + record.MIN_RECORD > len(content):
        return None
    size, magic = struct.unpack_from(">ii", content, at)
    if magic not in RECORD_MAGICS or not record.MIN_RECORD <= size <= len(content) - at:
        return None
    try:
        found = record.decode(content[at : at + size], check_crc=False)
    except FormatError:
        return None
    if found.log_offset != base + at or found.size != size or _crc_fails(content, at):
        return None
    return size


def _crc_fails(content: bytes, at: int) -> bool:
    size, magic = struct.unpack_from(">ii", content, at)
    if magic not in RECORD_MAGICS or not 0 < size <= len(content) - at:
        return False
    try:
        found = record.decode(content[at : at + size], check_crc=False)
    except FormatError:
        return False
    return found.body_crc & 0x7FFFFFFF != zlib.crc32(found.body) & 0x7FFFFFFF
