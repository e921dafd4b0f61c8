"""Walk: one step along the records of a stretch of the log in memory, for the kernels that make tables of it.

The stretch may end anywhere. A record that its end cuts off is left for the next read of the log. The words
that these kernels share are defined here; each kernel has more of its own from W_OWN on.
"""

from __future__ import annotations

from broker_store.kernels import context as c
from broker_store.kernels.memory import inlined, load_be32
from broker_store.kernels.record_head import BLANK_BYTES, BLANK_MAGIC, MAGIC_AT, is_record_magic
from broker_store.kernels.scan import check_record

W_ADDRESS = 0  # of the stretch in memory
W_LENGTH = 1  # its bytes
W_BASE = 2  # log offset of its first byte
W_FILE_LEFT = 3  # bytes from the stretch's start to the end of its log file
W_AT = 4  # in and out: next position in the stretch
W_MAX_RECORD = 5
W_ROWS = 6  # address of room for rows
W_ROOM = 7  # how many
W_COUNT = 8  # in and out: rows that are there
W_IS_FULL = 9  # out: 1 when there was no room for the record at W_AT
W_REASON = 10  # out: what is wrong with the record at W_AT
W_OWN = 11
W_WORDS = 16


@inlined
def next_record(address, length, base, file_left, max_record, at):
    """Return (size of the valid record at position `at`, 0, 0), or (0, why the walk ends, REASON_*):
    EXHAUSTED, LOG_FILE_END (a blank) or BAD_RECORD."""
    left = length - at
    if left < BLANK_BYTES:
        if file_left - at < BLANK_BYTES:
            return 0, c.BAD_RECORD, c.REASON_NOT_A_RECORD
        return 0, c.EXHAUSTED, 0
    total = load_be32(address + at)
    magic = load_be32(address + at + MAGIC_AT)
    if magic == BLANK_MAGIC:
        return 0, c.LOG_FILE_END, 0
    if is_record_magic(magic) and left < total <= max_record and total <= file_left - at:
        return 0, c.EXHAUSTED, 0
    size, reason = check_record(address + at, left, base + at, max_record, True, False)
    if reason != 0:
        return 0, c.BAD_RECORD, reason
    return size, 0, 0
