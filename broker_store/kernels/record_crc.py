"""The CRC of a whole record, in its last property (docs/spec/store-format.md section 2.4).

    ... | properties ... __CRC32#\\x01dddddddddd\\x02 |    ten digits, the lowest first, of CRC-32 &
                                                           0x7FFFFFFF of all bytes before the pair

Only a pair at the very end counts: one in the middle was copied from another message.
"""

from __future__ import annotations

from broker_store.kernels.crc import crc32
from broker_store.kernels.memory import inlined, load_be64, load_u8, store_be64, store_u8
from broker_store.kernels.record_head import CRC_MASK

PAIR_BYTES = 20
DIGITS = 10
_NAME = int.from_bytes(b"__CRC32#", "big")


@inlined
def has_record_crc(end, properties_length):
    """True if properties that end at address `end` end with the pair."""
    if properties_length < PAIR_BYTES or load_u8(end - 1) != 2:
        return False
    return load_be64(end - PAIR_BYTES) == _NAME and load_u8(end - PAIR_BYTES + 8) == 1


@inlined
def is_record_crc_right(record, total):
    """True if the pair at the end of a record of `total` bytes states the CRC of the bytes before it."""
    value = crc32(record, total - PAIR_BYTES) & CRC_MASK
    at = record + total - DIGITS - 1
    for place in range(DIGITS):
        if load_u8(at + place) != 48 + value % 10:
            return False
        value //= 10
    return True


@inlined
def write_record_crc(record, total):
    """Write the pair into the last PAIR_BYTES of a record whose other bytes are written."""
    value = crc32(record, total - PAIR_BYTES) & CRC_MASK
    at = record + total - PAIR_BYTES
    store_be64(at, _NAME)
    store_u8(at + 8, 1)
    for place in range(DIGITS):
        store_u8(at + 9 + place, 48 + value % 10)
        value //= 10
    store_u8(at + PAIR_BYTES - 1, 2)
