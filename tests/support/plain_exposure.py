"""What a start after a crash would do with the files of a store: read slowly, record by record, without the
engine.

The rule is Apache's: the newest log file whose first record was stored no later than three seconds before the
older of the checkpoint's first two stamps; the oldest file when there is none. From there all records are
read to where none follows.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

RECORD_MAGICS = (0xDAA320A7, 0xDAA320AB)
BLANK_MAGIC = 0xCBD43194


@dataclass
class Start:
    file: str
    position: int
    log_end: int

    @property
    def rescan_bytes(self) -> int:
        return self.log_end - self.position


def start_of(store: Path) -> Start:
    files = sorted((store / "commitlog").iterdir())
    limit_ms = checkpoint_limit_ms(store)
    chosen = files[0]
    for file in files[::-1]:
        first_ms = first_stored_ms(file.read_bytes())
        if first_ms is not None and 0 < first_ms <= limit_ms:
            chosen = file
            break
    end = position = int(chosen.name)
    for file in files[files.index(chosen) :]:
        raw = file.read_bytes()
        good, is_closed = read_records(raw)
        end = int(file.name) + good
        if not is_closed:
            break
        end = int(file.name) + len(raw)
    return Start(chosen.name, position, end)


def checkpoint_limit_ms(store: Path) -> int:
    path = store / "checkpoint"
    raw = path.read_bytes() if path.exists() else b""
    if len(raw) < 16:
        return 0
    log_ms, queues_ms = struct.unpack(">qq", raw[:16])
    return max(0, min(log_ms, queues_ms) - 3000)


def first_stored_ms(raw: bytes) -> int | None:
    """Store time of the record with which a log file begins, None when that is not whole."""
    size, magic = struct.unpack(">iI", raw[:8])
    if magic not in RECORD_MAGICS or not is_sound(raw[:size]):
        return None
    (flags,) = struct.unpack(">i", raw[36:40])
    at = 48 + (20 if flags & 0x10 else 8)
    return struct.unpack(">q", raw[at : at + 8])[0]


def read_records(raw: bytes) -> tuple[int, bool]:
    """(bytes of good records, whether a blank closes the file after them)."""
    at = 0
    while at + 8 <= len(raw):
        size, magic = struct.unpack(">iI", raw[at : at + 8])
        if magic == BLANK_MAGIC:
            return at, True
        if magic not in RECORD_MAGICS or size <= 0 or not is_sound(raw[at : at + size]):
            return at, False
        at += size
    return at, False


def is_sound(record: bytes) -> bool:
    """Whether its body is the one that its checksum is of."""
    (crc,) = struct.unpack(">i", record[8:12])
    (flags,) = struct.unpack(">i", record[36:40])
    at = 48 + (20 if flags & 0x10 else 8) + 8 + (20 if flags & 0x20 else 8) + 4 + 8
    (length,) = struct.unpack(">i", record[at : at + 4])
    body = record[at + 4 : at + 4 + length]
    return zlib.crc32(body) & 0x7FFFFFFF == crc
