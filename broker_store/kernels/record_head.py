"""The head of a log record: where its fields are, and the one parser of its lengths.

Offsets, sizes, magic and flags come from the tables in formats/record.py. Numba freezes constants of a module
when it compiles, so this costs nothing at run time. The hash of formats/ is part of the compile cache's name.

    record ┬ total size, magic, CRC, queue id, flag, queue offset, log offset, sys flag, born time, born host
           ├ store time at STORE_TIME_AT, IPV6_MORE later after a born host of IPv6
           ├ store host, reconsume times (tries), prepared offset, body length
           ├ body ─► topic length, topic (name) ─► properties length, properties
           └ end = record + total size
"""

from __future__ import annotations

from broker_store.formats import properties, record
from broker_store.kernels.memory import inlined, load_be16, load_be32, load_u8

_FIXED = record.FIXED_IPV4.offset

MAGIC_V1 = record.MAGIC_V1
MAGIC_V2 = record.MAGIC_V2
BLANK_MAGIC = record.BLANK_MAGIC
BLANK_BYTES = record.BLANK_BYTES
MIN_RECORD = record.MIN_RECORD  # of both versions, with IPv4 hosts, no body, topic or properties
CRC_MASK = record.CRC_MASK
MAX_TOPIC_V1 = record.MAX_TOPIC_V1
MAX_PROPERTIES = record.MAX_PROPERTIES

MAGIC_AT = _FIXED["magic"]
BODY_CRC_AT = _FIXED["body_crc"]
QUEUE_ID_AT = _FIXED["queue_id"]
FLAG_AT = _FIXED["flag"]
QUEUE_OFFSET_AT = _FIXED["queue_offset"]
LOG_OFFSET_AT = _FIXED["log_offset"]
SYS_FLAG_AT = _FIXED["sys_flag"]
BORN_TIME_AT = _FIXED["born_timestamp"]
BORN_HOST_AT = _FIXED["born_address"]
STORE_TIME_AT = _FIXED["store_timestamp"]

HOST_BYTES = STORE_TIME_AT - BORN_HOST_AT  # of an IPv4 host: address and port
IPV6_MORE = record.FIXED[1].offset["store_timestamp"] - STORE_TIME_AT  # bytes by which an IPv6 host is longer
TRIES_AFTER_STORE_TIME = _FIXED["reconsume_times"] - STORE_TIME_AT
STORE_HOST_AFTER_STORE_TIME = _FIXED["store_address"] - STORE_TIME_AT
# From the reconsume times on.
PREPARED_AFTER_TRIES = _FIXED["prepared_transaction_offset"] - _FIXED["reconsume_times"]
BODY_LENGTH_AFTER_TRIES = _FIXED["body_length"] - _FIXED["reconsume_times"]
BODY_AFTER_TRIES = record.FIXED_IPV4.size - _FIXED["reconsume_times"]
TOPIC_LENGTH_BYTES_V1 = record.TOPIC_LENGTH[record.MAGIC_V1].size
TOPIC_LENGTH_BYTES_V2 = record.TOPIC_LENGTH[record.MAGIC_V2].size
PROPERTIES_LENGTH_BYTES = record.PROPERTIES_LENGTH.size
# The bytes after the name and after the value of a property.
NAME_END, PROPERTY_END = ord(properties.NAME_VALUE_SEPARATOR), ord(properties.PAIR_SEPARATOR)

BORN_IPV6 = record.SYS_BORN_IPV6
STORE_IPV6 = record.SYS_STORE_IPV6
TRANSACTION_MASK = record.SYS_TRANSACTION_MASK
TRANSACTION_NONE = record.TRANSACTION_NONE
TRANSACTION_COMMIT = record.TRANSACTION_COMMIT
TRANSACTION_ROLLBACK = record.TRANSACTION_ROLLBACK
INNER_BATCH = record.SYS_INNER_BATCH

# A message inside the body of a batch: this head, body, properties length, properties.
BATCHED_FLAG_AT = record.BATCHED.offset["flag"]
BATCHED_BODY_LENGTH_AT = record.BATCHED.offset["body_length"]
BATCHED_BODY_AT = record.BATCHED.size
MIN_BATCHED = record.BATCHED.size + PROPERTIES_LENGTH_BYTES


@inlined
def is_record_magic(magic):
    """True if a record of either version begins with this magic."""
    return magic == MAGIC_V1 or magic == MAGIC_V2


@inlined
def is_queued(sys_flag):
    """True if a record has a unit in its queue: prepared and rolled-back messages have none."""
    transaction = sys_flag & TRANSACTION_MASK
    return transaction == TRANSACTION_NONE or transaction == TRANSACTION_COMMIT


@inlined
def is_indexed(sys_flag):
    """True if the keys of a record are in the index: only those of rolled-back messages are not."""
    return sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK


@inlined
def store_time_at(record, sys_flag):
    """Return the address of the store time."""
    return record + STORE_TIME_AT + (IPV6_MORE if sys_flag & BORN_IPV6 else 0)


@inlined
def tries_at(store_at, sys_flag):
    """Return the address of the reconsume times, given that of the store time."""
    return store_at + TRIES_AFTER_STORE_TIME + (IPV6_MORE if sys_flag & STORE_IPV6 else 0)


@inlined
def bounded_parts(record, total):
    """Return `parts_of` a record whose lengths are not verified yet; all 0 where they do not add up to the
    total size.

    The caller has verified the magic, that the total size is MIN_RECORD or more, and that all its bytes are
    there.
    """
    none = 0, 0, 0, 0, 0, 0, 0, 0
    end = record + total
    sys_flag = load_be32(record + SYS_FLAG_AT)
    store_at = store_time_at(record, sys_flag)
    tries = tries_at(store_at, sys_flag)
    body = tries + BODY_AFTER_TRIES
    if body > end:
        return none
    body_length = load_be32(tries + BODY_LENGTH_AFTER_TRIES)
    if body_length < 0 or body_length > end - body - TOPIC_LENGTH_BYTES_V1 - PROPERTIES_LENGTH_BYTES:
        return none
    name = body + body_length
    if load_be32(record + MAGIC_AT) == MAGIC_V1:
        name_length = load_u8(name)
        name += TOPIC_LENGTH_BYTES_V1
        if name_length > MAX_TOPIC_V1:
            return none
    else:
        name_length = load_be16(name)
        name += TOPIC_LENGTH_BYTES_V2
    if name_length < 0 or name_length > end - name - PROPERTIES_LENGTH_BYTES:
        return none
    properties = name + name_length + PROPERTIES_LENGTH_BYTES
    properties_length = load_be16(properties - PROPERTIES_LENGTH_BYTES)
    if properties_length < 0 or properties + properties_length != end:
        return none
    return sys_flag, store_at, tries, body_length, name, name_length, properties, properties_length


@inlined
def parts_of(record):
    """Return (sys flag, store time at, tries at, body's length, topic at, length, properties at, length) of a
    valid record."""
    return bounded_parts(record, load_be32(record))
