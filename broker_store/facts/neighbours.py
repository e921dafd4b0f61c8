"""The records of a log file before and after a place at which perhaps no record begins.

Records can only be followed forwards, from a known one. Backwards, and after damage, they are found by what
each states of itself: its magic, a size that fits the file, and its own place in the log. Bytes of a body
that state the place at which they lie do not occur by chance.
"""

from __future__ import annotations

from broker_store.engine.disk.file_access import Reader
from broker_store.formats import record

SEARCH_BYTES = 8 << 20  # of a file, searched for the next or previous record: twice the largest message
_PIECE = 256 << 10
_STATED_AT = record.FIXED_IPV4.offset["log_offset"]  # the same in all four tables
_STATES = _STATED_AT + 8  # bytes of a record from which its size, magic and stated place are read
_MAGICS = tuple(record.HEAD.pack(0, magic)[4:] for magic in (record.MAGIC_V1, record.MAGIC_V2))
_MARK = _MAGICS[0][:3]  # what both begin with
# Bytes. The largest message is a setting, so a record may be larger than this broker makes them.
MAX_FOREIGN_RECORD = record.MAX_RECORD + (16 << 20)


def next_record(reader: Reader, base: int, size: int, start: int) -> int | None:
    """The first place in a log file, from `start` on, at which something begins that states this very place;
    None within SEARCH_BYTES."""
    at, end = start, min(size, start + SEARCH_BYTES)
    while at < end:
        piece = reader.read(at, _PIECE + _STATES)
        hit = piece.find(_MARK)
        while hit >= 0:
            if (
                start <= at + hit - 4 < size
                and hit >= 4
                and _states_itself(piece, hit - 4, base + at + hit - 4, size - (at + hit - 4))
            ):
                return at + hit - 4
            hit = piece.find(_MARK, hit + 1)
        if len(piece) <= _STATES:
            return None
        at += len(piece) - _STATES
    return None


def record_before(reader: Reader, base: int, size: int, place: int) -> tuple[int, int] | None:
    """(start, size) of the nearest record of a log file that begins before `place`; None within
    SEARCH_BYTES."""
    end, low = place, max(0, place - SEARCH_BYTES)
    while end > low:
        at = max(low, end - _PIECE)
        piece = reader.read(at, end - at + _STATES)
        hit = piece.rfind(_MARK)
        while hit >= 0:
            start = hit - 4
            if (
                start >= 0
                and at + start < place
                and _states_itself(piece, start, base + at + start, size - (at + start))
            ):
                return at + start, record.read_head(piece, start).total_size
            hit = piece.rfind(_MARK, 0, hit + len(_MARK) - 1)
        end = at
    return None


def _states_itself(piece: bytes, start: int, log_offset: int, left: int) -> bool:
    if len(piece) < start + _STATES or piece[start + 4 : start + 8] not in _MAGICS:
        return False
    stated = int.from_bytes(piece[start + _STATED_AT : start + _STATES], "big")
    return stated == log_offset and record.MIN_RECORD <= record.read_head(piece, start).total_size <= min(
        left, MAX_FOREIGN_RECORD
    )
