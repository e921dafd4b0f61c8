"""Does a record state what the queue unit that led to it states?

A unit states topic, queue and number by its place, and a record by its log offset and the hash of its tag. If
a record contradicts its unit, one of them is damaged: in both cases a reader would get another message than
the queue holds. Light queues are left out, since their units lead to records of other topics. Where units
hold a delivery time, there is no hash to compare.
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels.dispatch import find_properties
from broker_store.kernels.index import java_hash
from broker_store.kernels.memory import get, inlined, load64, load_be32, load_be64, load_u8, same_bytes
from broker_store.kernels.record_head import QUEUE_ID_AT, QUEUE_OFFSET_AT, parts_of
from broker_store.kernels.scan import is_as_stored

_LMQ = int.from_bytes(b"%LMQ", "big")
_PERCENT = 37
_INT32 = 1 << 31


@inlined
def is_light(topic, length):
    """True if this is the name of a light queue."""
    return length >= 5 and load_be32(topic) == _LMQ and load_u8(topic + 4) == _PERCENT


@inlined
def states_place(record, queue_id, number):
    """True if the record states this queue and number."""
    return load_be32(record + QUEUE_ID_AT) == queue_id and load_be64(record + QUEUE_OFFSET_AT) == number


@inlined
def states_topic_and_tag(record, topic, topic_length, is_delayed, tags_code):
    """True if a record whose lengths are right is of this topic and its tag has the hash `tags_code`."""
    _, _, _, _, name, name_length, properties, properties_length = parts_of(record)
    if name_length != topic_length or not same_bytes(topic, name, name_length):
        return False
    # a time, or the position of an extended unit
    if is_delayed or tags_code < -_INT32 or tags_code >= _INT32:
        return True
    _, _, tags, tags_length, _, _ = find_properties(properties, properties_length)
    return tags_code == (java_hash(0, tags, tags_length) if tags != 0 else 0)


# The words of `count_agreeing`.
O_BYTES = 0  # address of bytes of the log, and the log offset of the first
O_BASE = 1
O_TABLE = 2  # address of O_WORDS_PER_UNIT words for each unit: log offset, size, number, tags code
O_COUNT = 3
O_TOPIC = 4  # address of the queue's topic, its length, and the queue's id
O_TOPIC_LENGTH = 5
O_QUEUE_ID = 6
O_IS_DELAYED = 7
O_WORDS = 8
WORDS_PER_UNIT = 4


@njit(types.int64(types.int64), cache=True, nogil=True)
def count_agreeing(context):
    """Return how many of the first units lead to records that are as they were stored and agree with them."""
    topic, topic_length = get(context, O_TOPIC), get(context, O_TOPIC_LENGTH)
    compares = not is_light(topic, topic_length)
    for number in range(get(context, O_COUNT)):
        unit = get(context, O_TABLE) + 8 * WORDS_PER_UNIT * number
        place = load64(unit)
        record = get(context, O_BYTES) + place - get(context, O_BASE)
        if not is_as_stored(record, load64(unit + 8), place):
            return number
        if compares:
            if not states_place(record, get(context, O_QUEUE_ID), load64(unit + 16)):
                return number
            if not states_topic_and_tag(
                record, topic, topic_length, get(context, O_IS_DELAYED) == 1, load64(unit + 24)
            ):
                return number
    return get(context, O_COUNT)
