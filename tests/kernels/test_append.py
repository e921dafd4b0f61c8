"""The append kernel writes what the formats encode, byte for byte, and refuses before it writes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.formats import properties, record
from broker_store.messages import Message, PutStatus
from tests.support import engine_data
from tests.support.engine_data import encode_batch, hand_store, log_files
from tests.support.reference import walk_log


def expected_log(store, stored) -> bytes:
    """The log that the formats make of (message, queue offset, store time), files back to back."""
    log, size = b"", store.log.file_size
    for message, queue_offset, now_ms in stored:
        encoded = record.encode(message, queue_offset, 0, now_ms)
        left = size - len(log) % size
        if len(encoded) + record.BLANK_BYTES > left:
            log += record.encode_blank(left).ljust(left, b"\0")
        log += record.encode(message, queue_offset, len(log), now_ms)
    return log


def written_log(store) -> bytes:
    return b"".join(content for _, content in log_files(store))[: store.log.wrote]


@given(st.lists(engine_data.messages, min_size=1, max_size=12), st.booleans())
def test_a_group_of_messages_is_the_records_the_formats_encode(messages, one_by_one):
    store = hand_store(max_index_num=4000)
    results = (
        [store.appender.put(message) for message in messages]
        if one_by_one
        else store.appender.put_many(messages)
    )
    stored = []
    for message, result in zip(messages, results, strict=True):
        if len(message.topic) > 127 and not message.topic.startswith("%RETRY%"):
            assert result.status is PutStatus.MESSAGE_ILLEGAL
            continue
        assert result.ok
        message.store_host = message.store_host or store.appender.store_host
        stored.append((message, result.queue_offset, result.store_timestamp))
    assert written_log(store) == expected_log(store, stored)
    walk = walk_log(log_files(store))
    assert [found.log_offset for found in walk.records] == [
        result.log_offset for result in results if result.ok
    ]
    store.die()


@given(engine_data.messages, engine_data.inner_messages)
def test_a_batch_is_its_inner_messages_with_the_outer_properties_behind_their_own(message, inner):
    message.body, message.sys_flag, message.topic = encode_batch(inner), message.sys_flag & ~0xC, "batch"
    store = hand_store()
    result = store.appender.put_batch(message)
    stored = []
    for number, (flag, body, own) in enumerate(inner):
        single = Message(**{name: getattr(message, name) for name in Message.__slots__})
        single.flag, single.body, single.properties = flag, body, properties.append(own, message.properties)
        single.store_host = message.store_host or store.appender.store_host
        stored.append((single, number, result.store_timestamp))
    assert (result.status, result.count, result.queue_offset) == (PutStatus.PUT_OK, len(inner), 0)
    assert written_log(store) == expected_log(store, stored)
    assert list(result.log_offsets) == [found.log_offset for found in walk_log(log_files(store)).records]
    store.die()


def with_crc(raw: bytes) -> bool:
    return record.decode(raw).raw_properties.endswith(record.record_crc_pair(raw[: -record.RECORD_CRC_BYTES]))


@given(st.lists(engine_data.messages, min_size=1, max_size=6), st.booleans())
def test_with_the_crc_of_records_each_ends_with_that_of_its_own_bytes(messages, one_by_one):
    store = hand_store(max_index_num=4000, enabled_append_prop_crc=True)
    results = (
        [store.appender.put(message) for message in messages]
        if one_by_one
        else store.appender.put_many(messages)
    )
    for message, result in zip(messages, results, strict=True):
        if result.ok:
            raw = store.reads.records.record_at(result.log_offset)
            assert with_crc(raw)
            assert record.decode(raw).properties.items() >= properties.decode(message.properties).items()
    store.die()


@given(engine_data.messages, engine_data.inner_messages)
def test_with_the_crc_of_records_each_of_a_batch_has_one(message, inner):
    message.body, message.sys_flag, message.topic = encode_batch(inner), message.sys_flag & ~0xC, "batch"
    store = hand_store(enabled_append_prop_crc=True)
    result = store.appender.put_batch(message)
    assert result.count == len(inner) and all(
        with_crc(store.reads.records.record_at(offset)) for offset in result.log_offsets
    )
    store.die()


def test_a_crc_that_came_with_the_properties_of_another_record_is_made_right():
    store = hand_store()
    stale = b"a\1b\2" + record.record_crc_pair(b"another record")
    raw = store.reads.records.record_at(store.appender.put(Message("T", 0, b"body", stale)).log_offset)
    assert with_crc(raw) and len(record.decode(raw).raw_properties) == len(stale)
    store.die()


def put(message, batch=False, **changes):
    store = hand_store(**changes)
    before = store.log.wrote
    result = (store.appender.put_batch if batch else store.appender.put)(message)
    wrote = store.log.wrote - before
    nothing_there = not any(written_log(store))
    store.die()
    assert result.ok or (wrote == 0 and nothing_there and result.log_offset == -1)
    return result.status


def test_properties_up_to_the_limit_are_taken_and_one_byte_more_is_refused():
    most = b"a\x01" + b"x" * (32767 - 3) + b"\x02"
    assert put(Message("T", 0, b"", most), mapped_file_size_commit_log=65536) is PutStatus.PUT_OK
    assert (
        put(Message("T", 0, b"", most + b"x"), mapped_file_size_commit_log=65536)
        is PutStatus.PROPERTIES_SIZE_EXCEEDED
    )


def test_a_nul_in_the_properties_is_refused_because_recovery_takes_it_for_a_torn_page():
    assert put(Message("T", 0, b"b", b"KEYS\x01a\x00b\x02")) is PutStatus.MESSAGE_ILLEGAL
    assert (
        put(Message("T", 0, encode_batch([(0, b"b", b"KEYS\x01\x00\x02")])), batch=True)
        is PutStatus.MESSAGE_ILLEGAL
    )


def test_a_record_that_fits_no_file_is_refused_and_one_that_just_fits_is_taken():
    room = 16384 - record.BLANK_BYTES - record.MIN_RECORD - 1
    assert put(Message("T", 0, b"x" * room)) is PutStatus.PUT_OK
    assert put(Message("T", 0, b"x" * (room + 1))) is PutStatus.MESSAGE_ILLEGAL


def _lying(field: str, value: int) -> bytes:
    """A chain of three whose second has a wrong length field."""
    chain = bytearray(
        encode_batch([(0, b"one", b"A\x01b\x02"), (0, b"two", b"A\x01bc\x02"), (0, b"three", b"")])
    )
    second = struct.unpack_from(">i", chain)[0]
    at = {"size": second, "body": second + 16, "properties": second + 20 + 3}[field]
    struct.pack_into(">h" if field == "properties" else ">i", chain, at, value)
    return bytes(chain)


@pytest.mark.parametrize("field", ["size", "body", "properties"])
@pytest.mark.parametrize("value", [-(2**15), -1, 0, 1, 4, 21, 2**15 - 1])
def test_a_batch_whose_lengths_lie_is_refused_whole(field, value):
    assert put(Message("T", 0, _lying(field, value)), batch=True) is PutStatus.MESSAGE_ILLEGAL


@pytest.mark.parametrize("length", range(1, 22))
def test_a_batch_that_is_cut_short_is_refused_whole(length):
    chain = encode_batch([(0, b"one", b"A\x01b\x02"), (0, b"", b"")])
    assert put(Message("T", 0, chain[:-length]), batch=True) is PutStatus.MESSAGE_ILLEGAL


def test_an_empty_batch_is_refused():
    assert put(Message("T", 0, b""), batch=True) is PutStatus.MESSAGE_ILLEGAL


def test_of_a_group_the_refused_ones_leave_no_gap():
    store = hand_store()
    good, bad = Message("T", 0, b"good"), Message("T", 0, b"bad", b"\x00")
    results = store.appender.put_many([good, bad, good, bad, good])
    assert [result.ok for result in results] == [True, False, True, False, True]
    assert [result.queue_offset for result in results if result.ok] == [0, 1, 2]
    assert results[2].log_offset == results[0].log_end
    store.die()


def test_prepared_and_rolled_back_messages_take_no_queue_offset():
    store = hand_store()
    offsets = [
        store.appender.put(Message("T", 0, b"x", sys_flag=flag)).queue_offset for flag in (0, 4, 12, 8, 0)
    ]
    assert offsets == [0, 0, 0, 1, 2]
    assert store.reads.max_offset("T", 0) == 3
    store.die()
